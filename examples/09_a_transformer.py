"""A character transformer whose blocks have weights ±1, trained on a few files of the standard library.

`convert` makes the blocks binary; embeddings, norms and head stay real-valued, and `real=True` trains them too.
"""

import inspect
import json.decoder
import shutil
import textwrap

import torch
from torch import nn
from torch.nn import functional as F

from qpsbgd import QPSBGD, summary
from qpsbgd.nn import convert

STEPS, WINDOW, WIDTH = 60, 48, 64

torch.manual_seed(0)
source = "".join(inspect.getsource(module) for module in (textwrap, inspect, shutil, json.decoder))
characters = sorted(set(source))
text = torch.tensor([characters.index(c) for c in source])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.last_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.transpose(1, 2) for part in self.attention(self.norm(x)).unflatten(-1, (3, 4, -1)).unbind(-3))
        x = x + self.mixed(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.last_norm(x))))


head = [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(characters))]
model = convert(nn.Sequential(nn.Embedding(len(characters), WIDTH), Block(), Block(), *head), last=False)
print(summary(model, inputs=text[None, :WINDOW]))

optimizer = QPSBGD(model, steps=STEPS, real=True)
for step in range(1, STEPS + 1):
    windows = text[torch.randint(len(text) - WINDOW, (16, 1)) + torch.arange(WINDOW + 1)]
    optimizer.zero_grad()
    loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f} nats per character")
