"""One short search of all columns of a layer on the CPU, with what suits the layer's inputs.

- Few couplings (bags of words): all columns become one sparse problem, which is reduced, annealed in sixteen chains and
  put together from the best parts of each.
- Inputs of different size, where a search of some columns ends far from sign(−s): tabu search from sign(−s) and from
  the rounded relaxation, the better of both.
- All others: tabu search from sign(−s).

Wide layers and those with two starts have several basins, so that kicks follow in the columns whose answer is far from
the sign vector. Where inputs differ in size, large spins whose flip costs little are then flipped and held while all
others follow: single flips do not get there, since they would flip such a spin back first.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import NEVER, Array, aligned, kernels, thread_count
from qpsbgd_qubo.options import SEED, check_options
from qpsbgd_qubo.solvers import Solver
from qpsbgd_qubo.solvers.search.chains import Reduction, SparseModel
from qpsbgd_qubo.solvers.search.landscape import Landscape, sign_start

SPARSE_UP_TO = 0.1  # largest share of couplings that are not zero for a sparse search
UNEVEN_FROM = 2.0  # least ratio of the largest to the median diagonal of Q at which inputs count as of different size
FAR = 0.15  # share of spins that differ from sign(−s) from which another start pays
KICKS, FORCED = 4, 8  # random kicks of the best answer, and flips of single spins that are held while others follow
TOGETHER = 16384
"""Spins of the columns that are annealed as one sparse problem: more would not stay in the processor's cache."""
LEAST_GROUPS = 8
"""Groups of columns, at least, so that several threads have work; fixed, so that answers do not depend on threads."""
SWEEPS = (12, 48)
"""Sweeps of their annealing: as many as a spin has neighbours, within these bounds. Its sixteen chains put together are
worth many more."""
HOT, COLD = 2.0, 0.02
"""First and last temperature, in units of the typical field, by equal ratios: rare words have small fields."""
WIDE_FROM = 256  # least number of spins for which kicks pay after one start
LEAST_RIDGE, MOST_RIDGE = 0.1, 4.0  # bounds of δ, in units of the mean diagonal of Q
INSIDE, GROWTH = 0.5, 1.2
"""δ is the least one times (r / INSIDE) ** GROWTH, with r the root mean square of the relaxation there without box."""
SAMPLE = 16  # columns, at least, from which r and the like are estimated
BLOCK = 64  # rows of the matrix that are factorised at once
PASSES = 6  # most passes of coordinate descent in the box


