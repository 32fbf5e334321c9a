"""One problem made ready for the moves of the portfolio: anneal, reheat, tabu moves, the best parts of two answers.

Every move takes spins (n,) int8 and gives spins and their energy, without a constant. Couplings are searched in single
precision, numbers beyond its range times a power of two, or in double precision where rounding would hide costs beside
penalties; sparse answers are brought to a local minimum in double precision.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from qpsbgd_qubo.kernels import NEVER, Array, kernels
from qpsbgd_qubo.solvers.portfolio.groups import OneHot
from qpsbgd_qubo.solvers.search.chains import SparseModel, range_factor
from qpsbgd_qubo.sparse import dot

Answer = tuple[Array, float]

VISIBLE, SAMPLE = 0.02, 100_000
"""The share of the spread of couplings or fields from which on rounding hides it; the couplings that are looked at."""
TOO_MANY = 1_500_000  # spins and couplings above which one chain is annealed at a time instead of sixteen


class SearchProblem(ABC):
    """A problem Σ_{i<j} J_ij g_i g_j + Σ h_i g_i and the moves on it."""

    linear: Array  # h, (n,)
    typical: float  # √(meanᵢ Σⱼ J_ij²), the field of the couplings on a spin among random others
    moves_per_sweep: float  # tabu moves that take about as long as a sweep of `anneal`
    fixed_sweeps: float = 0.0  # sweeps that take about as long as all else in `anneal`
    begins_long: ClassVar[bool] = False  # whether a long first anneal pays where time is limited
    groups: OneHot | None = None  # spins of which one is to be +1; None if there are no such groups
    group_sweeps: float = 1.0  # sweeps within groups that take about as long as a sweep of `anneal`

    def differences(self, spins: Array, other: Array) -> Array:
        """Where two answers differ; without h, an answer and its negative are the same."""
        places = np.flatnonzero(spins != other)
        if 2 * len(places) > len(spins) and not self.linear.any():
            places = np.flatnonzero(spins == other)
        return places.astype(np.int32)

    @abstractmethod
    def anneal(
        self, spins: Array | None, *, temperatures: Array, seed: int, stop: Array, sites: Array | None = None
    ) -> Answer:
        """Anneal from `spins` or random ones, as `SparseModel.anneal`; never above the energy of `spins`."""

    @abstractmethod
    def tabu_search(self, spins: Array, *, moves: int, tenure: int, seed: int, stop: Array) -> Answer:
        """Tabu moves from `spins`."""

    @abstractmethod
    def merge(self, spins: Array, other: Array) -> Answer:
        """The best answer that can be put together from independent parts of two."""

    def anneal_groups(
        self, spins: Array | None, *, across: Array | None, hot: float, sweeps: int, seed: int, stop: Array
    ) -> Answer:
        """Anneal within groups, or make tabu moves if not `hot`, in those that differ from `across`."""
        assert self.groups is not None
        sites = None if spins is None or across is None else self.groups.differences(spins, across)
        sites = sites if sites is not None and len(sites) else None
        sweeps = round(self.group_sweeps * sweeps)
        if spins is not None and not hot:
            found = self.groups.tabu_search(spins, sweeps=sweeps, seed=seed, stop=stop)
        else:
            found = self.groups.anneal(spins, hot=hot, sweeps=sweeps, seed=seed, stop=stop, sites=sites)
        answer = self.tabu_search(found, moves=0, tenure=0, seed=0, stop=stop)
        return answer if spins is None else self.merge(spins, answer[0])


class SparseSearchProblem(SearchProblem):
    """A problem in compressed rows: a flip costs as much as a spin has neighbours."""

    begins_long = True

    def __init__(self, model: SparseModel, stop: Array = NEVER) -> None:
        self.model, self.linear, self.typical = model, model.linear, model.typical
        n = len(model.linear)
        degree = model.num_entries / n
        self.block = int(np.clip(math.sqrt(n / (degree + 2)), 16, 4096))
        # Measured on graphs of 800 to 10000 nodes: about 3 ns per neighbour for sixteen chains, 1 ns per tabu look.
        self.moves_per_sweep = n * (20 + 3 * degree) / (50 + (degree + 2) * self.block + n / self.block)
        self.one_by_one = n + model.num_entries > TOO_MANY
        # Most of it puts the chains together. 10 to 20 on ARM, 30 on x86: with too many, the first long anneal would be
        # planned too long, and a short limit would cut it off while it is hot.
        self.fixed_sweeps = 0.0 if self.one_by_one else 10.0
        self.groups = OneHot.of(model.rows, model.linear, stop)
        self.group_sweeps = 1 + degree / 25  # 50 ns and more per spin

    def anneal(  # noqa: D102
        self, spins: Array | None, *, temperatures: Array, seed: int, stop: Array, sites: Array | None = None
    ) -> Answer:
        return self.model.anneal(
            spins, temperatures=temperatures, seed=seed, stop=stop, sites=sites, alone=self.one_by_one
        )

    def tabu_search(self, spins: Array, *, moves: int, tenure: int, seed: int, stop: Array) -> Answer:  # noqa: D102
        answer = spins.copy()
        state = int(np.random.default_rng(seed).integers(1, 2**63, dtype=np.uint64))
        model = self.model
        return answer, kernels.tabu_sparse(model.rows, model.linear, answer, self.block, moves, tenure, state, stop)

    def merge(self, spins: Array, other: Array) -> Answer:  # noqa: D102
        return self.model.merge(spins.copy(), other[None].copy(), NEVER)


class DenseSearchProblem(SearchProblem):
    """A problem with a full matrix of couplings, (n, n), zero on the diagonal, in single precision if that will do."""

    def __init__(self, couplings: Array, linear: Array) -> None:
        factor = range_factor(couplings, linear)
        if factor != 1:
            couplings, linear = couplings * factor, linear * factor
        largest = float(np.abs(couplings).sum(1).max() + np.abs(linear).max())
        self.dtype = np.float64 if _hidden(couplings, linear, largest) else np.float32
        self.couplings: Array = np.ascontiguousarray(couplings, self.dtype)
        self.linear, self.rounded_linear = linear, linear.astype(self.dtype)
        n = len(linear)
        squares = np.einsum("ij,ij->", self.couplings, self.couplings, dtype=np.float64)
        self.typical = math.sqrt(float(squares) / n)
        self.threshold = np.array([8 * np.finfo(self.dtype).eps * largest], self.dtype)
        self.sites = np.arange(n, dtype=np.int32)
        self.moves_per_sweep = 0.1 * n
        self.groups = OneHot.of_dense(couplings, linear)

    def anneal(  # noqa: D102
        self, spins: Array | None, *, temperatures: Array, seed: int, stop: Array, sites: Array | None = None
    ) -> Answer:
        generator = np.random.default_rng(seed)
        begin = 2 * generator.integers(0, 2, len(self.linear), dtype=np.int8) - 1 if spins is None else spins
        found, fields = begin.astype(self.dtype), self._fields(begin)
        states = generator.integers(1, 2**63, size=1, dtype=np.uint64)
        where, made = self.sites if sites is None else sites, np.empty(1, np.int64)
        heat = temperatures.astype(self.dtype)
        kernels.anneal(self.couplings, fields[None], found[None], where, heat, states, made, stop, 1)
        answer = self._descend_and_search(found, moves=0, tenure=0, seed=0, stop=stop)
        return answer if spins is None else min(answer, (spins, self._energy(spins)), key=lambda answer: answer[1])

    def tabu_search(self, spins: Array, *, moves: int, tenure: int, seed: int, stop: Array) -> Answer:  # noqa: D102
        return self._descend_and_search(spins.astype(self.dtype), moves=moves, tenure=tenure, seed=seed, stop=stop)

    def merge(self, spins: Array, other: Array) -> Answer:  # noqa: D102
        return min(((each, self._energy(each)) for each in (spins, other)), key=lambda answer: answer[1])

    def _descend_and_search(self, spins: Array, *, moves: int, tenure: int, seed: int, stop: Array) -> Answer:
        """Descent and this many tabu moves from `spins`, of the type of the couplings, which are changed."""
        fields = self._fields(spins)
        limits = (100 * len(spins) + moves, moves, tenure, seed)
        flips = np.empty(1, np.int64)
        kernels.search(self.couplings, fields[None], spins[None], self.threshold, flips, *limits, stop, 1)
        lowered = spins.astype(np.int8)
        return lowered, self._energy(lowered)

    def _fields(self, spins: Array) -> Array:
        fields = np.empty_like(self.rounded_linear)
        kernels.fields_of(self.couplings, self.rounded_linear, spins.astype(self.dtype), fields)
        return fields

    def _energy(self, spins: Array) -> float:
        return dot(self.linear + self._fields(spins), spins.astype(np.float64)) / 2


def _hidden(couplings: Array, linear: Array, largest: float) -> bool:
    """Whether single precision hides by how much numbers differ: the tenth that differ least without being equal.

    `largest` is the largest sum of the sizes of a spin's couplings and field.
    """
    for values in (couplings.ravel()[:: couplings.size // SAMPLE | 1], linear):
        ordered = np.sort(values)
        tenth = max(1, len(ordered) // 10)
        spreads = ordered[tenth:] - ordered[:-tenth]
        least = spreads[spreads > 1e-12 * largest].min(initial=np.inf)
        if 8 * np.finfo(np.float32).eps * largest > VISIBLE * least:
            return True
    return False
