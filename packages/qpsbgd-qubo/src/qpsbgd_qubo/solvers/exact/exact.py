"""Proven optima: enumeration for few spins, above that a sphere decoder, and exhaustion where that fails."""

import math
import time
from dataclasses import dataclass

import numpy as np

from qpsbgd_qubo.arrays import cast
from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import Array, kernels, thread_count
from qpsbgd_qubo.options import AT_LEAST_ONE, SECONDS, check_options
from qpsbgd_qubo.solvers import Solver
from qpsbgd_qubo.solvers.deadline import deadline
from qpsbgd_qubo.solvers.exact.sphere_decoder import decode, exhaustion_work, least_shift
from qpsbgd_qubo.solvers.search.landscape import sign_start
from qpsbgd_qubo.solvers.search.single_flips import local_search

ENUMERATE_UP_TO = 10  # most spins for which all 2ⁿ vectors are tried; above, the sphere decoder is faster
TOGETHER = 20_000_000  # nodes for all columns together at first, which take well under a second
TRY_OUT_UP_TO = 18
"""Most open spins for which all values are tried at once, when the spins that every optimum must have are fixed."""
CHEAP_UP_TO = 16  # most spins for which the optimum costs hardly more than a heuristic answer


@dataclass(frozen=True)
class Exact(Solver):
    """The optimum of every column, with `proven_optimal` true, to within rounding in double precision.

    Above 10 spins, those that every optimum must have are fixed first. Where more than 18 stay open, a depth-first
    sphere decoder improves on the answer of a tabu search; its time grows exponentially
    (`benchmarks/solvers/solver_claims.py`). Where its bounds are too weak, all values of up to 32 open spins are tried,
    which takes about a second for 32.

    Args:
        node_limit: Nodes after which a column gives up and returns its best spins, `proven_optimal` false. The
            limit counts work, not time, so that answers can be repeated.
        time_limit: Seconds after which all columns give up, None for no limit.
    """

    node_limit: int = 50_000_000
    time_limit: float | None = None

    def __post_init__(self) -> None:
        check_options(self, node_limit=AT_LEAST_ONE, time_limit=SECONDS)

    def _solve(self, family: QuboFamily) -> Solution:
        if family.num_spins <= ENUMERATE_UP_TO:
            return _enumerate(family)
        end = math.inf if self.time_limit is None else time.monotonic() + self.time_limit
        with deadline(self.time_limit) as passed:
            double = family.double()
            couplings, linear = double.couplings(), np.ascontiguousarray(double.linear.T)
            fixed = np.empty_like(linear)
            kernels.fix_dominated(couplings, linear, fixed, passed, thread_count())
            spins = np.where(fixed != 0, fixed, np.where(linear <= 0, 1.0, -1.0))
            proven = np.zeros(len(linear), bool)
            few_open = (fixed == 0).sum(1) <= TRY_OUT_UP_TO
            easy, hard = np.flatnonzero(few_open), np.flatnonzero(~few_open)
            tried, done = spins[easy], np.zeros(len(easy), bool)
            kernels.complete(couplings, linear[easy], fixed[easy], tried, done, passed, thread_count())
            spins[easy], proven[easy] = tried, done
            nodes = 0
            if len(hard):
                part = QuboFamily.trusted(double.quadratic, double.linear[:, hard], double.offset[hard])
                spins[hard], counts = self._decode(part, couplings, fixed[hard], end=end, stop=passed)
                proven[hard], nodes = counts >= 0, int(counts.clip(min=0).sum())
        stats = {"solver": "exact", "method": "sphere decoder", "nodes": nodes, "fixed": float((fixed != 0).mean())}
        stats["unproven"] = int((~proven).sum())
        return Solution.of(family, spins.T, proven_optimal=proven, **stats)

    def _solve_on_gpu(self, family: QuboFamily) -> Solution | None:
        """By enumeration, for few spins."""
        return _enumerate(family) if family.num_spins <= ENUMERATE_UP_TO else None

    def _decode(
        self, family: QuboFamily, couplings: Array, fixed: Array, *, end: float, stop: Array
    ) -> tuple[Array, Array]:
        """Spins (m, n), and the nodes that each column took, −1 where a limit was reached."""
        start = local_search(family, sign_start(family), patience=2 * family.num_spins, stop=stop)
        spins, linear = start.spins.T.copy(), np.ascontiguousarray(family.linear.T)
        nodes = np.full(len(linear), -1)
        left = end - time.monotonic()
        if stop[0] or (shift := least_shift(family.quadratic, seconds=left)) is None:
            return spins, nodes

        def search(limit: int, among: Array | bool = True) -> None:
            columns = np.flatnonzero((nodes < 0) & among)
            if len(columns) and not stop[0]:
                best = spins[columns]
                nodes[columns] = decode(couplings, linear[columns], fixed[columns], best, shift, limit, stop)
                spins[columns] = best

        # All columns together as far as that takes well under a second, and less than trying all values of open spins.
        work = np.array([exhaustion_work(count) for count in (fixed == 0).sum(1).tolist()], object)
        easy = min(self.node_limit, max(1, TOGETHER // len(linear)), work.max() // 4 or 1)
        search(easy)
        # Then the hard ones: as long as trying all values would take, then that, and as long as it may take where there
        # are too many to try.
        for limit in sorted(set(work)):
            if easy < limit <= self.node_limit:
                search(limit, work == limit)
        for column in np.flatnonzero((nodes < 0) & (work <= self.node_limit)):
            places = np.flatnonzero(fixed[column] == 0)
            inside = np.ascontiguousarray(couplings[np.ix_(places, places)])
            best, fields = np.empty(len(places)), (linear[column] + couplings @ fixed[column])[places]
            if kernels.exhaust(inside, fields, best, stop, thread_count()):
                spins[column] = fixed[column]
                spins[column, places], nodes[column] = best, work[column]
        if easy < self.node_limit:
            search(self.node_limit)
        return spins, nodes


def _enumerate(family: QuboFamily) -> Solution:
    """The best of all 2ⁿ spin vectors for every column, as one matrix product in double precision."""
    n, double = family.num_spins, family.double()
    vectors = cast(2.0 * (np.arange(2**n)[:, None] >> np.arange(n) & 1) - 1, double.linear)
    energies = ((vectors @ double.quadratic) * vectors).sum(1)[:, None] + vectors @ double.linear
    spins = vectors[energies.argmin(0)].T
    return Solution.of(family, spins, proven_optimal=True, solver="exact", method="enumeration")
