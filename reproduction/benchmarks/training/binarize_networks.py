"""The trained networks of benchmarks/training/binarize.py, with the data that calibrate, train and score them.

Each is a `Subject`: `network()` is the float model in evaluation mode, trained here where it is not kept in the folder
of caches; `calibration(size, seed)` are batches of training inputs, `batches(steps, seed)` those of fine-tuning, and
`scores(model)` what a model is worth. Text is the running interpreter's standard library.
"""

import math
import os
import sysconfig
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.training.training_parts import DEVICE, accuracy, autocast, dense, mnist
from torch import nn

from qpsbgd_qubo.files.atomic import writing

ROOT = Path(__file__).parents[3]


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

    @property
    def path(self):
        """Where the trained network is kept."""
        return Path(os.environ.get("QPSBGD_BINARIZE", ROOT / "results" / "binarize")) / f"{self.name}.pt"

    def network(self):
        """The float model, from the folder of trained ones, or trained now with seed 0 and kept there."""
        torch.manual_seed(0)
        model, path = self.build().to(DEVICE), self.path
        if not path.exists():
            self.train(model)
            # Half precision is exact enough, and small.
            state = model.state_dict().items()
            path.parent.mkdir(parents=True, exist_ok=True)
            with writing(path) as file:
                torch.save(
                    {name: (tensor.half() if tensor.is_floating_point() else tensor).cpu() for name, tensor in state},
                    file,
                )
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


mlp = partial(dense, [784, 512, 512, 10], linear=nn.Linear, activation=nn.ReLU)
small_mlp = partial(dense, [784, 256, 256, 10], linear=nn.Linear, activation=nn.ReLU)


def cnn(channels=(32, 64, 128)):
    """Three 3 × 3 convolutions with batch norm and pooling, and a linear layer."""
    layers, n = [nn.Unflatten(1, (1, 28, 28))], 1
    for m in channels:
        layers += [nn.Conv2d(n, m, 3, padding=1), nn.BatchNorm2d(m), nn.ReLU(), nn.MaxPool2d(2)]
        n = m
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(9 * n, 10))


small_cnn = partial(cnn, (16, 32, 64))


@dataclass(frozen=True)
class Images(Subject):
    build: object = None
    data: object = mnist
    epochs: int = 6
    batch: int = 100

    @property
    def schedule(self):
        return self.epochs * 600, 2e-3

    def calibration(self, size, seed):
        inputs, *_ = self.data(False)
        rows = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))[:size]
        return list(inputs[rows.to(inputs.device)].split(256))

    def batches(self, steps, seed, *, training=False):
        inputs, targets, *_ = self.data(False)
        order = torch.Generator().manual_seed(1000 + seed)
        for _ in range(steps):
            rows = torch.randint(len(inputs), (self.batch,), generator=order).to(inputs.device)
            yield inputs[rows], targets[rows]

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def chosen(self, model):
        """The score by which rates are chosen, on training images that no run of 1000 steps meets twice."""
        inputs, targets, *_ = self.data(False)
        with torch.no_grad():
            return accuracy(model.eval(), inputs[-10000:], targets[-10000:])

    @torch.no_grad()
    def scores(self, model):
        _, _, inputs, targets = self.data(False)
        outputs = torch.cat([model(x) for x in inputs.split(2000)])
        right = (outputs.argmax(1) == targets).double().mean()
        return {"accuracy": right.item(), "loss": F.cross_entropy(outputs, targets).item()}


LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


@cache
def sources():
    """The standard library's own files, sorted; every twentieth is held out."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [p for p in sorted(root.rglob("*.py")) if not LEFT_OUT & set(p.relative_to(root).parts)]
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in paths]
    return [text for k, text in enumerate(texts) if k % 20], texts[::20]


WINDOW = 256
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))


@cache
def characters():
    """Training and held-out text as numbers of characters; others than printable ASCII are left out."""
    numbers = torch.full((128,), -1)
    numbers[[ord(c) for c in CHARACTERS]] = torch.arange(len(CHARACTERS))
    parts = ["\n".join(texts).replace("\t", "    ").encode("ascii", "ignore") for texts in sources()]
    parts = [numbers[torch.frombuffer(bytearray(part), dtype=torch.uint8).long()] for part in parts]
    return [part[part >= 0].to(DEVICE) for part in parts]


class Block(nn.Module):
    """A transformer block with causal attention and layer norm first."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.attention(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.mixed(mixed)
        return x + self.narrow(F.gelu(self.wide(self.last_norm(x))))


class GPT(nn.Module):
    """A character GPT: logits of the next character for windows of characters (B, T)."""

    def __init__(self, *, layers=4, width=384, heads=6):
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(CHARACTERS), width), nn.Embedding(WINDOW, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS))
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = math.sqrt(2 * layers) if name.endswith(("mixed.weight", "narrow.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 / deep)

    def forward(self, windows):
        x = self.tokens(windows) + self.places.weight[: windows.shape[1]]
        return self.head(self.norm(self.blocks(x)))


small_gpt = partial(GPT, layers=3, width=128, heads=4)


@dataclass(frozen=True)
class Characters(Subject):
    build: object = GPT
    schedule: tuple = (4000, 1e-3)
    batch: int = 64
    tuning_batch: int = 16
    windows: int = 256

    def _windows(self, text, count, generator):
        starts = torch.randint(len(text) - WINDOW, (count, 1), generator=generator).to(text.device)
        return text[starts + torch.arange(WINDOW + 1, device=text.device)]

    def calibration(self, size, seed):
        windows = self._windows(characters()[0], size, torch.Generator().manual_seed(seed))[:, :-1]
        return list(windows.split(32))

    def batches(self, steps, seed, *, training=False):
        generator = torch.Generator().manual_seed(1000 + seed)
        for _ in range(steps):
            yield self._windows(characters()[0], self.batch if training else self.tuning_batch, generator)

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    @torch.no_grad()
    def chosen(self, model):
        windows = self._windows(characters()[0], 64, torch.Generator().manual_seed(7))
        return -sum(self.loss(model.eval(), part).item() for part in windows.split(32)) / 2

    @torch.no_grad()
    def scores(self, model):
        windows = self._windows(characters()[1], self.windows, torch.Generator().manual_seed(0))
        return {"loss": sum(self.loss(model, part).item() * len(part) for part in windows.split(32)) / len(windows)}
