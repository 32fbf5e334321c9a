"""Forms of a binary matrix that `binarize` does not have, solved by its search: W (m, n), H of its inputs → Ŵ, bits.

- Groups of 128 inputs with scales of their own: one family per group, for what the other groups leave.
- A second vector for the tenth of the inputs where it saves most; the two take turns.
- Scales per input beside those per output: W ≈ a S b. The family's Q is then b Q b; given the signs, b solves a linear
  system. In a network these scales could often move into a norm or the layer before, and are counted all the same.

Every real number is stored in 16 bits.
"""

import torch
from benchmarks.training.binary_rivals import NUMBER, damped

from qpsbgd.binarization.planes import Effort, Fit

GROUP, SALIENT, SWEEPS = 128, 0.1, 3


def effort(H):
    return Effort("kicks", 40, torch.Generator(H.device).manual_seed(0))


def searched(H, weights, bits):
    fit = Fit.rounded(H, weights.contiguous(), bits=bits)
    list(fit.improve(effort(H)))
    return fit


def grouped(W, H, bits=1, output_norms=None):
    H, close = damped(H), W.clone()
    groups = torch.arange(W.shape[1], device=W.device).split(GROUP)
    for _ in range(SWEEPS):  # in the first, groups that are still to come are real
        vectors = W.new_zeros(len(groups), bits, *W.shape)
        for place, group in enumerate(groups):
            rest = W - close
            rest[:, group] = 0
            block = H[group][:, group]
            fit = searched(block, W[:, group].T + torch.linalg.solve(block, H[group] @ rest.T), bits)
            close[:, group], vectors[place][..., group] = fit.approximation().T, fit.planes.mT
        vectors = vectors.flatten(0, 1).transpose(0, 1)  # all scales of an output are then fitted together
        gram = vectors @ H @ vectors.mT
        sides = vectors @ (W @ H)[..., None]
        close = (torch.linalg.solve(gram + 1e-9 * torch.eye(gram.shape[1]).to(H), sides) * vectors).sum(1)
    return close, bits * (W.numel() + NUMBER * len(W) * len(groups))


def salient(W, H, bits=1, output_norms=None):
    H, second = damped(H), torch.zeros_like(W)
    first = searched(H, W.T, bits).approximation().T
    saved = (W - first).square().sum(0) * H.diagonal()
    columns = saved.topk(max(1, round(SALIENT * W.shape[1]))).indices
    block = H[columns][:, columns]
    for _ in range(SWEEPS):
        wanted = torch.linalg.solve(block, H[columns] @ (W - first).T)
        second[:, columns] = searched(block, wanted, 1).approximation().T
        first = searched(H, (W - second).T, bits).approximation().T
    stored = bits * (W.numel() + NUMBER * len(W)) + len(W) * (len(columns) + NUMBER) + W.shape[1]
    return first + second, stored


def input_scales(W, H, bits=1, output_norms=None):
    H, scales = damped(H), W.square().mean(0).sqrt().clamp(min=1e-12)
    best, least = W, torch.inf
    for _ in range(SWEEPS):
        fit = searched(scales[:, None] * H * scales, (W / scales).T, bits)
        signs = fit.approximation().T
        scales = torch.linalg.solve(damped(H * (signs.T @ signs), 1e-9), (signs * (W @ H)).sum(0))
        rest = W - signs * scales
        lost = float((rest @ H * rest).sum())
        best, least = (signs * scales, lost) if lost < least else (best, least)
        scales = scales.abs().clamp(min=1e-6 * float(scales.abs().mean()))
    return best, bits * (W.numel() + NUMBER * len(W)) + NUMBER * W.shape[1]
