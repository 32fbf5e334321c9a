"""What a network that is to be binarised has: a name, a float model that is kept once it is trained, and scores.

Text is the running interpreter's standard library.
"""

import os
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn
from training_parts import DEVICE, autocast

from qpsbgd_files.atomic import writing

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Subject:
    """A trained network and its data.

    Attributes:
        name: As on the command line and in the results.
        title: As in the documents.
        measure: The main score: "accuracy", "loss" or "cosine".
        size: Calibration inputs by default: images, windows of 256 characters, or sentences.
    """

    name: str
    title: str
    measure: str
    size: int = 1024

    def network(self):
        """The float model, from the folder of trained ones, or trained now with seed 0 and kept there."""
        torch.manual_seed(0)
        model = self.build().to(DEVICE)
        path = Path(os.environ.get("QPSBGD_BINARIZE", ROOT / "results" / "binarize")) / f"{self.name}.pt"
        if not path.exists():
            self.train(model)
            # Half precision is exact enough, and small.
            state = model.state_dict().items()
            path.parent.mkdir(parents=True, exist_ok=True)
            with writing(path) as file:
                torch.save({name: (one.half() if one.is_floating_point() else one).cpu() for name, one in state}, file)
        model.load_state_dict(torch.load(path, weights_only=True, map_location=DEVICE))
        return model.eval()

    def train(self, model):
        """Adam with a cosine to zero."""
        steps, rate = self.schedule
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
        model.train()
        for step, batch in enumerate(self.batches(steps, seed=0, training=True)):
            optimizer.zero_grad()
            with autocast():
                loss = self.loss(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % max(1, steps // 10) == 0:
                print(f"{self.name}: training, step {step}/{steps}, loss {loss.item():.3f}", flush=True)


LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


@cache
def sources():
    """The standard library's own files, sorted; every twentieth is held out."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [p for p in sorted(root.rglob("*.py")) if not LEFT_OUT & set(p.relative_to(root).parts)]
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in paths]
    return [text for k, text in enumerate(texts) if k % 20], texts[::20]
