import re

import numpy as np
import pytest

from qpsbgd_qubo.problem_files import read_problem
from qpsbgd_qubo.solvers import make_solver
from qpsbgd_qubo.sparse import SparseIsing

TRIANGLE = "3 3\n1 2 1\n2 3 1\n1 3 1\n"
QUBO = "3 4\n1 1 5\n1 2 -3\n2 2 4\n3 3 -1\n"


def listed(entries, n):
    """A file of {(i, j): value}, counted from 0."""
    return f"{n} {len(entries)}\n" + "".join(f"{i + 1} {j + 1} {value}\n" for (i, j), value in entries.items())


def solved(problem):
    """The problem's own best value, proven, and the assignment."""
    solution = make_solver("exact").solve(problem.family)
    assert solution.proven_optimal.all()
    return problem.energies(solution.spins).item(), problem.values(solution.spins)[:, 0].tolist()


@pytest.mark.parametrize(("format", "seed"), [("beasley", 0), ("biqmac", 1), ("beasley", 2)])
def test_a_qubo_is_the_quadratic_form_of_its_symmetric_matrix(write, assignments, values_of, format, seed):
    n = 6
    generator = np.random.default_rng(seed)
    matrix = np.triu(generator.integers(-9, 10, (n, n)) * (generator.random((n, n)) < 0.7))
    problem = read_problem(
        write("p.txt", listed({(i, j): matrix[i, j] for i, j in np.argwhere(matrix)}, n)), format=format
    )
    symmetric = matrix + np.triu(matrix, 1).T
    bits = assignments(n)
    own = np.einsum("ki,ij,kj->k", bits, symmetric, bits)
    assert isinstance(problem.model, SparseIsing)
    assert (problem.vartype, problem.labels, problem.format) == ("BINARY", tuple(range(1, n + 1)), format)
    assert values_of(problem, bits).tolist() == own.tolist()
    value, answer = solved(problem)
    assert value == (own.max() if format == "beasley" else own.min())
    assert np.array(answer) @ symmetric @ np.array(answer) == value


@pytest.mark.parametrize("seed", range(2))
def test_a_graph_is_the_weight_between_its_sides(write, assignments, values_of, seed):
    n = 7
    generator = np.random.default_rng(seed)
    edges = [(i, j) for i in range(n) for j in range(i) if generator.random() < 0.6]
    weights = {edge: int(generator.integers(-3, 4)) for edge in edges}
    problem = read_problem(write("p.rud", listed(weights, n)))
    bits = assignments(n)
    cuts = np.array([sum(w for (i, j), w in weights.items() if row[i] != row[j]) for row in bits])
    assert (problem.maximize, problem.quantity, problem.format) == (True, "cut", "maxcut")
    assert values_of(problem, bits).tolist() == cuts.tolist()
    assert solved(problem)[0] == cuts.max()


def test_known_instances_have_their_known_optima(write):
    petersen = "10 15\n" + "".join(
        f"{i + 1} {(i + 1) % 5 + 1} 1\n{i + 1} {i + 6} 1\n{i + 6} {(i + 2) % 5 + 6} 1\n" for i in range(5)
    )
    assert solved(read_problem(write("petersen.mc", petersen)))[0] == 12
    complete = "6 15\n" + "".join(f"{i} {j} 1\n" for i in range(1, 7) for j in range(1, i))
    assert solved(read_problem(write("k6.rud", complete)))[0] == 9
    sample = "# [5 -6 0; -6 3 -1; 0 -1 1]\n3 5\n1 1 5\n2 2 3\n3 3 1\n1 2 -6\n2 3 -1\n"
    assert solved(read_problem(write("sample.txt", sample))) == (6, [1, 0, 1])


def test_a_graph_without_values_has_weights_of_one(write):
    problem = read_problem(write("p.txt", "3 3\n1 2\n2 3\n1 3\n"))
    assert problem.format == "maxcut"
    assert solved(problem)[0] == 2


@pytest.mark.parametrize("name", ["p.txt", "G1", "g05_60.0", "p.txt.gz", "pm1s_80.9.gz"])
def test_a_file_that_may_be_qubo_or_graph_is_refused_with_both_lines_to_type(write, name):
    path = write(name, TRIANGLE)
    with pytest.raises(ValueError, match=r"may be a QUBO .*maximised, or a graph") as caught:
        read_problem(path)
    message = str(caught.value)
    for format in ("beasley", "maxcut"):
        assert f"`qpsbgd-qubo solve {path} --format {format}`" in message
        assert f"format={format!r}" in message
    assert "\n" not in message
    assert solved(read_problem(path, format="beasley"))[0] == 6
    assert solved(read_problem(path, format="biqmac"))[0] == 0
    assert solved(read_problem(path, format="maxcut"))[0] == 2


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("p.txt", QUBO, "beasley"),  # a graph has no loops
        ("p.txt", f"1\n{TRIANGLE}", "beasley"),  # a graph comes without a number before it
        ("p.RUD", TRIANGLE, "maxcut"),
        ("p.rudy", TRIANGLE, "maxcut"),
        ("p.mc.gz", TRIANGLE, "maxcut"),
        ("p.gset", TRIANGLE, "maxcut"),
        ("p.sparse", TRIANGLE, "biqmac"),
        ("p.sparse.gz", QUBO, "biqmac"),
    ],
)
def test_what_content_or_suffix_tell_is_believed(write, name, text, format):
    assert read_problem(write(name, text)).format == format


