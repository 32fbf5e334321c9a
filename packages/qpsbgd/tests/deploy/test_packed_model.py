import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from qpsbgd.deploy import load_packed, pack
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation, SignActivation


def test_a_packed_model_computes_what_torch_computes_also_written_copied_and_pickled(network, tmp_path):
    packed = pack(network.model, tmp_path / "net.safetensors", input_shape=network.packed_shape)
    assert packed(network.inputs[:0]).shape == (0, *network.outputs.shape[1:])
    outputs = packed(network.inputs)
    network.check(outputs)
    others = (load_packed(tmp_path / "net.safetensors"), copy.deepcopy(packed), pickle.loads(pickle.dumps(packed)))
    for other in others:
        np.testing.assert_array_equal(other(network.inputs), outputs)


@pytest.mark.parametrize("inputs", [784, 63, 64, 65, 1])
def test_the_sums_of_bits_are_torchs_whole_numbers(inputs):
    model = nn.Sequential(SignActivation(), BinaryLinear(inputs, 5, gain=1))
    x = torch.randn(50, inputs)
    outputs = pack(model)(x.numpy())
    np.testing.assert_array_equal(outputs, model(x).detach().numpy())
    assert set((outputs.astype(int) % 2).flat) == {inputs % 2}


def test_ties_count_as_plus_one_as_in_torch():
    layer = BinaryLinear(4, 2, gain=1)
    model = nn.Sequential(SignActivation(), layer, nn.BatchNorm1d(2), SignActivation())
    with torch.no_grad():
        layer.weight.fill_(0.0)  # sign(0) = +1
        model[2].weight.copy_(torch.tensor([1.0, -1.0]))
    inputs = torch.tensor([[1.0, 1, -1, -1], [1, 1, 1, -1], [-1, -1, -1, 1]])
    expected = np.array([[1, 1], [1, -1], [-1, 1]], np.float32)  # sums 0, 2, −2
    np.testing.assert_array_equal(model.eval()(inputs).detach(), expected)
    np.testing.assert_array_equal(pack(model)(inputs.numpy()), expected)


BFLOAT16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(
        torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        reason="without such a processor, torch warns and gives up mkldnn for the rest of the process",
    ),
)


@pytest.mark.parametrize("dtype", [torch.float16, BFLOAT16, torch.float64])
def test_signs_behind_bits_are_those_of_the_models_own_precision(dtype):
    model = nn.Sequential(SignActivation(), BinaryLinear(300, 60), nn.BatchNorm1d(60), SignActivation())
    nn.init.normal_(model[2].weight)
    nn.init.normal_(model[2].bias)
    model.to(dtype).eval()
    x = torch.randn(200, 300)
    expected = model(x.to(dtype)).detach().float().numpy()
    np.testing.assert_array_equal(pack(model)(x.numpy()), expected)


SEVERAL = pytest.mark.parametrize(
    "name", ["dense", "real images", "8-bit images", "a pool first", "resnet", "transformer"]
)


@SEVERAL
def test_packing_leaves_the_model_and_its_mode_as_they_are(name, network_of):
    network = network_of(name)
    network.model.train()
    before = {name: value.clone() for name, value in network.model.state_dict().items()}
    packed = pack(network.model, input_shape=network.packed_shape)
    assert all(module.training for module in network.model.modules())
    for name, value in network.model.state_dict().items():
        assert torch.equal(value, before[name])
    network.check(packed(network.inputs))


@pytest.mark.parametrize(
    "form",
    [
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1][::-1],
        lambda x: x.astype(np.float64),
        lambda x: x.tolist(),
        torch.from_numpy,
    ],
)
def test_rows_may_come_in_any_memory_order_and_number_type(dense, form):
    dense.check(pack(dense.model)(form(dense.inputs)))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, bool])
def test_whole_numbers_and_half_precision_count_by_their_value(dtype):
    model = nn.Sequential(nn.BatchNorm1d(20), SignActivation(), BinaryLinear(20, 4))
    model[0].running_mean.fill_(0.4)
    x = (np.arange(60).reshape(3, 20) % 7).astype(dtype)
    expected = model.eval()(torch.from_numpy(x.astype(np.float32))).detach().numpy()
    np.testing.assert_array_equal(pack(model)(x), expected)


def test_one_network_takes_images_of_several_sizes():
    model = nn.Sequential(SignActivation(), BinaryConv2d(1, 3, 3), SignActivation())
    packed = pack(model)
    for size in (5, 8, 5):
        x = torch.randn(2, 1, size, size)
        np.testing.assert_array_equal(packed(x.numpy()), model(x).detach().numpy())


