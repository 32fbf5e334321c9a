import io

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs scipy")

import scipy.io
import scipy.sparse

from qpsbgd_qubo.problem_files import read_problem


def market(matrix, **options):
    """A matrix as scipy writes it."""
    file = io.BytesIO()
    scipy.io.mmwrite(file, scipy.sparse.coo_array(matrix), **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "symmetry", "dtype"),
    [("p.mtx", "general", int), ("p.mtx.gz", "symmetric", float), ("p.txt", "general", float)],
)
def test_a_matrix_is_a_qubo_to_be_minimised(write, assignments, values_of, name, symmetry, dtype):
    generator = np.random.default_rng(0)
    matrix = generator.integers(-9, 10, (5, 5)).astype(dtype)
    if symmetry == "symmetric":
        matrix = matrix + matrix.T
    problem = read_problem(write(name, market(matrix, symmetry=symmetry)))
    assert (problem.format, problem.maximize, problem.labels) == ("mtx", False, (1, 2, 3, 4, 5))
    bits = assignments(5)
    assert values_of(problem, bits).tolist() == np.einsum("ki,ij,kj->k", bits, matrix, bits).tolist()


RING = np.roll(np.eye(5), 1, 0) + np.roll(np.eye(5), -1, 0)


@pytest.mark.parametrize("name", ["p.mtx", "p.txt"])
def test_a_matrix_without_diagonal_may_be_a_graph_and_is_refused(write, name):
    path = write(name, market(RING, symmetry="symmetric"))
    with pytest.raises(ValueError, match=rf"solve {path} --format mtx` or `qpsbgd-qubo solve {path} --format maxcut`"):
        read_problem(path)
    assert read_problem(path, format="mtx").model.energy(np.ones(5)) == 10
    graph = read_problem(path, format="maxcut")
    assert (graph.format, graph.quantity) == ("maxcut", "cut")
    assert -graph.model.energy(np.array([1, -1, 1, -1, 1])) == 4


def test_a_pattern_is_a_graph(write):
    path = write("p.mtx", market(RING, field="pattern", symmetry="symmetric"))
    assert read_problem(path).format == "maxcut"
    assert read_problem(path, format="mtx").model.energy(np.ones(5)) == 10
    assert read_problem(path.rename(path.with_suffix(".mc"))).format == "maxcut"


BANNER = "%%MatrixMarket matrix coordinate"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must begin with `%%MatrixMarket matrix coordinate real symmetric` or the like, got ''"),
        ("%%MatrixMarket matrix array real general\n1 1\n1\n", "write a dense matrix to .npz"),
        (f"{BANNER} complex general\n1 1 1\n1 1 1 0\n", "must be real, integer or pattern"),
        (f"{BANNER} real skew-symmetric\n1 1 0\n", ", general or symmetric"),
        (f"{BANNER} real general\n% and\n", "ends before"),
        (f"{BANNER} real general\n% and\n2 3 0\n", "line 3: the matrix must have as many rows as columns, got '2 3 0'"),
        (f"{BANNER} real general\n2 2\n", "line 2 must hold integers `rows columns count`, got '2 2'"),
        (f"{BANNER} real general\n2 2 2\n1 1 1\n", "must hold 2 entries as line 2 says, but holds 1"),
        (f"{BANNER} real general\n2 2 1\n%\n1 3 1\n", "line 4: i and j must be from 1 to 2, got '1 3 1'"),
        (f"{BANNER} real general\n2 2 1\n1 1\n", "line 3: entries of a real matrix must be `i j value`, got '1 1'"),
        (f"{BANNER} pattern general\n2 2 1\n1 1 5\n", "line 3: entries of a pattern matrix must be `i j`, got '1 1 5'"),
        (
            f"{BANNER} real symmetric\n2 2 3\n1 1 1\n2 1 1\n1 2 1\n",
            "line 5: every entry of the symmetric matrix must be l",
        ),
        (f"{BANNER} real general\n0 0 0\n", "at least one variable"),
    ],
)
def test_a_bad_file_is_refused(write, text, message):
    with pytest.raises(ValueError, match=message):
        read_problem(write("p.mtx", text))


def test_fractions_in_an_integer_matrix_are_refused(tmp_path):
    text = "%%MatrixMarket matrix coordinate integer symmetric\n2 2 2\n1 1 1\n2 1 -3.5\n"
    (tmp_path / "p.mtx").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 4: .*integer matrix.* '2 1 -3.5'"):
        read_problem(tmp_path / "p.mtx")
