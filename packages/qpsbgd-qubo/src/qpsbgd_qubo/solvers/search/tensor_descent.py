"""Descent of families of tensors, on the device that holds them; needs torch."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import NEVER, Array
from qpsbgd_qubo.solvers.search import single_flips


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
    """Where descent and then tabu moves lead from `spins` (n, m), which may be overwritten, as in `single_flips`.

    By Triton where its kernels can take the family, which `stop` does not end, otherwise on the CPU.
    """
    most = single_flips.most_flips(max_flips, len(spins), patience)
    limits = {"max_flips": most, "patience": patience, "tenure": tenure, "seed": seed}
    if triton := triton_kernels(family.linear, len(spins)):
        (spins,), (energies,), _ = triton.search(family.quadratic[None], family.linear.T[None], spins.T[None], **limits)
        unproven = torch.zeros(family.num_columns, dtype=torch.bool, device=spins.device)
        return Solution(spins.T, energies + family.offset, unproven, {"solver": "descent"})
    plain = family.without_offset().numpy()
    return (
        single_flips.improved(plain, spins.cpu().numpy(), **limits, stop=stop).like(family).with_offset(family.offset)
    )


def triton_kernels(like: Tensor, num_spins: int) -> ModuleType | None:
    """The Triton kernels, where they are installed and can take families of so many spins beside this tensor."""
    if not like.is_cuda:
        return None
    try:
        from qpsbgd_qubo.solvers.search import kernels_triton
    except ImportError:
        return None
    return kernels_triton if kernels_triton.fits(like, num_spins) else None
