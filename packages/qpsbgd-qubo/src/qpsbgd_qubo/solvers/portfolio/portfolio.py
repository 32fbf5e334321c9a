"""A search for single hard problems, sparse or dense, for a given time or number of rounds."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.kernels import NEVER, Array, kernels, thread_count
from qpsbgd_qubo.options import AT_LEAST_ONE_OR_NONE, SECONDS, SEED, check_options
from qpsbgd_qubo.solvers.deadline import deadline, ended_by_exceptions, report
from qpsbgd_qubo.solvers.exact.sphere_decoder import prove
from qpsbgd_qubo.solvers.portfolio.pool import PoolSearch
from qpsbgd_qubo.solvers.portfolio.search_problem import DenseSearchProblem, SearchProblem, SparseSearchProblem
from qpsbgd_qubo.solvers.portfolio.sums import Sums
from qpsbgd_qubo.solvers.protocol import ModelSolver
from qpsbgd_qubo.solvers.search.chains import Reduction, SparseModel
from qpsbgd_qubo.solvers.search.landscape import sign_start
from qpsbgd_qubo.solvers.search.single_flips import local_search
from qpsbgd_qubo.sparse import SparseIsing, dot

TRY_OUT_UP_TO = 16  # most spins of which all values are tried, which takes under a millisecond
SPARSE_UP_TO = 0.2  # largest share of coupled pairs for which a problem is kept in compressed rows
PATIENCE = 100  # of the tabu search of all columns together that comes first where time is limited, as in `LayerSearch`
FINISH = 10
"""Time kept for the end, in units of what an answer's energy takes: 0.3 s of 3 for a million spins, else nothing."""
ROUNDS = 20  # rounds where neither these nor a time are given
PROVE_UP_TO, PROVE_AFTER = 80, 2  # most spins of a single problem of which a proof is tried, and rounds before it
NODES, SHARE = 2000, 1 / 6
"""What a proof may cost: nodes of the sphere decoder per round, and of the time that is left this share. The nodes take
about a sixth of a round of 20 to 80 dense spins; those of 20 rounds prove most random problems of up to 50. Chosen in
trials on nine kinds of problems, whose script is not kept."""


