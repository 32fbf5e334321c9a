"""What people have, converted and deployed to every target."""

import warnings

import numpy as np
import pytest
import torch
from graph_networks import trained
from public_architectures import ARCHITECTURES, WORDS
from targets import TARGETS, outputs_on
from torch import nn

from qpsbgd.deploy import pack
from qpsbgd.nn import convert
from qpsbgd.nn.layers import BinaryLayer

SLOW = ("BERT", "ResNet-18", "MobileNetV2")
"""Those whose parts the others have, too."""


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ARCHITECTURES])
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


def encoder(*, norm_first=False, activation="relu", **options):
    parts = {"dim_feedforward": 32, "norm_first": norm_first, "activation": activation, **options}
    layer = nn.TransformerEncoderLayer(16, 4, **{"batch_first": True, **parts})
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16) if norm_first else None, enable_nested_tensor=False)


@pytest.mark.parametrize(
    ("norm_first", "activation", "alone"),
    [(False, "gelu", True), (True, "relu", False)],
)
def test_transformer_encoders_of_torch_are_deployed(norm_first, activation, alone, tmp_path):
    torch.manual_seed(0)
    whole = encoder(norm_first=norm_first, activation=activation)
    whole.layers[0].dropout1 = nn.Hardtanh(-0.1, 0.1)  # in its place; what stands there counts
    model, samples = trained(convert(whole.layers[0] if alone else whole)).eval(), torch.randn(3, 5, 16)
    with torch.no_grad():
        deployed_everywhere(model, (5, 16), samples.numpy(), model(samples).numpy(), tmp_path)


def patched(whole):
    whole.layers[1]._sa_block = lambda x, *_, **__: x
    return whole


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = encoder()
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5))

    def forward(self, x):
        return self.encoder(x, mask=self.mask)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: encoder(batch_first=False), "batch_first=True"),
        (Masked, "masks .* input only, or .*scaled_dot_product_attention"),
        (lambda: patched(encoder()), "blocks of its own"),
    ],
)
def test_encoders_that_cannot_be_deployed_are_refused_with_what_to_do(build, message):
    with pytest.raises(ValueError, match=message):
        pack(convert(build()), input_shape=(5, 16))


def test_a_public_architecture_is_packed_and_written_as_onnx_and_c(network, tmp_path):
    deployed_everywhere(*network, tmp_path)


def deployed_everywhere(model, shape, samples, expected, tmp_path):
    packed = pack(model, input_shape=shape)
    assert expected.std() > 1e-3
    close = {"rtol": 1e-3, "atol": 1e-4 * abs(expected).max()}
    for target in TARGETS:
        np.testing.assert_allclose(outputs_on(target, packed, samples, tmp_path), expected.reshape(3, -1), **close)
