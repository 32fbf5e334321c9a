"""Train a network with weights ±1 on handwritten digits; biases stay real-valued.

Needs scikit-learn for the digits.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.analysis import fixed_points
from qpsbgd.nn import BinaryLinear

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
inputs, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(digits)
order = torch.randperm(len(inputs))
train, test = order[:1437], order[1437:]

model = nn.Sequential(BinaryLinear(64, 128, bias=True), nn.Hardtanh(), BinaryLinear(128, 10, bias=True))
optimizer = QPSBGD(model, steps=4 * 45, real={"lr": 1e-3})  # four epochs of 45 batches; AdamW for the biases

for epoch in range(4):
    for rows in train[torch.randperm(len(train))].split(32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(inputs[test]).argmax(1) == targets[test]).float().mean()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {accuracy:.3f}")

print("weights of the last layer:", model[2].binary_weight[0, :12].int().tolist(), "…")
held = fixed_points(model, (inputs[train], targets[train]), F.cross_entropy, solver="auto")
print(f"weights that a full-batch step would leave unchanged: {held.fraction:.1%}")
