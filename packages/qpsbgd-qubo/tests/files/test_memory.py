# ruff: noqa: E402
from lazy import skip_without

skip_without("torch", "qpsbgd")

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD, binarize
from qpsbgd.nn import BinaryLinear
from qpsbgd.projections import Ridge, Spins
from qpsbgd_qubo.files import memory
from qpsbgd_qubo.files.memory import check_memory, free_memory


def test_what_the_machine_lacks_is_refused_and_what_it_has_is_not(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 5e9)
    check_memory(5 * 10**9, "this", "take less")
    with pytest.raises(MemoryError, match=r"^this needs 5 GB of memory, and 5 GB are free; take less$"):
        check_memory(5 * 10**9 + 1, "this", "take less")
    monkeypatch.setattr(memory, "free_memory", lambda: 0.0)
    check_memory(memory.SMALL, "this", "take less")


def test_the_free_memory_is_that_of_the_machine():
    assert 2**20 < free_memory() < 2**50 or free_memory() == float("inf")


@pytest.mark.parametrize("projection", [Ridge(block=None), Spins(block=None)], ids=["ridge", "spins"])
def test_a_layer_whose_system_cannot_fit_is_named_with_what_to_do(monkeypatch, projection):
    monkeypatch.setattr(memory, "free_memory", lambda: 1.5e9)
    layer = BinaryLinear(12_000, 1)
    with pytest.raises(MemoryError, match=r"12000 inputs .*needs 1.73 GB.*`block` is None"):
        QPSBGD(layer, projection=projection, steps=3)
    assert layer.tape is None


def test_a_layer_too_wide_to_be_binarised_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 1.5e9)
    model = nn.Sequential(nn.Linear(9_000, 1))
    with pytest.raises(MemoryError, match=r"^0: the moments of 9000 inputs needs 3.89 GB.*leave it out of `layers`"):
        binarize(model, [torch.randn(2, 9_000)], layers=["0"], solver="rounding")
