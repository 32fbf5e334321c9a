"""Binary logistic regression on two blobs: the paper's first figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from qpsbgd.experiments.runs import run_jobs
from qpsbgd.nn import BinaryLinear
from qpsbgd.optim import QPSBGD, BinaryConnect

LINES: Mapping[str, str] = MappingProxyType(
    {
        "exact": "QP-SBGD (exact)",
        "annealer": "QP-SBGD (short anneal)",
        "bc-sign": "BC (signSGD)",
        "bc-sgd": "BC (SGD)",
        "literal": "QP-SBGD (exact), as printed",
        "bc-sgd-tuned": "BC (SGD), lr 0.5",
    }
)
"""The four methods of the paper's figure at its learning rates, and two more that explain it."""


@dataclass(frozen=True)
class LogReg:
    """Settings: `points` per blob, `batch` rows per step, `steps` steps, `seeds` data sets and starts."""

    points: int = 100
    batch: int = 20
    steps: int = 150
    seeds: int = 20
    lines: tuple[str, ...] = tuple(LINES)

    def jobs(self) -> list[dict[str, Any]]:
        """One run per line and seed."""
        shape = {"points": self.points, "batch": self.batch, "steps": self.steps}
        return [{**shape, "line": line, "seed": seed} for line in self.lines for seed in range(self.seeds)]


def run(settings: LogReg, *, folder: Path, workers: int) -> Iterator[tuple[str, int, int]]:
    """Do all that is not done yet; yields (phase, jobs done, jobs in all) as it goes on."""
    jobs = settings.jobs()
    for count, _ in enumerate(run_jobs(train, jobs, folder=folder, workers=workers), start=1):
        yield "logistic regression", count, len(jobs)


def summary(settings: LogReg, *, folder: Path) -> dict[str, Any]:
    """Loss curves of every line, and the loss of each seed after the first phase (mean over the second half)."""
    curves: dict[str, list[list[float]]] = {line: [] for line in settings.lines}
    for done in run_jobs(train, settings.jobs(), folder=folder):
        curves[done.settings["line"]].append(done.result["loss"])
    rows = []
    for line, losses in curves.items():
        late = np.array(losses)[:, settings.steps // 2 :].mean(1)
        rows.append(
            {
                "line": line,
                "label": LINES[line],
                "late_mean": float(late.mean()),
                "late_standard_error": float(late.std(ddof=1) / np.sqrt(len(late))) if len(late) > 1 else 0.0,
                "mean": np.mean(losses, axis=0).tolist(),
                "standard_error": (np.std(losses, axis=0) / np.sqrt(len(losses))).tolist(),
            }
        )
    return {"settings": {"seeds": settings.seeds, "steps": settings.steps, "batch": settings.batch}, "rows": rows}


def train(*, points: int, batch: int, steps: int, line: str, seed: int) -> dict[str, Any]:
    """One run: the loss on all data before every step."""
    inputs, targets = blobs(points, seed=seed)
    torch.manual_seed(seed)
    layer = BinaryLinear(3, 1, gain=1.0)
    optimizer = _optimizer(line, layer)
    losses = []
    for _ in range(steps):
        layer.eval()
        with torch.no_grad():
            losses.append(F.binary_cross_entropy_with_logits(layer(inputs)[:, 0], targets).item())
        layer.train()
        rows = torch.randint(0, len(inputs), (batch,))
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(layer(inputs[rows])[:, 0], targets[rows])
        torch.autograd.backward(loss)
        optimizer.step()
    return {"loss": losses}


def blobs(points: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Two linearly separable blobs in the plane with an intercept: inputs (2 · points, 3) and targets 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    angle = 2 * torch.pi * torch.rand((), generator=generator)
    centre = 1.5 * torch.stack([angle.cos(), angle.sin()])
    noise = (0.4 * torch.randn(2, points, 2, generator=generator)).clamp(-1, 1)
    plane = torch.cat([noise[0] - centre, noise[1] + centre])
    targets = torch.cat([torch.zeros(points), torch.ones(points)])
    return torch.cat([plane, torch.ones(2 * points, 1)], dim=1), targets


def _optimizer(line: str, layer: BinaryLinear) -> Optimizer:
    """The paper's learning rates: 0.05 (exact, signSGD), 0.01 (annealer), 5e-5 (SGD)."""
    if line == "exact":
        return QPSBGD(layer, lr=0.05, solver="exact")
    if line == "literal":
        return QPSBGD(layer, lr=0.05, solver="exact", scale="literal", momentum=0.0, clip=None)
    if line == "annealer":
        from qpsbgd.solvers.dimod import Dimod

        # One short read, with no repair: what comes back is not always the ground state, as on a chip.
        solver = Dimod("simulated-annealing", {"num_reads": 1, "num_sweeps": 3})
        return QPSBGD(layer, lr=0.01, solver=solver)
    if line == "bc-sign":
        return BinaryConnect(layer, lr=0.05, update="sign")
    if line in ("bc-sgd", "bc-sgd-tuned"):
        return BinaryConnect(layer, lr=5e-5 if line == "bc-sgd" else 0.5, update="sgd")
    raise ValueError(f"unknown line {line!r}; choose from {', '.join(LINES)}")
