import torch
from torch import nn

from qpsbgd import binarize


def test_rows_of_long_inputs_are_not_taken_at_a_fixed_distance():
    """Rows that repeat with a period of four have other inputs each; every fourth row alone would miss most."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4 * 16384, 16, generator=generator) * torch.eye(4).repeat_interleave(4, 1).repeat(16384, 1)
    model = nn.Sequential(nn.Linear(16, 8, bias=False))
    found = binarize(model, [rows], first=True, last=True, rounds=0)
    with torch.no_grad():
        error = model(rows) - found.model(rows)
        lost = error.var(0).sum() / model(rows).var(0).sum()
    assert abs(lost - found.report.rows[0].lost) < 0.1 * lost
