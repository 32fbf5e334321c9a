"""CIFAR-10: its usual networks and augmentation, and ResNet-20 with one-bit weights by every method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qpsbgd.nn import convert
from qpsbgd.optim import QPSBGD, BinaryConnect, StraightThrough
from qpsbgd_paper.datasets.cifar import load_cifar10
from qpsbgd_paper.framework.claims import Claim
from qpsbgd_paper.framework.comparison import Case, Comparison, Metric, Series
from qpsbgd_paper.framework.methods import FORMS, FROZEN, RIDGE, SPINS, Grid, Line, Options, aims, rates
from qpsbgd_paper.framework.runs import Result
from qpsbgd_paper.framework.training import accuracy, batches, fit

MEAN, DEVIATION = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
"""Mean and deviation of the training images' channels, from 0 to 255."""
MARGIN = 4  # black pixels around an image, from which a window of its size is cut
BATCH = 128
POLAR = "qpsbgd-polar"
RIVALS = {"st-adamw": "straight-through (AdamW)", "st-muon": "straight-through (Muon)", "bc-adam": "BC (Adam)"}
METHODS: Mapping[str, Any] = MappingProxyType(
    {"qpsbgd": QPSBGD, "straight-through": StraightThrough, "binaryconnect": BinaryConnect}
)
"""Optimisers of the binary layers, which train the rest of the network too."""
FINAL = Metric("final", "test accuracy")
_loaded = cache(load_cifar10)


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions with batch norm beside a shortcut without parameters (option A of He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.second, self.second_norm = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, as many pixels as the stride leaves."""
        y = self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))
        if self.stride > 1 or self.added:
            sides = (self.added // 2, self.added - self.added // 2)
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, *sides))
        return F.relu(x + y)


def resnet(depth: int = 20, classes: int = 10) -> nn.Sequential:
    """The ResNet for CIFAR of this depth, 6 k + 2: three stages of k blocks with 16, 32 and 64 channels."""
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth must be 6 k + 2, such as 20 or 56, got {depth}")
    blocks: list[nn.Module] = []
    inputs = 16
    for outputs, stride in ((16, 1), (32, 2), (64, 2)):
        for number in range((depth - 2) // 6):
            blocks.append(BasicBlock(inputs, outputs, stride if number == 0 else 1))
            inputs = outputs
    first = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def vgg_small(classes: int = 10) -> nn.Sequential:
    """Six 3 × 3 convolutions of 128, 256 and 512 channels with batch norm, and one linear layer."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, pooled in ((128, False), (128, True), (256, False), (256, True), (512, False), (512, True)):
        layers.append(nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False))
        layers += [nn.MaxPool2d(2)] if pooled else []
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 16, classes))


def shifted(images: Tensor) -> Tensor:
    """Images (N, 32, 32, 3), randomly shifted, with black edges, and mirrored."""
    count, size = images.shape[:2]
    images = F.pad(images, (0, 0, MARGIN, MARGIN, MARGIN, MARGIN))
    shifts = torch.randint(0, 2 * MARGIN + 1, (2, count, 1), device=images.device)
    pixels = torch.arange(size, device=images.device)
    mirrored = torch.rand(count, 1, device=images.device) < 0.5
    rows, columns = shifts[0] + pixels, shifts[1] + torch.where(mirrored, size - 1 - pixels, pixels)
    return images[torch.arange(count, device=images.device)[:, None, None], rows[:, :, None], columns[:, None, :]]


def augmented(images: Tensor, *, plain: bool = False) -> Tensor:
    """Images (N, 32, 32, 3), uint8, as inputs (N, 3, 32, 32); unless `plain`, randomly shifted and mirrored."""
    images = images if plain else shifted(images)
    # Channel by channel: constants on the CPU could not be part of a CUDA graph.
    parts = [(images[..., k].float() - MEAN[k]) / DEVIATION[k] for k in range(3)]
    return torch.stack(parts, -1).permute(0, 3, 1, 2)


def _rival(*learning_rates: float, **others: Any) -> Grid:
    return rates(*learning_rates, real=True, **others)


