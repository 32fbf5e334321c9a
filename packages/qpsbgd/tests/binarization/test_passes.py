from collections import Counter, UserDict

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from qpsbgd.binarization import binarize, distill
from qpsbgd.binarization.passes import Passes
from qpsbgd.nn import BinaryLinear


class Counting(nn.Linear):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = Counting(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.relu = nn.ReLU()

    def forward(self, x):
        inner = self.relu(self.first(x))
        inner += self.relu(self.second(inner))
        return self.third(inner)


def test_passes_go_on_from_what_was_computed_and_see_the_same_inputs():
    torch.manual_seed(0)
    model = InPlace()
    batches = list(torch.randn(30, 4).split(10))
    passes = Passes(model, batches)
    calls = passes.calls()
    assert calls[model.relu] == 2 and calls[model.third] == 1
    Counting.calls = 0
    seen = {}
    with passes.watching():
        for layer in (model.second, model.third):
            seen[layer] = [passes.layer_call(layer, number).x for number in range(3)]
        with torch.no_grad():
            model.second.weight.mul_(1)
    assert Counting.calls == 3  # once per batch, not once per batch and layer
    with torch.no_grad():
        for x, second, third in zip(batches, seen[model.second], seen[model.third], strict=True):
            inner = model.first(x).relu()
            torch.testing.assert_close(second, inner)
            torch.testing.assert_close(third, inner + model.second(inner).relu())
    assert "forward" not in model.first.__dict__


class InOneGo(nn.Module):
    """Four layers in one module, whose output is kept only when all of them have run."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@pytest.mark.parametrize("targets", ["own", "float"])
def test_a_layer_that_has_become_binary_runs_once_per_batch(targets, monkeypatch):
    torch.manual_seed(0)
    calls, forward = Counter(), BinaryLinear.forward

    def counted(self, x):
        calls[self] += 1
        return forward(self, x)

    monkeypatch.setattr(BinaryLinear, "forward", counted)
    model = binarize(InOneGo(), list(torch.randn(30, 6).split(10)), first=True, rounds=0, targets=targets).model
    assert [calls[layer] for layer in model.layers[:2]] == [3, 3]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedded, self.inner, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask=None):
        x = self.embedded(input_ids)
        return self.head(self.inner(x if attention_mask is None else x * attention_mask[..., None]))


def test_batches_are_taken_as_data_loaders_and_tokenizers_give_them():
    torch.manual_seed(0)
    x, model = torch.randn(40, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    pairs = DataLoader(TensorDataset(x, torch.zeros(40, dtype=torch.long)), batch_size=20)
    wanted = binarize(model, list(x.split(20)), rounds=1).model(x)
    assert torch.equal(binarize(model, pairs, rounds=1).model(x), wanted)
    tokens = torch.randint(0, 20, (10, 5))
    columns = {"input_ids": tokens, "attention_mask": (tokens > 4).long(), "labels": tokens[:, 0], "idx": tokens[:, 1]}
    tagger = Tagger()
    wanted = binarize(tagger, [{name: columns[name] for name in list(columns)[:2]}], rounds=1, first=True).model
    for batch in (columns, UserDict(columns)):
        assert torch.equal(binarize(tagger, [batch], rounds=1, first=True).model(tokens), wanted(tokens)), type(batch)
    assert len(distill(wanted, tagger, [UserDict(columns)], steps=2)) == 2
    with pytest.raises(TypeError, match=r"Tagger.forward .*input_ids, attention_mask, .*have x, y"):
        binarize(tagger, [{"x": tokens, "y": tokens}])


@pytest.mark.parametrize(("most", "calls"), [(0, 6), (4 * 4, 4), (2 * 4 * 4, 3)])
def test_outputs_are_kept_as_far_as_there_is_room(most, calls, monkeypatch):
    monkeypatch.setattr("qpsbgd.binarization.passes.MOST_KEPT", most)
    model = nn.Sequential(*(Counting(4, 4) for _ in range(4)))
    passes = Passes(model, [torch.ones(1, 4)])
    passes.calls()
    with passes.watching():
        Counting.calls = 0
        assert all(passes.layer_call(layer, 0) is not None for layer in model[1:])
    assert Counting.calls == calls


def test_hooks_of_the_parts_of_a_sequence_run_in_every_pass():
    model, calls = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    passes = Passes(model, [torch.randn(3, 4)])
    passes.calls()
    with passes.watching():
        for layer in (model[1], model[2], model[2]):
            passes.layer_call(layer, 0)
    assert len(calls) == 4


class Sometimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.second(self.first(x) if x.mean() > 0 else x)


def test_a_layer_that_a_batch_does_not_reach_hides_none_after_it():
    model = Sometimes()
    passes = Passes(model, [torch.ones(4, 3), -torch.ones(4, 3)])
    passes.calls()
    with passes.watching():
        assert passes.layer_call(model.first, 0) is not None and passes.layer_call(model.first, 1) is None
        assert all(passes.layer_call(model.second, number) is not None for number in (0, 1))
