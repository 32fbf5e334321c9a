import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpsbgd_qubo import TooLargeError
from qpsbgd_qubo.problems import ising_problem
from qpsbgd_qubo.sparse import SparseIsing


def vectors(n):
    """All spins (2ⁿ, n)."""
    return np.array(list(np.ndindex(*[2] * n)), dtype=np.int8) * 2 - 1


@st.composite
def coefficients(draw):
    """n, rows, columns and whole values, with loops, both orders and repeats."""
    n = draw(st.integers(1, 6))
    index = st.integers(0, n - 1)
    entries = draw(st.lists(st.tuples(index, index, st.integers(-5, 5)), max_size=20))
    return n, *(np.array([entry[k] for entry in entries], dtype=np.int64) for k in range(3))


@given(coefficients(), st.integers(-3, 3))
def test_energies_are_the_sum_over_the_entries_given(case, offset):
    n, rows, cols, values = case
    fields = np.arange(n) - 1.5
    spins = vectors(n)
    products = (values * spins[:, rows] * spins[:, cols]).sum(1)
    ising = SparseIsing.from_edges(n, rows, cols, values, linear=fields, offset=offset)
    assert ising.energy(spins).tolist() == (products + spins @ fields + offset).tolist()
    bits = (spins + 1) // 2
    qubo = SparseIsing.from_qubo(n, rows, cols, values, offset=offset)
    assert qubo.energy(spins).tolist() == ((values * bits[:, rows] * bits[:, cols]).sum(1) + offset).tolist()


@given(coefficients())
def test_rows_are_symmetric_sorted_and_without_diagonal_zeros_and_repeats(case):
    problem = SparseIsing.from_edges(*case)
    assert problem.couplings.all()
    # The constructor itself checks the rest.
    again = SparseIsing(problem.indptr, problem.indices, problem.couplings, problem.linear, problem.offset)
    assert problem.indptr.dtype == np.int64
    assert problem.indices.dtype == np.int32
    assert again.num_couplings == problem.num_couplings == len(problem.edges()[0])


@given(coefficients())
def test_a_family_and_back_is_the_same_problem(case):
    problem = SparseIsing.from_qubo(*case, offset=0.5)
    family = problem.to_dense()
    back = SparseIsing.from_dense(family)
    for name in ("indptr", "indices", "couplings", "linear", "offset"):
        assert np.array_equal(getattr(back, name), getattr(problem, name))
    spins = vectors(problem.num_spins)
    energies = [family.energies(row[:, None]).item() for row in spins]
    assert energies == problem.energy(spins).tolist()


