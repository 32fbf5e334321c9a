import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from targets import onnx_outputs
from torch import nn

from qpsbgd.deploy import pack, to_onnx
from qpsbgd.nn import BinaryConv2d, BinaryLayer, BinaryLinear, SignActivation


def test_onnxruntime_computes_what_torch_computes(network, tmp_path):
    weights = "bits" if len(network.name) % 2 else "float32"
    to_onnx(network.packed, tmp_path / "net.onnx", weights=weights)
    network.check(onnx_outputs(tmp_path / "net.onnx", network.inputs))


QONNX = ("dense", "several bits", "norm, pool", "real images", "one dimension", "8 bits", "resnet", "attention")


@pytest.mark.parametrize("name", QONNX)
def test_qonnx_computes_what_torch_computes(name, network_of, tmp_path, monkeypatch):
    pytest.importorskip("qonnx", reason="needs qonnx, which the extras do not install")
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    network = network_of(name)
    # Its executor hands single nodes to onnxruntime, in onnx's newest format, which onnxruntime may not read yet.
    monkeypatch.setattr(onnx, "IR_VERSION", 9)
    to_onnx(network.packed, tmp_path / "net.onnx", weights="qonnx")
    model = onnx.load(tmp_path / "net.onnx")
    kinds = {(node.domain, node.op_type) for node in model.graph.node}
    binary = any(isinstance(module, BinaryLayer | SignActivation) for module in network.model.modules())
    assert (("qonnx.custom_op.general", "BipolarQuant") in kinds) == binary
    for end in (*model.graph.input, *model.graph.output):  # its executor wants a fixed batch
        end.type.tensor_type.shape.dim[0].dim_value = len(network.inputs)
    shaped = ModelWrapper(model).transform(InferShapes())
    network.check(execute_onnx(shaped, {"input": network.inputs})["output"])


def test_the_batch_may_have_any_size(dense, tmp_path):
    to_onnx(dense.model, tmp_path / "net.onnx")
    for size in (1, 5):
        np.testing.assert_array_equal(onnx_outputs(tmp_path / "net.onnx", dense.inputs[:size]), dense.outputs[:size])


def test_weights_as_bits_take_at_most_a_tenth_of_the_float_file(tmp_path):
    layers = []
    for n, m in ((784, 512), (512, 512)):
        layers += [BinaryLinear(n, m), nn.BatchNorm1d(m), SignActivation()]
    model = nn.Sequential(*layers, BinaryLinear(512, 10))
    for weights in ("bits", "float32"):
        to_onnx(model, tmp_path / f"{weights}.onnx", weights=weights)
    assert 10 * (tmp_path / "bits.onnx").stat().st_size < (tmp_path / "float32.onnx").stat().st_size


def test_shapes_that_do_not_fit_are_refused_and_nothing_is_written(dense, tmp_path):
    with pytest.raises(ValueError, match="takes 70 numbers"):
        to_onnx(dense.model, tmp_path / "net.onnx", input_shape=(7, 10))
    with pytest.raises(ValueError, match="give input_shape"):
        to_onnx(nn.Sequential(BinaryConv2d(1, 2, 3)), tmp_path / "net.onnx")
    with pytest.raises(ValueError, match="bits, float32 or qonnx"):
        to_onnx(dense.model, tmp_path / "net.onnx", weights="int8")
    assert not list(tmp_path.iterdir())


def test_nan_counts_as_minus_one_at_a_sign_as_the_guide_says(dense, tmp_path):
    to_onnx(dense.model, tmp_path / "net.onnx")
    nan, below = dense.inputs.copy(), dense.inputs.copy()
    nan[:, ::3], below[:, ::3] = np.nan, -1
    np.testing.assert_array_equal(*(onnx_outputs(tmp_path / "net.onnx", rows) for rows in (nan, below)))


class Taken(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("bits", [1, 2])
def test_onnxruntime_computes_norms_and_rectifiers_within_the_convolution(bits, tmp_path):
    torch.manual_seed(0)
    layers = [BinaryConv2d(3, 8, 3, bits=bits, scale="learned", bias=True), nn.BatchNorm2d(8), nn.ReLU()]
    nn.init.uniform_(layers[1].weight)
    to_onnx(nn.Sequential(*layers).eval(), tmp_path / "net.onnx", input_shape=(3, 6, 6))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), options, providers=["CPUExecutionProvider"])
    nodes = {node.op_type for node in onnx.load(tmp_path / "run.onnx").graph.node}
    assert nodes <= {"Conv", "FusedConv", "ReorderInput", "ReorderOutput"}


@pytest.mark.parametrize(
    ("pool", "shape"),
    [(nn.MaxPool1d(2, 4, 0, 4, ceil_mode=True), (2, 11)), (nn.MaxPool2d(3, 3, 1, 4, ceil_mode=True), (2, 9, 11))],
)
def test_windows_that_end_far_behind_the_image_are_pooled(pool, shape, tmp_path):
    inputs = -1 - torch.rand(3, *shape)
    to_onnx(nn.Sequential(pool), tmp_path / "net.onnx", input_shape=shape)
    np.testing.assert_array_equal(onnx_outputs(tmp_path / "net.onnx", inputs.numpy()), pool(inputs).numpy())


@pytest.mark.parametrize("function", [lambda x: x * x.sigmoid(), nn.functional.silu, torch.sigmoid])
def test_small_sigmoids_keep_their_sign(function, tmp_path):
    inputs = torch.linspace(-80, 80, 33)[:, None]
    to_onnx(Taken(function), tmp_path / "net.onnx", input_shape=(1,))
    expected = function(inputs).numpy()
    np.testing.assert_allclose(onnx_outputs(tmp_path / "net.onnx", inputs.numpy()), expected, rtol=1e-5)
    np.testing.assert_allclose(pack(Taken(function), input_shape=(1,))(inputs.numpy()), expected, rtol=1e-5)
