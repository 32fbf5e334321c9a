"""Packed files under a right checksum whose arrays have other types than `pack` gives them."""

import copy
import json

import numpy as np
import pytest
import torch
from crafted import places
from packed_contents import write_packed
from rewriting import rewritten
from torch import nn

from qpsbgd.deploy import load_packed, pack
from qpsbgd.nn import BinaryLinear, QuantActivation, SignActivation
from qpsbgd_runtime import PackedModel, packed_file
from qpsbgd_runtime.image_operations import MaxPool, Window


@pytest.fixture
def path(tmp_path):
    torch.manual_seed(0)
    layers = (SignActivation(), BinaryLinear(6, 5), QuantActivation(), BinaryLinear(5, 2))
    model = nn.Sequential(SignActivation(), BinaryLinear(9, 6), *layers)
    model(torch.randn(8, 9))
    pack(model.eval(), tmp_path / "net")
    return tmp_path / "net"


def parts(path):
    with packed_file.safetensors.safe_open(path, framework="numpy") as file:
        content = json.loads(file.metadata()[packed_file.ENTRY])
        del content["checksum"]
        return content, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def retype(path, name, dtype):
    """Give an array another type, and the file its right checksum."""
    content, tensors = parts(path)
    found = [key for key in tensors if key.endswith(f".{name}")]
    assert found
    tensors |= {key: tensors[key].astype(dtype) for key in found}
    write_packed(path, content, tensors)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [1, 10**6, 10**6]}, "must have 1000000000000 bits, got 56"),
        ({"shape": [1, 6, 8]}, "must have 48 bits, got 56"),
        *(({"shape": [1, 6, size]}, "a shape of integers") for size in (-9, 9.0)),
        ({"shape": None}, "damaged"),
        ({"packed bits": "nothing"}, "nothing"),
        ({"packed bits": []}, "unhashable"),
        *(
            (array, "must be bytes with a shape of integers")
            for array in (np.ones(7, np.int8), np.ones((7, 1), np.uint8))
        ),
    ],
)
def test_weights_that_are_not_there_are_not_made_up(path, change, message):
    content, tensors = parts(path)
    if isinstance(change, dict):
        content["operations"][1]["weights"]["array"] |= change
    else:
        tensors["1.weights.array"] = change
    write_packed(path, content, tensors)
    with pytest.raises(ValueError, match=f"is damaged: .*{message}|{message}"):
        load_packed(path)


@pytest.mark.parametrize(("dtype", "factor"), [("BF16", 2), ("F8_E4M3", 4), ("F8_E5M2", 4)])
def test_types_that_numpy_does_not_have_are_called_damage(dtype, factor, path):
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    name = next(key for key in header if key.endswith(".factor"))
    header[name] |= {"dtype": dtype, "shape": [factor * header[name]["shape"][0]]}
    text = json.dumps(header).encode()
    rewritten(path, len(text).to_bytes(8, "little") + text + data[end:])
    with pytest.raises(ValueError, match="is damaged"):
        load_packed(path)


def test_arrays_without_dimensions_are_called_damage(path):
    content, tensors = parts(path)
    for name, array in tensors.items():
        write_packed(path, content, tensors | {name: array.ravel()[:1].reshape(())})
        with pytest.raises(ValueError, match="is damaged"):
            load_packed(path)


def test_numbers_beyond_all_types_are_called_damage(tmp_path):
    pack(nn.Sequential(nn.Linear(3, 3), nn.Hardtanh(), nn.LayerNorm(3), nn.LeakyReLU()), tmp_path / "net")
    content, tensors = parts(tmp_path / "net")
    operations = content["operations"]
    inside = [place for place in places(operations) if isinstance(part(operations, place), float)]
    inside = [place for place in inside if "coefficients" not in place]  # without meaning for real weights
    assert len(inside) == 4
    for place in inside:
        *path, last = place
        crafted = copy.deepcopy(content)
        part(crafted["operations"], path)[last] = 10**400
        write_packed(tmp_path / "net", crafted, tensors)
        with pytest.raises(ValueError, match="is damaged"):
            load_packed(tmp_path / "net")


def part(value, path):
    for key in path:
        value = value[key]
    return value


def test_windows_of_all_operations_share_one_budget(tmp_path):
    pool = MaxPool("a", Window((8191,), (1,), ((4095, 4095),), (1,)))
    pack(PackedModel((pool,), (1, 8191)), tmp_path / "net")
    with pytest.raises(ValueError, match=r"a \(MaxPool\) .* windows of at most 67108864 pixels"):
        pack(PackedModel((pool, pool), (1, 8191)), tmp_path / "net")
