"""Proven optima: enumeration for few spins, above that a sphere decoder."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd.solvers.search.descent import Descent

ENUMERATE_UP_TO = 10
"""Spins up to which all 2ⁿ vectors are tried; above, the sphere decoder is faster."""

Array = np.ndarray[Any, Any]

TRY_OUT_UP_TO = 12
"""Open spins up to which a column is tried out, once those that every optimum must have are fixed."""

CHEAP_UP_TO = 16
"""Spins up to which the optimum costs hardly more than a heuristic answer."""


@dataclass(frozen=True)
class Exact(Solver):
    """The optimum of every column, with `proven_optimal` true, to within rounding in double precision.

    Above 10 spins, those that every optimum must have are fixed first. Where more than 12 stay open, a depth-first
    sphere decoder improves on what tabu search found; its time grows exponentially (`benchmarks/exact_growth.py`).

    Args:
        node_limit: Nodes after which a column gives up and returns its best spins, `proven_optimal` false. The
            limit counts work, not time, so that answers can be repeated.
        time_limit: Seconds after which no further columns are searched, None for no limit.
    """

    node_limit: int = 50_000_000
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if self.node_limit < 1:
            raise ValueError(f"node_limit must be at least 1, got {self.node_limit}")
        if self.time_limit is not None and self.time_limit < 0:
            raise ValueError(f"time_limit must not be negative, got {self.time_limit}")

    def solve(self, family: QuboFamily) -> Solution:
        """The optimum of every column that was finished within the limits."""
        if family.num_spins <= ENUMERATE_UP_TO:
            spins = _enumerate(family)
            return Solution.of(family, spins, proven_optimal=True, solver="exact", method="enumeration")
        return self._fix_and_decode(family)

    def _fix_and_decode(self, family: QuboFamily) -> Solution:
        from qpsbgd.solvers.compilation import threads
        from qpsbgd.solvers.exact import fixing

        end = math.inf if self.time_limit is None else time.monotonic() + self.time_limit
        double = family.to("cpu", torch.float64)
        couplings = 2 * (double.quadratic - torch.diag(double.quadratic.diagonal())).numpy()
        linear = np.ascontiguousarray(double.linear.numpy().T)
        with threads():
            fixed = fixing.dominated(couplings, linear)
            few_open = (fixed == 0).sum(1) <= TRY_OUT_UP_TO
            spins = np.ones_like(fixed)
            spins[few_open] = fixing.complete(couplings, linear[few_open], fixed[few_open])
        proven = few_open.copy()
        nodes = 0
        if not few_open.all():
            hard = np.flatnonzero(~few_open)
            part = QuboFamily.trusted(double.quadratic, double.linear[:, hard], double.offset[hard])
            spins[hard], counts = self._decode(part, couplings, fixed[hard], end=end)
            proven[hard], nodes = counts >= 0, int(counts.clip(min=0).sum())
        return Solution.of(
            family,
            torch.from_numpy(spins.T.copy()),
            proven_optimal=torch.from_numpy(proven),
            solver="exact",
            method="sphere decoder",
            nodes=nodes,
            fixed=float((fixed != 0).mean()),
            unproven=int((~proven).sum()),
        )

    def _decode(self, family: QuboFamily, couplings: Array, fixed: Array, *, end: float) -> tuple[Array, Array]:
        """Spins (m, n), and the nodes that each column took, −1 where a limit was reached."""
        from qpsbgd.solvers.compilation import threads
        from qpsbgd.solvers.exact import sphere_decoder

        spins = Descent(tabu=2 * family.num_spins).solve(family).spins.T.numpy().copy()
        linear = np.ascontiguousarray(family.linear.numpy().T)
        shift = sphere_decoder.least_shift(family.quadratic.numpy())
        nodes = np.full(len(linear), -1)

        def search(columns: Array, limit: int) -> None:
            if time.monotonic() < end:
                found = spins[columns]
                with threads():
                    nodes[columns] = sphere_decoder.search(
                        couplings, linear[columns], fixed[columns], found, shift, limit
                    )
                spins[columns] = found

        # All columns together as far as that takes well under a second; then the hard ones a few at a time, so that
        # the time limit and Ctrl-C are seen to.
        easy = min(self.node_limit, max(1, 20_000_000 // len(linear)))
        search(np.arange(len(linear)), easy)
        hard = np.flatnonzero(nodes < 0) if easy < self.node_limit else np.arange(0)
        few = 2 * torch.get_num_threads()
        for begin in range(0, len(hard), few):
            search(hard[begin : begin + few], self.node_limit)
        return spins, nodes


def _enumerate(family: QuboFamily) -> Tensor:
    """The best of all 2ⁿ spin vectors for every column, as one matrix product in double precision."""
    n = family.num_spins
    device = family.linear.device
    codes = torch.arange(2**n, device=device)
    vectors = 2.0 * ((codes[:, None] >> torch.arange(n, device=device)) & 1).double() - 1
    quadratic, linear = family.quadratic.double(), family.linear.double()
    energies = ((vectors @ quadratic) * vectors).sum(1, keepdim=True) + vectors @ linear
    return vectors[energies.argmin(0)].T
