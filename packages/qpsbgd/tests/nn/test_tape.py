import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryConv2d, BinaryLinear, convert
from qpsbgd.nn.tape import MomentTape, Tape, record_rows


def recorded(layer, run):
    """The record of a layer after `run`, which ends in a backward pass."""
    with record_rows([layer]) as (tape,):
        run()
        return tape.read()


def rows(shape=(6, 4)):
    return torch.randn(shape)


def assert_rows(record, inputs, output_grads):
    torch.testing.assert_close(record.inputs, inputs)
    torch.testing.assert_close(record.output_grads, output_grads)


class PassesNothingBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_every_layer_of_a_network_is_recorded():
    model = nn.Sequential(BinaryLinear(4, 3), nn.Hardtanh(), BinaryLinear(3, 2))
    x = rows()
    with record_rows([model[0], model[2]]) as (first, second):
        model(x).sum().backward()
    hidden = model[0](x)
    torch.testing.assert_close(second.read().inputs, nn.functional.hardtanh(hidden).detach())
    slope = (hidden.abs() < 1).float()
    expected = slope * (torch.ones(6, 2) @ (model[2].gain * model[2].binary_weight))
    assert_rows(first.read(), x, expected)


@pytest.mark.parametrize(
    ("in_place", "plain"),
    [
        (nn.Hardtanh(inplace=True), nn.Hardtanh()),
        (torch.relu_, torch.relu),
        (lambda x: x.mul_(3), lambda x: 3 * x),
    ],
    ids=["hardtanh", "relu", "mul"],
)
def test_an_in_place_activation_after_the_layer_changes_nothing(in_place, plain):
    layer, x, weights = BinaryLinear(4, 3, bias=True), rows(), torch.randn(6, 3)
    expected = recorded(layer, lambda: (plain(layer(x)) * weights).sum().backward())
    record = recorded(layer, lambda: (in_place(layer(x)) * weights).sum().backward())
    assert_rows(record, expected.inputs, expected.output_grads)


def test_a_layer_used_twice_records_both_uses():
    layer, x = BinaryLinear(3, 3), torch.randn(5, 3)
    record = recorded(layer, lambda: layer(2 * layer(x)).sum().backward())
    ones = torch.ones(5, 3)
    # Backward meets the second use first.
    assert_rows(
        record,
        torch.cat([2 * layer(x).detach(), x]),
        torch.cat([ones, 2 * layer.gain * ones @ layer.binary_weight]),
    )


def test_micro_batches_add_up_to_one_big_batch():
    layer, x, target = BinaryLinear(4, 3), torch.randn(6, 4), torch.randn(6, 3)

    def loss(part):
        return (layer(x[part]) - target[part]).square().sum() / len(x)

    def in_parts():
        for part in (slice(0, 1), slice(1, 4), slice(4, 6)):
            loss(part).backward()

    whole = recorded(layer, lambda: loss(slice(None)).backward())
    assert_rows(recorded(layer, in_parts), whole.inputs, whole.output_grads)


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (2, 1, 3, 4)])
def test_all_leading_dimensions_become_rows(shape):
    layer, x = BinaryLinear(4, 3), torch.randn(shape)
    grads = torch.randn(*shape[:-1], 3)
    record = recorded(layer, lambda: (layer(x) * grads).sum().backward())
    assert_rows(record, x.reshape(-1, 4), grads.reshape(-1, 3))


@pytest.mark.parametrize(
    "run",
    [
        lambda layer: layer.eval()(rows()).sum().backward(),
        lambda layer: layer(rows()),
        lambda layer: PassesNothingBack.apply(layer(rows())).sum().backward(),
    ],
    ids=["evaluation", "a forward pass alone", "nothing passed back"],
)
def test_what_brings_no_gradient_back_leaves_no_record(run):
    layer = BinaryLinear(4, 3)
    assert recorded(layer, lambda: run(layer)) is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_pass_without_gradients_records_nothing(mode):
    layer, x = BinaryLinear(4, 3), rows()

    def run():
        with mode():
            layer(x + 1)
        layer(x).sum().backward()

    assert torch.equal(recorded(layer, run).inputs, x)


