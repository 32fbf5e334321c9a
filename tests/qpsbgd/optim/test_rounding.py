"""Where two ways to compute the same step differ, that is rounding: it may flip a spin whose two signs are as good."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear


def trained(dtype, seed, *, backwards=False, count=5):
    """Latent weights after every step, (count, weights); `backwards` adds the same rows up in another order."""
    torch.manual_seed(seed)
    model = nn.Sequential(BinaryLinear(20, 16), nn.Hardtanh(), nn.LayerNorm(16), BinaryLinear(16, 4)).to(dtype)
    optimizer = QPSBGD(model, projection="spins", real=True, steps=20)
    found = []
    for _ in range(count):
        inputs, targets = torch.randn(32, 20, dtype=torch.float64).to(dtype), torch.randint(0, 4, (32,))
        if backwards:
            inputs, targets = inputs.flip(0), targets.flip(0)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(found)


def test_the_order_of_rows_flips_spins_in_single_precision_only():
    changes = {
        dtype: [(trained(dtype, seed) - trained(dtype, seed, backwards=True)).abs().max() for seed in range(12)]
        for dtype in (torch.float32, torch.float64)
    }
    assert max(changes[torch.float64]) < 1e-9
    assert max(changes[torch.float32]) > 1e-4  # a spin; what rounding changes by itself is a thousand times smaller
