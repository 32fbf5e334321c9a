"""The weights of a layer as a few binary vectors with scales, nearest to them in the metric of the layer's inputs.

    minimise (w_j − Σ_b α_bj s_bj)ᵀ Q (w_j − Σ_b α_bj s_bj),   s_bj ∈ {−1, +1}ⁿ,   for all columns j

For given scales, and all planes but one, that is a family of QUBOs over {−1, +1}ⁿ with the quadratic part Q and the
linear part −2 Q r_j / α_bj, where r_j is what the other planes leave of w_j. For given planes, the scales solve a
system of bits equations per column. Search and refit alternate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qpsbgd.binarization.feedback import rounded_with_feedback
from qpsbgd.binarization.kicks import PlaneSearch
from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers import Solver

SWEEPS = 8
"""Times that the planes take turns; each gets its share of the kicks in every turn."""
TURNS = 4
"""Times that another solver answers a plane's family, with scales refitted in between."""


@dataclass(frozen=True)
class Effort:
    """How to search.

    Attributes:
        solver: "rounding", "feedback", "kicks", or a solver for the families.
        rounds: Kicks per plane.
        until: When to stop, by `time.monotonic`; None for never.
        generator: Of the kicks.
    """

    solver: str | Solver
    rounds: int
    generator: torch.Generator
    until: float | None = None


@dataclass
class Fit:
    """Planes and scales for weights W (n, m) in the metric Q (n, n), all in double precision.

    Attributes:
        metric: Q.
        weights: W.
        planes: ±1, (bits, n, m).
        scales: (bits, m), not negative.
        tied: Whether all planes of a column have one scale.
    """

    metric: Tensor
    weights: Tensor
    planes: Tensor
    scales: Tensor
    tied: bool

    @classmethod
    def rounded(cls, metric: Tensor, weights: Tensor, *, bits: int, tied: bool) -> Fit:
        """Each plane the signs of what the planes before it leave, with scales refitted."""
        fit = cls(metric, weights, weights.new_empty(0, *weights.shape), weights.new_empty(0, weights.shape[1]), tied)
        rest = weights
        for _ in range(bits):
            plane = torch.where(rest >= 0, 1.0, -1.0).to(weights)
            fit.planes = torch.cat([fit.planes, plane[None]])
            fit.refit()
            rest = weights - fit.approximation()
        return fit

    def approximation(self) -> Tensor:
        """Σ_b α_b s_b, (n, m)."""
        return (self.scales[:, None] * self.planes).sum(0)

    def margins(self) -> Tensor:
        """What a flip costs, in units of a weight: |w| where inputs are uncorrelated; (bits, n, m)."""
        pulls = self.metric @ (self.weights - self.approximation()) / self.metric.diagonal()[:, None]
        return self.planes * pulls + self.scales[:, None]

    def refit(self) -> None:
        """The best scales for the planes; planes of negative scale are turned round."""
        planes = self.planes.sum(0, keepdim=True) if self.tied else self.planes
        products = torch.stack([self.metric @ plane for plane in planes])  # (bits, n, m)
        grams = torch.einsum("anm,bnm->mab", planes, products)
        sides = torch.einsum("bnm,nm->mb", products, self.weights)
        # Two equal planes share their scale instead of making the system singular.
        grams.diagonal(dim1=1, dim2=2).mul_(1 + 1e-9).add_(1e-300)
        scales = torch.linalg.solve(grams, sides).T
        self.scales = scales.expand(len(self.planes), -1).clone()
        self.planes = torch.where(self.scales[:, None] < 0, -self.planes, self.planes)
        self.scales = self.scales.abs()

    def feed_back(self) -> None:
        """Planes by error feedback from the present scales, which are refitted."""
        self.planes = rounded_with_feedback(self.metric, self.weights, scales=self.scales)
        self.refit()

    def improve(self, effort: Effort) -> Iterator[str]:
        """Lower the loss as the effort says; yields the name of every stage that is done."""
        yield "rounding"
        if effort.solver == "rounding":
            return
        self.feed_back()
        yield "feedback"
        if effort.solver != "feedback":
            self.search(effort)
            yield "search"

    def search(self, effort: Effort) -> None:
        """Lower the loss by searching the families of the planes in turn."""
        bits = len(self.planes)
        kicks = PlaneSearch(self.metric, effort.generator) if effort.solver == "kicks" else None
        sweeps = 1 if bits == 1 else SWEEPS
        for sweep in range(sweeps):
            for bit in range(bits):
                others = self.approximation() - self.scales[bit] * self.planes[bit]
                target = self.metric @ (self.weights - others)
                if kicks is not None:
                    until = None if effort.until is None else _share(effort.until, sweeps * bits - sweep * bits - bit)
                    rounds = -(-effort.rounds // sweeps)
                    self.planes[bit] = kicks.lowered(
                        target, self.planes[bit], self.scales[bit], rounds=rounds, until=until, tied=self.tied
                    )
                else:
                    assert isinstance(effort.solver, Solver)
                    self._ask(effort.solver, target, bit)
                self.refit()

    def _ask(self, solver: Solver, target: Tensor, bit: int) -> None:
        """The better of the present plane and of a solver's answers, column by column."""
        for _ in range(TURNS if len(self.planes) == 1 else 1):
            scale = self.scales[bit].clamp(min=1e-30)
            family = QuboFamily(self.metric, -2 * target / scale)
            solution = solver.solve(family)
            better = solution.energies < family.energies(self.planes[bit])
            if not better.any():
                return
            self.planes[bit] = torch.where(better, solution.spins.to(self.planes), self.planes[bit])
            if len(self.planes) == 1:
                self.refit()


def _share(until: float, turns: int) -> float:
    """When the next of so many equal turns ends."""
    now = time.monotonic()
    return now + max(0.0, until - now) / turns
