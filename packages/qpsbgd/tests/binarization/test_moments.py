"""Moments against torch's own means and covariances, whatever the batches are."""

import pytest
import torch

from qpsbgd.binarization.moments import Moments, NormMoments, NotFinite


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2 + 7


@pytest.mark.parametrize(("groups", "sizes"), [(3, (1,)), (1, (5, 0, 9)), (3, (3000, 4097))])
def test_sums_over_batches_are_the_moments_of_all_rows(groups, sizes):
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


@pytest.mark.parametrize("shape", [(1, 4), (20, 4), (6, 4, 5), (3, 4, 2, 5)])
def test_statistics_of_a_norm_are_those_that_torch_would_learn(shape):
    moments, x = NormMoments(), drawn(*shape)
    for part in x.split(4):
        moments.add(part)
    values = x.double().movedim(1, 0).flatten(1)
    torch.testing.assert_close(moments.mean, values.mean(1))
    expected = values.var(1) if values.shape[1] > 1 else torch.zeros(4).double()
    torch.testing.assert_close(moments.variance, expected)
    assert moments.count == values.shape[1]


@pytest.mark.parametrize(("kind", "value"), [(lambda: Moments(1, 4), torch.nan), (NormMoments, torch.inf)])
def test_what_is_not_finite_is_refused(kind, value):
    rows = drawn(5, 4)
    rows[2, 1] = value
    with pytest.raises(NotFinite, match="its inputs hold NaN or infinite values"):
        kind().add(rows)


def test_squares_that_overflow_are_refused():
    moments = Moments(1, 2)
    moments.add(torch.tensor([[1e200, 0.0], [-1e200, 1.0]], dtype=torch.float64))
    with pytest.raises(NotFinite, match="the squares of its inputs overflow"):
        moments.metric(centred=True)
