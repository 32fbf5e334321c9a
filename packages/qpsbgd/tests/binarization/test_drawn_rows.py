from types import SimpleNamespace

import pytest
import torch
from torch import nn

from qpsbgd import binarize
from qpsbgd.binarization.layer_run import LayerRun
from qpsbgd.binarization.passes import LayerCall


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


def test_one_row_is_drawn_from_each_equal_part():
    run = SimpleNamespace(generator=torch.Generator().manual_seed(0))
    for most, count in ((4, 100), (7, 8), (1000, 1000)):
        drawn = LayerRun._spread(run, most, count)
        assert torch.equal((drawn * most) // count, torch.arange(most)) or count % most
        assert len(drawn) == most and drawn.min() >= 0 and drawn.max() < count


@pytest.mark.parametrize(
    ("inputs", "bits", "batches", "most"),
    [
        (4, 1, 1, 16384),
        (1024, 1, 1, 16384),
        (1025, 1, 1, 16400),
        (1025, 2, 1, 16400),
        (4, 1, 3, 5462),
        (2000, 1, 2, 16000),
    ],
)
def test_rows_are_drawn_where_there_are_more_than_a_batch_may_give(inputs, bits, batches, most):
    reader = SimpleNamespace(weight=torch.empty(3, bits * inputs), bits=bits, count_rows=len)
    run = SimpleNamespace(
        options=SimpleNamespace(mask=lambda batch: batch),
        passes=SimpleNamespace(batches=[None] * batches),
        _spread=lambda *given: given,
    )
    assert LayerRun._chosen(run, None, LayerCall(torch.empty(most, 1), None, None), reader) == (..., None)
    assert LayerRun._chosen(run, None, LayerCall(torch.empty(most + 1, 1), None, None), reader) == (
        ...,
        (most, most + 1),
    )
    tokens, mask = torch.empty(2, most, 1), torch.zeros(2, most, dtype=torch.int64)
    mask[0] = 1
    found, at = LayerRun._chosen(run, mask, LayerCall(tokens, None, None), reader)
    assert at is None and found.dtype == torch.bool and torch.equal(found, mask.bool())
    mask[1, 0] = 1
    assert LayerRun._chosen(run, mask, LayerCall(tokens, None, None), reader)[1] == (most, most + 1)
    assert LayerRun._chosen(run, mask, LayerCall(torch.empty(5, 1), None, None), reader) == (..., None)  # no tokens
