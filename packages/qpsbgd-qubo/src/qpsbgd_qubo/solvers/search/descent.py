"""Best-improvement descent: flip the spin that lowers the energy most, until none does; tabu moves go on from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import KIND, NEVER, Array, kernels, thread_count
from qpsbgd_qubo.solvers import Solver
from qpsbgd_qubo.solvers.deadline import deadline
from qpsbgd_qubo.solvers.options import FLAG, SEED, Number, check_options
from qpsbgd_qubo.solvers.search.landscape import Landscape, better_of, random_spins, sign_start, triton_kernels


@dataclass(frozen=True)
class Descent(Solver):
    """Single flips from sign(−s), best improvement first, all columns side by side.

    Args:
        max_flips: Most flips per column in one search, tabu moves included. None for no limit.
        tabu: From the local minimum, continue with the best flip that is not tabu, uphill too, until this many
            moves have found nothing better; 0 for none.
        tenure: Moves for which a flip is tabu, and up to half as many more, at least 5. Short ones suit the
            correlated inputs of layers; large sparse problems need 10 to 30.
        restarts: Also search from this many random starts and keep the best.
        seed: Seed of the random starts and of the tabu tenures.
        warm: In training, start from the last step's spins where that saves time: with momentum the families change
            slowly. See `qpsbgd_qubo.solvers.search.warm_start`; `solve` itself starts at sign(−s).
    """

    max_flips: int | None = None
    tabu: int = 0
    tenure: int = 2
    restarts: int = 0
    seed: int = 0
    warm: bool = False

    def __post_init__(self) -> None:
        moves, tenure = Number(whole=True, least=0, most=2**62), Number(whole=True, least=0, most=2**24)
        check_options(self, max_flips=replace(moves, optional=True), tabu=moves, tenure=tenure)
        check_options(self, restarts=moves, seed=SEED, warm=FLAG)
        if self.warm and self.restarts:
            raise ValueError("warm goes with one search per step: without restarts")

    def _solve(self, family: QuboFamily) -> Solution:
        """A local minimum per column, or the spins reached when the flips are used up.

        `stats["path"]` names the code that ran: "triton" on a GPU, "compiled" on the CPU, where families are solved
        that Triton cannot take: in double precision, or of more than 8192 spins; "reference" without compiled kernels.
        All make the same moves.
        """
        offset, family = family.offset, family.without_offset()
        generator = np.random.default_rng(self.seed)
        with deadline(None) as passed:
            solution = self.improved(family, sign_start(family), stop=passed)
            for _ in range(self.restarts):
                found = self.improved(family, random_spins(family, generator), stop=passed)
                solution = better_of(solution, found)
        return solution.with_offset(offset)

    def improved(self, family: QuboFamily, start: Tensor, *, stop: Array = NEVER) -> Solution:
        """Where one search leads from `start` (n, m), which may be overwritten."""
        return improved(family, start, **self.limits(len(start)), stop=stop)

    def lower(self, couplings: Tensor, fields: Tensor, spins: Tensor, threshold: Tensor) -> None:
        """One search on the CPU that lowers `spins` (m, n) in place, with their fields, as `reference.search` does."""
        limits = self.limits(spins.shape[1])
        lower_columns(couplings.numpy(), fields.numpy(), spins.numpy(), threshold.numpy(), **limits)

    def limits(self, num_spins: int) -> dict[str, Any]:
        """The limits of one search of so many spins, for the kernels."""
        most = _most_flips(self.max_flips, num_spins, self.tabu)
        return {"max_flips": most, "patience": self.tabu, "tenure": self.tenure, "seed": self.seed}


def best_of_reads(
    family: QuboFamily, reads: int, search: Callable[[Tensor, Array], Solution], generator: np.random.Generator
) -> tuple[Solution, int]:
    """The best of plain descent and of so many searches, the first from the sign vector, the others from random spins.

    Returns:
        The solution, and the searches that were made until Ctrl-C.
    """
    solution, made = improved(family, sign_start(family)), 0
    with deadline(None) as passed:
        while made < reads and not passed[0]:
            start = random_spins(family, generator) if made else sign_start(family)
            solution, made = better_of(solution, search(start, passed)), made + 1
    return solution, made


def improved(
    family: QuboFamily,
    spins: Tensor,
    *,
    max_flips: int | None = None,
    patience: int = 0,
    tenure: int = 2,
    seed: int = 0,
    stop: Array = NEVER,
) -> Solution:
    """Where descent and then tabu moves lead from `spins` (n, m), which may be overwritten.

    The other arguments are those of `kernels.reference.search`; `max_flips` None is as many as it takes. When `stop` is
    set, every column on the CPU ends with its best spins so far.
    """
    most = _most_flips(max_flips, len(spins), patience)
    limits: dict[str, Any] = {"max_flips": most, "patience": patience, "tenure": tenure, "seed": seed}
    unproven = torch.zeros(family.num_columns, dtype=torch.bool, device=spins.device)
    if triton := triton_kernels(family.linear, len(spins)):
        (spins,), (energies,), _ = triton.search(family.quadratic[None], family.linear.T[None], spins.T[None], **limits)
        return Solution(spins.T, energies + family.offset, unproven, {"solver": "descent", "path": "triton"})
    if not spins.is_cpu:
        found = improved(family.without_offset().to("cpu"), spins.cpu(), **limits, stop=stop)
        return found.with_offset(family.offset)
    landscape = Landscape.of(family)
    # The compiled kernel wants one column's spins side by side in memory.
    fields, spins = landscape.fields(spins).T.contiguous(), spins.T.contiguous()
    couplings, threshold = landscape.couplings.numpy(), landscape.threshold.numpy()
    made = lower_columns(couplings, fields.numpy(), spins.numpy(), threshold, **limits, stop=stop)
    stats: dict[str, Any] = {"solver": "descent", "path": KIND, "flips": int(made.sum())}
    if patience:
        return Solution.of(family, spins.T, **stats)
    # Few flips leave the fields exact enough: Σ gₖ (sₖ + fₖ) / 2 is the energy without the diagonal of Q.
    energies = 0.5 * (spins * (fields + family.linear.T)).sum(1) + family.quadratic.diagonal().sum() + family.offset
    return Solution(spins.T, energies, unproven, stats)


def lower_columns(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: Array,
    *,
    max_flips: int | None = None,
    patience: int = 0,
    tenure: int = 2,
    seed: int = 0,
    stop: Array = NEVER,
) -> Array:
    """Lower every column of `spins` (m, n) in place, as `kernels.reference.search` does; the flips of each, (m,)."""
    flips = np.empty(len(spins), np.int64)
    limits = (_most_flips(max_flips, spins.shape[1], patience), patience, tenure, seed & 2**63 - 1)
    kernels.search(couplings, fields, spins, threshold, flips, *limits, stop, thread_count())
    return flips


def _most_flips(max_flips: int | None, num_spins: int, patience: int) -> int:
    """By default out of reach in exact arithmetic on sensible data; it ends an endless exchange of rounding errors."""
    return min(2**62, 100 * (num_spins + patience) + 1000) if max_flips is None else max_flips
