"""Train a fully binary network on handwritten digits, pack it to one bit per weight, classify, and write it as C99.

Needs scikit-learn for the digits. Classifying does not need torch, and the C code uses no heap and no floating point;
compile it with: cc -std=c99 -O2 digits*.c -o digits
"""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from qpsbgd import QPSBGD, real_optimizer
from qpsbgd.deploy import load_packed, pack, to_c
from qpsbgd.nn import BinaryLinear, SignActivation

EPOCHS = 5

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
inputs, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(digits)
order = torch.randperm(len(inputs))
train, test = order[:1437], order[1437:]

layers = [SignActivation()]  # binary inputs: is a pixel at least half bright?
for n, m in ((64, 256), (256, 256)):
    layers += [BinaryLinear(n, m), nn.BatchNorm1d(m), SignActivation()]
model = nn.Sequential(*layers, BinaryLinear(256, 10), nn.BatchNorm1d(10))

steps = EPOCHS * (len(train) // 32 + 1)
binary = QPSBGD(model, steps=steps)
real = real_optimizer(model, beside=binary, lr=1e-2)
for _ in range(EPOCHS):
    for rows in train[torch.randperm(len(train))].split(32):
        binary.zero_grad()
        real.zero_grad()
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        binary.step()
        real.step()

folder = Path(tempfile.mkdtemp())
pack(model, folder / "digits.safetensors")
classify = load_packed(folder / "digits.safetensors")
classes = classify(inputs[test].numpy()).argmax(1)
accuracy = (classes == targets[test].numpy()).mean()
size = (folder / "digits.safetensors").stat().st_size
print(f"test accuracy {accuracy:.3f} from a file of {size:,} bytes; float32 weights take {4 * (64 + 256 + 10) * 256:,}")

with torch.no_grad():
    same = (torch.from_numpy(classes) == model.eval()(inputs[test]).argmax(1)).all()
print("the same classes as torch:", bool(same))
print(to_c(model, folder / "deployed", name="digits"))
