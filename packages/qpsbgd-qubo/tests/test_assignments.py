import re
from fractions import Fraction

import numpy as np
import pytest
from lazy import Lazy

from qpsbgd_qubo import SparseIsing, ising_problem, qubo_problem, read_problem, solve
from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.solvers import make_solver
from qpsbgd_qubo.solvers.portfolio.portfolio import Portfolio
from qpsbgd_qubo.testing import lowest_energies, random_family

dimod, scipy_sparse = Lazy("dimod"), Lazy("scipy.sparse")


MATRIX = np.array([[-1.0, 2.0, 0.0], [0.0, -3.0, 0.5], [0.0, 0.0, 1.0]])
BEST = {0: 0, 1: 1, 2: 0}


def entries():
    rows, cols = np.nonzero(MATRIX)
    return rows, cols, MATRIX[rows, cols]


@pytest.fixture
def path(tmp_path):
    lines = [f"{i} {j} {value}" for i, j, value in zip(*entries(), strict=True)]
    (tmp_path / "p.coo").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "p.coo"


def called(form):
    """The form itself, or what a function makes of it with a package that may be missing."""
    return form() if callable(form) else form


FORMS = {
    "matrix": MATRIX,
    "scipy": lambda: scipy_sparse.csr_matrix(MATRIX),
    "scipy array": lambda: scipy_sparse.coo_array(MATRIX),
    "scipy dictionary": lambda: scipy_sparse.dok_matrix(MATRIX),
    "dict": {(int(i), int(j)): value for i, j, value in zip(*entries(), strict=True)},
    "dimod": lambda: dimod.BinaryQuadraticModel.from_qubo(
        {(i, j): MATRIX[i, j] for i in range(3) for j in range(i, 3)}
    ),
    "problem": qubo_problem(MATRIX),
}


@pytest.mark.parametrize(("form", "solver"), [*zip(FORMS, ["auto", "portfolio", "exact", "descent"] * 2, strict=False)])
def test_every_form_of_a_qubo_is_solved(form, solver):
    answer = solve(called(FORMS[form]), solver=solver)
    assert answer.value == pytest.approx(-3)
    assert answer.values == BEST


def test_files_are_solved_by_their_path_and_as_text(path):
    assert solve(path).values == solve(str(path)).values == solve(read_problem(path)).values == BEST


def test_models_over_spins_are_solved_over_spins():
    model = SparseIsing.from_edges(3, [0, 1], [1, 2], [1.0, 1.0], linear=[0.5, 0.0, 0.0], offset=2.0)
    for form in (model, model.to_dense(), model.to_dense(), ising_problem([0.5, 0, 0], np.diag([1.0, 1.0], 1))):
        assert solve(form).values == {0: -1, 1: 1, 2: -1}
    assert solve(model).value == -0.5


def test_labels_of_a_dict_are_kept():
    answer = solve({("a", "a"): -1, ("a", "b"): 3.0, ("b", "b"): -2.0})
    assert answer.values == {"a": 0, "b": 1} and answer.value == -2


def test_fields_and_couplings_of_spins_may_have_labels():
    answer = solve(ising_problem({"a": 1.0}, {("a", "b"): 2, ("b", "a"): 1}, offset=5))
    assert answer.values == {"a": -1, "b": 1} and answer.value == 1
    assert solve(ising_problem([0.5, 0, 0], {(0, 1): 1, (1, 2): 1})).values == {0: -1, 1: 1, 2: -1}


def test_the_highest_value_is_found_on_demand():
    assert solve(MATRIX, maximize=True).value == 1.0
    assert solve(MATRIX, maximize=False).value == -3.0


def test_a_family_of_several_columns_is_solved_and_the_best_shown():
    family = random_family(20, 3, 8, scale=0.5)
    answer = solve(family, rounds=3)
    assert answer.spins.shape == (20, 3)
    assert answer.value == pytest.approx(
        float(family.energies(make_solver("exact").solve(family).spins).min()), rel=1e-6
    )
    assert list(answer.values.values()) == answer.spins[:, answer.problem.energies(answer.spins).argmin()].tolist()


@pytest.mark.parametrize("n", [1, 2, 15, 16])
def test_few_variables_are_proven(n):
    family = random_family(n, 2, 8, seed=n)
    answer = solve(family)
    assert answer.proven_optimal.all() and answer.stats["method"] == "exhaustion"
    np.testing.assert_allclose(answer.problem.energies(answer.spins), lowest_energies(family), rtol=1e-5)


