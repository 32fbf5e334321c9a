import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from compiled_c import built, needs_compiler, results
from torch import nn

from qpsbgd.deploy import pack, to_c, to_onnx
from qpsbgd.nn import BinaryLinear, SignActivation


class Parts(nn.Module):
    """A range of what a layer gives, times one of its numbers."""

    def __init__(self):
        super().__init__()
        self.layer = BinaryLinear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        return x[:, 1:3] * x[:, 2].unsqueeze(1) + x[:, -2].unsqueeze(1)


def test_numbers_and_ranges_take_out_what_they_do_in_torch():
    model, inputs = Parts(), torch.randn(6, 4)
    packed = pack(model, input_shape=(4,))
    np.testing.assert_allclose(packed(inputs.numpy()), model(inputs).detach().numpy(), atol=1e-6)


class Attending(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.layer, self.dropout = BinaryLinear(4, 4), dropout

    def forward(self, x):
        x = self.layer(x)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=self.dropout)


def test_attention_that_drops_at_random_even_in_evaluation_is_refused():
    pack(Attending(0.0), input_shape=(3, 4))
    with pytest.raises(ValueError, match="dropout_p"):
        pack(Attending(0.1), input_shape=(3, 4))


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = BinaryLinear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        return torch.cat([x, x])


def test_batches_cannot_be_joined():
    with pytest.raises(ValueError, match="batch"):
        pack(Stacked(), input_shape=(4,))


VANISHING = {"silu": nn.SiLU(), "gelu": nn.GELU(), "gelu tanh": nn.GELU(approximate="tanh"), "swish": nn.Hardswish()}


def small_numbers(function):
    """Numbers (64, 96) down to −120, and all those around where a function of them turns from negative to −0."""
    least = torch.linspace(-120, 2, 4096)
    end = float(least[function(least) < 0].min())
    around = np.float32(end).view(np.int32) + np.arange(-1024, 1024, dtype=np.int32)
    zeros = torch.tensor([0.0, -0.0, -1e-30, 1e-30, -1e-40, 3e38, -3e38, -1.0])
    return torch.cat([least[: 4096 - 8], zeros, torch.from_numpy(around.view(np.float32))]).reshape(64, 96)


@needs_compiler
@pytest.mark.parametrize("name", VANISHING)
def test_a_sign_behind_a_function_that_vanishes_is_the_one_of_torch(name, tmp_path):
    model = nn.Sequential(VANISHING[name], SignActivation())
    inputs = small_numbers(VANISHING[name])
    expected = model(inputs).numpy()
    assert (expected[:32] == 1).sum() > 100 and (expected == -1).sum() > 100
    np.testing.assert_array_equal(pack(model, input_shape=(96,))(inputs.numpy()), expected)
    _, outputs = results(built(to_c(model, tmp_path, input_shape=(96,))), inputs.numpy())
    np.testing.assert_array_equal(outputs, expected)
    to_onnx(model, tmp_path / "net.onnx", input_shape=(96,))
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    np.testing.assert_array_equal(session.run(None, {session.get_inputs()[0].name: inputs.numpy()})[0], expected)


def test_silu_stays_negative_as_far_as_torch_does():
    inputs = torch.linspace(-88, 10, 4096).reshape(64, 64)
    found = pack(nn.SiLU(), input_shape=(64,))(inputs.numpy())
    np.testing.assert_allclose(found, F.silu(inputs).numpy(), rtol=2e-6)
