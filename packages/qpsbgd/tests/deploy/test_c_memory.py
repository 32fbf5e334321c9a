import numpy as np
import pytest
import torch
from compiled_c import COMPILERS, SANITIZED, built, check_in_c, needs_compiler, output_step, results
from torch import nn

from qpsbgd.deploy import pack, to_c
from qpsbgd.deploy.c_memory import Block, arrange
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation, SignActivation


def test_blocks_that_are_needed_together_stand_apart_unless_one_may_follow_the_other():
    generator = np.random.default_rng(0)
    for _ in range(100):
        begins = generator.integers(0, 8, 9).tolist()
        blocks = [
            Block(str(k), int(generator.integers(1, 50)), begin, begin + int(generator.integers(0, 4)))
            for k, begin in enumerate(begins)
        ]
        distances = {
            (one.name, two.name): int(generator.integers(0, 20)) for one in blocks for two in blocks if one is not two
        }
        places, size = arrange(blocks, distances, 4)
        assert size == max(places[block.name] + block.size for block in blocks)
        assert not any(place % 4 for place in places.values())
        for at, one in enumerate(blocks):
            for two in blocks[:at]:
                if one.end < two.begin or two.end < one.begin:
                    continue
                (first, last) = sorted((places[block.name], block.size) for block in (one, two))
                apart = first[0] + first[1] <= last[0]
                follows = any(
                    places[old.name] - places[new.name] >= distances[new.name, old.name]
                    for new, old in ((one, two), (two, one))
                )
                assert apart or follows


@needs_compiler
@pytest.mark.parametrize(("signed", "word_bits"), [(False, 32), (True, 64)])
def test_the_largest_sums_of_8_bits_fit(signed, word_bits, tmp_path):
    """Of more inputs than half a number holds, of one and of two positions at once."""
    model = nn.Sequential(
        QuantActivation(signed=signed, scale=1.0),
        BinaryConv2d(37, 3, 3, padding=1, gain=1.0),
        QuantActivation(signed=signed, scale=512.0),
        nn.Flatten(),
        BinaryLinear(27, 2, gain=1.0),
    ).eval()
    with torch.no_grad():
        for layer in (model[1], model[4]):
            layer.weight.copy_(layer.weight.sign())
            layer.weight[:2] = torch.tensor([1.0, -1.0]).reshape(2, *(1,) * (layer.weight.ndim - 1))
    inputs = torch.stack([torch.full((37, 3, 3), value) for value in (-999.0, 999.0)])
    source = to_c(model, tmp_path, input_shape=(37, 3, 3), word_bits=word_bits)
    check_in_c(source, model, inputs, *SANITIZED)


@pytest.mark.parametrize("groups", [1, 64])
def test_convolutions_of_bytes_take_little_more_than_one_image(groups, tmp_path):
    model = nn.Sequential(
        QuantActivation(),
        *(BinaryConv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), QuantActivation()),
        *(BinaryConv2d(64, 64, 3, padding=1, groups=groups), nn.BatchNorm2d(64), QuantActivation()),
        *(nn.Flatten(), BinaryLinear(64 * 256, 2)),
    )
    image, rows, patch = 64 * 256, 2 * 64 * 17, 4 * 64 * 9
    assert image < to_c(model, tmp_path, input_shape=(3, 16, 16)).ram_bytes < image + rows + patch + 2000


class Residual(nn.Module):
    """8-bit values of unlike steps, added, subtracted and averaged, with many ties."""

    def __init__(self, *, steps=(0.25, 0.5, 2.0), pool=None):
        super().__init__()
        self.first = QuantActivation(scale=steps[0], signed=True)
        self.second = QuantActivation(scale=steps[1])
        self.third = QuantActivation(scale=steps[2], signed=True)
        self.pool = pool or nn.Identity()
        self.layer = nn.Sequential(nn.Flatten(), BinaryLinear(12 if pool is None else 3, 4, gain=1.0))

    def forward(self, x):
        x = self.first(x)
        y = x - self.second(x)
        return self.layer(self.third(torch.relu(self.pool(y + x))))


@needs_compiler
@pytest.mark.parametrize(
    ("steps", "pool"),
    [
        ((0.25, 0.5, 2.0), None),
        ((2.0, 0.5, 0.25), nn.AdaptiveAvgPool2d(1)),
        ((1.0, 0.125, 1.0), nn.AvgPool2d(2, padding=1, count_include_pad=False)),
    ],
)
def test_sums_and_means_of_8_bits_are_whole_numbers_that_equal_torchs(steps, pool, tmp_path):
    model = Residual(steps=steps, pool=pool).eval()
    if isinstance(pool, nn.AvgPool2d):
        model.layer = nn.Sequential(nn.Flatten(), BinaryLinear(12, 4, gain=1.0))
    inputs = torch.randint(-128, 128, (64, 3, 2, 2)) * steps[0]
    source = to_c(model, tmp_path, input_shape=(3, 2, 2))
    assert source.integer
    check_in_c(source, model, inputs, *SANITIZED)


