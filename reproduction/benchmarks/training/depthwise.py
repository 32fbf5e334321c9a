"""Which direction suits depthwise layers: the polar factor, the ridge, or the mean gradient normalised per layer?

Test accuracy on MNIST of 14 × 14 pixels of a small MobileNet (inverted residuals, depthwise convolutions, batch norms),
whose other binary layers take the polar factor; its first convolution and its head are real. Every row of a depthwise
layer's blocks is alone in its block, so that the polar factor divides every filter by its own norm.

    python benchmarks/training/depthwise.py [FILE]    writes results/depthwise.json, or FILE; data through QPSBGD_DATA
"""

import torch
import torch.nn.functional as F
from benchmarks.training.training_parts import accuracy, mnist
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryConv2d, BinaryLayer
from qpsbgd.projections import Polar, Ridge
from qpsbgd_paper.framework.measurements import publish, shown

SEEDS, STEPS, BATCH, TEST = 3, 300, 64, 2000
CHANNELS, EXPANSION, BLOCKS = 16, 3, 3
MEAN = Ridge(delta=1e6)  # so large that A is the identity
DIRECTIONS = {"polar": Polar(), "ridge": Ridge(), "mean gradient": MEAN}
OTHERS = {"polar": Polar(), "ridge": Ridge()}


class InvertedResidual(nn.Module):
    def __init__(self):
        super().__init__()
        wide = CHANNELS * EXPANSION
        self.layers = nn.Sequential(
            BinaryConv2d(CHANNELS, wide, 1),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            BinaryConv2d(wide, wide, 3, padding=1, groups=wide),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            BinaryConv2d(wide, CHANNELS, 1),
            nn.BatchNorm2d(CHANNELS),
        )

    def forward(self, x):
        return x + self.layers(x)


def network():
    stem = [nn.Conv2d(1, CHANNELS, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(CHANNELS), nn.ReLU6()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10)]
    return nn.Sequential(*stem, *(InvertedResidual() for _ in range(BLOCKS)), *head)


def score(others, depthwise, seed, data):
    inputs, targets, test_inputs, test_targets = data
    torch.manual_seed(seed)
    model = network().to(inputs.device)
    layers = [module for module in model.modules() if isinstance(module, BinaryLayer)]
    split = {id(one) for one in layers if one.groups > 1}
    real = [p for p in model.parameters() if all(p is not layer.weight for layer in layers)]
    groups = [
        {"params": [one for one in layers if id(one) not in split]},
        {"params": [one for one in layers if id(one) in split], "projection": depthwise},
        {"params": real},
    ]
    optimizer = QPSBGD(groups, projection=others, steps=STEPS)
    for _ in range(STEPS):
        rows = torch.randint(len(inputs), (BATCH,), device=inputs.device)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return accuracy(model, test_inputs, test_targets)


def measured():
    inputs, targets, test_inputs, test_targets = mnist(False)
    small, small_test = (F.avg_pool2d(part.reshape(-1, 1, 28, 28), 2) for part in (inputs, test_inputs[:TEST]))
    data = small, targets, small_test, test_targets[:TEST]
    for name, others in OTHERS.items():
        for direction, projection in DIRECTIONS.items():
            scores = [score(others, projection, seed, data) for seed in range(SEEDS)]
            yield {"others": name, "depthwise": direction, "scores": scores}


if __name__ == "__main__":
    torch.set_num_threads(1)
    settings = {"steps": STEPS, "batch": BATCH, "channels": CHANNELS, "expansion": EXPANSION, "blocks": BLOCKS}
    publish(__file__, settings=settings | {"seeds": SEEDS, "test rows": TEST}, rows=shown(measured()))
