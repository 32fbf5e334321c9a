import pytest
import torch
from compiled_c import SANITIZED, check_in_c, needs_compiler
from torch import nn

from qpsbgd.deploy import to_c
from qpsbgd.nn import BinaryConv1d, BinaryConv2d, BinaryLinear

BY_WORD = {32: SANITIZED, 64: ("-O2",)}
"""How programs with words of so many bits are compiled: under the sanitizers once, which takes longer."""

pytestmark = needs_compiler

LAYERS = {
    "many units": (lambda: BinaryLinear(75, 60), (75,)),
    "few units": (lambda: BinaryLinear(67, 3), (67,)),
    "fewer inputs than a word has bits": (lambda: BinaryLinear(5, 50), (5,)),
    "several bits": (lambda: BinaryLinear(70, 50, bits=3), (70,)),
    "rows of a matrix": (lambda: BinaryLinear(40, 50), (3, 40)),
    "real": (lambda: nn.Linear(39, 5), (39,)),
    "channels in several words": (lambda: BinaryConv2d(70, 9, 3, padding=1), (70, 4, 5)),
    "stride and dilation": (lambda: BinaryConv2d(6, 50, (2, 3), stride=(2, 3), dilation=2, padding=2), (6, 7, 8)),
    "groups of many channels": (lambda: BinaryConv2d(14, 6, 3, groups=2, bits=2), (14, 5, 5)),
    "pixels that no window sees": (lambda: BinaryConv2d(8, 5, 1, stride=3), (8, 7, 7)),
    "windows that see nothing": (lambda: BinaryConv2d(8, 5, 1, padding=2), (8, 3, 3)),
    "circular": (lambda: BinaryConv2d(8, 5, 3, padding=2, padding_mode="circular"), (8, 5, 5)),
    "reflected": (lambda: BinaryConv2d(8, 5, 3, padding=2, padding_mode="reflect"), (8, 5, 5)),
    "depthwise": (lambda: BinaryConv2d(6, 6, 3, groups=6, stride=2, padding=1), (6, 7, 6)),
    "few channels of several bits": (
        lambda: BinaryConv2d(2, 6, 5, bits=2, padding=2, padding_mode="replicate"),
        (2, 6, 6),
    ),
    "real windows": (lambda: nn.Conv2d(3, 4, 7, dilation=(1, 2), padding=(3, 6)), (3, 6, 8)),
    "one dimension": (lambda: BinaryConv1d(9, 4, 3, padding=2, dilation=2), (9, 11)),
    "small pools": (lambda: nn.MaxPool2d((2, 3), (1, 2), dilation=(2, 1)), (3, 6, 8)),
    "clips of a few numbers": (lambda: nn.ReLU6(), (3,)),
}


WORDS = ("several bits", "channels in several words")


@pytest.mark.parametrize(("name", "word_bits"), [*((name, 32) for name in LAYERS), *((name, 64) for name in WORDS)])
def test_a_layer_of_real_inputs_in_c_computes_what_torch_computes(name, word_bits, tmp_path):
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    model, inputs = nn.Sequential(build()).eval(), torch.randn(4, *shape)
    source = to_c(model, tmp_path, input_shape=shape, word_bits=word_bits)
    check_in_c(source, model, inputs, *BY_WORD[word_bits], rtol=1e-4, atol=1e-4)


def test_windows_that_all_see_padding_alone_give_zeros(tmp_path):
    model = BinaryConv2d(40, 1, 2, stride=9, padding=5)
    check_in_c(to_c(model, tmp_path, input_shape=(40, 2, 2)), model, torch.randn(3, 40, 2, 2))