class Joined(nn.Module):
    """Values of unlike steps, one of them a sum, behind each other."""

    def __init__(self, *, flat):
        super().__init__()
        self.first, self.second = QuantActivation(scale=0.25, signed=True), QuantActivation(scale=1.0)
        self.third, self.flat = QuantActivation(scale=0.5), flat
        self.middle = nn.Sequential(BinaryConv2d(3, 3, 1, gain=0.3), QuantActivation())
        self.layer = nn.Sequential(BinaryConv2d(6, 4, 2, gain=1.0) if not flat else BinaryLinear(24, 4, gain=1.0))

    def forward(self, x):
        x = self.first(x)
        y = self.second(self.middle(x))
        x, y = (x.flatten(1), y.flatten(1)) if self.flat else (x, y)
        return self.layer(self.third(torch.cat([y, x - y], 1)))


class Halved(nn.Module):
    """Half the difference of two values of 8 bits."""

    def __init__(self):
        super().__init__()
        self.first, self.last = QuantActivation(scale=0.25, signed=True), QuantActivation(scale=0.5, signed=True)
        self.middle = nn.Sequential(BinaryLinear(6, 6, gain=0.3), QuantActivation(scale=1.0))
        self.layer = BinaryLinear(6, 3, gain=1.0)

    def forward(self, x):
        x = self.first(x)
        return self.layer(self.last(0.5 * (x - self.middle(x))))


@needs_compiler
def test_a_sum_times_a_power_of_two_is_a_whole_number_that_equals_torchs(tmp_path):
    torch.manual_seed(0)
    model, inputs = Halved().eval(), torch.randint(-128, 128, (64, 6)) * 0.25
    source = to_c(model, tmp_path)
    assert source.integer
    check_in_c(source, model, inputs, *SANITIZED)


@needs_compiler
@pytest.mark.parametrize("flat", [False, True])
def test_joined_values_of_8_bits_equal_torchs(flat, tmp_path):
    model = Joined(flat=flat).eval()
    inputs = torch.randint(-128, 128, (64, 3, 2, 2)) * 0.25
    source = to_c(model, tmp_path, input_shape=(3, 2, 2))
    assert source.integer == (not flat)
    check_in_c(source, model, inputs, *SANITIZED)


def test_sums_of_steps_too_far_apart_are_real_numbers(tmp_path):
    assert not to_c(Residual(steps=(2.0**-10, 2.0**10, 2.0)), tmp_path, input_shape=(3, 2, 2)).integer


@pytest.mark.parametrize("activation", [SignActivation, QuantActivation])
def test_a_pool_before_a_norm_takes_no_more_memory_than_behind(activation, tmp_path):
    sizes = []
    for order in ((0, 1), (1, 0)):
        between = [nn.MaxPool2d(2), nn.BatchNorm2d(32)]
        layers = [activation(), BinaryConv2d(1, 32, 3), *(between[k] for k in order), activation()]
        model = nn.Sequential(*layers, nn.Flatten(), BinaryLinear(32 * 49, 2))
        sizes.append(to_c(model, tmp_path, input_shape=(1, 16, 16)).ram_bytes)
    assert sizes[0] == sizes[1]


