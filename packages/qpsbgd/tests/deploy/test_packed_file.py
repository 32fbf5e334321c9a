import json

import numpy as np
import pytest
import safetensors.numpy
import torch
from rewriting import rewritten
from torch import nn

from qpsbgd.deploy import load_packed, pack
from qpsbgd.nn import BinaryConv2d, BinaryLinear, SignActivation
from qpsbgd_runtime import PackedModel, packed_file
from qpsbgd_runtime.operations import Dense, Sign, Weights
from qpsbgd_runtime.unit_operations import Quantize, Steps


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.safetensors"
    model = nn.Sequential(SignActivation(), BinaryLinear(9, 6), nn.BatchNorm1d(6), SignActivation(), BinaryLinear(6, 2))
    pack(model, path)
    return path


def test_weights_take_one_bit_each(tmp_path):
    layers = []
    for n, m in ((784, 512), (512, 512)):
        layers += [BinaryLinear(n, m), nn.BatchNorm1d(m), SignActivation()]
    pack(nn.Sequential(SignActivation(), *layers, BinaryLinear(512, 10)), tmp_path / "net.safetensors")
    assert (tmp_path / "net.safetensors").stat().st_size <= 90_000


def test_every_flipped_bit_is_noticed(file):
    sound = file.read_bytes()
    for place in range(len(sound)):
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(ValueError, match=r"damaged|not a packed model|version"):
            load_packed(rewritten(file, damaged))
    load_packed(rewritten(file, sound))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, -1])
def test_a_file_that_is_cut_off_is_refused(file, length):
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(ValueError, match="cut off"):
        load_packed(file)


def test_another_version_is_refused_and_named(file):
    sound = file.read_bytes()
    file.write_bytes(sound.replace(rb"\"version\": 2", rb"\"version\": 3"))
    with pytest.raises(ValueError, match=r"version 3 .*reads version 2"):
        load_packed(file)


def test_other_files_a_missing_one_and_a_folder_are_named(tmp_path):
    (tmp_path / "other.safetensors").write_bytes(safetensors.numpy.save({"x": np.zeros(3)}))
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "model.pt")
    for name in ("other.safetensors", "model.pt"):
        with pytest.raises(ValueError, match="not a packed model"):
            load_packed(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="nothing"):
        load_packed(tmp_path / "nothing.safetensors")
    with pytest.raises(IsADirectoryError):
        load_packed(tmp_path)


def test_a_refused_model_leaves_the_old_file(file):
    before = file.read_bytes()
    with pytest.raises(ValueError, match="ELU"):
        pack(nn.Sequential(BinaryLinear(3, 2), nn.ELU()), file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_same_model_gives_the_same_file(file, tmp_path):
    loaded = load_packed(file)
    pack(loaded, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()


def test_the_file_can_be_read_by_its_description(file):
    """The format as docs/deployment.md describes it."""
    with safetensors.safe_open(file, framework="numpy") as opened:
        operations = json.loads(opened.metadata()["qpsbgd packed model"])["operations"]
        dense = operations[1]
        bits = opened.get_tensor(dense["weights"]["array"]["packed bits"])
    assert [one["is"] for one in operations] == ["Sign", "Dense", "Threshold", "Dense", "Scale"]
    shape = dense["weights"]["array"]["shape"]
    signs = np.unpackbits(bits)[: np.prod(shape)].reshape(shape)
    np.testing.assert_array_equal(signs.astype(bool), load_packed(file).operations[1].weights.array)


def test_the_shape_of_a_sample_is_kept(tmp_path):
    model = nn.Sequential(BinaryConv2d(1, 2, 3), SignActivation())
    pack(model, tmp_path / "net.safetensors", input_shape=(1, 5, 6))
    assert load_packed(tmp_path / "net.safetensors").input_shape == (1, 5, 6)
    pack(model, tmp_path / "net.safetensors")
    assert load_packed(tmp_path / "net.safetensors").input_shape is None


def empty_norm(eps, variance):
    norm = nn.BatchNorm1d(4, eps=eps)
    norm.running_var.fill_(variance)
    return norm


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Linear(4, 4), empty_norm(0, 0)], r"1 \(BatchNorm1d\) divides by a variance of 0"),
        ([SignActivation(), BinaryLinear(4, 4), empty_norm(0, 0), SignActivation()], "divides by a variance of 0"),
        ([nn.Linear(4, 4), empty_norm(1e-90, 0)], r"0 \(Scale\) must have finite factors in float32"),
    ],
)
def test_nothing_is_written_that_could_not_be_read(layers, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        pack(nn.Sequential(*layers), tmp_path / "net")
    assert not list(tmp_path.iterdir())


def test_a_packed_model_that_is_not_as_pack_makes_it_is_not_written(tmp_path):
    steps, signs = Steps(0, 15, 121), Weights(np.ones((1, 2, 3), bool))
    for operations, shape in (((Quantize("a", steps),), (3,)), ((Sign("a"), Dense("b", signs, integer=True)), (7,))):
        with pytest.raises(ValueError, match=r"must have integers of 8 bits|takes 3 numbers"):
            packed_file.save(PackedModel(operations, shape), tmp_path / "net")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("norm", [nn.RMSNorm(4, eps=0), nn.LayerNorm(4, eps=0), nn.GroupNorm(2, 4, eps=0)])
def test_norms_that_add_nothing_are_kept(norm, tmp_path):
    pack(nn.Sequential(nn.Linear(4, 4), norm), tmp_path / "net", input_shape=(4,))
    inputs = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    assert np.isfinite(load_packed(tmp_path / "net")(inputs)).all()


def test_sizes_may_be_whole_numbers_of_numpy(tmp_path):
    i = np.int64
    layers = [nn.Conv2d(1, 2, i(3), padding=i(1), dilation=(i(1), 1)), nn.MaxPool2d(i(2)), nn.AvgPool2d((i(2), 1))]
    layers += [nn.GroupNorm(i(2), 2), nn.AdaptiveAvgPool2d(2), nn.Flatten(i(1)), nn.Softmax(i(-1))]
    model = nn.Sequential(*layers).eval()
    pack(model, tmp_path / "net", input_shape=np.array([1, 8, 8]))
    inputs = torch.randn(3, 1, 8, 8)
    np.testing.assert_allclose(load_packed(tmp_path / "net")(inputs.numpy()), model(inputs).detach(), atol=1e-6)


@pytest.mark.parametrize("shape", [20, (), (3, 0), (2.5,), "12"])
def test_shapes_that_are_not_positive_sizes_are_refused(shape):
    with pytest.raises(ValueError, match="input_shape must be the positive sizes of one sample"):
        pack(nn.Linear(4, 4), input_shape=shape)
