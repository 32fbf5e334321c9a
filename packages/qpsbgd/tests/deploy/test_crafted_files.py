"""Packed files under a right checksum whose arrays have other types than `pack` gives them."""

import json

import numpy as np
import pytest
import torch
from rewriting import rewritten
from torch import nn

from qpsbgd.deploy import load_packed, pack
from qpsbgd.nn import BinaryLinear, QuantActivation, SignActivation
from qpsbgd_runtime import packed_file


@pytest.fixture
def path(tmp_path):
    torch.manual_seed(0)
    layers = (SignActivation(), BinaryLinear(6, 5), QuantActivation(), BinaryLinear(5, 2))
    model = nn.Sequential(SignActivation(), BinaryLinear(9, 6), *layers)
    model(torch.randn(8, 9))
    pack(model.eval(), tmp_path / "net")
    return tmp_path / "net"


def retype(path, name, dtype):
    """Give an array another type, and the file its right checksum."""
    with packed_file.safetensors.safe_open(path, framework="numpy") as file:
        content = json.loads(file.metadata()[packed_file.ENTRY])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    found = [key for key in tensors if key.endswith(f".{name}")]
    assert found
    tensors |= {key: tensors[key].astype(dtype) for key in found}
    del content["checksum"]
    content["checksum"] = packed_file._checksum(content, tensors)
    rewritten(path, packed_file.safetensors.numpy.save(tensors, {packed_file.ENTRY: json.dumps(content)}))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for name in ("factor", "offset") for dtype in (np.float16, np.float64)),
        *((name, np.int64) for name in ("levels", "lows", "highs")),
    ],
)
def test_an_array_of_another_type_is_refused_when_the_file_is_read(name, dtype, path):
    retype(path, name, dtype)
    with pytest.raises(ValueError, match=r" must have .*(32 bits|float32).*pack it again"):
        load_packed(path)


@pytest.mark.parametrize("name", ["factor", "levels", "lows", "factors"])
def test_an_array_of_its_own_type_is_read(name, path):
    rows = np.random.default_rng(0).standard_normal((4, 9), np.float32)
    expected = load_packed(path)(rows)
    retype(path, name, np.float32 if name == "factor" else np.int64 if name == "factors" else np.int32)
    np.testing.assert_array_equal(load_packed(path)(rows), expected)
