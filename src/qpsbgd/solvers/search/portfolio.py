"""A search for single hard problems, sparse or dense, for a given time or number of rounds."""

from __future__ import annotations

import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.qubo.sparse import SparseIsing, dot
from qpsbgd.solvers import IMPORTED_IN, SparseSolver
from qpsbgd.solvers.deadline import deadline
from qpsbgd.solvers.options import SECONDS, SEED, Number, check_options

Array = np.ndarray[Any, Any]

SPARSE_UP_TO = 0.2
"""Largest share of coupled pairs for which a problem is kept in compressed rows."""
ROUNDS = 20
"""Rounds where neither these nor a time are given."""
HEAD_START = 0.1
"""Seconds, or a quarter of the time, that compiled code has before plain numpy begins: both take turns in Python."""
GRACE = 0.1
"""Seconds that moves get to hand in what they have when the time is up."""


@dataclass(frozen=True)
class Portfolio(SparseSolver):
    """Annealing, reheating, tabu moves and crossings of the best answers, on all threads; more of what works.

    Sparse problems are first reduced by the spins that follow from others, and never made dense. The time includes
    everything: until the compiled code is there, plain numpy searches.

    Args:
        time_limit: Seconds after which the best answer is returned; None for no limit.
        rounds: Rounds after which it is, each of one move per thread; with a time limit, whichever ends first. None for
            no limit, or 20 if there is no time limit either. The same rounds, seed and number of threads give the same
            answer.
        seed: Of all random choices.
    """

    time_limit: float | None = None
    rounds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, time_limit=SECONDS, rounds=Number(whole=True, least=1, optional=True), seed=SEED)

    def solve(self, family: QuboFamily) -> Solution:
        """The best spins found for every column; several columns share the time, and the threads."""
        plain = family.without_offset()
        found = self._solve_all(_columns(plain.to("cpu", torch.float64)))
        spins = torch.from_numpy(np.stack([run.spins for run in found], axis=1)).to(family.linear)
        proven = torch.tensor([run.proven for run in found])
        rounds = sum(run.rounds for run in found)
        solution = Solution.of(plain, spins, proven_optimal=proven, solver="portfolio", rounds=rounds)
        return solution.with_offset(family.offset)

    def solve_sparse(self, problem: SparseIsing) -> Solution:
        """The best spins found for a sparse problem; proven where it can be reduced to nothing."""
        if len(problem.indices) > SPARSE_UP_TO * problem.num_spins**2:
            return self.solve(problem.to_family())
        (run,) = self._solve_all([_SparseProblem(problem)])
        energy = torch.tensor([float(problem.energy(run.spins))], dtype=torch.float64)
        spins = torch.from_numpy(run.spins).double()[:, None]
        return Solution(spins, energy, torch.tensor([run.proven]), {"solver": "portfolio", "rounds": run.rounds})

    def _solve_all(self, problems: list[_Problem]) -> list[_Run]:
        begin, count = time.monotonic(), len(problems)
        threads = _thread_count()
        rounds = ROUNDS if self.rounds is None and self.time_limit is None else self.rounds

        def solved(place: int) -> _Run:
            seconds = None
            if self.time_limit is not None:
                left = self.time_limit - (time.monotonic() - begin)
                # Those that are still to come share what is left.
                seconds = max(0.0, left) / math.ceil((count - place) / threads)
            workers = max(1, threads // count)
            run = _Run(problems[place], seed=self.seed + place, workers=workers, rounds=rounds, seconds=seconds)
            return run.made()

        if count == 1:
            return [solved(0)]
        with ThreadPoolExecutor(min(count, threads)) as pool:
            return list(pool.map(solved, range(count)))


class _Problem(ABC):
    """A problem Σ_{i<j} J_ij g_i g_j + Σ h_i g_i as it comes, before anything is compiled."""

    linear: Array

    @abstractmethod
    def row(self, i: int) -> tuple[Any, Array]:
        """Which spins spin i is coupled to, as an index, and the couplings."""

    @abstractmethod
    def fields(self, spins: Array) -> Array:
        """The field on every spin, h + J · spins."""

    def energy(self, spins: Array, fields: Array) -> float:
        """The energy of spins and their fields."""
        return dot(self.linear + fields, spins) / 2

    @abstractmethod
    def prepared(self, stop: Array) -> tuple[Any, Callable[[Array], Array]]:
        """An arena, None if nothing is left to search, and what makes its spins those of the problem."""


@dataclass(frozen=True)
class _SparseProblem(_Problem):
    problem: SparseIsing

    @property
    def linear(self) -> Array:  # type: ignore[override]
        return self.problem.linear

    def row(self, i: int) -> tuple[Array, Array]:
        places = slice(self.problem.indptr[i], self.problem.indptr[i + 1])
        return self.problem.indices[places], self.problem.couplings[places]

    def fields(self, spins: Array) -> Array:
        products = np.append(self.problem.couplings * spins[self.problem.indices], 0.0)
        sums = np.add.reduceat(products, self.problem.indptr[:-1])
        return self.linear + np.where(np.diff(self.problem.indptr) > 0, sums, 0.0)

    def prepared(self, stop: Array) -> tuple[Any, Callable[[Array], Array]]:
        from qpsbgd.solvers.search.arenas import SparseArena
        from qpsbgd.solvers.search.reduction import Reduction

        _warm(SparseArena)
        reduction = Reduction.of(self.problem, stop)
        return SparseArena(reduction.core) if reduction.core else None, reduction.completed


@dataclass(frozen=True)
class _DenseProblem(_Problem):
    couplings: Array
    linear: Array

    def row(self, i: int) -> tuple[slice, Array]:
        return slice(None), self.couplings[i]

    def fields(self, spins: Array) -> Array:
        result: Array = self.linear + np.einsum("ij,j->i", self.couplings, spins)
        return result

    def prepared(self, stop: Array) -> tuple[Any, Callable[[Array], Array]]:
        from qpsbgd.solvers.search.arenas import DenseArena

        _warm(DenseArena)
        return DenseArena(self.couplings, self.linear), np.asarray


def _columns(family: QuboFamily) -> list[_Problem]:
    couplings = 2 * family.quadratic.numpy()
    np.fill_diagonal(couplings, 0)
    n, linear = family.num_spins, np.ascontiguousarray(family.linear.numpy().T)
    if np.count_nonzero(couplings) > SPARSE_UP_TO * n * n:
        return [_DenseProblem(couplings, column) for column in linear]
    rows, cols = np.nonzero(np.triu(couplings))
    return [_SparseProblem(SparseIsing.from_edges(n, rows, cols, couplings[rows, cols], linear=h)) for h in linear]


class _Run:
    """The search of one problem: plain numpy until compiled code is there, then rounds of moves.

    Attributes:
        spins: The best so far, int8.
        energy: Theirs.
        proven: Whether they are optimal.
        rounds: How many were made.
    """

    def __init__(
        self, problem: _Problem, *, seed: int, workers: int, rounds: int | None, seconds: float | None
    ) -> None:
        self.problem, self.seed, self.workers = problem, seed, workers
        self.most_rounds, self.seconds, self.begin = rounds, seconds, time.monotonic()
        self.spins = np.where(problem.linear <= 0, 1, -1).astype(np.int8)
        self.energy, self.proven, self.rounds = math.inf, False, 0
        self._lock, self._compiled = threading.Lock(), threading.Event()
        self._error: BaseException | None = None
        self._ended = False

    def made(self) -> _Run:
        """This run when it has ended, on time."""
        with deadline(self.seconds) as stop:
            if self.seconds is None:
                self._search(stop)
                return self
            # What a thread compiles when the time is up goes on behind the answer, and is of use later; what it finds
            # then no longer changes the answer.
            worker = threading.Thread(target=self._guarded, args=(stop,))
            worker.start()
            try:
                self._search_plainly(stop)
                worker.join(self._left() + GRACE)
            finally:
                stop.fill(1)
                with self._lock:
                    self._ended = True
        if self._error is not None:
            raise self._error
        return self

    def _left(self) -> float:
        return math.inf if self.seconds is None else self.seconds - (time.monotonic() - self.begin)

    def _offer(self, spins: Array, energy: float, *, proven: bool = False) -> None:
        with self._lock:
            if energy < self.energy and not self._ended:
                self.spins, self.energy, self.proven = spins, energy, proven

    def _guarded(self, stop: Array) -> None:
        try:
            self._search(stop)
        except BaseException as error:  # handed to the thread that waits
            self._error = error
        finally:
            self._compiled.set()

    def _search(self, stop: Array) -> None:
        from qpsbgd.solvers.search.pool import PoolSearch

        arena, completed = self.problem.prepared(stop)
        self._compiled.set()
        if arena is None:
            self._offer(completed(np.zeros(0, np.int8)), -math.inf, proven=True)
            return
        search = PoolSearch(arena, self.workers, self.seed, stop)
        most: float = math.inf
        with ThreadPoolExecutor(self.workers) as pool:
            while not stop[0] and search.rounds != self.most_rounds:
                begin = time.monotonic()
                search.round(pool.map, most)
                self.rounds = search.rounds
                spins = completed(search.best[0])
                self._offer(spins, self._energy(spins))
                # A round that would not end in time is made shorter.
                per_sweep = (time.monotonic() - begin) / (search.last_sweeps + arena.fixed_sweeps)
                most = max(1.0, 0.9 * self._left() / per_sweep - arena.fixed_sweeps)

    def _energy(self, spins: Array) -> float:
        return self.problem.energy(spins, self.problem.fields(spins))

    def _search_plainly(self, stop: Array) -> None:
        """Descent and tabu moves without compiled code, until that is there."""
        problem, n = self.problem, len(self.problem.linear)
        generator = np.random.default_rng(self.seed)
        spins = self.spins.astype(np.float64)
        fields = problem.fields(spins)
        energy = problem.energy(spins, fields)
        self._offer(self.spins, energy)
        self._compiled.wait(min(HEAD_START, self._left() / 4))
        # Of the spins that gain, a random half at a time, as long as that helps; then one by one.
        while not self._compiled.is_set() and not stop[0]:
            trial = np.where((spins * fields > 0) & (generator.random(n) < 0.5), -spins, spins)
            trial_fields = problem.fields(trial)
            trial_energy = problem.energy(trial, trial_fields)
            if trial_energy >= energy:
                break
            spins, fields, energy = trial, trial_fields, trial_energy
            self._offer(spins.astype(np.int8), energy)
        free_from, move = np.zeros(n), 0
        while not self._compiled.is_set() and not stop[0]:
            move += 1
            gains = np.where(free_from <= move, spins * fields, -np.inf)
            i = int(gains.argmax())
            if gains[i] <= 0 and energy < self.energy:
                self._offer(spins.astype(np.int8), energy)
            energy -= 2 * spins[i] * fields[i]
            where, couplings = problem.row(i)
            fields[where] -= 2 * spins[i] * couplings
            spins[i] = -spins[i]
            free_from[i] = move + 1 + min(n // 4, 10 + n // 100 + int(generator.integers(10)))
        self._offer(spins.astype(np.int8), energy)


def _warm(arena_type: Any) -> None:
    """Call all moves once on a tiny problem, so that they are compiled."""
    arena, go_on = arena_type.tiny(), np.zeros(1, np.uint8)
    spins, _ = arena.annealed(None, temperatures=np.ones(1), seed=0, stop=go_on)
    arena.searched(spins, moves=1, tenure=1, seed=0, stop=go_on)
    arena.merged(spins, spins)


def _thread_count() -> int:
    return 1 if os.getpid() != IMPORTED_IN else torch.get_num_threads()
