"""A network loses what it always lost: what changes the search, in its speed or its quality alone, is seen here.

What is meant to lose less gets its new numbers from the test's message.
"""

import numpy as np
import pytest
import torch
from torch import nn

from qpsbgd import binarize


def drawn(shape, seed):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


class Network(nn.Module):
    """Convolutions with groups and norms, a residual sum, layers with and without bias."""

    def __init__(self):
        super().__init__()
        self.begin = nn.Conv2d(2, 6, 3, padding=1)
        self.conv = nn.Conv2d(6, 6, 3, groups=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.wide = nn.Linear(6 * 9, 20)
        self.narrow = nn.Linear(20, 12, bias=False)
        self.end = nn.Linear(12, 4)
        for seed, parameter in enumerate(self.parameters()):
            if parameter.ndim > 1:
                parameter.data = drawn(parameter.shape, seed) / parameter[0].numel() ** 0.5

    def forward(self, x):
        x = self.begin(x).relu()
        x = (x + self.norm(self.conv(x))).relu()
        return self.end(self.narrow(self.wide(x.flatten(1)).relu()).relu())


CASES = (
    ({}, (1.00865, 0.64722, 0.49685, 0.25893)),
    ({"bits": 2, "rounds": 4}, (0.30506, 0.18464, 0.14715, 0.27217)),
    ({"bits": {"wide": 3}, "rounds": 5, "seed": 3}, (0.74655, 0.52265, 0.43748, 0.26561)),
    ({"targets": "float", "rounds": 4}, (1.02225, 0.7558, 0.5621, 0.18313)),
    ({"bias": False, "rounds": 4}, (0.90097, 0.59587, 0.43746, 0.25964)),
    ({"solver": "rounding", "first": True, "last": True}, (1.67843, 0.0, 0.0, 0.25769)),
    ({"solver": "feedback", "bits": 2}, (0.30256, 0.19258, 0.0, 0.27111)),
    ({"solver": "descent", "bits": 2}, (0.30756, 0.18494, 0.14837, 0.27124)),
)


@pytest.mark.parametrize("solver", ["rounding", "feedback", "kicks"])
def test_signs_whose_best_scale_is_negative_lose_what_the_outputs_lose(solver):
    # The larger weight is that of an input that takes back what the other one gives.
    inputs = drawn((500, 2), 0) @ torch.tensor([[1.0, -0.3], [0.0, 0.1]])
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[0.01, 1.0]])
    binary, report = binarize(model, [inputs], layers=[""], solver=solver, bias=False)
    with torch.no_grad():
        lost = (binary(inputs) - model(inputs)).square().sum() / model(inputs).square().sum()
    assert report.rows[0].lost == pytest.approx(float(lost), rel=1e-3)
    assert lost < 0.3


@pytest.mark.parametrize(("options", "expected"), CASES)
def test_a_network_loses_what_it_always_lost(options, expected):
    batches = [drawn((40, 2, 3, 3), seed) for seed in (50, 51)]
    model, report = binarize(Network().eval(), batches, **({"targets": "own"} | options))
    found = [[getattr(row, stage) for row in report.rows] for stage in ("rounding", "feedback", "search")]
    with torch.no_grad():
        found = [*(sum(each for each in stage if each is not None) for stage in found), model(batches[0]).abs().mean()]
    assert [round(float(each), 5) for each in found] == pytest.approx(expected, rel=1e-3)
