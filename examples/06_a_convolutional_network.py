"""Make a residual convolutional network binary with `convert`, train it on small images of digits, see what it saves.

Needs scikit-learn for the digits.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from qpsbgd import QPSBGD, summary
from qpsbgd.nn import convert

EPOCHS = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.second, self.second_norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        y = self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))
        return F.relu(x + y)


torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
images, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(digits)
order = torch.randperm(len(images))
train, test = order[:1437], order[1437:]

first = [nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()]
real = nn.Sequential(*first, Block(24), nn.MaxPool2d(2), Block(24), nn.Flatten(), nn.Linear(24 * 16, 10))
model = convert(real, first=False, last=False)  # the first and the last layer stay real
print(summary(model, (1, 8, 8)))

optimizer = QPSBGD(model, steps=EPOCHS * (len(train) // 64 + 1), real=True)  # `real` trains norms and real layers

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
