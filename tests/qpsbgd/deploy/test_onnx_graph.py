import numpy as np
import onnx
import onnxruntime
import pytest
from torch import nn

from qpsbgd.deploy import load_packed, pack, to_onnx
from qpsbgd.nn import BinaryConv2d, BinaryLinear, SignActivation


def outputs(path, inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"input": inputs})[0]


@pytest.mark.parametrize("bits", [True, False])
def test_onnxruntime_computes_what_torch_computes(network, tmp_path, bits):
    to_onnx(network.model, tmp_path / "net.onnx", input_shape=network.input_shape, bits=bits)
    network.check(outputs(tmp_path / "net.onnx", network.inputs))


def test_the_batch_may_have_any_size(dense, tmp_path):
    to_onnx(dense.model, tmp_path / "net.onnx")
    for size in (1, 5):
        np.testing.assert_array_equal(outputs(tmp_path / "net.onnx", dense.inputs[:size]), dense.outputs[:size])


def test_weights_as_bits_take_at_most_a_tenth_of_the_float_file(tmp_path):
    layers = []
    for n, m in ((784, 512), (512, 512)):
        layers += [BinaryLinear(n, m), nn.BatchNorm1d(m), SignActivation()]
    model = nn.Sequential(*layers, BinaryLinear(512, 10))
    for bits in (True, False):
        to_onnx(model, tmp_path / f"{bits}.onnx", bits=bits)
    assert 10 * (tmp_path / "True.onnx").stat().st_size < (tmp_path / "False.onnx").stat().st_size


def test_a_packed_file_becomes_the_same_graph(dense, tmp_path):
    pack(dense.model, tmp_path / "net.safetensors")
    to_onnx(dense.model, tmp_path / "one.onnx")
    to_onnx(load_packed(tmp_path / "net.safetensors"), tmp_path / "two.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_the_graph_has_named_ends_and_a_free_batch(dense, tmp_path):
    to_onnx(dense.model, tmp_path / "net.onnx")
    graph = onnx.load(tmp_path / "net.onnx").graph
    sizes = [
        [d.dim_param or d.dim_value for d in end.type.tensor_type.shape.dim] for end in (*graph.input, *graph.output)
    ]
    assert sizes == [["batch", 70], ["batch", 9]]


def test_shapes_that_do_not_fit_are_refused_and_nothing_is_written(dense, tmp_path):
    with pytest.raises(ValueError, match="takes 70 numbers"):
        to_onnx(dense.model, tmp_path / "net.onnx", input_shape=(7, 10))
    with pytest.raises(ValueError, match="give input_shape"):
        to_onnx(nn.Sequential(BinaryConv2d(1, 2, 3)), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