@pytest.mark.parametrize(
    ("pool", "channels", "quantised"),  # sums of bytes, and of bits
    [
        (None, 1, False),
        (None, 40, True),
        (nn.MaxPool2d(2), 40, False),
        (nn.MaxPool2d(2), 1, True),
        (nn.MaxPool2d(3, 2, padding=1), 40, True),
        (nn.MaxPool2d(2, 3, dilation=2), 1, False),
    ],
)
def test_layers_with_more_sums_than_are_computed_at_once_are_torchs(pool, channels, quantised):
    pools = [] if pool is None else [pool]
    first = QuantActivation(scale=1 / 256) if quantised else SignActivation()
    layer, last = (BinaryConv2d(n, 40, 3, padding=1, gain=1) for n in (channels, 40))
    model = nn.Sequential(first, layer, *pools, nn.BatchNorm2d(40), SignActivation(), last, *pools)
    inputs = torch.randint(256, (3, channels, 24, 25)) / 256 - (0 if quantised else 0.5)
    model(inputs)
    expected = model.eval()(inputs).detach().numpy()
    np.testing.assert_array_equal(pack(model)(inputs.numpy()), expected)


def test_several_threads_may_use_one_model(dense):
    packed = pack(dense.model)
    with ThreadPoolExecutor(4) as pool:
        for outputs in pool.map(packed, [dense.inputs] * 50):
            dense.check(outputs)


def test_the_first_layer_tells_the_shape_of_a_sample():
    assert pack(nn.Sequential(nn.Flatten(), SignActivation(), BinaryLinear(12, 2))).input_shape == (12,)
    assert pack(nn.Sequential(nn.BatchNorm1d(12), SignActivation(), BinaryLinear(12, 2))).input_shape == (12,)
    assert pack(nn.Sequential(nn.Unflatten(1, (3, 2, 2)), BinaryConv2d(3, 2, 1))).input_shape == (12,)
    assert pack(nn.Sequential(BinaryConv2d(3, 2, 1))).input_shape is None


def test_wrong_inputs_are_refused_with_what_to_do(dense):
    packed = pack(dense.model)
    with pytest.raises(ValueError, match=r"takes 70 numbers, got shape \(71,\)"):
        packed(np.zeros((3, 71)))
    with pytest.raises(ValueError, match=r"pass x\[None\]"):
        packed(np.zeros(70))
    with pytest.raises(ValueError, match="Flatten"):
        packed(np.zeros((3, 7, 10)))
    with pytest.raises(TypeError, match="real numbers"):
        packed(np.zeros((3, 70), complex))
    with pytest.raises(TypeError, match="real numbers"):
        packed([["a"] * 70])


@SEVERAL
def test_inputs_that_are_not_finite_are_refused(name, network_of):
    network = network_of(name)
    packed, x = pack(network.model, input_shape=network.packed_shape), network.inputs.astype(np.float64)
    for value in (np.nan, np.inf, -np.inf, 1e300):
        x.flat[-1] = value
        with pytest.raises(ValueError, match="finite"):
            packed(x)


def test_images_of_a_wrong_shape_are_refused_with_the_layers_name():
    packed = pack(nn.Sequential(SignActivation(), BinaryConv2d(2, 3, 3, padding=4, padding_mode="reflect")))
    with pytest.raises(ValueError, match=r"1 \(Convolution\) takes 2 channels"):
        packed(np.zeros((1, 3, 6, 6)))
    with pytest.raises(ValueError, match="larger images"):
        packed(np.zeros((1, 2, 4, 6)))
    with pytest.raises(ValueError, match="2 dimensions"):
        packed(np.zeros((1, 2, 6)))


@pytest.mark.parametrize(("shape", "advice"), [((2, 64), ""), ((2, 1, 9, 9), ""), ((1, 8, 8), r"x\[None\]")])
def test_a_stored_shape_of_a_sample_is_named_where_inputs_have_another(shape, advice):
    packed = pack(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), BinaryLinear(144, 5)), input_shape=(1, 8, 8))
    with pytest.raises(ValueError, match=rf"samples of shape \(1, 8, 8\), got .*{advice}"):
        packed(np.zeros(shape))


def test_inference_does_not_load_torch(dense, tmp_path):
    path = tmp_path / "net.safetensors"
    pack(dense.model, path)
    code = (
        "import sys; sys.modules['torch'] = None  # importing it fails\n"
        "import numpy as np; from qpsbgd.deploy import load_packed\n"
        f"print(load_packed({str(path)!r})(np.ones((1, 70))).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "(1, 9)", done.stderr