def test_energy_takes_one_vector_or_any_shape_of_them():
    problem = SparseIsing.from_edges(2, [0], [1], [3.0], linear=[1.0, 0.0])
    assert problem.energy([1, -1]) == -2.0
    assert isinstance(problem.energy(np.ones(2, np.int8)), float)
    assert problem.energy(np.ones((4, 3, 2))).shape == (4, 3)
    with pytest.raises(ValueError, match=r"\(…, 2\), got \(3,\)"):
        problem.energy([1, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, [], [], []), "at least one variable"),
        ((2, [0], [2], [1.0]), "cols must be from 0 to n - 1 = 1, got 2"),
        ((2, [-1], [1], [1.0]), "rows must be from 0 to n - 1 = 1, got -1"),
        ((2, [0.5], [1], [1.0]), "rows must hold integers, got float64"),
        ((2, [0], [1], [np.nan]), "couplings must be finite"),
        ((2, [0], [1], [1j]), "couplings must hold real numbers, got complex128"),
        ((2, [0], [1], ["1"]), "couplings must hold real numbers"),
        ((2, [0], [1], [None]), "couplings must hold real numbers|couplings must be finite"),
        ((2, [0], [1], [object()]), "couplings must hold real numbers: "),
        ((2, [0, 1], [1], [1.0]), "of one length"),
        ((2, [0, 0], [1, 1], [1.7e308, 1.7e308]), "their sums overflow"),
        ((3, [0, 1], [1, 2], [1e308, 1e308]), "their sums overflow"),
        ((2, [0], [1], [1e308], [1e308, 0.0]), "their sums overflow"),
        ((2, [0], [1], [1e308], None, 1e308), "their sums overflow"),
        ((2, [0], [1], [1.0], [1.0]), r"linear must have shape \(n,\) = \(2,\), got \(1,\)"),
        ((2, [0], [1], [1.0], None, np.inf), "offset must be finite"),
        ((2, [0], [1], [1.0], None, [1.0]), r"offset must have 0 dimension\(s\), got shape \(1,\)"),
        ((2, [0], [1], [1.0], [[1.0, 2.0]]), r"linear must have 1 dimension\(s\), got shape \(1, 2\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_wrong_coefficients_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SparseIsing.from_edges(*arguments)


def test_a_factor_that_makes_the_sums_overflow_is_refused():
    problem = SparseIsing.from_edges(3, [0, 1], [1, 2], [1.0, 1.0])
    with pytest.raises(ValueError, match="their sums overflow"):
        problem * 1e308
    parts = (problem.indptr, problem.indices, problem.couplings * 1e308, problem.linear)
    with pytest.raises(ValueError, match="their sums overflow"):
        SparseIsing(*parts)
    with pytest.raises(ValueError, match="their sums overflow"):
        ising_problem(np.full(4, 1e307), np.full((4, 4), 2e307))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"indptr": [0, 1]}, "indptr must have shape"),
        ({"indptr": [0, 2, 1, 2]}, "ascend"),
        ({"indices": [1, 3]}, "indices must be from 0"),
        ({"indices": [0, 0]}, "diagonal must be empty"),
        ({"indices": [2, 0]}, "one side of the diagonal"),
        ({"couplings": [1.0, 2.0]}, "differ from their transpose"),
        ({"indptr": [0, 2, 2, 2], "indices": [2, 1]}, "must ascend within a row"),
        ({"linear": []}, "at least one variable"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(changed, message):
    parts = {"indptr": [0, 1, 2, 2], "indices": [1, 0], "couplings": [1.0, 1.0], "linear": [0.0, 0.0, 0.0]}
    assert SparseIsing(**parts).num_couplings == 1
    with pytest.raises(ValueError, match=message):
        SparseIsing(**(parts | changed))


def test_a_problem_too_large_to_be_dense_says_how_large():
    problem = SparseIsing.from_edges(20_000, [0], [1], [1.0])
    with pytest.raises(TooLargeError, match=r"10000 variables, got 20000.* 3,200,000,000 bytes"):
        problem.to_dense()
    assert issubclass(TooLargeError, ValueError) and issubclass(TooLargeError, MemoryError)


def test_memory_grows_with_couplings_not_with_the_square_of_the_spins():
    n = 100_000
    rows = np.arange(n)
    tracemalloc.start()
    problem = SparseIsing.from_qubo(
        n, np.tile(rows, 3), np.concatenate([(rows + k) % n for k in (1, 10, 100)]), np.ones(3 * n)
    )
    energy = problem.energy(np.ones(n, np.int8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert energy == 3 * n
    assert problem.num_couplings == 3 * n
    assert peak < 250 * 3 * n  # bytes; a dense matrix would take 80 GB


@pytest.mark.parametrize("make", [SparseIsing.from_edges, SparseIsing.from_qubo])
def test_more_spins_than_columns_can_name_are_refused_before_anything_is_allocated(make):
    with pytest.raises(ValueError, match=r"at most 2147483647 variables, got 2147483648; leave out"):
        make(2**31, [0], [2**31 - 1], [1.0])


def test_problems_are_multiplied_by_numbers_and_added_to_their_own_kind_alone():
    problem = SparseIsing.from_edges(2, [0], [1], [3.0], linear=[1.0, -2.0], offset=0.5)
    family, spins = problem.to_dense(), np.array([1, -1], np.int8)
    assert (problem * 2).energy(spins) == 2 * problem.energy(spins) == 2 * (-3 + 3 + 0.5)
    for wrong in (lambda: problem * "2", lambda: family * "2", lambda: family + 2):
        with pytest.raises(TypeError, match=r"unsupported operand|can't multiply"):
            wrong()
