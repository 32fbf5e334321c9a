import pytest

from qpsbgd_qubo.problem_files import read_problem

EXAMPLE = """c  a comment
p  qubo  0  4  4  6
c ------------------
0  0   3.4
1  1   4.5
2  2   2.1
3  3   -2.4
c couplers
0  1   2.2
0  2   3.4
1  2   4.5
0  3   -2
1  3   4.5678
2  3   -3.22
"""


@pytest.mark.parametrize("name", ["p.qubo", "p.qubo.gz", "p.txt", "p"])
def test_every_entry_counts_once_and_the_energy_is_minimised(write, assignments, values_of, name):
    problem = read_problem(write(name, EXAMPLE))
    assert (problem.format, problem.maximize, problem.vartype, problem.labels) == (
        "qbsolv",
        False,
        "BINARY",
        (0, 1, 2, 3),
    )
    lines = [line.split() for line in EXAMPLE.splitlines() if line[0].isdigit()]
    own = [sum(float(v) * x[int(i)] * x[int(j)] for i, j, v in lines) for x in assignments(4)]
    assert values_of(problem, assignments(4)) == pytest.approx(own)
    assert min(own) == pytest.approx(2.1 - 2.4 - 3.22)


def test_nodes_may_be_left_out(write):
    assert len(read_problem(write("p.qubo", "p qubo unconstrained 5 2 1\n1 1 1\n3 3 -1\n1 3 2\n")).labels) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must begin with a line `p qubo .*but is empty"),
        ("c nothing\n", "must begin with a line `p qubo .*but is empty"),
        ("0 0 1\n", "line 1 must be `p qubo 0 maxNodes nNodes nCouplers`.*got '0 0 1'"),
        ("MINIMIZE\n1\n", "line 1 must be `p qubo"),
        ("p qubo 0 2 x 1\n", "line 1 must be `p qubo"),
        ("p qubo 0 0 0 0\n", "at least one variable"),
        ("p qubo 0 2 2 1\n0 0 1\n1 1 1\n", "2 nodes .* and 1 couplers .* but holds 2 and 0; is the file cut off"),
        ("p qubo 0 2 1 1\n0 0 1\n1 1 1\n", "1 nodes .* and 1 couplers .* but holds 2 and 0"),
        ("p qubo 0 2 2 0\n0 0 1\n0 0 1\n", "line 3: every node and every coupler must be listed once.*got '0 0 1'"),
        ("p qubo 0 2 0 1\nc x\n0 2 1\n", "line 3: i and j must be from 0 to 1, got '0 2 1'"),
        ("p qubo 0 2 0 1\nc x\n0 1 1c\n", "line 3 must be `i j value`.*got '0 1 1c'"),
        ("p qubo 0 2 1 0\n0 0\n", "but holds 1 and 0"),
    ],
)
def test_a_bad_file_is_refused(write, text, message):
    with pytest.raises(ValueError, match=message):
        read_problem(write("p.qubo", text))
