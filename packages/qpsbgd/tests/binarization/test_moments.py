"""Moments against torch's own means and covariances, whatever the batches are."""

import pytest
import torch

from qpsbgd.binarization.moments import Moments


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2 + 7


@pytest.mark.parametrize(("groups", "sizes", "block"), [(3, (1,), 256), (1, (5, 0, 9), 3), (3, (3000, 4097), 1)])
def test_sums_over_batches_are_the_moments_of_all_rows(groups, sizes, block, monkeypatch):
    monkeypatch.setattr("qpsbgd.binarization.moments.BLOCK", block)
    rows, targets = drawn(sum(sizes), groups * 4), drawn(sum(sizes), groups * 2, seed=1)
    targets = targets + rows[:, :1]
    moments = Moments(groups, 4)
    for part, wanted in zip(rows.split(sizes), targets.split(sizes), strict=True):
        moments.add(part, wanted)
    assert moments.count == sum(sizes)
    x, t = (each.double().reshape(len(rows), groups, -1).transpose(0, 1) for each in (rows, targets))
    around, wanted = x - x.mean(1, keepdim=True), t - t.mean(1, keepdim=True)
    for found, expected in (
        (moments.mean, x.mean(1)),
        (moments.target_mean, t.mean(1)),
        (moments.metric(centred=True), around.mT @ around / len(rows)),
        (moments.metric(centred=False), x.mT @ x / len(rows)),
        (moments.cross(centred=True), around.mT @ wanted / len(rows)),
        (moments.cross(centred=False), x.mT @ t / len(rows)),
    ):
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_refused(value):
    rows = drawn(5, 4)
    rows[2, 1] = value
    with pytest.raises(ValueError, match="its inputs hold NaN or infinite values"):
        Moments(1, 4).add(rows)


def test_squares_that_overflow_are_refused():
    moments = Moments(1, 2)
    moments.add(torch.tensor([[1e200, 0.0], [-1e200, 1.0]], dtype=torch.float64))
    with pytest.raises(ValueError, match="the squares of its inputs overflow"):
        moments.metric(centred=True)