def test_a_network_too_large_for_the_ram_is_refused_with_the_layer_that_needs_most(tmp_path):
    norm = nn.BatchNorm2d(8)
    layers = [QuantActivation(), BinaryConv2d(3, 8, 3), norm, QuantActivation(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*layers, BinaryLinear(8 * 49, 2))
    source = to_c(model, tmp_path / "fits", input_shape=(3, 16, 16))
    assert max(step.ram_bytes for step in source.steps) <= source.ram_bytes
    assert sum(step.flash_bytes for step in source.steps) == source.flash_bytes
    assert "most RAM for 1 (Convolution)" in str(source)
    assert to_c(model, tmp_path / "fits", input_shape=(3, 16, 16), ram=source.ram_bytes) == source
    with pytest.raises(
        ValueError, match=r"needs .* bytes of buffers, but ram=1,000: most of them in 1, rows 4 to 7 \(Convolution\)"
    ):
        to_c(model, tmp_path / "refused", input_shape=(3, 16, 16), ram=1000)
    assert not (tmp_path / "refused").exists()


@pytest.mark.skipif(not any(path.endswith("gcc") for path in COMPILERS), reason="no gcc is installed")
def test_a_compiler_tells_code_and_stack_of_every_step(tmp_path, dense):
    source = to_c(dense.model, tmp_path, compiler="gcc -O2")
    assert 500 < sum(step.code_bytes for step in source.steps) < 1.5 * source.code_bytes
    assert 0 < max(step.stack_bytes for step in source.steps) < source.stack_bytes + 100
    assert f"{source.code_bytes:,} bytes of code (flash) and {source.stack_bytes:,} of stack" in str(source)
    with pytest.raises(ValueError, match="compiler must be the command of a gcc, version 10 or later, got 'no-gcc'"):
        to_c(dense.model, tmp_path, compiler="no-gcc")


class Block8(nn.Module):
    """Two convolutions and a shortcut, by a convolution where there is a stride, of 8-bit images."""

    def __init__(self, n, m, stride):
        super().__init__()
        first = [BinaryConv2d(n, m, 3, stride=stride, padding=1), nn.BatchNorm2d(m), QuantActivation()]
        self.body = nn.Sequential(*first, *shortcut(m, m, 3))
        self.shortcut = nn.Identity() if stride == 1 else shortcut(n, m, 1, stride=stride)
        self.activation = QuantActivation()

    def forward(self, x):
        return self.activation(self.body(x) + self.shortcut(x))


def shortcut(n, m, window, **options):
    convolution = BinaryConv2d(n, m, window, padding=window // 2, **options)
    return nn.Sequential(convolution, nn.BatchNorm2d(m), QuantActivation(signed=True))


def convolved(n, m, activation, *behind, **options):
    return [BinaryConv2d(n, m, **options), nn.BatchNorm2d(m), activation(), *behind]


IMAGES = {
    "residual": lambda: [
        *(QuantActivation(scale=1 / 16), *convolved(2, 8, QuantActivation, kernel_size=3, padding=1)),
        *(Block8(8, 8, 1), Block8(8, 12, 2), nn.AdaptiveAvgPool2d(1), QuantActivation(), nn.Flatten()),
        BinaryLinear(12, 5),
    ],
    "depthwise": lambda: [
        *(QuantActivation(signed=True), *convolved(2, 8, QuantActivation, kernel_size=3, stride=2, padding=1)),
        *convolved(8, 8, QuantActivation, kernel_size=5, padding=2, groups=8),
        *convolved(8, 16, QuantActivation, kernel_size=1),
        *convolved(16, 16, QuantActivation, nn.MaxPool2d(3, 2, 1), kernel_size=3, dilation=2, groups=2),
        *(nn.Flatten(), BinaryLinear(16 * 6, 3)),
    ],
    "signs": lambda: [
        *(SignActivation(), *convolved(2, 40, SignActivation, nn.MaxPool2d(2), kernel_size=3, padding=1)),
        *(BinaryConv2d(40, 33, 3), nn.MaxPool2d(2), nn.BatchNorm2d(33), SignActivation()),
        *(nn.Flatten(), BinaryLinear(33 * 9, 3)),
    ],
}


def test_shortcuts_are_added_by_bands_of_rows(tmp_path):
    behind = [nn.MaxPool2d(14), nn.Flatten(), BinaryLinear(8, 2)]
    model = nn.Sequential(QuantActivation(), BinaryConv2d(1, 8, 3), QuantActivation(), Block8(8, 8, 1), *behind)
    packed = pack(model.eval(), input_shape=(1, 16, 16))
    source = to_c(packed, tmp_path, ram=4 * to_c(packed, tmp_path).ram_bytes // 5)
    assert any("3.activation, rows" in step.name for step in source.steps)


@needs_compiler
@pytest.mark.parametrize(("name", "word_bits"), [*zip(IMAGES, [32, 64, 64], strict=True)])
def test_images_by_bands_of_rows_give_the_same_outputs_in_less_memory(name, word_bits, tmp_path):
    torch.manual_seed(0)
    model, shape = nn.Sequential(*IMAGES[name]()), (2, 18, 16)
    for _ in range(3):
        model(torch.randn(8, *shape))  # norms and scales of activations
    packed, inputs = pack(model.eval(), input_shape=shape), torch.randn(3, *shape)
    whole = to_c(packed, tmp_path / "whole", word_bits=word_bits)
    _, expected = results(built(whole), inputs.numpy())
    np.testing.assert_allclose(expected * output_step(whole), model(inputs).detach().numpy(), rtol=1e-6, atol=1e-6)
    sizes, ram = [whole.ram_bytes], whole.ram_bytes - 1
    while True:
        try:
            source = to_c(packed, tmp_path / str(ram), word_bits=word_bits, ram=ram)
        except ValueError as error:
            assert "by bands of rows" in str(error)
            break
        assert source.ram_bytes <= ram
        assert sum(step.flash_bytes for step in source.steps) == source.flash_bytes
        np.testing.assert_array_equal(results(built(source, *SANITIZED), inputs.numpy())[1], expected)
        sizes.append(source.ram_bytes)
        ram = int(0.6 * source.ram_bytes)
    assert len(sizes) > 1


@needs_compiler
@pytest.mark.parametrize("options", [{"ceil_mode": True}, {"padding": 1}, {"kernel_size": (2, 5), "stride": 1}])
def test_a_pool_of_real_channels_does_not_overwrite_those_that_it_has_not_read(options, tmp_path):
    torch.manual_seed(0)
    pool = nn.MaxPool2d(**{"kernel_size": 2, **options})
    body = nn.Sequential(BinaryConv2d(1, 6, 3, padding=1, stride=2), nn.GELU(), pool, nn.Flatten())
    rows = torch.randn(5, 1, 8, 10)
    model = nn.Sequential(*body, BinaryLinear(body(rows).shape[1], 3)).eval()
    check_in_c(to_c(model, tmp_path, input_shape=(1, 8, 10)), model, rows, rtol=1e-5, atol=1e-5)
