"""One bit per weight for an already trained network, without training it; then a short fine-tuning.

Needs scikit-learn for the digits.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from qpsbgd import QPSBGD, binarize, summary

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
inputs, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(digits)
order = torch.randperm(len(inputs))
train, test = order[:1437], order[1437:]


def fit(model, optimizer, steps):
    model.train()
    for _ in range(steps):
        rows = train[torch.randint(len(train), (64,))]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    return model.eval()


def accuracy(model):
    with torch.no_grad():
        return (model(inputs[test]).argmax(1) == targets[test]).float().mean().item()


model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
fit(model, torch.optim.Adam(model.parameters(), 2e-3), 600)
print(f"float weights: test accuracy {accuracy(model):.3f}")

calibration = list(inputs[train[:512]].split(64))
for solver in ("rounding", "feedback", "kicks"):
    binary, report = binarize(model, calibration, solver=solver, first=True, last=True)
    print(f"one bit, {solver}: test accuracy {accuracy(binary):.3f}")
print(report)  # how much of each layer's output was lost, and after which stage

fit(binary, QPSBGD(binary, steps=300, real={"lr": 1e-3}), 300)
print(f"one bit, kicks and 300 steps of QP-SBGD: test accuracy {accuracy(binary):.3f}")
print(summary(binary, (64,)))
