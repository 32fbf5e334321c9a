"""A convolutional network with weights ±1 on small images of digits, and what it saves.

Needs scikit-learn for the digits.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from qpsbgd import QPSBGD, summary
from qpsbgd.nn import BinaryConv2d, BinaryLinear

EPOCHS = 4

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
images, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(digits)
order = torch.randperm(len(images))
train, test = order[:1437], order[1437:]

model = nn.Sequential(
    BinaryConv2d(1, 16, 3, padding="same"),
    nn.BatchNorm2d(16),
    nn.Hardtanh(),
    BinaryConv2d(16, 32, 3, stride=2, padding=1),
    nn.BatchNorm2d(32),
    nn.Hardtanh(),
    nn.Flatten(),
    BinaryLinear(32 * 4 * 4, 10, bias=True),
)
print(summary(model, (1, 8, 8)))

steps = EPOCHS * (len(train) // 64 + 1)
optimizer = QPSBGD(model, steps=steps, real={"lr": 1e-2})  # `real` trains batch norms and biases

for epoch in range(EPOCHS):
    model.train()
    for rows in train[torch.randperm(len(train))].split(64):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[rows]), targets[rows])
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == targets[test]).float().mean()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {accuracy:.3f}")