def train(
    *, depth: int, epochs: int, images: int | None, method: str, options: Options, seed: int, choosing: bool, **_: Any
) -> Result:
    """One run, on a GPU where there is one: accuracy on the held-out images after every epoch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs, targets, others, wanted = (part.to(device) for part in split(images, choosing=choosing))
    torch.manual_seed(seed)
    model = convert(resnet(depth), first=False, last=False).to(device)
    batch = min(BATCH, len(inputs))
    per_epoch = len(inputs) // batch

    def outputs(x: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            found: Tensor = model(x)
        return found.float()

    def scored() -> float:
        parts = [others[start : start + 1000] for start in range(0, len(others), 1000)]
        return accuracy(torch.cat([outputs(augmented(part, plain=True)) for part in parts]), wanted)

    curve = fit(
        model,
        lambda rows: F.cross_entropy(outputs(augmented(inputs[rows.to(device)])), targets[rows.to(device)]),
        rows=batches(len(inputs), batch, epochs * per_epoch),
        optimizers=[METHODS[method](model, steps=epochs * per_epoch, **options)],
        measure=scored,
        every=per_epoch,
    )
    return {"accuracy": curve, FINAL.key: curve[-1]}


def split(images: int | None, *, choosing: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to train on and to score on: the test's or, for choosing, the last tenth of the training's."""
    loaded = _loaded()
    inputs, targets = loaded.train_images[:images], loaded.train_labels[:images]
    if choosing:
        held = max(1, len(inputs) // 10)
        return inputs[:-held], targets[:-held], inputs[-held:], targets[-held:]
    return inputs, targets, loaded.test_images[:images], loaded.test_labels[:images]


@dataclass(frozen=True)
class Cifar(Comparison):
    """ResNet-20 with one-bit weights; only the first convolution, the last layer and the norms are real-valued."""

    name = "cifar"
    title = "CIFAR-10, ResNet-20 with one-bit weights"
    about = (
        "ResNet-20 whose convolutions have weights ±1 and a scale per output; the first convolution, the last layer "
        "and the norms stay real-valued. Batches of 128 images, randomly shifted and mirrored; all methods have the "
        "same warm-up and cosine. QP-SBGD runs at its defaults. Every baseline takes the best of its learning rates on "
        "the last tenth of the training images. The control trains only what is real-valued."
    )
    paper = ""
    chosen_in_view = "The first learning rates of the baselines, by benchmarks/training/networks.py."
    metrics = (FINAL,)
    series = (Series("accuracy", "test accuracy", x_label="epoch", first=1),)
    chosen_by = Metric(FINAL.key, "validation accuracy")
    passed = ("depth", "epochs", "images")
    work = staticmethod(train)
    needs = (_loaded,)
    small = {"depth": 8, "images": 256, "epochs": 4, "choosing_seeds": 0}
    epochs: int = 10
    images: int | None = None  # how many images of training and of the test are used; None is all
    depth: int = 20
    seeds: int = 2
    choosing_seeds: int = 1

    def cases(self) -> Sequence[Case]:
        return [Case(f"{self.epochs} epochs")]

    def lines(self, case: Case) -> Mapping[str, Line]:
        # The first rates, which a quick run takes, were the best in benchmarks/training/networks.py.
        adamw, muon = _rival(0.01, 0.003, 0.03, update="adam"), _rival(0.02, 0.01, 0.05, update="muon")
        still = {"lr": 0.0, "weight_decay": 0.0, "real": True}
        return {
            RIDGE: Line("QP-SBGD (ridge)", "qpsbgd", ({"projection": "ridge", "real": True},), "ours"),
            POLAR: Line("QP-SBGD (polar)", "qpsbgd", ({"projection": "polar", "real": True},), "ours"),
            SPINS: Line("QP-SBGD (spins)", "qpsbgd", ({"projection": "spins", "real": True},), "ours"),
            "st-adamw": Line(RIVALS["st-adamw"], "straight-through", adamw),
            "st-muon": Line(RIVALS["st-muon"], "straight-through", muon),
            "bc-adam": Line(RIVALS["bc-adam"], "binaryconnect", _rival(0.03, 0.01, 0.1, relative=True)),
            FROZEN: Line("control: binary layers frozen", "straight-through", (still,), "control"),
        }

    def claims(self) -> Sequence[Claim]:
        (case,) = self.cases()
        return aims(FINAL.key, case.name, against=RIVALS, forms={**FORMS, POLAR: "polar"})
