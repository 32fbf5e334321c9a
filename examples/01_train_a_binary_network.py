"""Train a network with weights ±1 on handwritten digits; biases stay real-valued and get their own optimiser.

Needs scikit-learn for the digits.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from qpsbgd import QPSBGD, real_optimizer
from qpsbgd.analysis import fixed_points
from qpsbgd.nn import BinaryLinear

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
inputs, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(digits)
order = torch.randperm(len(inputs))
train, test = order[:1437], order[1437:]

model = nn.Sequential(BinaryLinear(64, 128, bias=True), nn.Hardtanh(), BinaryLinear(128, 10, bias=True))
binary = QPSBGD(model, steps=4 * 45)  # four epochs of 45 batches
real = real_optimizer(model, beside=binary, lr=1e-3)

for epoch in range(4):
    for rows in train[torch.randperm(len(train))].split(32):
        binary.zero_grad()
        real.zero_grad()
        loss = F.cross_entropy(model(inputs[rows]), targets[rows])
        loss.backward()
        binary.step()
        real.step()
    with torch.no_grad():
        accuracy = (model(inputs[test]).argmax(1) == targets[test]).float().mean()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {accuracy:.3f}")

print("weights of the last layer:", model[2].binary_weight[0, :12].int().tolist(), "…")
held = fixed_points(model, (inputs[train], targets[train]), F.cross_entropy, solver="auto")
print(f"weights that a full-batch step would leave unchanged: {held.fraction:.1%}")
