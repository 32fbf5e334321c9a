"""Ctrl-C while a model itself is changed: it is as before, or binary as a whole."""

import random
from pathlib import Path

import torch
from interrupting import Interrupt, watched_model
from torch import nn, overrides

import qpsbgd.binarization
from qpsbgd import binarize

FILES = [Path(qpsbgd.binarization.__file__).with_name(f"{name}.py") for name in ("changes", "passes")]
INPUTS = torch.randn(8, 2, 4, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    mixed = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)
    return nn.Sequential(nn.Linear(4, 4), mixed, nn.Flatten(), nn.BatchNorm1d(8), nn.Linear(8, 2), nn.Linear(2, 2))


def test_ctrl_c_at_any_moment_leaves_the_model_as_it_was_or_all_of_it_binary():
    model, count = network(), Interrupt(FILES)
    before = watched_model(model)
    assert not count(binarize, model, [INPUTS], copy=False, solver="rounding")
    states, source, interrupted = {before, watched_model(model)}, random.Random(0), 0
    for numbers in source.sample(list(count.places.values()), 20):
        model = network()
        interrupted += Interrupt(FILES, source.choice(numbers))(
            binarize, model, [INPUTS], copy=False, solver="rounding"
        )
        # An interrupt right before the end of a `with` block leaves off gradients or on a mode.
        torch.set_grad_enabled(True)
        while overrides._get_current_function_mode_stack():
            overrides._pop_mode()
        assert watched_model(model) in states
    assert interrupted == 20
    assert len(states) == 2
