"""Rounds of moves on one problem that share a pool of its best answers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.solvers.portfolio.search_problem import Answer, SearchProblem
from qpsbgd_qubo.solvers.search.chains import cooling


@dataclass(frozen=True)
class Move:
    """One way to get a better answer from those in the pool."""

    # "fresh" anneals from random spins, "reheat" from an answer; "between" anneals the spins in which an answer differs
    # from another; "tabu" makes tabu moves from an answer with some spins flipped; "assign" and "shift" anneal within
    # the groups of a problem that has some, from random places or from an answer, or make tabu moves where they are not
    # hot; "cross" anneals those in which an answer differs from another
    name: str
    hot: float = 0.0  # the first temperature, in units of the typical field, or of what a move within groups changes
    share: float = 1.0  # how often the move is tried whatever it gained, beside others


FRESH = Move("fresh", 1.0)
MOVES = (FRESH, *(Move("reheat", hot) for hot in (0.8, 0.5, 0.3, 0.2)), Move("between", 0.5), Move("tabu"))
GROUP_MOVES = (
    Move("assign", 0.3, 6.0),
    Move("shift", 0.3, 3.0),
    Move("shift", 0.15, 3.0),
    Move("shift", 0.0, 9.0),
    Move("cross", 0.3, 3.0),
)
"""Where a problem has groups: most of the time, since single flips hardly lead from one valid answer to another."""
POOL = 6  # most answers that are kept
PATIENCE = 5  # rounds without a better answer after which sweeps are doubled
KICK, KICK_UP_TO = 6, 2000
"""A short tabu search begins with up to one spin in so many flipped; most spins for which these are worth their time.
Chosen on set covers and on knapsacks of several constraints, whose slack bits long searches hardly move."""
DOUBT = 2
"""The round in which a problem with groups is annealed without them: if that is better at once by breaking them, the
groups are costs that look like constraints, such as the edges of an independent set, and all moves begin with the same
chances."""
TRIAL_SWEEPS, FIRST_SWEEPS = 4, 100  # of the first round, which also shows how long a sweep takes, and of the next ones
LONG_SWEEPS = 500
"""Sweeps of the second round of sparse problems with a time limit: large ones with little time want one long anneal."""


@dataclass
class PoolSearch:
    """Rounds of moves on one problem; every round makes one move per worker.

    The kind of a move is drawn by what its kind has gained so far, later moves counting more. Sweeps are doubled when
    nothing is found. The same seed, number of workers and number of rounds give the same answer.
    """

    problem: SearchProblem
    workers: int  # moves per round
    seed: int  # of all random numbers
    stop: Array
    pool: list[Answer] = field(default_factory=list)  # the best answers, lowest energy first
    rounds: int = 0
    sweeps: int = FIRST_SWEEPS
    last_sweeps: int = 0
    stale: int = 0

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng(self.seed)
        self.moves = MOVES if self.problem.groups is None else (*GROUP_MOVES, *MOVES)
        self.shares = np.array([move.share for move in self.moves])
        # Moves of unknown gain are tried first; beside moves within groups, others can wait.
        late = self.problem.groups is not None
        self.gains = np.array([0.0 if late and move not in GROUP_MOVES else np.nan for move in self.moves])
        self.made = np.zeros(len(self.moves), int)

    @property
    def best(self) -> Answer:
        """The answer with the lowest energy."""
        return self.pool[0]

    def round(self, run: Callable[..., Any], most_sweeps: float = np.inf) -> None:
        """Make one move per worker by `run`, a `map`, with at most this many sweeps, and keep what is good."""
        planned = self.sweeps if self.rounds else TRIAL_SWEEPS
        if self.rounds == 1 and self.problem.begins_long and np.isfinite(most_sweeps):
            planned = LONG_SWEEPS
        sweeps = int(min(planned, most_sweeps))
        self.last_sweeps = sweeps
        tasks = [self._draw_move() for _ in range(self.workers)]
        before = self.best[1] if self.pool else np.inf
        answers = list(run(lambda task: self._make_move(*task, sweeps=sweeps), tasks))
        doubted = self.problem.groups if self.rounds == DOUBT else None
        for (kind, base, _, _), answer in zip(tasks, answers, strict=True):
            if doubted is not None and answer[1] >= before:
                continue  # not one for the pool, whose answers keep the groups
            gain = self._add_to_pool(base, answer)
            self.made[kind] += 1
            if self.rounds >= 2:
                old = self.gains[kind]
                self.gains[kind] = gain / sweeps if np.isnan(old) else 0.7 * old + 0.3 * gain / sweeps
        lowest = min(answers, key=itemgetter(1))
        if doubted is not None and lowest[1] < before and not doubted.satisfied_by(lowest[0]):
            self.shares, self.gains = np.ones(len(self.moves)), np.full(len(self.moves), np.nan)
        distinct = {energy: (spins, energy) for spins, energy in reversed(self.pool)}
        self.pool = sorted(distinct.values(), key=itemgetter(1))[:POOL]
        self.rounds += 1
        self.stale = 0 if self.best[1] < before else self.stale + 1
        if self.stale >= PATIENCE:
            self.sweeps, self.stale = 2 * self.sweeps, 0

    def _draw_move(self) -> tuple[int, int, int, int]:
        """The kind of a move, the answer it begins with (−1 for none), another answer and a seed."""
        seed = int(self.generator.integers(2**62))
        if self.rounds < 2 or (self.rounds == DOUBT and self.problem.groups is not None):
            return self.moves.index(FRESH) if self.rounds == DOUBT else 0, -1, -1, seed
        known = np.nan_to_num(self.gains, nan=1.5 * np.nan_to_num(self.gains).max() + 1e-30)
        shares = 0.7 * known / max(known.sum(), 1e-300) + 0.3 * self.shares / self.shares.sum()
        kind = int(self.generator.choice(len(known), p=shares / shares.sum()))
        base = 0 if self.generator.random() < 0.6 else int(self.generator.integers(len(self.pool)))
        other = int(self.generator.integers(len(self.pool)))
        return kind, -1 if self.moves[kind].name in ("fresh", "assign") else base, other, seed

    def _make_move(self, kind: int, base: int, other: int, seed: int, *, sweeps: int) -> Answer:
        move, problem = self.moves[kind], self.problem
        if problem.groups is not None and move in GROUP_MOVES:
            start = None if base < 0 else self.pool[base][0]
            across = self.pool[other][0] if move.name == "cross" else None
            return problem.anneal_groups(start, across=across, hot=move.hot, sweeps=sweeps, seed=seed, stop=self.stop)
        temperatures = cooling(problem.typical, hot=move.hot, sweeps=sweeps)
        if move is FRESH:
            return problem.anneal(None, temperatures=temperatures, seed=seed, stop=self.stop)
        spins = self.pool[base][0]
        if move.name == "tabu":
            return self._search_with_kicks(self.pool[base], moves=1 + int(sweeps * problem.moves_per_sweep), seed=seed)
        sites = problem.differences(spins, self.pool[other][0]) if move.name == "between" else None
        if sites is not None and len(sites) < 2:
            sites = None
        return problem.anneal(spins, temperatures=temperatures, seed=seed, stop=self.stop, sites=sites)

    def _search_with_kicks(self, answer: Answer, *, moves: int, seed: int) -> Answer:
        """Tabu searches with this many moves in all, short ones for few spins, each from the best with some flipped."""
        generator, n = np.random.default_rng(seed), len(answer[0])
        short = n <= KICK_UP_TO
        for _ in range(max(1, moves // n) if short else 1):
            if self.stop[0]:
                break
            start = answer[0].copy()
            flips = generator.integers(1, 2 + n // KICK) if short else 1 + n // 50
            start[generator.integers(0, n, flips)] *= -1
            options = {"moves": min(n, moves) if short else moves, "tenure": 10 + n // 100}
            found = self.problem.tabu_search(start, **options, seed=int(generator.integers(2**62)), stop=self.stop)
            answer = min(found, answer, key=itemgetter(1))
        return answer

    def _add_to_pool(self, base: int, answer: Answer) -> float:
        """Put an answer into the pool; how much lower it is than the one it began with, or than the best."""
        if not self.pool:
            self.pool.append(answer)
            return 0.0
        best = self.pool[0]
        # When the time is up, there is none to put large answers together.
        merged = min(best, answer, key=itemgetter(1)) if self.stop[0] else self.problem.merge(best[0], answer[0])
        gain = max(0.0, self.pool[max(base, 0)][1] - answer[1], best[1] - merged[1])
        if base > 0 and answer[1] < self.pool[base][1]:
            self.pool[base] = answer
        elif base < 0:
            self.pool.append(answer)
        if merged[1] < best[1]:
            self.pool[0] = merged
        return gain
