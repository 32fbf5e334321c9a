"""Where two ways to compute the same step differ, that is rounding: it may flip a spin whose two signs are as good."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear


def trained(dtype, seed, *, backwards=False, compiled=False, count=5):
    """Latent weights after every step, (count, weights); `backwards` adds the same rows up in another order."""
    torch.manual_seed(seed)
    model = nn.Sequential(BinaryLinear(20, 16), nn.Hardtanh(), nn.LayerNorm(16), BinaryLinear(16, 4)).to(dtype)
    optimizer = QPSBGD(model, projection="spins", real=True, steps=20)

    def step(inputs, targets):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    run, found = torch.compile(step) if compiled else step, []
    for _ in range(count):
        inputs, targets = torch.randn(32, 20, dtype=torch.float64).to(dtype), torch.randint(0, 4, (32,))
        run(*(part.flip(0) if backwards else part for part in (inputs, targets)))
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(found)


def test_the_order_of_rows_flips_spins_in_single_precision_only():
    changes = {
        dtype: [(trained(dtype, seed) - trained(dtype, seed, backwards=True)).abs().max() for seed in range(12)]
        for dtype in (torch.float32, torch.float64)
    }
    assert max(changes[torch.float64]) < 1e-9
    assert max(changes[torch.float32]) > 1e-4  # a spin; what rounding changes by itself is a thousand times smaller


@pytest.mark.slow
def test_a_compiled_step_is_the_eager_one_in_double_precision():
    assert (trained(torch.float64, 0) - trained(torch.float64, 0, compiled=True)).abs().max() < 1e-9