def test_a_frozen_layer_records_nothing_but_passes_gradients_on():
    model = nn.Sequential(BinaryLinear(4, 3), BinaryLinear(3, 2))
    model[1].weight.requires_grad_(False)
    with record_rows(model) as (first, second):
        model(rows()).sum().backward()
    assert first.read() is not None
    assert second.read() is None


def test_autocast_gives_single_precision_records_and_a_working_step():
    dtype = torch.bfloat16
    model = nn.Sequential(
        BinaryConv2d(2, 3, 3), nn.Hardtanh(inplace=True), BinaryConv2d(3, 2, 3), nn.Flatten(), BinaryLinear(8, 2)
    )
    optimizer = QPSBGD(model, lr=0.1, solver="descent")
    before = [weight.detach().clone() for weight in model.parameters()]
    with torch.autocast("cpu", dtype):
        output = model(torch.randn(3, 2, 6, 6))
    assert output.dtype == dtype
    output.float().square().sum().backward()
    assert all(model[number].tape.read().sums.dtype == torch.float32 for number in (0, 2, 4))
    optimizer.step()
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close((new - old).abs(), torch.full_like(old, 0.1))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_records_once(use_reentrant):
    layer, x = BinaryLinear(4, 4), torch.randn(6, 4, requires_grad=True)

    def block(x):
        return torch.relu_(layer(3 * x))

    plain = recorded(layer, lambda: block(x).square().sum().backward())
    run = recorded(layer, lambda: checkpoint(block, x, use_reentrant=use_reentrant).square().sum().backward())
    assert_rows(run, plain.inputs, plain.output_grads)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_use_between_two_others_leaves_the_rows_of_both_and_moments_once(use_reentrant):
    layer, x = BinaryLinear(4, 4), torch.randn(6, 4, requires_grad=True)
    layer.tape = tape = Tape(layer.weight)
    middle = checkpoint(layer, layer(x), use_reentrant=use_reentrant)
    layer(middle).square().sum().backward()
    assert len(tape.read().inputs) == 18
    layer.tape = tape = MomentTape(products)
    checkpoint(lambda x: layer(x).relu(), x, use_reentrant=use_reentrant).sum().backward()
    assert tape.read().rows == 6


def products(rows, sums=0):
    return sums + rows.T @ rows


def test_moments_of_all_passes_that_a_gradient_comes_back_to_add_up():
    layer, passes = BinaryLinear(4, 3), [rows((count, 4)) for count in (3, 5, 2)]
    layer.tape = tape = MomentTape(products)
    layer(rows())
    for x in passes:
        layer(x).sum().backward()
    record, everything = tape.read(), torch.cat(passes)
    assert record.rows == 10
    torch.testing.assert_close(record.sums, everything.T @ everything)
    tape.clear()
    assert tape.read() is None


def test_an_input_that_changes_before_backward_is_recorded_as_it_was():
    layer, x = BinaryLinear(4, 4), 1 * torch.randn(6, 4, requires_grad=True)
    before = x.detach().clone()

    def run():
        with torch.autocast("cpu", torch.bfloat16):  # otherwise torch needs x itself
            output = layer(x)
        x.add_(output)
        x.sum().backward()

    assert torch.equal(recorded(layer, run).inputs, before)


def test_recording_leaves_the_tape_of_an_optimiser_alone():
    layer = BinaryLinear(4, 3)
    optimizer = QPSBGD(layer, solver="descent")
    own = layer.tape
    x = rows()
    layer(x).sum().backward()
    assert recorded(layer, lambda: layer(x + 1).sum().backward()) is not None
    assert layer.tape is own
    torch.testing.assert_close(own.read().sums[0], x.T @ x)
    optimizer.step()


def test_a_compiled_model_in_training_has_no_graph_breaks_and_records_the_same():
    torch.manual_seed(0)
    plain = convert(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(24, 4)))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = copy.deepcopy(plain)
    x = torch.randn(5, 3, 4, 4)
    runs = [(plain, plain), (compiled, torch.compile(compiled, backend="aot_eager"))]
    optimizers = [QPSBGD(model, steps=30, real=True) for model, _ in runs]
    for _ in range(4):  # of which the first, the second and the fourth record rows
        for (_, forward), optimizer in zip(runs, optimizers, strict=True):
            optimizer.zero_grad()
            forward(x).square().mean().backward()
            optimizer.step()
    assert not torch._dynamo.utils.counters["graph_break"]
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        assert torch.equal(one, other)
