"""Kernels on vectors of many shapes: what must hold of every answer, brute force, and answers as they always were."""

import contextlib
import itertools
import zlib

import numpy as np
import pytest
from kernel_calls import broken, called, run, spoiled

from qpsbgd_qubo.kernels import NEVER, kernels

TYPES = (np.float32, np.float64)


def dense(n, m, dtype=np.float64, seed=0):
    """Couplings, linear terms, fields and spins of a layer at its sign vector."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((n // 2 + 8, n))
    rows /= np.square(rows).sum(1, keepdims=True)
    couplings = 2 * rows.T @ rows
    np.fill_diagonal(couplings, 0)
    linear = 0.3 * (rows.T @ generator.standard_normal((len(rows), m))).T
    spins = np.where(linear <= 0, 1.0, -1.0)
    parts = (couplings, linear, linear + spins @ couplings, spins)
    return [np.ascontiguousarray(part, dtype) for part in parts]


def sparse(n=60, degree=4, seed=0):
    """Compressed rows of a random graph with couplings ±1."""
    generator = np.random.default_rng(seed)
    matrix = np.zeros((n, n))
    ends = generator.integers(0, n, (2, n * degree // 2))
    matrix[ends[0], ends[1]] = generator.choice([-1.0, 1.0], n * degree // 2)
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    rows, columns = np.nonzero(matrix)
    indptr = np.concatenate([[0], np.bincount(rows, minlength=n).cumsum()])
    return indptr, columns.astype(np.int32), matrix[rows, columns]


def assignment(n=5, extra=3, seed=0):
    """Compressed rows and fields of a quadratic assignment of n to n, with some spins more."""
    generator = np.random.default_rng(seed)
    bits = np.arange(n * n).reshape(n, n)
    matrix = np.triu(generator.integers(0, 4, (n * n + extra, n * n + extra)), 1).astype(float)
    for group in (*bits, *bits.T):
        matrix[np.ix_(group, group)] = np.triu(np.full((n, n), 100.0), 1)
    linear = np.where(np.arange(n * n + extra) < n * n, -100.0, -6.0)
    # Bits to spins: x = (1 + g) / 2.
    matrix = (matrix + matrix.T) / 4
    rows, columns = np.nonzero(matrix)
    indptr = np.concatenate([[0], np.bincount(rows, minlength=len(matrix)).cumsum()])
    return (indptr, columns.astype(np.int32), matrix[rows, columns]), linear / 2 + matrix.sum(1)


def grouped(n=5, extra=3):
    """The same, its rows as bases and its columns as other groups."""
    rows, linear = assignment(n, extra)
    members = np.concatenate([np.arange(n * n), np.arange(n * n).reshape(n, n).T.ravel()]).astype(np.int32)
    return rows, linear, np.arange(0, 2 * n * n + 1, n), members, n


def states(count):
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def dense_vectors():
    for n, dtype in zip((1, 7, 16, 40, 129, 40), TYPES * 3, strict=True):
        m = 5
        couplings, linear, fields, spins = dense(n, m, dtype)
        threshold, sites = np.full(m, 1e-6, dtype), np.arange(n, dtype=np.int32)
        many = np.random.default_rng(0).choice([-1.0, 1.0], (m, 4, n)).astype(dtype)
        many_fields = np.ascontiguousarray(linear[:, None] + many @ couplings, dtype)
        twice = (couplings + np.eye(n) * 0.5).astype(dtype)
        factor = np.ascontiguousarray(np.linalg.cholesky(twice + np.eye(n)), dtype)
        name = f"{n} {dtype.__name__}"
        for patience, tenure in ((0, 2), (40, 2), (25, 9)):
            flips = np.zeros(m, np.int64)
            yield (
                f"search {name} {patience}",
                (couplings, fields, spins, threshold, flips, 999, patience, tenure, 7, NEVER, 2),
            )
        heat = np.linspace(0.05, 0.01, 5).astype(dtype)
        yield f"anneal {name}", (couplings, fields, spins, sites, heat, states(m), np.zeros(m, np.int64), NEVER, 2)
        ties, scale = np.linspace(0.01, 0.5, 5).astype(dtype), np.full(m, 0.8, dtype)
        yield f"anneal_slices {name}", (couplings, many_fields, many, ties, scale, 0.05, states(m), 2)
        marked = np.random.default_rng(9).integers(0, 2, (m, n), dtype=np.uint8)
        yield f"flip_marked {name}", (couplings, fields, spins, marked, 2)
        yield f"fields_of {name}", (couplings, linear[0], spins[0], np.zeros(n, dtype))
        yield f"relax {name}", (twice, fields, (0.3 * spins).astype(dtype), 6, 2)
        yield f"round_down {name}", (factor, fields, spins, 2)
        for strength in (1, 3):
            coupling_sums, strong = np.abs(couplings).sum(1), (strength * linear).astype(dtype)
            starts = np.stack([spins, -spins])
            local = (strong + starts @ couplings).astype(dtype)
            diagonal, found = np.full(n, 0.02, dtype), np.zeros((m, n), dtype)
            tuned = (30, 2, 4, 8, 3, 2)
            yield (
                f"search_layer {name} {strength}",
                (couplings, diagonal, strong, coupling_sums, starts, local, threshold, found, *tuned),
            )


def sparse_vectors():
    rows, n = sparse(), 60
    generator = np.random.default_rng(3)
    one, sites, heat = (
        generator.choice([-1, 1], n).astype(np.int8),
        np.arange(n, dtype=np.int32),
        np.linspace(2, 0.1, 9),
    )
    bits = generator.integers(0, 1 << 16, n, dtype=np.uint16)
    chains = generator.choice([-1, 1], (8, n)).astype(np.int8)
    for name, linear in (("fields", generator.integers(-1, 2, n).astype(float)), ("none", np.zeros(n))):
        yield f"anneal_sparse {name}", (rows, linear, one, sites, heat, 5, NEVER)
        yield f"anneal_lanes {name}", (rows, linear, bits, sites[::2].copy(), heat, 5, NEVER)
        yield f"harvest {name}", (rows, linear, np.full(n, 1e-9), chains, one, NEVER)
        for block in (1, 7, 100):
            yield f"tabu_sparse {name} {block}", (rows, linear, one, block, 100, 3, 9, NEVER)
    schedule = np.stack([np.linspace(0, 1, 6), np.linspace(0.02, 0.5, 6), np.full(6, 0.1)], 1).astype(np.float32)
    reads = generator.choice([-1.0, 1.0], (3, 4, n)).astype(np.float32)
    yield "sweep_chip", (rows, np.zeros(n, np.float32), reads, schedule, states(3), 2)
    gone, near, weights = np.array([4, 7]), np.array([[1, -1, -1], [4, 2, 3]]), np.array([[1.0, 0, 0], [2.0, -1, 0.5]])
    yield "complete_reduced", (one, gone, near, weights, np.array([0.5, -0.1]))


def group_vectors():
    groups, generator = grouped(), np.random.default_rng(4)
    n, heat = len(groups[1]), np.concatenate([np.geomspace(20, 1, 12), np.zeros(2)])
    start, some = generator.choice([-1, 1], n).astype(np.int8), np.arange(2, n, 3, dtype=np.int32)
    for name, sites in (("all", np.arange(n, dtype=np.int32)), ("some", some)):
        for fresh in (False, True):
            yield f"anneal_groups {name} {fresh}", (groups, start, sites, heat, 3, fresh, 5, NEVER)
    for tenure in (0, 7):
        yield f"tabu_groups {tenure}", (groups, start, 200, tenure, 5, NEVER)


def exact_vectors():
    for n, strength in itertools.product((1, 9, 14), (1, 3)):
        couplings, linear, _, spins = dense(n, 5)
        linear, opened = linear * strength, np.zeros_like(linear)
        some = np.where(np.arange(n) % 3 == 1, 1.0, 0.0) + opened
        shift = float(-np.linalg.eigvalsh(couplings / 2)[0] + 1e-3)
        yield f"fix_dominated {n} {strength}", (couplings, linear, np.empty_like(linear), NEVER, 2)
        for name, fixed in (("open", opened), ("some", some), ("none", opened + 1)):
            yield f"complete {n} {strength} {name}", (couplings, linear, fixed, spins, np.zeros(5, bool), NEVER, 2)
            nodes = np.zeros(5, np.int64)
            yield f"decode {n} {strength} {name}", (couplings, linear, fixed, spins, shift, 10**6, nodes, NEVER, 2)
        yield f"exhaust {n} {strength}", (couplings, linear[0], np.zeros(n), NEVER, 2)


VECTORS = dict(itertools.chain(dense_vectors(), sparse_vectors(), group_vectors(), exact_vectors()))


def of_kernel(*kernels):
    return [name for name in VECTORS if name.split()[0] in kernels]


def energies(couplings, linear, spins):
    """The energy of every row of spins, in double precision."""
    couplings, linear, spins = (part.astype(np.float64) for part in (couplings, linear, spins))
    return (spins * (linear + spins @ couplings / 2)).sum(-1)


def matrix_of(rows):
    indptr, indices, values = rows
    matrix = np.zeros((len(indptr) - 1,) * 2)
    matrix[np.repeat(np.arange(len(matrix)), np.diff(indptr)), indices] = values
    return matrix


@pytest.mark.parametrize("name", of_kernel("search", "anneal", "anneal_slices", "flip_marked"))
def test_spins_stay_spins_and_fields_follow_them(name):
    couplings, before, start, *_ = VECTORS[name]
    _, (_, fields, spins, *_) = run(kernels, name, VECTORS[name])
    assert (abs(spins) == 1).all()
    np.testing.assert_allclose(fields - spins @ couplings, before - start @ couplings, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", of_kernel("search"))
def test_a_search_counts_its_flips_and_ends_no_higher_in_a_local_minimum_if_it_makes_no_tabu_moves(name):
    couplings, before, start, threshold, *_, patience, _, _, _, _ = VECTORS[name]
    _, (_, fields, spins, _, flips, *_) = run(kernels, name, VECTORS[name])
    linear = before - start @ couplings
    assert (energies(couplings, linear, spins) <= energies(couplings, linear, start) + 1e-5).all()
    assert (flips >= (spins != start).sum(1)).all()
    if not patience:
        assert ((spins * fields).max(1) <= threshold).all()


@pytest.mark.parametrize("name", of_kernel("flip_marked"))
def test_marked_spins_and_no_others_are_flipped(name):
    _, _, start, marked, _ = VECTORS[name]
    assert np.array_equal(run(kernels, name, VECTORS[name])[1][2], np.where(marked, -start, start))


@pytest.mark.parametrize("name", of_kernel("fields_of"))
def test_fields_of_a_column_are_linear_terms_and_couplings(name):
    couplings, linear, spins, _ = VECTORS[name]
    np.testing.assert_allclose(
        run(kernels, name, VECTORS[name])[1][3], linear + couplings @ spins, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", of_kernel("relax"))
def test_a_relaxation_stays_in_the_box_and_ends_no_higher(name):
    twice, before, start, *_ = VECTORS[name]
    _, (_, slopes, points) = run(kernels, name, VECTORS[name])
    linear = before - start @ twice
    assert (abs(points) <= 1).all()
    np.testing.assert_allclose(slopes, linear + points @ twice, rtol=1e-3, atol=1e-4)
    value = [(x * (linear + x @ twice / 2)).sum(1) for x in (start, points)]
    assert (value[1] <= value[0] + 1e-5).all()


@pytest.mark.parametrize("name", of_kernel("round_down"))
def test_spins_are_rounded_from_the_last_to_the_first(name):
    factor, targets, *_ = VECTORS[name]
    _, (_, _, spins) = run(kernels, name, VECTORS[name])
    left = targets.astype(np.float64) - (spins @ factor.astype(np.float64) - spins * factor.diagonal())
    assert (spins * left >= -1e-4).all()


@pytest.mark.parametrize("name", of_kernel("search_layer"))
def test_a_search_of_a_layer_ends_no_higher_than_its_starts(name):
    couplings, _, linear, _, starts, *_ = VECTORS[name]
    _, arrays = run(kernels, name, VECTORS[name])
    best = arrays[7]
    assert (abs(best) == 1).all()
    lowest = energies(couplings, linear, starts).min(0)
    assert (energies(couplings, linear, best) <= lowest + 1e-5 * abs(lowest)).all()


@pytest.mark.parametrize("name", of_kernel("harvest", "tabu_sparse"))
def test_sparse_searches_tell_the_energy_of_their_spins_and_end_no_higher(name):
    rows, linear, *rest = VECTORS[name]
    energy, arrays = run(kernels, name, VECTORS[name])
    begins = [part for part in rest if isinstance(part, np.ndarray) and part.dtype == np.int8]
    spins = next(part for part in reversed(arrays) if part.dtype == np.int8)
    assert energy == pytest.approx(energies(matrix_of(rows), linear, spins))
    assert energy <= min(energies(matrix_of(rows), linear, np.atleast_2d(start)).min() for start in begins) + 1e-9


@pytest.mark.parametrize("fields", ["fields", "none"])
def test_the_size_of_blocks_changes_no_tabu_move(fields):
    answers = [run(kernels, name, VECTORS[name]) for name in of_kernel("tabu_sparse") if f" {fields} " in name]
    for energy, arrays in answers[1:]:
        assert energy == answers[0][0] and np.array_equal(arrays[1], answers[0][1][1])


@pytest.mark.parametrize("name", of_kernel("fix_dominated"))
def test_every_optimum_has_the_spins_that_are_fixed(name):
    couplings, linear, *_ = VECTORS[name]
    _, (_, _, fixed, _) = run(kernels, name, VECTORS[name])
    every = np.array(list(itertools.product((-1.0, 1.0), repeat=linear.shape[1])))
    for column, given in zip(linear, fixed, strict=True):
        value = energies(couplings, column, every)
        optima = every[value <= value.min() + 1e-12]
        assert ((optima == given) | (given == 0)).all()


def drawn(seed):
    """Vectors of every kernel for a small random problem in integers, full of ties, with drawn options."""
    generator = np.random.default_rng(seed)
    whole = generator.integers
    n, m = int(whole(1, 20)), 3
    matrix = np.triu(whole(-3, 4, (n, n)) * (generator.random((n, n)) < generator.choice([0.2, 0.5, 1.0])), 1).astype(
        float
    )
    matrix += matrix.T
    linear = whole(-4, 5, (m, n)).astype(float) * generator.choice([0, 1, 3])
    spins = generator.choice([-1.0, 1.0], (m, n))
    fields, threshold = linear + spins @ matrix, np.full(m, generator.choice([1e-6, 2.0]))
    tenure, word = int(whole(0, 16)), int(whole(2**62))
    heat, sites = np.linspace(whole(1, 9), 0, 6), np.sort(generator.permutation(n)[: whole(1, n + 1)]).astype(np.int32)
    limits = int(whole(0, 60)), int(whole(0, 30)), tenure, word, NEVER, 2
    yield "search", (matrix, fields, spins, threshold, np.zeros(m, np.int64), *limits)
    yield "anneal", (matrix, fields, spins, sites, heat, states(m), np.zeros(m, np.int64), NEVER, 2)
    slices = generator.choice([-1.0, 1.0], (m, int(whole(1, 5)), n))
    ties, scale = np.linspace(0.1, 2, 4), generator.choice([0.5, 2.0], m)
    local = np.ascontiguousarray(linear[:, None] + slices @ matrix)
    yield "anneal_slices", (matrix, local, slices, ties, scale, float(heat[1]), states(m), 2)
    starts = generator.choice([-1.0, 1.0], (int(whole(1, 4)), m, n))
    tuned = (int(whole(0, 9)), tenure, int(whole(0, 4)), int(whole(0, 6)), word >> 20, 2)
    sums, diagonal = np.abs(matrix).sum(1), whole(0, 30, n).astype(float)
    layer = (diagonal, linear, sums, starts, linear + starts @ matrix, threshold, np.zeros((m, n)))
    yield "search_layer", (matrix, *layer, *tuned)
    places, columns = np.nonzero(matrix)
    indptr = np.concatenate([[0], np.bincount(places, minlength=n).cumsum()])
    rows, field = (indptr, columns.astype(np.int32), matrix[places, columns]), linear[0]
    one = spins[0].astype(np.int8)
    yield "anneal_sparse", (rows, field, one, sites, heat, word, NEVER)
    yield "anneal_lanes", (rows, field, whole(0, 1 << 16, n, dtype=np.uint16), sites, heat, word, NEVER)
    chains = generator.choice([-1, 1], (4, n)).astype(np.int8)
    yield "harvest", (rows, field, np.full(n, threshold[0]), chains, one, NEVER)
    yield "tabu_sparse", (rows, field, one, int(whole(1, 9)), int(whole(0, 60)), tenure, word, NEVER)
    schedule = np.stack([np.linspace(0, 1, 4), np.linspace(0.1, 2, 4), np.full(4, heat[1])], 1).astype(np.float32)
    yield "sweep_chip", (rows, field.astype(np.float32), slices.astype(np.float32), schedule, states(m), 2)
    yield "fix_dominated", (matrix, linear, np.empty_like(linear), NEVER, 2)
    fixed = np.where(generator.random((m, n)) < 0.5, spins, 0)
    matrix, linear, fixed, spins = (part[..., :10].copy() for part in (matrix[:10], linear, fixed, spins))
    # Without ties, so that there is one optimum.
    matrix, linear = (part + generator.uniform(-0.1, 0.1, part.shape) for part in (matrix, linear))
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    yield "complete", (matrix, linear, fixed, spins, np.zeros(m, bool), NEVER, 2)


ANSWERS = {
    "search": 1062629212,
    "anneal": 3690122170,
    "anneal_slices": 2130052512,
    "search_layer": 1129984031,
    "anneal_sparse": 370398922,
    "anneal_lanes": 2545943572,
    "harvest": 3059426873,
    "tabu_sparse": 1890671294,
    "sweep_chip": 690732917,
    "fix_dominated": 2490779394,
    "complete": 3509558737,
}
"""Checksums of the answers to drawn problems, which an independent version of every kernel in Python gave, too."""


@pytest.mark.parametrize("kernel", ANSWERS)
def test_drawn_problems_get_the_answers_that_they_always_got(kernel):
    checksum = 0
    for seed in range(30):
        for name, arguments in drawn(seed):
            if name == kernel:
                returned, arrays = run(kernels, name, arguments)
                for part in (np.float64(returned or 0), *arrays):
                    checksum = zlib.crc32(
                        np.ascontiguousarray(part.astype(np.float64).round(3) + 0).tobytes(), checksum
                    )
    assert checksum == ANSWERS[kernel]


@pytest.mark.parametrize("name", [name for name in VECTORS if isinstance(VECTORS[name][-1], int)])
def test_answers_do_not_depend_on_the_number_of_threads(name):
    found = [run(kernels, name, (*VECTORS[name][:-1], threads)) for threads in (1, 2, 7)]
    for returned, arrays in found[1:]:
        assert returned == found[0][0]
        assert all(np.array_equal(a, b) for a, b in zip(arrays, found[0][1], strict=True))


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("decode")])
def test_the_decoder_finds_the_best_of_all_values(name):
    couplings, linear, fixed, spins, *_ = VECTORS[name]
    _, (_, _, _, found, nodes, _) = run(kernels, name, VECTORS[name])
    best = np.where(fixed != 0, fixed, spins)
    kernels.complete(couplings, linear, fixed, best, np.zeros(5, bool), NEVER, 1)
    assert np.array_equal(found, best)
    assert (nodes >= 0).all()


def groups_in(rows, linear):
    return kernels.find_groups(kernels.Rows(*rows), linear, NEVER)


@pytest.mark.parametrize("n", [3, 5, 7])
def test_rows_and_columns_of_an_assignment_are_its_groups(n):
    rows, linear = assignment(n, 2, seed=n)
    begins, members, bases = groups_in(rows, linear)
    assert bases == n
    assert np.array_equal(members[: n * n], np.arange(n * n))
    others = {tuple(sorted(group)) for group in np.split(members, begins[1:-1])[bases:]}
    assert others >= set(map(tuple, np.arange(n * n).reshape(n, n).T.tolist()))
    assert kernels.Groups(kernels.Rows(*rows), linear, begins, members, bases).scale > 0


@pytest.mark.parametrize(("alone", "found"), [(32, 56), (33, 0)])
def test_groups_are_looked_for_unless_most_of_the_first_spins_are_in_none(alone, found):
    matrix = np.zeros((200, 200))
    matrix[alone:, alone:] = np.kron(np.eye(56), np.ones((3, 3)))[: 200 - alone, : 200 - alone] * 4
    np.fill_diagonal(matrix, 0)
    at, columns = np.nonzero(matrix)
    rows = np.concatenate([[0], np.bincount(at, minlength=200).cumsum()]), columns.astype(np.int32), matrix[at, columns]
    assert groups_in(rows, matrix.sum(1) - 4)[2] == found


def test_no_groups_are_found_where_there_are_none():
    for seed in range(5):
        rows = sparse(80, 6, seed)
        assert groups_in(rows, np.random.default_rng(seed).integers(-2, 3, 80).astype(float))[2] == 0
    triangles = (
        np.kron(np.eye(20), np.ones((3, 3)) - np.eye(3)) + np.roll(np.eye(60), 1, 0) + np.roll(np.eye(60), -1, 0)
    )
    at, columns = np.nonzero(triangles)
    rows = np.concatenate([[0], np.bincount(at).cumsum()]), columns.astype(np.int32), np.ones(len(at))
    assert groups_in(rows, np.zeros(60))[2] == 0  # a largest cut has no fields


@pytest.mark.parametrize(
    ("begins", "members", "bases", "said"),
    [
        ([0, 3], [0, 1, 28], 1, "members must be from 0 to 27"),
        ([0, 3], [0, -1, 2], 1, "members must be from 0 to 27"),
        ([0, 2], [0, 1, 2], 1, "begins must ascend"),
        ([0, 4], [0, 1, 2], 1, "begins must ascend"),
        ([0, 0, 3], [0, 1, 2], 1, "begins must ascend"),
        ([1, 3], [0, 1, 2], 1, "begins must ascend"),
        ([0], [], 0, "begins must ascend"),
        ([0, 3], [0, 1, 2], 2, "at most as many bases"),
        ([0, 3], [0, 1, 2], -1, "at most as many bases"),
        ([0, 2, 4], [0, 1, 1, 2], 2, "no spin in common"),
        ([0, 2], [1, 1], 1, "no spin in common"),
    ],
)
def test_groups_that_do_not_fit_are_refused(begins, members, bases, said):
    rows, linear = assignment()
    with pytest.raises(ValueError, match=said):
        kernels.Groups(kernels.Rows(*rows), linear, np.array(begins), np.array(members, np.int32), bases)


def test_rows_that_do_not_ascend_are_refused_for_groups():
    rows = kernels.Rows(np.array([0, 2, 3, 4]), np.array([2, 1, 0, 0], np.int32), np.ones(4))
    with pytest.raises(ValueError, match="indices must ascend in every row"):
        kernels.find_groups(rows, np.ones(3), NEVER)
    with pytest.raises(ValueError, match="indices must ascend in every row"):
        kernels.Groups(rows, np.ones(3), np.array([0, 3]), np.arange(3, dtype=np.int32), 1)
    with pytest.raises(ValueError, match="linear must"):
        kernels.Groups(rows, np.ones(2), np.array([0, 3]), np.arange(3, dtype=np.int32), 1)


@pytest.mark.parametrize("name", ["anneal_groups all False", "anneal_groups all True", "tabu_groups 7"])
def test_moves_within_groups_keep_them_and_give_the_energy_of_their_spins(name):
    (rows, linear, *_), *_ = VECTORS[name]
    energy, (spins, *_) = run(kernels, name, VECTORS[name])
    assert (spins[:25].reshape(5, 5) > 0).sum(1).tolist() == [1] * 5
    assert set(spins.tolist()) == {-1, 1}
    assert energy == pytest.approx(energies(matrix_of(rows), linear, spins))
    # The optimum is a permutation and keeps columns, too.
    assert (spins[:25].reshape(5, 5) > 0).sum(0).tolist() == [1] * 5


def test_a_search_within_groups_finds_the_best_of_all_permutations():
    rows, linear = assignment(5, 2)
    matrix, best = matrix_of(rows), np.inf
    for places in itertools.permutations(range(5)):
        for extra in itertools.product((-1, 1), repeat=2):
            spins = np.concatenate([np.where(np.arange(5) == np.array(places)[:, None], 1, -1).ravel(), extra])
            best = min(best, energies(matrix, linear, spins))
    groups = kernels.Groups(kernels.Rows(*rows), linear, *grouped(5, 2)[2:])
    spins, sites = np.full(27, -1, np.int8), np.arange(27, dtype=np.int32)
    heat = groups.scale * np.concatenate([np.geomspace(0.3, 0.1, 50), np.zeros(3)])
    assert kernels.anneal_groups(groups, spins, sites, heat, 50, True, 1, NEVER) == pytest.approx(best)


def test_nothing_is_claimed_once_the_time_is_up():
    (couplings, linear, _, spins), over = dense(14, 3), np.ones(1, np.uint8)
    fixed, done = np.zeros_like(linear), np.ones(3, bool)
    assert not kernels.exhaust(couplings, linear[0], np.ones(14), over, 1)
    kernels.complete(couplings, linear, fixed, spins.copy(), done, over, 1)
    kernels.fix_dominated(couplings, 9 * linear, fixed, over, 1)
    assert not done.any() and not fixed.any()
    nodes = np.zeros(3, np.int64)
    kernels.decode(couplings, linear, np.zeros_like(linear), spins.copy(), 1.0, 10**6, nodes, over, 1)
    assert (nodes == -1).all()
    assert kernels.find_groups(kernels.Rows(*assignment()[0]), assignment()[1], over)[2] == 0
    kept = kernels.reduce(kernels.Rows(*sparse()), np.ones(60), over)
    assert not kept[0].size and np.array_equal(kept[4], np.arange(60))


@pytest.mark.parametrize("name", {name.split()[0]: name for name in VECTORS}.values())
def test_arrays_of_a_wrong_shape_or_type_are_refused(name):
    sites_and_heat = {(3, 0), (4, 0)}
    free = dict.fromkeys(("anneal", "anneal_sparse", "anneal_lanes"), sites_and_heat)
    free |= {"anneal_slices": {(3, 0)}, "harvest": {(3, 0)}, "sweep_chip": {(2, 1), (3, 0)}}
    free |= {"complete_reduced": {(0, 0)}, "anneal_groups": {(2, 0), (3, 0)}}
    for place, axis, arguments in broken(VECTORS[name], but=NEVER, longer=True):
        if (place, axis) not in free.get(name.split()[0], ()):
            with pytest.raises(ValueError, match=r"must|words"):
                run(kernels, name, arguments)
        arguments[place] = VECTORS[name][place].astype(np.complex128)  # wide enough for what outputs hold by chance
        with pytest.raises(TypeError, match="incompatible function arguments"):
            run(kernels, name, arguments)


@pytest.mark.parametrize(
    ("indptr", "indices", "said"),
    [
        ([0, 1, 2], [1, 2], "indices must be from 0 to 1, got 2"),
        ([0, 1, 2], [-1, 0], "indices must be from 0 to 1, got -1"),
        ([0, 2, 1], [1, 0], "indptr must ascend"),
        ([1, 1, 2], [1, 0], "indptr must ascend"),
        ([0, 1, 9], [1, 0], "indptr must ascend"),
    ],
)
def test_rows_that_point_outside_are_refused(indptr, indices, said):
    with pytest.raises(ValueError, match=said):
        kernels.Rows(np.array(indptr), np.array(indices, np.int32), np.ones(2))


def test_indices_that_point_outside_are_refused():
    couplings, _, fields, spins = dense(4, 1)
    for site in (-1, 4):
        with pytest.raises(ValueError, match=f"sites must be from 0 to 3, got {site}"):
            kernels.anneal(
                couplings, fields, spins, np.array([site], np.int32), np.ones(1), states(1), np.zeros(1, int), NEVER, 1
            )


def test_rows_that_are_not_symmetric_cannot_write_outside():
    n = 9
    indptr = np.concatenate([[0], np.cumsum([3] * (n - 1)), [3 * (n - 1)]])
    indices = np.array([[n - 1, (i + 1) % (n - 1), (i + 2) % (n - 1)] for i in range(n - 1)], np.int32).ravel()
    rows = kernels.Rows(indptr, indices, np.linspace(1, 2, len(indices)))
    try:
        kernels.reduce(rows, np.zeros(n), NEVER)
    except ValueError as error:
        assert "symmetric" in str(error)


@pytest.mark.parametrize("kernel", sorted({name.split()[0] for name in VECTORS}))
def test_random_arguments_are_taken_or_refused(kernel):
    generator = np.random.default_rng(0)
    for _ in range(60):
        name = generator.choice(of_kernel(kernel))
        with contextlib.suppress(ValueError, TypeError):
            called(kernels, name, spoiled(VECTORS[name], generator, stop=NEVER))
