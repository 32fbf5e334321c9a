"""What people have, converted and deployed to every target."""

import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from compiled_c import COMPILERS, built, results
from graph_networks import trained
from public_architectures import ARCHITECTURES, WORDS

from qpsbgd.deploy import load_packed, pack, to_c, to_onnx
from qpsbgd.nn import convert
from qpsbgd.nn.layers import BinaryLayer


@pytest.fixture(params=ARCHITECTURES)
def network(request):
    """A converted network as after training, the shape of a sample, samples, and what torch computes of them."""
    torch.manual_seed(0)
    shape, build = ARCHITECTURES[request.param]
    samples = torch.randint(WORDS, (3, *shape)) if len(shape) == 1 else torch.randn(3, *shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "these layers stay real-valued")
        model = trained(convert(build())).eval()
    assert sum(isinstance(module, BinaryLayer) for module in model.modules()) > 5
    with torch.no_grad():
        return model, shape, samples.numpy(), model(samples).numpy()


def test_the_documents_list_all_of_them():
    page = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text(encoding="utf-8")
    table = page.split("| architecture |")[1].split("\n\n")[0].splitlines()[2:]
    assert [line.split("|")[1].strip() for line in table] == [*ARCHITECTURES]


def close(found, expected):
    assert expected.std() > 1e-3
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-3, atol=1e-4 * abs(expected).max())


def test_a_public_architecture_is_packed_and_written_as_onnx_and_c(network, tmp_path):
    model, shape, samples, expected = network
    packed = pack(model, tmp_path / "net.safetensors", input_shape=shape)
    close(load_packed(tmp_path / "net.safetensors")(samples), expected)
    to_onnx(packed, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    close(session.run(None, {"input": samples.astype(np.float32)})[0], expected)
    source = to_c(packed, tmp_path)
    if COMPILERS:
        close(results(built(source), samples)[1], expected)
