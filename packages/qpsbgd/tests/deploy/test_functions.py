import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled_c import built, needs_compiler, ran
from targets import TARGETS, outputs_on
from torch import nn

from qpsbgd.deploy import pack, to_c
from qpsbgd.nn import BinaryConv2d, BinaryLinear, SignActivation


class Calls(nn.Module):
    """A function of what a convolution gives: images (4, 6, 7)."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = BinaryConv2d(2, 4, 1), function
        self.register_buffer("token", torch.randn(1, 1, 6, 7))

    def forward(self, x):
        x = self.layer(x)
        return self.function(x) if isinstance(self.function, nn.Module) else self.function(self, x)


MASK = torch.eye(6, 7, dtype=torch.bool)
FULL = torch.ones(6, 7, dtype=torch.bool)


def heads_first(m, x):
    parts = x.reshape(x.shape[0], 2, 2, 6, 7).permute(2, 0, 3, 1, 4)
    query, key = parts.unbind(0)
    left, right = (part.transpose(2, 3) for part in parts)
    return query @ key.transpose(-2, -1) + parts[1].square() @ left - query @ right


FUNCTIONS = {
    "strided slices": lambda m, x: x[:, 1::2, ::2, 1:6:3],
    "indices": lambda m, x: x[:, [2, 0, -1]].index_select(3, torch.tensor([6, 0])),
    "the last of everything": lambda m, x: x[..., -1] + x[..., None, 0, :].sum(3),
    "padded channels": lambda m, x: F.pad(x, (0, 0, 0, 0, 2, 1), value=0.5),
    "cropped": lambda m, x: F.pad(x, (-1, 2, 1, -2)),
    "reflected": lambda m, x: F.pad(x, (1, 2, 3, 0), mode="reflect"),
    "wrapped": lambda m, x: F.pad(x, (1, 2, 3, 0), mode="circular"),
    "nearest": lambda m, x: F.interpolate(x, scale_factor=2),
    "nearest-exact": lambda m, x: F.interpolate(x, (8, 3), mode="nearest-exact"),
    "bilinear": lambda m, x: F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=True),
    "adaptive averages": lambda m, x: F.adaptive_avg_pool2d(x, (4, 9)),
    "pools up to the last pixel": lambda m, x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "averages up to the last pixel": lambda m, x: F.avg_pool2d(x, 2, 3, ceil_mode=True),
    "windows that begin behind the image": lambda m, x: F.max_pool2d(x, 1, 2, ceil_mode=True),
    "joined with constants": lambda m, x: torch.cat([x, m.token.expand(x.shape[0], -1, -1, -1), x], dim=1),
    "stacked": lambda m, x: torch.stack([x, 2 * x], 2),
    "a layer norm over images": lambda m, x: F.layer_norm(x, (6, 7), m.token[0, 0], None, 1e-3),
    "powers and bounds": lambda m, x: x**2 - torch.pow(x, 3) + x.square() + x.clamp(max=0.3) - 2 * x.clamp(min=-0.2),
    "kept sums": lambda m, x: x * x.mean((2, 3), keepdim=True) + x.sum(dim=1, keepdim=True),
    "attention with masks": lambda m, x: (
        F.scaled_dot_product_attention(x, 2 * x, x, torch.zeros(6, 6).index_fill(1, torch.tensor([4, 1]), -torch.inf))
        - F.scaled_dot_product_attention(x, x, x, 3 * x[..., 1:], scale=0.7)
    ),
    "heads before the batch": heads_first,
    "parts of a list": lambda m, x: sum(k * part.square() for k, part in enumerate(x.chunk(2, 1))),
    "a matrix of the module's own": lambda m, x: (
        F.linear(x, m.token[0, 0], m.token[0, 0, :, 2]) @ F.linear(x, m.token[0, 0])
    ),
    "largest along dimensions": lambda m, x: x * x.amax((1, 3), keepdim=True) - x.max(dim=2).values[:, :, None],
    "converted types": lambda m, x: x.to(x.dtype).type(torch.float32).to(x.device).float(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_images_is_that_of_torch_in_every_target(name, tmp_path):
    torch.manual_seed(0)
    model, inputs = Calls(FUNCTIONS[name]).eval(), torch.randn(3, 2, 6, 7)
    expected, packed = model(inputs).detach().numpy(), pack(model, input_shape=(2, 6, 7))
    assert packed(inputs.numpy()).shape == expected.shape
    for target in TARGETS:
        outputs = outputs_on(target, packed, inputs.numpy(), tmp_path)
        np.testing.assert_allclose(outputs, expected.reshape(3, -1), rtol=1e-4, atol=1e-5)
    assert not [name for name in vars(model) if name.startswith("_tensor_constant")]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: F.pad(x, (0, 0) * 3 + (1, 0)), r"pad must leave the batch as it is"),
        (lambda m, x: F.pad(x, (1, 0), value=float("-inf")), r"must pad with a finite number.* write value=-3e38"),
        (lambda m, x: F.interpolate(x, scale_factor=2, mode="bicubic"), r"write F\.interpolate\(x, scale_factor=2"),
        (lambda m, x: F.adaptive_max_pool2d(x, 4), r"divides the image \(6, 7\).* write an nn\.MaxPool2d"),
        (lambda m, x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), r"build it with count_include_pad=False"),
        (lambda m, x: torch.cat([x, torch.ones(3, 1, 6, 7)], 1), r"write constant\.expand\(x\.shape\[0\], …\)"),
        (lambda m, x: x.to("cpu", torch.int64), r"cannot become torch\.int64; leave the cast out"),
        (lambda m, x: x.to(torch.ones(2) > 0), r"cannot become torch\.bool"),
        (lambda m, x: x.type("torch.LongTensor"), r"cannot become torch\.int64"),
        (lambda m, x: x.to(torch.float16), r"cannot become torch\.float16"),
        (lambda m, x: x**0.5, r"a power of 1 to 4, got 0\.5; write it as products"),
        (lambda m, x: x.amax(0), r"amax must leave the batch dimension 0"),
        (lambda m, x: x.max(), r"max_1 must say which dimension: x\.amax\(2\)"),
        (lambda m, x: torch.max(x, 2 * x), r"max_1 must say which dimension"),
        (lambda m, x: x.permute(2, 3, 0, 1), r"permute must leave the batch .*first, or second for parts"),
        (lambda m, x: x.reshape(-1, 7), r"reshape must keep the batch dimension first"),
        (
            nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)),
            r"function .*remove_parametrizations\(layer, \"weight",
        ),
        (nn.Conv3d(4, 4, 1), r"function \(Conv3d\).* channels"),
        (lambda m, x: torch.einsum("bcij,bcij->bc", x, x), r"calls einsum.* write it as transpose and left @ right"),
        (lambda m, x: x.expand(-1, -1, 6, 7), r"calls expand.* leave it out"),
        (lambda m, x: x.masked_fill(x, 1.0), r"must have a constant mask: a buffer"),
        (lambda m, x: torch.cat([x, x]), r"cat must leave the batch dimension 0"),
        (lambda m, x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1), r"must have dropout_p=0 in evaluation"),
        (lambda m, x: x[:, [0, 1], [1, 0]], r"at most one list of numbers"),
        (lambda m, x: x + torch.ones(1, 1, 4, 6, 7), r"adds dimensions before the batch"),
        (lambda m, x: F.dropout(x, 0.1), r"must end in evaluation; write F\.dropout\(x, p, self\.training\)"),
        (lambda m, x: F.softmax(x, -1, 3, torch.float64), r"unexpected keyword|at most"),
        (lambda m, x: x.masked_fill(FULL, -torch.inf).softmax(-1), r"rows of which all numbers are masked"),
        (lambda m, x: F.scaled_dot_product_attention(x, x, x, ~FULL[:, :6]), r"rows of which all"),
        (lambda m, x: x.masked_fill(MASK, -torch.inf), r"must go into a softmax"),
        (lambda m, x: (x.masked_fill(MASK, -torch.inf) + 1).softmax(-1), r"must go into a softmax, as the next"),
        (lambda m, x: x.masked_fill(MASK, torch.inf), r"finite number or -inf"),
    ],
)
def test_what_stays_refused_is_refused_with_the_line_to_write(function, message):
    with pytest.raises(ValueError, match=message):
        pack(Calls(function), input_shape=(2, 6, 7))


def test_a_model_in_half_precision_may_cast_values_to_its_own_type():
    function = lambda m, x: x.to(torch.bfloat16).float() * 2  # noqa: E731
    pack(Calls(function).bfloat16(), input_shape=(2, 6, 7))


class Words(nn.Module):
    """Rows of a table for numbers of words, and positions."""

    def __init__(self):
        super().__init__()
        self.words, self.positions, self.layer = nn.Embedding(9, 4), nn.Embedding(6, 4), BinaryLinear(4, 3)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.layer(self.words(ids) + self.positions(places))


@needs_compiler
def test_numbers_that_are_no_words_are_refused(tmp_path):
    model = Words()
    packed = pack(model, input_shape=(5,))
    ids = np.array([[0, 8, 3, 3, 1]])
    np.testing.assert_allclose(packed(ids), model(torch.from_numpy(ids)).detach().numpy(), atol=1e-6)
    program = built(to_c(packed, tmp_path), "-DQPSBGD_UNCHECKED")
    for wrong in (-1, 9, 0.5):
        ids = np.array([[0, wrong, 3, 3, 1]])
        with pytest.raises(ValueError, match=r"words \(Embedding\) .*from 0 to 8"):
            packed(ids)
        refused = ran(program, " ".join(map(str, ids[0])))
        assert refused.returncode and "integers from 0 to 8" in refused.stderr


VANISHING = {"silu": nn.SiLU(), "gelu": nn.GELU(), "gelu tanh": nn.GELU(approximate="tanh"), "swish": nn.Hardswish()}


def small_numbers(function):
    """Numbers (64, 96) down to −120, and all those around where a function of them turns from negative to −0."""
    least = torch.linspace(-120, 2, 4096)
    end = float(least[function(least) < 0].min())
    around = np.float32(end).view(np.int32) + np.arange(-1024, 1024, dtype=np.int32)
    zeros = torch.tensor([0.0, -0.0, -1e-30, 1e-30, -1e-40, 3e38, -3e38, -1.0])
    return torch.cat([least[: 4096 - 8], zeros, torch.from_numpy(around.view(np.float32))]).reshape(64, 96)


@pytest.mark.parametrize("name", VANISHING)
def test_a_sign_behind_a_function_that_vanishes_is_the_one_of_torch(name, tmp_path):
    model = nn.Sequential(VANISHING[name], SignActivation())
    inputs = small_numbers(VANISHING[name])
    expected = model(inputs).numpy()
    assert (expected[:32] == 1).sum() > 100 and (expected == -1).sum() > 100
    # With AVX-512 torch's own GELU alternates between −0 and tiny negative numbers where it begins to vanish.
    found = model[0](inputs)
    negative, zero = inputs[found < 0].min(), inputs[(found == 0) & (inputs < -1e-20)].max()
    assert zero - negative < 0.06
    inputs[(inputs >= negative) & (inputs <= zero)] = 1.0
    expected = model(inputs).numpy()
    for target in TARGETS:
        np.testing.assert_array_equal(outputs_on(target, model, inputs.numpy(), tmp_path), expected)
