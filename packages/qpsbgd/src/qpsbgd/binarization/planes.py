"""The weights of a layer as a few binary vectors with scales, nearest to them in the metric of the layer's inputs.

    minimise (w_j − Σ_b α_bj s_bj)ᵀ Q (w_j − Σ_b α_bj s_bj),   s_bj ∈ {−1, +1}ⁿ,   for all columns j

For given scales, and all planes but one, that is a family of QUBOs over {−1, +1}ⁿ with the quadratic part Q and the
linear part −2 Q r_j / α_bj, where r_j is what the other planes leave of w_j. For given planes, the scales solve a
system of bits equations per column. Search and refit alternate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from qpsbgd.binarization.feedback import Feedback, Range
from qpsbgd.binarization.kicks import PlaneSearch
from qpsbgd.nn import sign
from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers import Solver

SEARCHES = ("kicks", "feedback", "rounding")
"""The searches of `Fit.improve` itself; everything else is a solver of the families."""
RIDGES = (0.03, 0.1)
"""Added to the diagonal of Q by error feedback within range; the better answer is kept, column by column.

Less passes errors on to weights that are at the end of the range already, more ignores correlations: half
of them gives 0.7 % less error, twice as much 1.7 % more.
"""
STEPS = (10, 4, 4)  # steps towards the range before each feedback within it; scales are refitted in between
SWEEPS = 4  # times that several planes take turns; each gets its share of the kicks in every turn
TURNS = 4  # times that another solver answers the family of a single plane, with scales refitted in between


@dataclass(frozen=True)
class Effort:
    """How to search: by one of `SEARCHES` or a solver for the families; kicks per plane, and their random numbers."""

    solver: str | Solver
    rounds: int
    generator: torch.Generator


@dataclass
class Fit:
    """Planes ±1 (bits, n, m) and scales (bits, m) for weights W (n, m) in the metric Q (n, n), in double precision.

    Q is positive definite, and no scale is negative; `lost` (m,) has the errors of planes and scales.
    """

    metric: Tensor
    weights: Tensor
    planes: Tensor
    scales: Tensor
    lost: Tensor

    @classmethod
    def rounded(cls, metric: Tensor, weights: Tensor, *, bits: int) -> Fit:
        """Each plane the signs of what the planes before it leave, with scales refitted."""
        none = weights[:0]
        fit = cls(metric, weights, weights.new_empty(0, *weights.shape), none, lost=none)
        for _ in range(bits):
            fit.planes = torch.cat([fit.planes, sign(weights - fit.approximation())[None]])
            fit.refit()
        return fit

    def approximation(self) -> Tensor:
        """Σ_b α_b s_b, (n, m)."""
        return (self.scales[:, None] * self.planes).sum(0)

    def errors(self) -> Tensor:
        """The squared error of the outputs per column, (m,)."""
        rest = self.weights - self.approximation()
        return (rest * (self.metric @ rest)).sum(0)

    @cached_property
    def image(self) -> Tensor:
        """Q W, (n, m)."""
        return self.metric @ self.weights

    def margins(self) -> Tensor:
        """The cost of every flip, in units of a weight: |w| where inputs are uncorrelated; (bits, n, m)."""
        residuals = self.metric @ (self.weights - self.approximation()) / self.metric.diagonal()[:, None]
        return self.planes * residuals + self.scales[:, None]

    def refit(self) -> None:
        """The best scales for the planes; planes of negative scale are negated."""
        self.planes, self.scales, self.lost = self._with_best_scales(self.planes)

    def _with_best_scales(self, planes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Planes (bits, n, m) with their best scales, none of which is negative, and the errors, by one product."""
        products = torch.stack([self.metric @ plane for plane in planes])  # (bits, n, m)
        grams = torch.einsum("anm,bnm->mab", planes, products)
        sides = torch.einsum("bnm,nm->mb", planes, self.image)
        scales = _best_scales(grams, sides)
        whole = (self.weights * self.image).sum(0)
        lost = whole + (scales * ((grams @ scales[..., None])[..., 0] - 2 * sides)).sum(1)
        scales = scales.T
        return torch.where(scales[:, None] < 0, -planes, planes), scales.abs(), lost

    def improve(self, effort: Effort) -> Iterator[str]:
        """Lower the errors as the effort says; yields the name of every stage that is done."""
        yield "rounding"
        if effort.solver == "rounding":
            return
        self.take(Feedback(self.metric).planes(self.weights, self.scales)[0], always=True)
        yield "feedback"
        if effort.solver == "feedback":
            return
        self.search(effort)
        yield "search"

    def search(self, effort: Effort) -> None:
        """Lower the errors of given planes, column by column: feedback within range, then kicks or the solver."""
        metric = self.metric.float()
        feedback, space = Feedback(metric, RIDGES), Range(metric, self.weights.float())
        for steps in STEPS:
            point = space.nearest(self.scales.sum(0).float(), steps=steps)
            for planes in feedback.planes(point, self.scales.float()):
                self.take(planes)
        bits, kicks = len(self.planes), effort.solver == "kicks"
        search = PlaneSearch(self.metric, effort.generator) if kicks else None
        sweeps = SWEEPS if bits > 1 else 1 if kicks else TURNS
        for turn in range(sweeps * bits):
            bit = turn % bits
            planes, scales, target = self.planes.clone(), self.scales[bit], self._target(bit)
            if search is not None:
                rounds = -(-effort.rounds // sweeps)
                planes[bit] = search.improve(target, planes[bit], scales, rounds=rounds)
            else:
                assert isinstance(effort.solver, Solver)
                scales = scales.clamp(min=torch.finfo(scales.dtype).tiny)
                unit = self.metric.diagonal().mean()
                family = QuboFamily(self.metric / unit, -2 * target / (unit * scales))
                planes[bit] = effort.solver.solve(family).spins
            self.take(planes, always=kicks)

    def take(self, planes: Tensor, *, always: bool = False) -> None:
        """Other planes (bits, n, m) with the scales that fit them, in the columns where they are better."""
        planes, scales, lost = self._with_best_scales(planes.to(self.weights))
        better = (lost < self.lost) | always
        self.planes, self.scales = torch.where(better, planes, self.planes), torch.where(better, scales, self.scales)
        self.lost = torch.where(better, lost, self.lost)

    def _target(self, bit: int) -> Tensor:
        """Q r for what the other planes leave of the weights."""
        if len(self.planes) == 1:
            return self.image
        return self.image - self.metric @ (self.approximation() - self.scales[bit] * self.planes[bit])


def _best_scales(grams: Tensor, sides: Tensor) -> Tensor:
    """The solutions (…, bits) of systems (…, bits, bits), which may be singular, for right-hand sides (…, bits)."""
    # Two equal planes share their scale instead of making the system singular.
    diagonal = grams.diagonal(dim1=-2, dim2=-1) * 1e-9 + 1e-300
    return torch.linalg.solve(grams + torch.diag_embed(diagonal), sides)
