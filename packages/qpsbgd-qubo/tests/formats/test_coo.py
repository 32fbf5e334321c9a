import pytest

pytest.importorskip("dimod", reason="needs dimod")

import dimod
import numpy as np
from dimod.serialization import coo

from qpsbgd_qubo.problem_files import read_problem


@pytest.mark.parametrize(("name", "vartype"), [("p.txt", "SPIN"), ("p.coo", "BINARY"), ("p.txt.gz", "BINARY")])
def test_what_dimod_writes_comes_back(write, assignments, values_of, name, vartype):
    bqm = dimod.generators.gnp_random_bqm(6, 0.6, vartype, random_state=1)
    bqm.add_linear_from({variable: 0.25 * variable for variable in bqm.variables})
    problem = read_problem(write(name, coo.dumps(bqm, vartype_header=True)))
    again = coo.loads(coo.dumps(bqm, vartype_header=True))  # it writes six digits
    assert (problem.vartype, problem.format, problem.maximize) == (vartype, "coo", False)
    bits = assignments(6)
    own = again.energies((bits if vartype == "BINARY" else 2 * bits - 1, range(6)))
    assert values_of(problem, bits) == pytest.approx(own)


@pytest.mark.parametrize("comment", ["# vartype: SPIN", "  # x, vartype = SPIN", "# a\n\n# vartype=SPIN"])
def test_the_vartype_may_be_written_in_several_ways(write, comment):
    assert read_problem(write("p.txt", f"{comment}\n0 1 2\n")).vartype == "SPIN"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# vartype=TERNARY\n0 1 2\n", "line 1: the vartype must be SPIN or BINARY, got 'TERNARY'"),
        ("0 1\n", "line 1: every entry must have a value.*got '0 1'"),
        ("# nothing\n", "is empty"),
        ("0 1 2\n0 10000000 1\n", "line 2: i and j must be from 0 to 9999999, got '0 10000000 1'"),
        ("0 1 2\n0 99999999999999999999 1\n", "line 2: i and j must be from 0 to 9999999"),
        ("0 1 2\n0 -99999999999999999999 1\n", "line 2: i and j must be from 0 to 9999999"),
        ("0 1 2\n0 1.0 1\n", "line 2 must be `i j value` with integers i and j, got '0 1.0 1'"),
    ],
)
def test_a_bad_file_is_refused(write, text, message):
    with pytest.raises(ValueError, match=message):
        read_problem(write("p.coo", text))


def test_indices_that_never_come_are_variables_without_coefficients(write):
    problem = read_problem(write("p.coo", "2 4 1\n"))
    assert problem.labels == (0, 1, 2, 3, 4)
    assert np.diff(problem.model.indptr).tolist() == [0, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.coo", "9999998 9999999 1\n"),
        ("p.qubo", "p qubo 0 9999999 1 0\n1 1 1\n"),
        ("p.mtx", "%%MatrixMarket matrix coordinate real symmetric\n9999999 9999999 1\n2 2 3\n"),
        ("p.sparse", "9999999 1\n1 2 3\n"),
    ],
)
def test_a_few_bytes_do_not_become_millions_of_variables(write, name, text):
    with pytest.raises(MemoryError, match="of 1 entries may have up to 1000000 variables"):
        read_problem(write(name, text))


def test_a_comment_that_only_resembles_a_vartype_is_refused(tmp_path):
    (tmp_path / "p.coo").write_text("# vartpye=SPIN\n0 1 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 1: .*must be `# vartype=SPIN`"):
        read_problem(tmp_path / "p.coo")
