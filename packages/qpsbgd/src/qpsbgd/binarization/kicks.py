"""The search of one plane: descents from kicked spins, the scale refitted with every one.

Constants, halved or doubled, change the error by about 1 % on layers of an MLP and a CNN on MNIST.
"""

from typing import Any

import torch
from torch import Tensor

from qpsbgd.qubo import QuboFamily
from qpsbgd_qubo.kernels import kernels, thread_count
from qpsbgd_qubo.solvers.search.landscape import hollow_couplings, thresholds
from qpsbgd_qubo.solvers.search.single_flips import lower_columns
from qpsbgd_qubo.solvers.search.tensor_descent import local_search

KICKED, LEAST_KICKED = 0.02, 2.0
"""Share of the spins that a kick flips, and their least mean number: more lose what was found, fewer fall back."""
PATIENCE, SHORT_PATIENCE = 100, 25
"""Tabu moves without a new lowest energy after which the first search ends, and the search after a kick.

Twice as many save less than 0.3 % of what is lost.
"""
TENURE = 2  # moves for which a flip is tabu at least; short, as for all correlated inputs of layers
MOST_REFITS = 10
"""Searches before the first kick, with the scale refitted after each, that end by themselves: for safety."""


class PlaneSearch:
    """Searches of planes that share a metric Q (n, n), in single precision; columns of a family are rows here."""

    def __init__(self, metric: Tensor, generator: torch.Generator) -> None:
        self._unit = metric.diagonal().mean().clamp(min=1e-300)
        self._quadratic = (metric / self._unit).float()
        self._couplings, self._reach = hollow_couplings(self._quadratic)
        self._trace = self._quadratic.diagonal().sum()
        self._generator = generator

    def improve(self, target: Tensor, spins: Tensor, scales: Tensor, *, rounds: int) -> Tensor:
        """Spins (n, m) at least as good as the given ones; scales (m,) · spins should come near r, for t = Q r (n, m).

        Good means a large (sᵀt)² / sᵀQs: what the best scale saves.
        """
        target = (target / self._unit).float().T.contiguous()
        best = spins.float().T.contiguous()
        scales = scales.float().clamp(min=1e-30)
        coupling_fields = best @ self._couplings
        for _ in range(MOST_REFITS):
            now, now_fields = self._descend(target, scales, best.clone(), coupling_fields.clone(), PATIENCE)
            changed = bool((now != best).any())
            best, coupling_fields = now, now_fields
            if not changed:
                break
            scales, _ = self._best_scales(target, best, coupling_fields)
        _, quality = self._best_scales(target, best, coupling_fields)
        for _ in range(rounds):
            now, now_fields = self._kick(best, coupling_fields)
            now, now_fields = self._descend(target, scales, now, now_fields, SHORT_PATIENCE)
            now_scales, now_quality = self._best_scales(target, now, now_fields)
            better = (now_quality > quality).nonzero()[:, 0]
            pairs = ((quality, now_quality), (scales, now_scales), (best, now), (coupling_fields, now_fields))
            for kept, new in pairs:
                kept[better] = new[better]
        return best.T.to(spins)

    def _best_scales(self, target: Tensor, spins: Tensor, coupling_fields: Tensor) -> tuple[Tensor, Tensor]:
        """The best scales, sᵀt / sᵀQs, and by how much scale · spins lower the loss."""
        along = (spins * target).sum(1)
        norms = 0.5 * (spins * coupling_fields).sum(1) + self._trace
        return (along / norms).clamp(min=1e-30), along.clamp(min=0).square() / norms

    def _kick(self, spins: Tensor, coupling_fields: Tensor) -> tuple[Tensor, Tensor]:
        (m, n), whole = spins.shape, torch.iinfo(torch.int64).min
        drawn = torch.empty(m, -(-n // 4), dtype=torch.int64, device=spins.device)
        drawn.random_(whole, None, generator=self._generator)  # four draws of 16 bits in each: a fifth of the time
        share = max(KICKED, min(LEAST_KICKED / n, 0.5))
        marked = (drawn.view(torch.int16)[:, :n] < round((share - 0.5) * 2**16)).contiguous()
        if not spins.is_cpu:
            kicked = torch.where(marked, -spins, spins)
            return kicked, kicked @ self._couplings
        spins, coupling_fields = spins.clone(), coupling_fields.clone()
        parts = (self._couplings, coupling_fields, spins, marked.view(torch.uint8))
        given: Any = [part.numpy() for part in parts]
        kernels.flip_marked(given[0], given[1], given[2], given[3], thread_count())
        return spins, coupling_fields

    def _descend(
        self, target: Tensor, scales: Tensor, spins: Tensor, coupling_fields: Tensor, patience: int
    ) -> tuple[Tensor, Tensor]:
        """Spins that descent and tabu moves find for Q and the linear part −2t/α, and their coupling fields."""
        linear = -2 * target / scales[:, None]
        if not spins.is_cpu:
            family = QuboFamily.trusted(self._quadratic, linear.T.contiguous(), linear.new_zeros(len(linear)))
            spins = local_search(family, spins.T.contiguous(), patience=patience).spins.T.contiguous()
            return spins, spins @ self._couplings
        threshold = thresholds(self._reach, linear.abs().amax(1))
        fields = coupling_fields.add_(linear)
        parts = (part.numpy() for part in (self._couplings, fields, spins, threshold))
        lower_columns(*parts, patience=patience, tenure=TENURE)
        return spins, fields.sub_(linear)
