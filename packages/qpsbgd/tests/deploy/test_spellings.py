"""Every way to write a function or a module's options, packed: torch's own answer is the oracle."""

import importlib.util
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from graph_networks import trained
from torch import nn

from qpsbgd.deploy import functions, pack
from qpsbgd.nn import BinaryConv1d, BinaryConv2d, BinaryLinear, QuantActivation, SignActivation


class Calls(nn.Module):
    """A function of images (4, 6, 7)."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(1)
        for name, shape in {"row": (7,), "image": (1, 1, 6, 7), "channels": (4, 1, 1), "one": (1,)}.items():
            self.register_buffer(name, torch.rand(shape, generator=generator) + 0.5)
        self.register_buffer("matrix", torch.randn(7, 5, generator=generator))
        self.register_buffer("hidden", torch.arange(7) % 3 == 1)
        self.register_buffer("nothing", torch.zeros(0))

    def forward(self, x):
        return self.function(self, x)


def same(model, *, shape=(4, 6, 7), **close):
    inputs = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    expected = model.eval()(inputs).detach().numpy()
    found = pack(model, input_shape=shape)(inputs.numpy())
    assert found.shape == expected.shape
    # Sums of 42 numbers may cancel; torch and numpy add them in another order.
    np.testing.assert_allclose(found, expected, **({"rtol": 1e-5, "atol": 3e-6} | close))


SPELLINGS = [
    # Numbers and constants on both sides of an operator.
    lambda m, x: x / 4,
    lambda m, x: torch.div(x, m.row).div(m.channels) / m.one,
    lambda m, x: (x + 1) - torch.neg(x * 3) + (-x).neg(),
    lambda m, x: 2 - x,
    lambda m, x: torch.sub(m.row, x) * m.image,
    lambda m, x: m.image - x,
    lambda m, x: x * m.one - m.one,
    lambda m, x: m.one - x.mul(x).add(m.row).sub(1),
    lambda m, x: x + x.relu() * x.tanh() - x.sigmoid(),
    # What is computed of constants alone.
    lambda m, x: x + m.row.roll(2).mul(m.row).view(1, 7),
    lambda m, x: x * torch.roll(m.row, 3) - m.image.sum(2, keepdim=True) + m.channels[2],
    lambda m, x: x - torch.arange(x.shape[-1]) * m.one + torch.full((6, 1), 0.5),
    lambda m, x: x @ torch.stack([m.row, m.row.flip(0)], dim=1) + m.matrix.t()[:2, 1],
    # Joining and taking apart.
    lambda m, x: torch.concat([x, x, -x], dim=-1),
    lambda m, x: torch.cat([m.nothing, x, x], -2),
    lambda m, x: torch.cat([m.image.expand(x.shape[0], 2, -1, -1), x, 2 * x], 1),
    lambda m, x: torch.cat([m.image.expand((x.size(0), 4, 6, 7)), x, m.image.repeat([x.shape[0], 4, 1, 1])], -1),
    lambda m, x: m.image.expand(size=(x.size(0), 4, 6, 7)) - x,
    lambda m, x: torch.cat(x.chunk(3, -1)[::-1], -1),
    lambda m, x: torch.cat(torch.split(x, 4, 3)[::-1], 3),
    lambda m, x: x.split([1, 3], 1)[1] * x.split((1, 2, 1), dim=1)[0],
    lambda m, x: x.unbind(1)[2] - torch.unbind(x, -3)[0],
    # Shapes.
    lambda m, x: torch.swapaxes(x, -2, 1),
    lambda m, x: torch.permute(x, (0, -1, 1, -2)),
    lambda m, x: x.view(x.shape[0], -1, 7),
    lambda m, x: x.reshape(x.size(0), x.size(1) * x.shape[2], x.shape[-1]),
    lambda m, x: torch.reshape(x, shape=(x.size()[0], 2, -1)),
    lambda m, x: x[:, :1].squeeze(1),
    lambda m, x: x[:, :1, :, :1].squeeze(),
    lambda m, x: x[..., :1].squeeze(-1),
    lambda m, x: x.unsqueeze(1) * x.unsqueeze(2),
    lambda m, x: torch.unsqueeze(x, -2),
    lambda m, x: x.flatten(1, 2),
    lambda m, x: x.flatten(-2, -1).unflatten(-1, (2, 3, 7)),
    lambda m, x: x.unflatten(1, (2, 2)),
    lambda m, x: x * x.dim() + x.size(2) - x.shape[3],
    # Parts.
    lambda m, x: x[:, :-1, 1:-2, -3:],
    lambda m, x: x[..., 1:4, -2],
    lambda m, x: x[:, 1, None, 2, None],
    lambda m, x: x[:, 2, :, 3],
    lambda m, x: x[:, :, torch.tensor([1, 1, -1])],
    lambda m, x: x[:, :, 0:6:4],
    lambda m, x: x[:, [2, 0], 1:3],
    lambda m, x: x[:, [2, 0], :, None],
    lambda m, x: x[:, torch.tensor([[0, 1], [3, 2]]), 1:3],
    lambda m, x: x[:, torch.tensor(1), [1, 0]],
    lambda m, x: x[:, torch.tensor([True, False, True, False]), -1],
    # Sums and powers.
    lambda m, x: x.mean(-1, keepdim=True),
    lambda m, x: torch.mean(x, [1]),
    lambda m, x: x.sum((1, -1)),
    lambda m, x: x.sum(dim=(-1, -2), keepdim=True) + x.sum(1, keepdim=True),
    lambda m, x: torch.matmul(x, x.transpose(2, 3)).matmul(x),
    lambda m, x: torch.bmm(x.flatten(1, 2), x.flatten(1, 2).transpose(1, 2)),
    # Masks and attention.
    lambda m, x: torch.masked_fill(x, m.hidden, -9e8),
    lambda m, x: torch.softmax(x.masked_fill(m.hidden, float("-inf")), dim=3),
    lambda m, x: x.masked_fill(m.hidden, -torch.inf).masked_fill(m.hidden.roll(1), -torch.inf).softmax(-1),
    lambda m, x: x.masked_fill(torch.ones(6, 7, dtype=torch.bool), -1e9).softmax(-1),
    lambda m, x: F.scaled_dot_product_attention(x[:, :, :3], x, 2 * x, is_causal=True),
    lambda m, x: F.scaled_dot_product_attention(x, x[:, :, 1:], x[:, :, 1:], scale=1.5),
    lambda m, x: F.scaled_dot_product_attention(x, x, x, torch.eye(6, dtype=torch.bool).logical_not()),
    lambda m, x: F.scaled_dot_product_attention(x, x, x, attn_mask=m.matrix[:6, :1]),
    # Functions that have a module, with arguments by place and by name, and without.
    lambda m, x: F.hardtanh(x) + F.hardtanh(x, -0.5) - F.hardtanh(x, max_val=0.3) + F.relu6(4 * x),
    lambda m, x: F.leaky_relu(x) - F.leaky_relu(x, 0.3) + F.silu(x) - F.hardswish(x) + F.hardsigmoid(3 * x),
    lambda m, x: F.gelu(x) - 2 * F.gelu(x, approximate="tanh"),
    lambda m, x: x.clamp(-0.5, 0.3) + 2 * x.clamp(min=0.1) - 3 * torch.clamp(x, max=0.2) + x.clip(0, 1),
    lambda m, x: x.softmax(1) + F.softmax(x, -1) - F.softmax(x, dim=2, dtype=torch.float32),
    lambda m, x: F.max_pool2d(x, (2, 3), (1, 2), 1),
    lambda m, x: F.max_pool2d(x, 2, stride=1, dilation=(3, 2)),
    lambda m, x: F.avg_pool2d(x, 3, 2, 1, False, False),
    lambda m, x: F.avg_pool2d(x, 3, 2, 1, True, False),
    lambda m, x: F.max_pool1d(x[:, 0], 3, 2, 1) + F.avg_pool1d(x[:, 1], 3, 2, 1, False, False),
    lambda m, x: F.avg_pool1d(x[:, 1], 2) - F.adaptive_avg_pool1d(x[:, 2], 3),
    lambda m, x: F.adaptive_max_pool1d(x[:, 0], 1) + F.adaptive_avg_pool1d(x[:, 0], 1),
    lambda m, x: F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, (3, 7)),
    lambda m, x: F.layer_norm(x, (7,)) + F.layer_norm(x, (7,), m.row) - F.layer_norm(x, (7,), m.row, m.row, 0.1),
    lambda m, x: F.layer_norm(x, (7,), bias=m.row) + F.layer_norm(x, (6, 7), eps=0.5) + F.layer_norm(x, (4, 6, 7)),
    lambda m, x: F.dropout(x, 0.3, False).contiguous().clone().detach().float(),
    # Pads and sizes of images.
    lambda m, x: F.pad(x, (0, 0, 2, 1), value=-1.5),
    lambda m, x: F.pad(x, (0, 0, 0, 0, 1, 0), "constant", 2),
    lambda m, x: F.pad(x, (2, 0, 0, 0, 1, 1, 0, 0)),
    lambda m, x: F.interpolate(x[:, 0], 11, mode="linear", align_corners=True) + F.interpolate(x[:, 1], 11),
    lambda m, x: F.interpolate(x, scale_factor=0.7, mode="bilinear", recompute_scale_factor=True),
]


@pytest.mark.parametrize("number", range(len(SPELLINGS)))
def test_a_function_gives_what_it_gives_in_torch(number):
    same(Calls(SPELLINGS[number]))


def test_torchs_own_functions_are_known_where_another_library_has_put_its_own(monkeypatch):
    plain = torch._VF.index_select
    monkeypatch.setattr(torch, "index_select", lambda *given: plain(*given))  # as torch_geometric does
    spec = importlib.util.spec_from_file_location("imported_later", functions.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert plain in module._METHODS


MODULES = [
    *(
        nn.LayerNorm(7, bias=False),
        nn.LayerNorm((6, 7), eps=0.2),
        nn.RMSNorm((6, 7), eps=0.3),
        nn.GroupNorm(2, 4, eps=0.1),
    ),
    *(
        nn.RMSNorm(7, elementwise_affine=False, eps=0.0),
        nn.GroupNorm(4, 4, affine=False),
        nn.BatchNorm2d(4, affine=False),
    ),
    *(nn.Flatten(), nn.Flatten(1, -2), nn.Flatten(-2), nn.Unflatten(2, (3, 2)), nn.Unflatten(-1, (1, 7))),
    *(nn.LeakyReLU(), nn.LeakyReLU(0.7), nn.GELU(), nn.GELU("tanh"), nn.Softmax(1), nn.Hardtanh(-2, 0.1)),
    *(nn.ZeroPad2d(1), nn.ConstantPad2d((0, 1, 2, 0), 1.5), nn.ReplicationPad2d((2, 1, 0, 3)), nn.CircularPad2d(2)),
    *(nn.Upsample((9, 3)), nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Upsample(5)),
    *(nn.AdaptiveAvgPool2d((1, 7)), nn.AdaptiveMaxPool2d((2, None)), nn.AdaptiveAvgPool2d(4), nn.Dropout2d()),
    *(
        nn.Conv2d(4, 6, (2, 3), groups=2, bias=False),
        nn.Conv2d(4, 2, 3, (2, 1), (1, 2), (2, 1), padding_mode="reflect"),
    ),
    *(BinaryConv2d(4, 6, 3, gain=0.3, bias=True), BinaryConv2d(4, 4, (1, 2), stride=(3, 2), groups=4, bits=2)),
]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_with_parameters_as_after_training_gives_what_it_gives_in_torch(module):
    torch.manual_seed(0)
    for values in (*module.parameters(), *(one for one in module.buffers() if one.is_floating_point())):
        values.data = torch.rand_like(values) + 0.5 - float(values.ndim > 1)
    same(nn.Sequential(module))


def test_windows_of_a_pool_in_ceil_mode_are_torchs_for_all_small_sizes():
    tried = 0
    for pixels, size, stride, gap in itertools.product((5, 8), range(1, 5), range(1, 4), (1, 2)):
        for padding in range(size // 2 + 1):
            if gap * (size - 1) + 1 <= pixels + 2 * padding:
                pool = nn.MaxPool1d(size, stride, padding, gap, ceil_mode=True)
                same(pool, shape=(1, pixels), rtol=0, atol=0)
                tried += 1
            if gap == 1 and size <= pixels and not padding:
                same(nn.AvgPool1d(size, stride, ceil_mode=True), shape=(1, pixels))
    assert tried > 50


@pytest.mark.parametrize(
    ("number", "between"),
    [
        *enumerate(
            [
                (lambda: [nn.MaxPool2d(2), nn.BatchNorm2d(6)]),
                (lambda: [nn.BatchNorm2d(6), nn.Hardtanh(), nn.MaxPool2d(2)]),
                (lambda: [nn.MaxPool2d(2, 1), nn.BatchNorm2d(6), nn.MaxPool2d(2)]),
                (lambda: [nn.ReLU(), nn.MaxPool2d(2), nn.ReLU6()]),
                (lambda: [nn.BatchNorm2d(6), nn.MaxPool2d(2), nn.BatchNorm2d(6)]),
                (lambda: [nn.BatchNorm2d(6), nn.BatchNorm2d(6)]),
            ]
        )
    ],
)
@pytest.mark.parametrize("begin", [SignActivation, lambda: QuantActivation(signed=True)])
def test_what_stands_between_a_layer_and_an_activation_may_come_in_any_order(begin, number, between):
    torch.manual_seed(1)
    end = [SignActivation, lambda: QuantActivation(4), nn.Identity][(number + (begin is SignActivation)) % 3]
    model = nn.Sequential(begin(), BinaryConv2d(4, 6, 2, bias=True), *between(), end()).eval()
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            for values in (one.weight, one.bias, one.running_mean):
                nn.init.normal_(values)
            one.running_var.uniform_(0.5, 2)
    nn.init.normal_(model[1].bias)
    same(model)


@pytest.mark.parametrize("begin", [SignActivation, QuantActivation])
def test_bits_and_small_numbers_are_reshaped_and_pooled_as_they_are(begin):
    parts = [begin(), nn.MaxPool1d(2, 1), nn.Flatten(), nn.Unflatten(1, (3, 8)), nn.MaxPool1d(2)]
    same(nn.Sequential(*parts, BinaryConv1d(3, 2, 2)), shape=(4, 7))
    same(nn.Sequential(begin(), nn.Flatten(), SignActivation()), shape=(4, 7))
    same(nn.Sequential(nn.BatchNorm1d(4), begin(), begin(), nn.BatchNorm1d(4)), shape=(4, 7))


def test_a_batch_norm_behind_a_dense_layer_of_rows_takes_the_rows_for_units():
    torch.manual_seed(0)
    same(trained(nn.Sequential(BinaryLinear(6, 6), nn.BatchNorm1d(4))), shape=(4, 6))
    same(
        trained(nn.Sequential(SignActivation(), BinaryLinear(6, 6), nn.BatchNorm1d(4), SignActivation())), shape=(4, 6)
    )


@pytest.mark.parametrize("size", [1, [1, 1], 2, (2, 2), (1, 2)])
def test_adaptive_means_of_any_size_are_torchs(size):
    same(nn.AdaptiveAvgPool2d(size), shape=(3, 4, 6))
    if isinstance(size, int):
        same(nn.AdaptiveAvgPool1d(size), shape=(3, 6))
        same(nn.AdaptiveMaxPool1d(size), shape=(3, 6))
    if size in (1, (1, 1), [1, 1]):  # of images of any size
        assert pack(nn.AdaptiveAvgPool2d(size))(np.ones((2, 3, 4, 5), np.float32)).shape == (2, 3, 1, 1)
