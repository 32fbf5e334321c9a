"""A language model that nobody here trained: the Llama of 260,000 parameters of llama2.c, and stories to read.

QPSBGD_LLAMA is a folder with stories260K.bin and tok512.bin (github.com/karpathy/llama2.c, MIT, as copied in
github.com/ytmytm/llama2.c64) and tiny_stories.txt (the first 0.9 MB of TinyStories, CDLA-Sharing-1.0, as in
github.com/s-ajaykumar/smallGPT).
"""

import os
import re
import struct
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from benchmarks.training.binarize_networks import WINDOW, Subject
from benchmarks.training.training_parts import DEVICE
from torch.nn import functional as F

HELD_OUT = 64
"""Windows at the end of the stories, on which models are scored."""
BEGINNING = 1
"""The token that begins a story."""


def folder():
    return Path(os.environ["QPSBGD_LLAMA"])


@cache
def tokens():
    """All stories, token by token, each behind its beginning; words are tokenised as SentencePiece's BPE does."""
    raw = (folder() / "tok512.bin").read_bytes()
    place, pieces, scores = 4, {}, []
    while place < len(raw):
        score, size = struct.unpack_from("fI", raw, place)
        piece = raw[place + 8 : place + 8 + size].decode("utf-8")
        pieces.setdefault(piece, len(scores))
        scores.append(score)
        place += 8 + size

    spelled = {n: piece for piece, n in pieces.items()}

    @cache
    def encode(word):
        parts = [[pieces[c]] if c in pieces else [byte + 3 for byte in c.encode()] for c in word]
        names = [n for part in parts for n in part]
        while True:
            pairs = [spelled[first] + spelled[two] for first, two in pairwise(names)]
            known = [(scores[pieces[pair]], -place) for place, pair in enumerate(pairs) if pair in pieces]
            if not known:
                return names
            place = -max(known)[1]
            names[place : place + 2] = [pieces[pairs[place]]]

    text = (folder() / "tiny_stories.txt").read_text(encoding="utf-8")
    stories = re.split(r"(?<!\n)\n(?!\n)", text)
    words = (re.findall(r" [^ \n]*|[^ \n]+|\n", f" {story.strip()}".replace("\n\n", "\n")) for story in stories)
    return torch.tensor([n for story in words for n in (BEGINNING, *(n for word in story for n in encode(word)))])


@cache
def windows():
    """All windows of the stories, (N, 256): those for training and calibration, and those held out."""
    whole = tokens()
    rows = whole[: len(whole) // WINDOW * WINDOW].reshape(-1, WINDOW).to(DEVICE)
    return rows[:-HELD_OUT], rows[-HELD_OUT:]


@cache
def llama():
    """The float model, as transformers has it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    raw = (folder() / "stories260K.bin").read_bytes()
    width, hidden, layers, heads, kv_heads, vocabulary, length = struct.unpack_from("7i", raw)
    size = width // heads
    flat, place = torch.frombuffer(bytearray(raw[28:]), dtype=torch.float32), 0

    def take(*shape):
        nonlocal place
        count = torch.Size(shape).numel()
        place += count
        return flat[place - count : place].reshape(shape).clone()

    def halves(weight, count):
        """Rows of a head in the order of transformers: the first of each pair that turns together, then the second."""
        return weight.reshape(layers, count, size // 2, 2, width).transpose(2, 3).reshape(weight.shape)

    embedding = take(vocabulary, width)
    parts = {"input_layernorm": take(layers, width)}
    parts["self_attn.q_proj"] = halves(take(layers, width, width), heads)
    parts["self_attn.k_proj"] = halves(take(layers, kv_heads * size, width), kv_heads)
    parts["self_attn.v_proj"] = take(layers, kv_heads * size, width)
    parts["self_attn.o_proj"] = take(layers, width, width)
    parts["post_attention_layernorm"] = take(layers, width)
    parts["mlp.gate_proj"] = take(layers, hidden, width)
    parts["mlp.down_proj"] = take(layers, width, hidden)
    parts["mlp.up_proj"] = take(layers, hidden, width)
    state = {f"model.layers.{k}.{name}.weight": part[k] for name, part in parts.items() for k in range(layers)}
    state |= {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding, "model.norm.weight": take(width)}
    sizes = {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers, "vocab_size": vocabulary}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": length}
    model = LlamaForCausalLM(LlamaConfig(**sizes, rms_norm_eps=1e-5, tie_word_embeddings=True))
    model.load_state_dict(state)
    model.config.use_cache = False
    return model.eval().to(DEVICE)


@dataclass(frozen=True)
class Stories(Subject):
    """The Llama and its stories."""

    batch: int = 16

    def network(self):
        return llama()

    def calibration(self, size, seed):
        return list(next(self.batches(1, seed, size)).split(16))

    def batches(self, steps, seed, size=None):
        """Windows of the training part, drawn by the seed."""
        rows, draw = windows()[0], torch.Generator().manual_seed(seed)
        for _ in range(steps):
            yield rows[torch.randperm(len(rows), generator=draw)[: size or self.batch].to(rows.device)]

    def loss(self, model, batch):
        return F.cross_entropy(model(batch).logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())

    @torch.no_grad()
    def scores(self, model):
        parts = windows()[1].split(16)
        return {"loss": sum(self.loss(model, part).item() for part in parts) / len(parts)}
