"""Bad models and bad data: a clear error, or a documented choice; the model is as it was after a failure."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils import weight_norm as old_weight_norm
from torch.nn.utils.parametrizations import weight_norm

from qpsbgd import binarize
from qpsbgd.binarization.distillation import distill
from qpsbgd.nn import BinaryLinear, convert


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


INPUTS = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))


def spoiled(part, value):
    model = network()
    getattr(model[2], part).data.view(-1)[0] = value
    return model


def with_weight_norm():
    model = network()
    weight_norm(model[2])
    return model


MODELS = {
    "NaN in a weight": (lambda: spoiled("weight", torch.nan), {}, ValueError, "2: weight or bias hold NaN"),
    "infinite bias": (lambda: spoiled("bias", torch.inf), {}, ValueError, "2: weight or bias hold NaN"),
    "meta": (lambda: network().to("meta"), {}, ValueError, "got one on the device meta; load its weights"),
    "parametrised": (with_weight_norm, {"layers": ["2"]}, ValueError, r"2 \(its weight is computed from other"),
    "scripted": (lambda: torch.jit.trace(network(), INPUTS), {}, ValueError, r"0, 2, 4 \(its code is fixed by TorchSc"),
    "compiled": (lambda: torch.compile(network(), backend="eager"), {}, ValueError, "before torch.compile"),
    "complex": (lambda: nn.Linear(6, 4, dtype=torch.complex64), {"layers": [""]}, ValueError, "its weight is complex"),
    "mask": (network, {"rows": lambda _: 5}, TypeError, "rows must return a mask .* got int"),
    "no tokens": (network, {"rows": lambda x: torch.zeros(len(x)) > 0}, ValueError, "2: no calibration batch has"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit")
def test_bad_models_and_options_are_refused_and_nothing_has_changed(name):
    make, options, kind, message = MODELS[name]
    model = make()
    modules, before = list(model.modules()), {key: value.clone() for key, value in model.state_dict().items()}
    inputs = INPUTS.to(torch.complex64) if name == "complex" else INPUTS
    with pytest.raises(kind, match=message):
        binarize(model, [inputs], copy=False, **options)
    assert list(model.modules()) == modules
    assert not any(module._forward_pre_hooks for module in modules if not isinstance(module, torch.jit.ScriptModule))
    if name != "meta":
        after = model.state_dict()
        assert all(torch.equal(after[key].nan_to_num(), value.nan_to_num()) for key, value in before.items())


def test_batches_of_arrays_and_single_batches_are_refused_with_what_to_do():
    array = INPUTS.numpy()
    for batch in (array, (array, array), {"input": array}):
        with pytest.raises(TypeError, match=r"batches must hold tensors.*as_tensor"):
            binarize(network(), [batch])
    for batches in (None, INPUTS, {"input": INPUTS}, "abc"):
        with pytest.raises(TypeError, match=r"iterable of batches, got .*\[x\]"):
            binarize(network(), batches)


@pytest.mark.parametrize(
    "change", [weight_norm, old_weight_norm, lambda layer: prune.random_unstructured(layer, "weight", 0.5)]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_parametrised_and_pruned_layers_stay_real_and_the_report_says_why(change):
    model = nn.Sequential(*network(), nn.Linear(3, 3))
    change(model[2])
    model(INPUTS)
    with pytest.warns(UserWarning, match=r"2 \(its weight is computed from other parameters\)"):
        assert type(convert(model, first=False)[2]) is not BinaryLinear
    with pytest.warns(UserWarning, match=r"2 \(its weight is computed from other parameters\)"):
        report = binarize(model, [INPUTS], rounds=1).report
    assert [row.name for row in report.rows] == ["4"]
    assert report.kept == {"2": "its weight is computed from other parameters"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit")
def test_scripted_parts_of_a_model_are_left_alone():
    model = nn.Sequential(network(), torch.jit.trace(nn.Linear(3, 3), torch.randn(2, 3)))
    report = binarize(model, [INPUTS], layers=["0.2"], rounds=1).report
    assert [row.name for row in report.rows] == ["0.2"]


DATA = {
    "generator": lambda: (part for part in INPUTS.split(25)),
    "tuples": lambda: [(part,) for part in INPUTS.split(25)],
    "dictionaries": lambda: [{"input": part} for part in INPUTS.split(25)],
    "an empty batch among others": lambda: [INPUTS[:25], INPUTS[:0], INPUTS[25:]],
}


def test_batches_of_all_kinds_give_the_same_network():
    wanted = binarize(network(), list(INPUTS.split(25)), rounds=2).model
    for data in DATA.values():
        found = binarize(network(), data(), rounds=2).model
        torch.testing.assert_close(found(INPUTS), wanted(INPUTS))


@pytest.mark.parametrize("outputs", [1, 4])
def test_constant_and_dead_inputs_and_single_outputs_are_no_problem(outputs):
    inputs = INPUTS.clone()
    inputs[:, 1], inputs[:, 4] = 3.0, 0.0
    model = nn.Linear(6, outputs)
    binary, report = binarize(model, [inputs], layers=[""], bits=2)
    with torch.no_grad():
        lost = (binary(inputs) - model(inputs)).square().mean() / model(inputs).var(0).mean()
    assert lost < 0.3
    assert report.rows[0].lost == pytest.approx(float(lost), abs=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_precision_is_kept(dtype):
    made, report = binarize(network().to(dtype), [INPUTS.to(dtype)], rounds=2)
    assert {p.dtype for p in made.parameters()} == {dtype}
    assert made(INPUTS.to(dtype)).isfinite().all()
    assert report.rows[0].lost < 0.3


def test_dropout_does_not_enter_and_training_mode_is_kept():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.9), nn.Linear(8, 8), nn.Linear(8, 3)).train()
    still = copy.deepcopy(model).eval()
    trained, evaluated = (binarize(m, [INPUTS], rounds=2).model for m in (model, still))
    assert trained.training and trained[2].training and not evaluated.training
    torch.testing.assert_close(trained.eval()(INPUTS), evaluated(INPUTS))


def test_lazy_layers_take_their_shape_from_the_first_batch():
    model, _ = binarize(nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(4)), [INPUTS], first=True, last=True, rounds=1)
    assert [layer.weight.shape for layer in model] == [(8, 6), (4, 8)]


def test_a_layer_with_several_names_is_replaced_under_all_of_them():
    class Aliases(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.Linear(6, 6)
            self.layers, self.alias = nn.ModuleList([layer, layer]), layer

        def forward(self, x):
            return self.layers[1](x)

    model, report = binarize(Aliases(), [INPUTS], first=True, last=True, rounds=1)
    assert [row.name for row in report.rows] == ["layers.0"]
    assert isinstance(model.alias, BinaryLinear)
    assert model.alias is model.layers[0] is model.layers[1]


def test_nan_in_front_of_a_batch_norm_is_named():
    class Spoils(nn.Module):
        def forward(self, x):
            return x / (x > 100)

    model = nn.Sequential(nn.Linear(6, 6), Spoils(), nn.BatchNorm1d(6)).eval()
    with pytest.raises(ValueError, match="2: its inputs hold NaN or infinite values"):
        binarize(model, [INPUTS], layers=["0"], targets="own", copy=False)
    assert type(model[0]) is nn.Linear


class Normalising(nn.Module):
    """Changes its input in place, unless told otherwise."""

    def __init__(self, in_place=True):
        super().__init__()
        self.first, self.second, self.in_place = nn.Linear(6, 8), nn.Linear(8, 3), in_place

    def forward(self, x):
        x = x.sub_(1).mul_(2) if self.in_place else (x - 1) * 2
        return self.second(torch.relu(self.first(x)))


def normalising():
    torch.manual_seed(0)
    changing, plain = Normalising(), Normalising(in_place=False)
    plain.load_state_dict(changing.state_dict())
    return changing, plain, [torch.randn(40, 6) for _ in range(3)]


def parameters(model):
    return torch.cat([value.detach().flatten() for value in model.state_dict().values()])


@pytest.mark.parametrize("targets", ["own", "float"])
def test_a_model_that_changes_its_input_sees_the_batches_as_they_are_in_every_pass(targets):
    changing, plain, batches = normalising()
    before = torch.stack(batches)
    options = {"first": True, "last": True, "rounds": 1, "targets": targets}
    found, expected = (binarize(model, batches, **options).model for model in (changing, plain))
    assert torch.equal(torch.stack(batches), before)
    assert torch.equal(parameters(found), parameters(expected))
    distill(found, changing, batches, steps=4)
    assert torch.equal(torch.stack(batches), before)


class Looping(nn.Module):
    """Calls a layer more often for short batches, and another one for those alone."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.more, self.last = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        for _ in range(2 if len(x) == 20 else 1):
            x = torch.relu(self.again(x))
        return self.last(self.more(x) if len(x) == 20 else x)


def test_calls_are_counted_in_all_batches():
    batches = [torch.randn(40, 6), torch.randn(20, 6)]
    report = binarize(Looping(), batches, first=True, last=True, rounds=1).report
    assert [row.name for row in report.rows] == ["first", "again", "more", "last"]


def test_attention_leaves_the_random_state_of_torch_as_it_is():
    layer, batch = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(4, 5, 8)
    before = torch.get_rng_state()
    binarize(layer, [batch], first=True, last=True, rounds=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_the_mode_of_the_caller_changes_nothing(mode):
    _, plain, batches = normalising()
    expected = binarize(plain, batches, first=True, last=True, rounds=1, targets="float").model
    with mode():
        inside = [batch.clone() for batch in batches]
        found = binarize(plain, inside, first=True, last=True, rounds=1, targets="float").model
    assert torch.equal(parameters(found), parameters(expected))
    assert not any(value.is_inference() for value in found.state_dict().values())
