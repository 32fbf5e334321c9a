"""Descent of families of tensors, on the device that holds them; needs torch."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import NEVER, Array
from qpsbgd_qubo.solvers.protocol import WarmState
from qpsbgd_qubo.solvers.search import single_flips


def local_search(
    family: QuboFamily,
    spins: Tensor,
    *,
    max_flips: int | None = None,
    patience: int = 0,
    stop: Array = NEVER,
    **others: int,
) -> Solution:
    """Where descent and then tabu moves lead from `spins` (n, m), which may be overwritten, as in `single_flips`.

    By Triton where its kernels can take the family, which `stop` does not end, otherwise on the CPU.
    """
    most = single_flips.most_flips(max_flips, len(spins), patience)
    limits = {"max_flips": most, "patience": patience, "tenure": 2, "seed": 0, **others}
    if triton := triton_kernels(family.linear, len(spins)):
        (spins,), (energies,), _ = triton.search(family.quadratic[None], family.linear.T[None], spins.T[None], **limits)
        unproven = torch.zeros(family.num_columns, dtype=torch.bool, device=spins.device)
        return Solution(spins.T, energies + family.offset, unproven, {"solver": "descent"})
    plain = family.without_offset().numpy()
    solution = single_flips.local_search(plain, spins.cpu().numpy(), **limits, stop=stop)
    return solution.like(family).with_offset(family.offset)


def reach_on_device(quadratic: Tensor) -> Tensor | None:
    """The largest field that the couplings of every quadratic part (count, n, n) can make, for the Triton kernels."""
    triton = triton_kernels(quadratic, quadratic.shape[-1])
    return None if triton is None else triton.reaches_of(quadratic)


def descend_on_device(state: WarmState, linear: Tensor, signs: Tensor, limits: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Spins (count, m, n) and their energies, as in `warm_start.descend`: by Triton, or else block by block."""
    spins = torch.where(signs, 1.0, -1.0).to(linear)
    if state.spins is not None:
        spins = state.spins if state.signs is None else torch.where(signs == state.signs, state.spins, -state.spins)
    if triton := triton_kernels(linear, linear.shape[-1]):
        given = state.quadratic, linear, spins.clone() if spins is state.spins else spins
        spins, energies, _ = triton.search(*given, reaches=state.reach, **limits)
        return spins, energies
    solutions = []
    for matrix, block, start in zip(state.quadratic, linear, spins, strict=True):
        family = QuboFamily.trusted(matrix, block.T.contiguous(), block.new_zeros(len(block)))
        solutions.append(local_search(family, start.T.contiguous(), **limits))
    return torch.stack([each.spins.T for each in solutions]), torch.stack([each.energies for each in solutions])


def triton_kernels(like: Tensor, num_spins: int) -> ModuleType | None:
    """The Triton kernels, where they are installed and support families of this many spins on this tensor's device."""
    if not like.is_cuda:
        return None
    try:
        from qpsbgd_qubo.solvers.search import kernels_triton
    except ImportError:
        return None
    return kernels_triton if kernels_triton.fits(like, num_spins) else None