def test_a_solver_object_and_its_options_are_used():
    family = random_family(100, 1, 8)
    assert solve(family, solver=Portfolio(rounds=2)).stats == {"solver": "portfolio", "rounds": 2}
    assert solve(family, solver=make_solver("auto", rounds=3)).stats == {"solver": "portfolio", "rounds": 3}
    with pytest.raises(TypeError, match="has no option sweeps"):
        solve(family, sweeps=3)


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (None, TypeError, "got NoneType"),
        (3, TypeError, "got int"),
        ([[1.0]], TypeError, "got list"),
        ({}, ValueError, "at least one variable"),
        ({"a": 1.0}, ValueError, r"keys must be pairs \(i, j\).*got 'a'"),
        ({(0, 1, 2): 1.0}, ValueError, "keys must be pairs"),
        ({(0, 1): float("nan")}, ValueError, "must be finite"),
        ({(0, 1): 10**30 + 1}, ValueError, "exact in double precision"),
        ({(0, 1): 10**400}, ValueError, "int too large"),
        (np.array([[-(2**62) - 1]]), ValueError, "exact in double precision"),
        ({(0, 1): "x"}, ValueError, "real numbers"),
        (np.full((2, 2), np.inf), ValueError, "must be finite"),
        (np.full((2, 2), 1.7e308), ValueError, "sums overflow"),
        (1j * np.ones((2, 2)), ValueError, "must hold real numbers, got complex128"),
        (np.array([["a"]]), ValueError, "must hold real numbers"),
        (np.ones((2, 3)), ValueError, r"shape \(n, n\)"),
        (lambda: dimod.ConstrainedQuadraticModel(), TypeError, "BinaryQuadraticModel.*cqm_to_bqm"),
        (lambda: dimod.DiscreteQuadraticModel(), TypeError, "BinaryQuadraticModel.*DiscreteQuadraticModel"),
        (lambda: scipy_sparse.csr_matrix(np.ones((2, 3))), ValueError, r"shape \(n, n\)"),
        (lambda: scipy_sparse.csr_matrix(np.full((1, 1), np.nan)), ValueError, "must be finite"),
    ],
)
def test_what_is_no_problem_is_refused(value, error, said):
    with pytest.raises(error, match=said):
        solve(called(value))


B60 = 2**60
ROUNDED = {  # sums of these are beyond 2⁵³ units: ties in double precision that are none
    "linear": {("a", "a"): B60 // 2, ("b", "a"): -B60 // 2, ("b", "b"): -3},
    "twice": {("a", "a"): -B60, ("b", "b"): -B60, ("a", "b"): B60, ("b", "a"): 1},
    "near": {("a", "b"): B60 + 256, ("b", "b"): B60, ("b", "c"): -B60 - 256, ("c", "c"): -B60},
    "none": {("a", "a"): -(2**50), ("b", "b"): -3, ("a", "b"): 2**51},
}


@pytest.mark.parametrize("solver", ["auto", "exact", "portfolio"])
@pytest.mark.parametrize("form", ["dict", "scipy", "dimod", "matrix", "ising"])
@pytest.mark.parametrize("name", ROUNDED)
def test_nothing_is_proven_of_whole_numbers_whose_sums_are_rounded(name, form, solver):
    entries, labels = ROUNDED[name], "abc"
    rows, cols = ([labels.index(key[end]) for key in entries] for end in (0, 1))
    matrix = np.zeros((3, 3), dtype=np.int64)
    matrix[rows, cols] = list(entries.values())
    forms = {
        "dict": lambda: entries,
        "scipy": lambda: scipy_sparse.coo_array((list(entries.values()), (rows, cols)), (3, 3)),
        "dimod": lambda: dimod.BinaryQuadraticModel.from_qubo(entries),
        "matrix": lambda: matrix,
        "ising": lambda: ising_problem(np.diag(matrix), matrix - np.diag(np.diag(matrix))),
    }
    exact = name == "none" or (name == "twice" and form == "dimod")  # dimod has rounded it already
    assert solve(forms[form](), solver=solver).proven_optimal.tolist() == [exact]


@pytest.mark.parametrize("key", [("a", "b", "c"), 0])
def test_a_coupling_of_other_than_two_labels_is_refused(key):
    with pytest.raises(ValueError, match=re.escape(f"keys of J must be pairs (i, j) of labels, got {key!r}")):
        ising_problem({"a": 1.0}, {key: 1.0})


@pytest.mark.parametrize("offset", [Fraction(1, 2), 0.5])
def test_the_offset_of_a_model_of_objects_keeps_its_fraction(offset):
    model = dimod.BinaryQuadraticModel({"a": 1, "b": -1}, {("a", "b"): 2}, offset, "SPIN", dtype=object)
    assert solve(model).value == -3.5


def arrays_of(n):
    """Q, s, c; rows, columns, couplings; h."""
    rng = np.random.default_rng(0)
    quadratic = rng.standard_normal((n, n))
    rows = np.arange(n - 1)
    return (quadratic + quadratic.T, *map(rng.standard_normal, ((n, 1), 1))), (rows, rows + 1, rows + 0.5), np.ones(n)


MADE_OF_ARRAYS = {
    "family": lambda dense, sparse, fields: (dense, QuboFamily),
    "qubo": lambda dense, sparse, fields: (dense[:1], qubo_problem),
    "ising": lambda dense, sparse, fields: ((fields, dense[0]), ising_problem),
    "edges": lambda dense, sparse, fields: ((*sparse, fields), lambda *parts: SparseIsing.from_edges(6, *parts)),
    "entries": lambda dense, sparse, fields: (sparse, lambda *parts: SparseIsing.from_qubo(6, *parts)),
    "compressed rows": lambda dense, sparse, fields: (
        [*vars(SparseIsing.from_edges(6, *sparse, fields)).values()][:4],
        SparseIsing,
    ),
}


@pytest.mark.parametrize("name", MADE_OF_ARRAYS)
def test_what_is_made_of_arrays_does_not_change_with_them(name):
    arrays, make = MADE_OF_ARRAYS[name](*arrays_of(6))
    made, spins = make(*arrays), np.ones((6, 1))
    answer, before = solve(made), made.energies(spins)
    for array in arrays:
        array[...] = 0
    assert made.energies(spins) == before
    assert answer.value == made.energies(answer.spins) == answer.problem.energies(answer.spins)


def test_an_answer_says_what_it_is():
    assert repr(solve(MATRIX)).startswith("Assignment(energy -3 of Problem(BINARY, energy minimised, QuboFamily(n=3")
    assert "proven optimal" in repr(solve(MATRIX))
