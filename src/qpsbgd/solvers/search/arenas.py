"""One problem made ready for the moves of the portfolio: anneal, reheat, tabu moves, the best parts of two answers.

Every move takes spins (n,) int8 and gives spins and their energy, without a constant. Couplings are searched in single
precision, numbers beyond its range times a power of two; sparse answers are brought to a local minimum in double
precision.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from qpsbgd.qubo.sparse import SparseIsing, dot
from qpsbgd.solvers.search import kernels, lanes, sparse_kernels

Array = np.ndarray[Any, Any]
Answer = tuple[Array, float]

TOO_MANY = 1_500_000
"""Spins and couplings above which one chain is annealed at a time instead of sixteen."""


class Arena(ABC):
    """A problem Σ_{i<j} J_ij g_i g_j + Σ h_i g_i and the moves on it.

    Attributes:
        linear: h, (n,).
        typical: √(meanᵢ Σⱼ J_ij²), the field of the couplings on a spin among random others.
        moves_per_sweep: Tabu moves that take about as long as a sweep of `annealed`.
        fixed_sweeps: Sweeps that take about as long as all else in `annealed`.
        begins_long: Whether a long first anneal pays where time is limited.
    """

    linear: Array
    typical: float
    moves_per_sweep: float
    fixed_sweeps: float = 0.0
    begins_long: ClassVar[bool] = False

    @property
    def num_spins(self) -> int:
        """The number of spins, n."""
        return len(self.linear)

    @classmethod
    @abstractmethod
    def tiny(cls) -> Arena:
        """A problem of two spins, for a first call of all moves, which compiles them or loads what was compiled."""

    def differing(self, spins: Array, other: Array) -> Array:
        """Where two answers differ; without h, an answer and its negative are the same."""
        places = np.flatnonzero(spins != other)
        if 2 * len(places) > len(spins) and not self.linear.any():
            places = np.flatnonzero(spins == other)
        return places.astype(np.int32)

    @abstractmethod
    def annealed(
        self, spins: Array | None, *, temperatures: Array, seed: int, stop: Array, sites: Array | None = None
    ) -> Answer:
        """Anneal from `spins` or, if None, from random ones; never above the energy of `spins`.

        Args:
            spins: The start.
            temperatures: One for every pass over all spins, or over `sites` alone.
            seed: Of the random numbers.
            stop: A flag from `deadline`.
            sites: The spins that are annealed; None for all.
        """

    @abstractmethod
    def searched(self, spins: Array, *, moves: int, tenure: int, seed: int, stop: Array) -> Answer:
        """Tabu moves from `spins`."""

    @abstractmethod
    def merged(self, spins: Array, other: Array) -> Answer:
        """The best answer that can be put together from independent parts of two."""


class SparseArena(Arena):
    """A problem in compressed rows: a flip costs as much as a spin has neighbours."""

    begins_long = True

    def __init__(self, problem: SparseIsing) -> None:
        n = problem.num_spins
        factor = _factor(problem.couplings, problem.linear)
        if factor != 1:
            problem = problem * factor
        self.linear = problem.linear
        self.typical = math.sqrt(dot(problem.couplings, problem.couplings) / n)
        self.rows = (problem.indptr, problem.indices, problem.couplings)
        self.single = problem.couplings.astype(np.float32)
        sizes = np.concatenate([[0.0], np.cumsum(np.abs(problem.couplings))])
        self.thresholds = 1e-12 * (np.abs(problem.linear) + np.diff(sizes[problem.indptr]))
        self.sites = np.arange(n, dtype=np.int32)
        degree = len(problem.indices) / n
        self.block = int(np.clip(math.sqrt(n / (degree + 2)), 16, 4096))
        # Measured on graphs of 800 to 10000 nodes: about 3 ns per neighbour for sixteen chains, 1 ns per tabu look.
        self.moves_per_sweep = n * (20 + 3 * degree) / (50 + (degree + 2) * self.block + n / self.block)
        self.one_by_one = n + len(problem.indices) > TOO_MANY
        self.fixed_sweeps = 0.0 if self.one_by_one else 30.0  # measured, too: most of it puts the chains together

    @classmethod
    def tiny(cls) -> SparseArena:  # noqa: D102
        return cls(SparseIsing.from_edges(2, [0], [1], [1.0]))

    def annealed(  # noqa: D102
        self, spins: Array | None, *, temperatures: Array, seed: int, stop: Array, sites: Array | None = None
    ) -> Answer:
        generator, n = np.random.default_rng(seed), self.num_spins
        state = generator.integers(1, 2**63, dtype=np.uint64)
        indptr, indices, _ = self.rows
        rows = (indptr, indices, self.single)
        where = self.sites if sites is None else sites
        if self.one_by_one:
            chain = 2 * generator.integers(0, 2, n, dtype=np.int8) - 1 if spins is None else spins.copy()
            sparse_kernels.anneal(*rows, self.linear, chain, where, temperatures, kernels.LOG_UNIFORM, state, stop)
            chains = chain[None]
        else:
            bits = (
                generator.integers(0, 1 << lanes.LANES, n, dtype=np.uint16) if spins is None else lanes.bits_of(spins)
            )
            fields = lanes.first_fields(self.linear)
            lanes.anneal(*rows, fields, bits, where, temperatures, lanes.EXPONENTIAL, state, stop)
            chains = lanes.chains_of(bits)
        found = (chains[0] if spins is None else spins).copy()
        return found, sparse_kernels.harvest(*self.rows, self.linear, self.thresholds, chains, found, stop)

    def searched(self, spins: Array, *, moves: int, tenure: int, seed: int, stop: Array) -> Answer:  # noqa: D102
        found = spins.copy()
        state = np.random.default_rng(seed).integers(1, 2**63, dtype=np.uint64)
        energy = sparse_kernels.tabu(*self.rows, self.linear, found, self.block, moves, tenure, state, stop)
        return found, energy

    def merged(self, spins: Array, other: Array) -> Answer:  # noqa: D102
        found = spins.copy()
        go_on = np.zeros(1, np.uint8)
        return found, sparse_kernels.harvest(*self.rows, self.linear, self.thresholds, other[None].copy(), found, go_on)


class DenseArena(Arena):
    """A problem with a full matrix of couplings in single precision, (n, n), zero on the diagonal."""

    def __init__(self, couplings: Array, linear: Array) -> None:
        factor = _factor(couplings, linear)
        if factor != 1:
            couplings, linear = couplings * factor, linear * factor
        self.couplings = np.ascontiguousarray(couplings, np.float32)
        self.linear = linear
        n = len(linear)
        squares = np.einsum("ij,ij->", self.couplings, self.couplings, dtype=np.float64)
        self.typical = math.sqrt(float(squares) / n)
        largest = np.abs(self.couplings).sum(1, dtype=np.float64).max() + np.abs(linear).max()
        self.threshold = float(8 * np.finfo(np.float32).eps * largest)
        self.sites = np.arange(n, dtype=np.int32)
        self.moves_per_sweep = 0.1 * n

    @classmethod
    def tiny(cls) -> DenseArena:  # noqa: D102
        return cls(np.array([[0.0, 1.0], [1.0, 0.0]]), np.zeros(2))

    def annealed(  # noqa: D102
        self, spins: Array | None, *, temperatures: Array, seed: int, stop: Array, sites: Array | None = None
    ) -> Answer:
        generator = np.random.default_rng(seed)
        begin = 2 * generator.integers(0, 2, self.num_spins, dtype=np.int8) - 1 if spins is None else spins
        found, fields = begin.astype(np.float32), self._fields(begin)
        kernels.anneal_sites(
            self.couplings,
            fields,
            found,
            self.sites if sites is None else sites,
            temperatures.astype(np.float32),
            kernels.LOG_UNIFORM,
            generator.integers(1, 2**63, dtype=np.uint64),
            stop,
        )
        answer = self._lowered(found, moves=0, tenure=0, seed=0, stop=stop)
        return answer if spins is None else min(answer, (spins, self._energy(spins)), key=lambda answer: answer[1])

    def searched(self, spins: Array, *, moves: int, tenure: int, seed: int, stop: Array) -> Answer:  # noqa: D102
        return self._lowered(spins.astype(np.float32), moves=moves, tenure=tenure, seed=seed, stop=stop)

    def merged(self, spins: Array, other: Array) -> Answer:  # noqa: D102
        return min(((each, self._energy(each)) for each in (spins, other)), key=lambda answer: answer[1])

    def _lowered(self, spins: Array, *, moves: int, tenure: int, seed: int, stop: Array) -> Answer:
        """Descent and this many tabu moves from `spins`, float32, which are changed."""
        fields = self._fields(spins)
        most = 100 * self.num_spins + moves
        kernels.search_column(self.couplings, fields, spins, self.threshold, most, moves, tenure, seed, stop)
        found = spins.astype(np.int8)
        return found, self._energy(found)

    def _fields(self, spins: Array) -> Array:
        fields: Array = kernels.fields_of(self.couplings, self.linear, spins.astype(np.float32))
        return fields

    def _energy(self, spins: Array) -> float:
        return dot(self.linear + self._fields(spins), spins.astype(np.float64)) / 2


def _factor(couplings: Array, linear: Array) -> float:
    """1 for numbers that single precision can hold; otherwise the power of two that makes the largest about 1."""
    largest = max(float(np.abs([part.min(), part.max()]).max()) for part in (couplings, linear) if part.size)
    if largest == 0 or 1e-20 < largest < 1e30:
        return 1.0
    return math.ldexp(1.0, max(-1000, min(1000, -math.frexp(largest)[1])))