@dataclass(frozen=True)
class LayerSearch(Solver):
    """The search of `auto` on layers.

    Args:
        seed: Seed of all random choices.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, seed=SEED)

    def _solve(self, family: QuboFamily) -> Solution:
        """The best spins found for every column; `stats["search"]` says how they were searched."""
        offset, family = family.offset, family.without_offset()
        density = np.count_nonzero(family.quadratic) / family.num_spins**2
        spins, proven, search = (_sparse if density <= SPARSE_UP_TO else _dense)(family, self.seed)
        solution = Solution.of(family, spins, proven_optimal=proven, solver="layer search", search=search)
        return solution.with_offset(offset)


def _dense(family: QuboFamily, seed: int) -> tuple[Array, Array, str]:
    landscape, starts = Landscape.of(family), [sign_start(family)]
    coupling_sums, diagonal = abs(landscape.couplings).sum(1), family.quadratic.diagonal()
    uneven = bool(diagonal.max() > UNEVEN_FROM * np.sort(diagonal)[(len(diagonal) - 1) // 2])
    if uneven:
        sample = sample_columns(family.num_columns)
        part = Landscape(landscape.couplings, landscape.linear[:, sample], landscape.threshold[sample])
        signs = starts[0][:, sample]
        far = (_tabu_search(part, diagonal, coupling_sums, [signs], seed) != signs).mean() > FAR
        if far and (start := round_relaxation(family)) is not None:
            starts.append(start)
    kicks = KICKS if len(starts) > 1 or family.num_spins >= WIDE_FROM else 0
    spins = _tabu_search(landscape, diagonal, coupling_sums, starts, seed, kicks=kicks, forced=FORCED if uneven else 0)
    return spins, np.zeros(family.num_columns, bool), "tabu" if len(starts) == 1 else "tabu and rounding"


def _tabu_search(
    landscape: Landscape,
    diagonal: Array,
    coupling_sums: Array,
    starts: list[Array],
    seed: int,
    *,
    kicks: int = 0,
    forced: int = 0,
) -> Array:
    """The best spins found for every column (n, m) from each of the starts (n, m)."""
    linear = np.ascontiguousarray(landscape.linear.T)
    pairs = ([start.T for start in starts], [landscape.fields(start).T for start in starts])
    spins, fields = (aligned(np.stack(parts)) for parts in pairs)
    threshold, best = np.ascontiguousarray(landscape.threshold), np.empty_like(linear)
    parts = (landscape.couplings, np.ascontiguousarray(diagonal), linear, coupling_sums, spins, fields, threshold, best)
    patience, tenure = 100 if len(starts) == 1 else 30, 2
    kernels.search_layer(*parts, patience, tenure, kicks, forced, seed, thread_count())
    return best.T


def _sparse(family: QuboFamily, seed: int) -> tuple[Array, Array, str]:
    n, m = family.num_spins, family.num_columns
    couplings, linear = family.couplings(), family.linear.astype(np.float64)
    rows, indices = np.nonzero(couplings)
    single = (np.bincount(rows, minlength=n).cumsum(), indices, couplings[rows, indices])
    groups = np.array_split(np.arange(m), min(m, max(LEAST_GROUPS, math.ceil(m * n / TOGETHER))))
    with ThreadPoolExecutor(thread_count()) as pool:
        answers = list(pool.map(lambda group: _as_one_problem(*single, linear[:, group], seed), groups))
    spins = np.concatenate([spins for spins, _ in answers], axis=1)
    return spins, np.concatenate([proven for _, proven in answers]), "sparse annealing"


def _as_one_problem(ends: Array, indices: Array, couplings: Array, linear: Array, seed: int) -> tuple[Array, Array]:
    """Spins (n, m) and what is proven (m,), from all columns, with the same rows of couplings, as one problem."""
    n, m = linear.shape
    places = np.arange(m)[:, None]
    indptr = np.append(0, (ends + len(indices) * places).ravel())
    columns = (indices + n * places).ravel().astype(np.int32)
    model = SparseModel.of(indptr, columns, np.tile(couplings, m), linear.T.ravel())
    reduction = Reduction.of(model, NEVER)
    core_spins = np.zeros(0, np.int8)
    if (core := reduction.core) is not None:
        sweeps = int(np.clip(core.num_entries / len(core.linear), *SWEEPS))
        temperatures = np.append(core.typical * np.geomspace(HOT, COLD, sweeps), np.zeros(3))
        core_spins, _ = core.anneal(None, temperatures=temperatures, seed=seed, stop=NEVER)
    proven = np.ones(m, bool)
    proven[reduction.kept // n] = False
    return reduction.complete(core_spins).reshape(m, n).T, proven


def round_relaxation(family: QuboFamily) -> Array | None:
    """A start that knows the couplings: the relaxation to the box [−1, 1]ⁿ, rounded one spin after the other, (n, m).

    With A = Q + δI = RᵀR and x the least xᵀAx + sᵀx over the box, spins are set from the last row of R to the first,
    each to the sign that keeps ‖R (g − x)‖² low given those before it (Babai's nearest plane, the sphere decoder's
    first leaf). Spins with the largest diagonal are set first, so that the smaller ones can make up for what rounding
    them costs. Where inputs are of very different size, single flips from sign(−s) do not get there.

    δ changes the energies of all spins by the same and can be chosen: small ones are best where the relaxation without
    the box lies inside it, and larger ones the farther it lies outside. None if Q + δI is not positive definite.
    """
    diagonal = family.quadratic.diagonal()
    order = np.argsort(diagonal, kind="stable")
    matrix, linear = family.quadratic[np.ix_(order, order)], family.linear[order]
    unit, places = diagonal.mean(), np.arange(len(order))
    matrix[places, places] += LEAST_RIDGE * unit
    try:
        factor = _Cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    size = 0.5 * math.sqrt(np.square(factor.solve(linear[:, sample_columns(linear.shape[1])])).mean())
    ridge = min(MOST_RIDGE, LEAST_RIDGE * (size / INSIDE) ** GROWTH)
    if ridge > LEAST_RIDGE:
        matrix[places, places] += (ridge - LEAST_RIDGE) * unit
        factor = _Cholesky(matrix)
    relaxed = np.clip(factor.solve(linear) * -0.5, -1, 1)
    slopes, relaxed = aligned((linear + 2 * (matrix @ relaxed)).T), aligned(relaxed.T)
    kernels.relax(aligned(2 * matrix), slopes, relaxed, PASSES, thread_count())
    spins = np.empty_like(relaxed)
    kernels.round_down(aligned(factor.factor), aligned(relaxed @ factor.factor), spins, thread_count())
    result: Array = np.empty_like(family.linear)
    result[order] = spins.T
    return result


class _Cholesky:
    """A = L Lᵀ, block by block in matrix products: numpy's own is five times as slow, and it solves no triangles."""

    def __init__(self, matrix: Array) -> None:
        self.factor, self.inverses = matrix.copy(), []
        for begin in range(0, len(matrix), BLOCK):
            end = begin + BLOCK
            block = np.linalg.cholesky(self.factor[begin:end, begin:end])
            self.inverses.append(np.linalg.inv(block))
            below = self.factor[end:, begin:end] @ self.inverses[-1].T
            self.factor[end:, end:] -= below @ below.T
            self.factor[begin:end, begin:end], self.factor[end:, begin:end] = block, below
            self.factor[begin:end, end:] = 0

    def solve(self, right: Array) -> Array:
        """X with A x = `right` (n, k)."""
        x, blocks = right.copy(), [(k * BLOCK, (k + 1) * BLOCK, inverse) for k, inverse in enumerate(self.inverses)]
        for begin, end, inverse in blocks:
            x[begin:end] = inverse @ (x[begin:end] - self.factor[begin:end, :begin] @ x[:begin])
        for begin, end, inverse in reversed(blocks):
            x[begin:end] = inverse.T @ (x[begin:end] - self.factor[end:, begin:end].T @ x[end:])
        return x


def sample_columns(count: int) -> slice:
    """Some of so many columns, evenly spaced."""
    return slice(0, None, max(1, count // SAMPLE))