@dataclass(frozen=True)
class Portfolio(ModelSolver):
    """Annealing, reheating, tabu moves and crossings of the best answers, on all threads; what works gets more time.

    One-hot groups are detected in the couplings, and most moves then keep them; sums of numbers and knapsacks are
    detected too (`groups.py`, `sums.py`).
    Sparse problems are first reduced by the spins that follow from others, and never made dense; up to 16 spins
    are enumerated, and a single problem of up to 80 is proven where a sixth of the work is enough for that.
    The time limit includes everything. Several columns share the time and the threads.

    Args:
        time_limit: Seconds after which the best answer is returned; None for no limit.
        rounds: Rounds after which it is, each of one move per thread; with a time limit, whichever ends first. None for
            no limit, or 20 if there is no time limit either. The same rounds, seed and number of threads give the same
            answer.
        seed: Seed of all random choices.
    """

    time_limit: float | None = None
    rounds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, time_limit=SECONDS, rounds=AT_LEAST_ONE_OR_NONE, seed=SEED)

    def answer(self, model: SparseIsing | QuboFamily) -> tuple[Array, Array, dict[str, Any]]:
        """The best spins found; proven where all were tried, a proof was cheap, or a reduction left nothing."""
        begin, n = time.monotonic(), model.num_spins
        if isinstance(model, SparseIsing) and (n <= TRY_OUT_UP_TO or len(model.indices) > SPARSE_UP_TO * n**2):
            model = model.to_dense()
        if isinstance(model, QuboFamily) and n <= TRY_OUT_UP_TO:
            return _tried(model), np.ones(model.num_columns, bool), {"solver": "exact", "method": "exhaustion"}
        results = self._search_all(model, begin)
        is_over = self.time_limit is not None and time.monotonic() - begin >= self.time_limit  # else by Ctrl-C
        if is_over and any(rounds == 0 and not proven for _, proven, rounds in results):
            warnings.warn(
                "the time limit left no time for a search: the answer is where single flips led, or where they began; "
                "give it more time",
                RuntimeWarning,
                stacklevel=3,
            )
        spins, proven, rounds = zip(*results, strict=True)
        return np.stack(spins, axis=1), np.array(proven), {"solver": "portfolio", "rounds": sum(rounds)}

    def _search_all(self, model: SparseIsing | QuboFamily, begin: float) -> list[tuple[Array, bool, int]]:
        """Spins, whether they are proven, and rounds, of every column."""
        threads, count = thread_count(), model.num_columns
        limit = math.inf if self.time_limit is None else begin + self.time_limit
        rounds = ROUNDS if self.rounds is None and self.time_limit is None else self.rounds
        starts: Sequence[Array | None] = [None] * count
        if isinstance(model, QuboFamily) and count > 1 and limit < math.inf:
            with deadline(max(0.0, limit - time.monotonic()) / 2) as stop:
                starts = local_search(model, sign_start(model), patience=PATIENCE, stop=stop).spins.T.astype(np.int8)
        make = _problems(model)

        def solve(place: int) -> tuple[Array, bool, int]:
            end, start = limit, starts[place]
            if limit < math.inf:
                now = time.monotonic()
                if limit <= now and start is not None:
                    return start, False, 0
                # Those that are still to come share what is left.
                end = now + max(0.0, limit - now) / math.ceil((count - place) / threads)
            problem = make(place)
            spins = np.where(problem.linear <= 0, 1, -1).astype(np.int8) if start is None else start
            run = _Run(problem, spins, seed=self.seed + place, workers=max(1, threads // count), rounds=rounds, end=end)
            run.may_prove = count == 1 and len(spins) <= PROVE_UP_TO
            run.make()
            return run.spins, run.proven, run.made

        if count == 1:
            return [solve(0)]
        with ThreadPoolExecutor(min(count, threads)) as pool, ended_by_exceptions():
            context = copy_context()  # so that Ctrl-C reaches the searches on other threads, too
            return list(pool.map(lambda place: context.copy().run(solve, place), range(count)))


class _SparseProblem:
    """A problem Σ_{i<j} J_ij g_i g_j + Σ h_i g_i before its search."""

    def __init__(self, model: SparseIsing | QuboFamily, column: int = 0) -> None:
        self.problem = problem = model if isinstance(model, SparseIsing) else SparseIsing.from_dense(model, column)
        self.linear = problem.linear
        self.model = SparseModel.of(problem.indptr, problem.indices, problem.couplings, problem.linear)

    @property
    def couplings(self) -> Array:
        """J as a matrix, (n, n)."""
        return self.problem.to_dense().couplings()

    def descend(self, spins: Array, stop: Array) -> Array:
        """Where downhill flips lead from `spins`, int8, or until `stop` is set."""
        return self.model.merge(spins.copy(), spins[None].copy(), stop)[0]

    def energy(self, spins: Array) -> float:
        return self.model.energy(spins)

    def prepare(self, stop: Array) -> tuple[SearchProblem | None, Callable[[Array], Array]]:
        """What to search, None if nothing is left to search, and what makes its spins those of the problem."""
        reduction = Reduction.of(self.model, stop)
        return SparseSearchProblem(reduction.core, stop) if reduction.core else None, reduction.complete


class _DenseProblem:
    """The same with a matrix of couplings."""

    def __init__(self, couplings: Array, linear: Array) -> None:
        self.couplings, self.linear = couplings, linear
        self.problem = DenseSearchProblem(couplings, linear)

    def descend(self, spins: Array, stop: Array) -> Array:
        if sums := Sums.of(self.couplings, self.linear):
            return sums.solve(seed=0, stop=stop)
        return self.problem.tabu_search(spins, moves=0, tenure=0, seed=0, stop=stop)[0]

    def energy(self, spins: Array) -> float:
        fields = np.einsum("ij,j->i", self.couplings, spins.astype(np.float64))
        return dot(2 * self.linear + fields, spins.astype(np.float64)) / 2

    def prepare(self, stop: Array) -> tuple[SearchProblem | None, Callable[[Array], Array]]:
        return self.problem, np.asarray


_Problem = _SparseProblem | _DenseProblem


def _tried(model: QuboFamily) -> Array:
    """The best of all spins, (n, m)."""
    couplings, linear = model.couplings(), np.ascontiguousarray(model.linear.T, np.float64)
    spins = np.empty_like(linear)
    for column, best in zip(linear, spins, strict=True):
        kernels.exhaust(couplings, column, best, NEVER, 1)
    return spins.T.astype(np.int8)


def _problems(model: SparseIsing | QuboFamily) -> Callable[[int], _Problem]:
    """What makes the problem of a column."""
    if isinstance(model, QuboFamily):
        couplings, linear = model.couplings(), np.ascontiguousarray(model.linear.T, np.float64)
        if np.count_nonzero(couplings) > SPARSE_UP_TO * couplings.size:
            return lambda column: _DenseProblem(couplings, linear[column])
    return lambda column: _SparseProblem(model, column)


@dataclass
class _Run:
    """The search of one problem: descent, then rounds of moves; `spins`, int8, are the best so far."""

    problem: _Problem
    spins: Array  # where it begins
    seed: int
    workers: int
    rounds: int | None  # most rounds
    end: float  # on the clock, infinite without a limit
    may_prove: bool = False
    energy: float = math.inf
    proven: bool = False
    made: int = 0  # rounds

    def make(self) -> None:
        """Search, and end on time."""
        begin = time.monotonic()
        self._offer(self.spins)
        # An answer's energy is computed once more in the end, exactly, which takes a few times as long as here.
        self.end -= FINISH * (time.monotonic() - begin)
        with deadline(None if self.end == math.inf else max(0.0, self.end - time.monotonic())) as stop:
            self._offer(self.problem.descend(self.spins, stop))
            if not stop[0]:
                self._search(stop)

    def _offer(self, spins: Array) -> None:
        energy = self.problem.energy(spins)
        if energy < self.energy:
            self.spins, self.energy = spins, energy

    def _search(self, stop: Array) -> None:
        problem, completed = self.problem.prepare(stop)
        if problem is None:
            self.spins, self.energy, self.proven = completed(np.zeros(0, np.int8)), -math.inf, True
            return
        search = PoolSearch(problem, self.workers, self.seed, stop)
        most: float = math.inf
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                while not (stop[0] or self.proven or self.made == self.rounds):
                    begin = time.monotonic()
                    search.round(pool.map, most)
                    self.made = search.rounds
                    self._offer(completed(search.best[0]))
                    if self.may_prove and self.made == PROVE_AFTER:
                        self._prove()
                    # A round that would not end in time is made shorter.
                    per_sweep = (time.monotonic() - begin) / (search.last_sweeps + problem.fixed_sweeps)
                    left = self.end - time.monotonic()
                    report(self.energy, self.made, left)
                    most = max(1.0, 0.9 * left / per_sweep - problem.fixed_sweeps)
            finally:
                stop.fill(1)  # what is still running when an exception ends the rounds

    def _prove(self) -> None:
        """Bring the best spins to the optimum if that costs little compared with the search."""
        nodes = min(2**62, math.inf if self.rounds is None else NODES * self.rounds)
        left = self.end - time.monotonic()
        with deadline(None if left == math.inf else SHARE * max(0.0, left)) as stop:
            given = self.problem.couplings, self.problem.linear, self.spins
            spins, self.proven = prove(*given, node_limit=int(nodes), stop=stop)
        self._offer(spins)
