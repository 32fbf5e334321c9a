"""How accurate is MLPerf Tiny's ResNet-8 on CIFAR-10 with 1, 2 and 4 bits per weight and activations of 8 bits?

The float network, as the suite defines it, is trained first, by SGD with momentum and a cosine, on crops and mirror
images. Networks with few bits per weight in every layer are trained by QP-SBGD at its defaults, on the same images,
towards the labels and the float network's outputs. Accuracies are those of all test images after the last step.

    python benchmarks/deploy/mlperf_training.py [--epochs N] [--bits 0 1 2 4] [--into FILE] [--runs FOLDER]

QPSBGD_DATA names a folder with cifar-10/cifar-10-python.tar.gz; 0 bits: float. Networks that FILE, by default
results/mlperf_training.json, already has are not trained again; an interrupted run resumes from its checkpoint in
FOLDER, by default results/mlperf_training, where the trained networks stay.
"""

import argparse
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.training.kept_rows import Rows
from benchmarks.training.training_parts import DEVICE, DEVICE_NAME
from qpsbgd import QPSBGD, Checkpoint
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation
from qpsbgd_paper.datasets.cifar import load_cifar10
from qpsbgd_paper.framework.training import batches

RESULTS = Path(__file__).parents[2] / "results"
BATCH, TEMPERATURE = 128, 4.0


class Residual(nn.Module):
    """activation(body(x) + shortcut(x))."""

    def __init__(self, body, shortcut, activation):
        super().__init__()
        self.body, self.shortcut, self.activation = body, shortcut, activation

    def forward(self, x):
        return self.activation(self.body(x) + self.shortcut(x))


def residual(n, m, stride, *, bits=1):
    """ResNet-8's block from n to m channels, in float where there are no bits per weight.

    With bits, both summands are rounded to 8 bits, so that C adds whole numbers, and shortcuts have a norm too.
    """
    activation = QuantActivation if bits else nn.ReLU

    def layer(n, m, window, stride=1):
        options = {"stride": stride, "padding": window // 2}
        if bits:
            return [BinaryConv2d(n, m, window, bits=bits, **options), nn.BatchNorm2d(m)]
        return [nn.Conv2d(n, m, window, **options), *([nn.BatchNorm2d(m)] if window > 1 else [])]

    rounded = [QuantActivation(signed=True)] if bits else []
    body = nn.Sequential(*layer(n, m, 3, stride), activation(), *layer(m, m, 3), *rounded)
    shortcut = nn.Identity() if stride == 1 else nn.Sequential(*layer(n, m, 1, stride), *rounded)
    return Residual(body, shortcut, activation())


def resnet8(bits):
    """MLPerf Tiny's ResNet-8 for pixels from 0 to 1, with so many bits per weight; 0 for float."""
    first = [BinaryConv2d(3, 16, 3, padding=1, bits=bits) if bits else nn.Conv2d(3, 16, 3, padding=1)]
    first = [*([QuantActivation(scale=1 / 256, learned=False)] if bits else []), *first, nn.BatchNorm2d(16)]
    blocks = [residual(16, 16, 1, bits=bits), residual(16, 32, 2, bits=bits), residual(32, 64, 2, bits=bits)]
    last = [nn.AdaptiveAvgPool2d(1), *([QuantActivation()] if bits else []), nn.Flatten()]
    last += [BinaryLinear(64, 10, bits=bits, bias=True) if bits else nn.Linear(64, 10)]
    return nn.Sequential(*first, QuantActivation() if bits else nn.ReLU(), *blocks, *last)


def augmented(images):
    """Pixels from 0 to 1 of crops of padded images (B, 3, 32, 32) of bytes, half of them mirrored."""
    count = len(images)
    padded = F.pad(images, (4, 4, 4, 4))
    rows, columns = (
        torch.randint(9, (count, 1), device=images.device) + torch.arange(32, device=images.device) for _ in range(2)
    )
    columns = torch.where(torch.rand(count, 1, device=images.device) < 0.5, columns.flip(1), columns)
    every = torch.arange(count, device=images.device)[:, None, None]
    crops = padded.permute(0, 2, 3, 1)[every, rows[:, :, None], columns[:, None, :]]
    return crops.permute(0, 3, 1, 2).float() / 256


def trained(bits, epochs, data, folder, teacher=None):
    """A network and its row of results."""
    images, labels, test_images, test_labels = data
    torch.manual_seed(0)
    model = resnet8(bits).to(DEVICE)
    steps = epochs * len(images) // BATCH
    if bits:
        optimizer = QPSBGD(model, steps=steps, real={"lr": 1e-2})
        parts = {}
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, nesterov=True, weight_decay=5e-4)
        parts = {"schedule": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)}
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"resnet8-{bits}-{epochs}.pt"
    with Checkpoint(place, every=len(images) // BATCH, model=model, optimizer=optimizer, **parts) as run:
        for step in run.steps(steps):
            (rows,) = batches(len(images), BATCH, 1)
            rows, targets = augmented(images[rows]), labels[rows]
            model.train()
            optimizer.zero_grad()
            outputs = model(rows)
            loss = F.cross_entropy(outputs, targets)
            if bits:
                with torch.no_grad():
                    wanted = F.softmax(teacher(rows) / TEMPERATURE, 1)
                found = F.log_softmax(outputs / TEMPERATURE, 1)
                loss = 0.5 * loss + 0.5 * TEMPERATURE**2 * F.kl_div(found, wanted, reduction="batchmean")
            loss.backward()
            optimizer.step()
            for schedule in parts.values():
                schedule.step()
            if step % 500 == 0:
                print(f"{bits} bits: step {step} of {steps}, loss {loss.item():.4f}", flush=True)
    model.eval()
    with torch.inference_mode():
        parts = zip(test_images.split(1000), test_labels.split(1000), strict=True)
        right = sum((model(part.float() / 256).argmax(1) == wanted).sum().item() for part, wanted in parts)
    return model, {"test accuracy": right / len(test_labels), "test images": len(test_labels), "device": DEVICE_NAME}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--bits", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--into", type=Path, default=RESULTS / "mlperf_training.json")
    parser.add_argument("--runs", type=Path, default=RESULTS / "mlperf_training")
    options = parser.parse_args()
    cifar = load_cifar10()
    images, test_images = (part.permute(0, 3, 1, 2).to(DEVICE) for part in (cifar.train_images, cifar.test_images))
    data = images, cifar.train_labels.to(DEVICE), test_images, cifar.test_labels.to(DEVICE)

    @cache
    def teacher():
        return trained(0, options.epochs, data, options.runs)[0]

    def row(job):
        return job | trained(job["bits"], job["epochs"], data, options.runs, job["bits"] and teacher())[1]

    jobs = [{"network": "ResNet-8", "bits": bits, "epochs": options.epochs} for bits in options.bits]
    Rows(options.into).measured(row, jobs)


if __name__ == "__main__":
    main()