def test_comments_blank_lines_and_line_ends_do_not_matter(write):
    text = "\ufeff# by hand\r\n\r\n 3   3 # nodes, edges\r\n1\t2 1 # one\r\n\r\n# two\r\n2 3 +1.0\r\n1 3 1e0"
    assert solved(read_problem(write("p.rud", text)))[0] == 2


SEVERAL = f"3\n{QUBO}2 1\n1 2 3\n\n# the last\n1 1\n1 1 7\n"


def test_one_of_several_problems_is_chosen_by_its_number(write):
    path = write("p.txt", SEVERAL)
    assert [solved(read_problem(path, number=number))[0] for number in (1, 2, 3)] == [5, 6, 7]
    assert len(read_problem(path, number=1, format="beasley").labels) == 3


def test_a_long_list_of_problems_is_cut(write):
    for count, last in ((30, "30: n = 1, 1 entries"), (31, "29: n = 1, 1 entries; ...")):
        with pytest.raises(ValueError, match=re.escape(f"; {last}); choose one")):
            read_problem(write("p.txt", f"{count}\n" + "1 1\n1 1 7\n" * count))
    with pytest.raises(ValueError, match=r"99 problems \(1: .*29: n = 1, 1 entries; \.\.\.\)"):
        read_problem(write("p.txt", "99\n" + "1 1\n1 1 7\n" * 99))


@pytest.mark.parametrize("number", [0, 4, -1])
def test_there_is_no_problem_of_another_number(write, number):
    with pytest.raises(ValueError, match=rf"holds 3 problem\(s\), counted from 1, so there is no number {number}"):
        read_problem(write("p.txt", SEVERAL), number=number)
    with pytest.raises(ValueError, match="holds a single problem"):
        read_problem(write("p.txt", QUBO), number=number)


BAD = {
    "a loop": ("3 2\n1 2 1\n\n3 3 1\n", "maxcut", "line 4: an edge must join two different nodes.*got '3 3 1'"),
    "an edge again": ("3 3\n1 2 1\n1 3 1\n2 1 1\n", "maxcut", "line 4: every edge must be listed once.*got '2 1 1'"),
    "an entry again": (
        "3 2\n1 2 1\n2 1 1\n",
        "beasley",
        "line 3: every entry of the symmetric matrix must be listed once",
    ),
    "no value": ("2 1\n1 2\n", "beasley", "line 2: every entry of a QUBO must have a value.*got '1 2'"),
    "a value missing": ("2 2\n1 2 1\n1 1\n", "beasley", "line 3 must be `i j value`.*got '1 1'"),
    "a value too many": ("2 2\n1 2\n1 1 3\n", "maxcut", "line 3 must be `i j` .*got '1 1 3'"),
    "several graphs": (f"1\n{TRIANGLE}", "maxcut", "line 1 must hold integers `n count`, got '1'"),
    "several of biqmac": (f"1\n{QUBO}", "biqmac", "line 1 must hold integers `n count`, got '1'"),
    "cut off": ("3 3\n1 2 1\n", "maxcut", "must hold 3 entries as its header says, but holds 1"),
    "cut off inside": ("2\n3 3\n1 2 1\n", "beasley", "ends before problem 2 of 2"),
    "too many": ("3 1\n1 2 1\n1 3 1\n", "maxcut", "must hold 1 entries as its header says, but holds 2"),
    "index of zero": ("3 1\n0 2 1\n", "maxcut", "line 2: i and j must be from 1 to 3, got '0 2 1'"),
    "huge index": ("3 1\n1 99999999999999999999 1\n", "maxcut", "line 2: i and j must be from 1 to 3, got"),
    "huge n": ("300000000000 1\n1 2 1\n", "maxcut", "up to 10000000 variables, got 300000000000"),
    "negative header": ("-3 1\n1 2 1\n", "maxcut", "line 1 must hold integers `n count`, got '-3 1'"),
    "NaN": ("3 1\n1 2 nan\n", "maxcut", "line 2: the value must be finite, not NaN or infinite, got '1 2 nan'"),
    "overflow": ("3 1\n1 2 1e999\n", "maxcut", "line 2: the value must be finite"),
    "a word": ("3 2\n1 2 1\n1 3 many\n", "maxcut", "line 3 must be `i j value`.*got '1 3 many'"),
    "a long line": ("3 1\n" + "1 " * 99 + "\n", "maxcut", r"line 2 must be .*got '(1 ){28}1\.\.\.'"),
    "an underscore": ("30 1\n1_0 2 1\n", "maxcut", "line 2 must be `i j value`"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_shown_with_its_number(write, case):
    text, format, message = BAD[case]
    path = write("p.txt", text)
    with pytest.raises(ValueError, match=message) as caught:
        read_problem(path, format=format, number=2 if case == "cut off inside" else None)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
