from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qpsbgd import binarize
from qpsbgd.binarization import layer_run, wide_layers
from qpsbgd.binarization.layer_run import LayerRun
from qpsbgd.binarization.moments import Moments
from qpsbgd.binarization.passes import LayerCall, Passes
from qpsbgd.binarization.planes import Effort
from qpsbgd.binarization.wide_layers import passes_over
from qpsbgd.solvers import make_solver


def correlated(count, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 24, generator=generator) @ torch.randn(24, n, generator=generator) / 10
        + 0.3 * torch.randn(count, n, generator=generator)
        + 1
    )


def lost(model, binary, inputs):
    with torch.no_grad():
        wanted, found = model(inputs).movedim(1, -1).flatten(0, -2), binary(inputs).movedim(1, -1).flatten(0, -2)
    assert (found - wanted).mean(0).abs().max() < 1e-3 * wanted.std()  # the bias takes the mean
    return float((found - wanted).var(0).sum() / wanted.var(0).sum())


@pytest.mark.parametrize("options", [{"bits": 2}, {"solver": make_solver("descent")}])
def test_blocks_lose_little_more_than_the_whole_layer_and_less_than_rounding(options):
    torch.manual_seed(0)
    model, inputs = nn.Linear(96, 24), correlated(800, 96)
    data = list(inputs.split(100))
    whole = binarize(model, data, layers=[""], **options).report.rows[0]
    binary, report = binarize(model, data, layers=[""], most_inputs=25, **options)
    row = report.rows[0]
    assert row.rounding == pytest.approx(whole.rounding, rel=1e-4)
    assert row.feedback is None
    assert row.lost < min(1.25 * whole.lost, 0.7 * row.rounding)
    assert lost(model, binary, inputs) == pytest.approx(row.lost, rel=1e-3)


def test_later_blocks_make_up_for_what_earlier_ones_lose():
    """Rounding every block by itself, with its own family only, loses far more."""
    torch.manual_seed(0)
    model, inputs = nn.Linear(96, 24), correlated(800, 96)
    row = binarize(model, [inputs], layers=[""], most_inputs=24).report.rows[0]
    alone = torch.zeros(800, 24)
    with torch.no_grad():
        for block in torch.arange(96).split(24):
            part = nn.Linear(24, 24)
            part.weight.copy_(model.weight[:, block])
            found = binarize(part, [inputs[:, block]], layers=[""]).model
            alone += found(inputs[:, block]) - part(inputs[:, block])
        independent = alone.var(0).sum() / model(inputs).var(0).sum()
    assert row.lost < 0.8 * independent


@pytest.mark.parametrize("solver", ["rounding", "feedback"])
def test_blocks_stop_where_the_solver_says(solver):
    torch.manual_seed(0)
    model, inputs = nn.Linear(60, 12), correlated(400, 60)
    whole = binarize(model, [inputs], layers=[""], solver=solver).report.rows[0]
    row = binarize(model, [inputs], layers=[""], solver=solver, most_inputs=20).report.rows[0]
    assert row.search is None
    assert row.lost == pytest.approx(whole.lost, rel=0.3 if solver == "feedback" else 1e-4)


@torch.no_grad()
def test_blocks_are_fitted_to_the_float_network_like_whole_layers():
    torch.manual_seed(0)
    layers = [nn.Linear(36, 36, bias=False) for _ in range(4)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.LeakyReLU(0.5))))
    inputs, errors = correlated(800, 36), {}
    wanted = model[:7](inputs)
    for name, more in {"whole": {}, "blocks": {"most_inputs": 12}, "own": {"targets": "own"}}.items():
        made, report = binarize(model, list(inputs.split(400)), first=True, last=True, bias=False, **more)
        errors[name] = float((made[:7](inputs) - wanted).square().sum() / wanted.square().sum())
        assert name != "blocks" or report.rows[-1].lost == pytest.approx(errors[name], rel=1e-3)
    assert errors["blocks"] < 1.5 * errors["whole"]
    assert errors["blocks"] < 0.7 * errors["own"]


def test_the_moments_of_blocks_are_kept_from_one_sweep_to_the_next_while_they_fit(monkeypatch):
    torch.manual_seed(0)
    model, inputs, made, states = nn.Linear(60, 6), correlated(300, 60), [], []
    metric = Moments.metric
    monkeypatch.setattr(Moments, "metric", lambda self, **options: made.append(self) or metric(self, **options))
    for most_kept in (wide_layers.MOST_KEPT, 8 * 20**2):
        monkeypatch.setattr(wide_layers, "MOST_KEPT", most_kept)
        states.append(binarize(model, [inputs], layers=[""], most_inputs=20, rounds=2).model.weight)
    assert len(made) == 3 + (1 + 3 + 3)
    assert torch.equal(*states)


def test_groups_of_convolutions_are_cut_too():
    torch.manual_seed(0)
    model, images = nn.Conv2d(8, 6, 3, groups=2), torch.rand(40, 8, 9, 9) + torch.rand(40, 8, 1, 1)
    whole = binarize(model, [images], layers=[""]).report.rows[0]
    binary, report = binarize(model, [images], layers=[""], most_inputs=10)
    assert report.rows[0].lost < 1.25 * whole.lost
    assert lost(model, binary, images) == pytest.approx(report.rows[0].lost, rel=1e-3)


def test_all_passes_over_the_data_see_the_same_rows():
    """With more rows than enter Q, the reported loss is that of the rows that were drawn."""
    torch.manual_seed(0)
    model, inputs = nn.Linear(16, 6), correlated(3 * 16384, 16)
    whole = binarize(model, [inputs], layers=[""], targets="own").report.rows[0]
    row = binarize(model, [inputs], layers=[""], targets="own", most_inputs=8).report.rows[0]
    assert row.rounding == pytest.approx(whole.rounding, rel=1e-6)


class Largest(TorchDispatchMode):
    """The number of bytes of the largest tensor that any operation returns."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return found


def test_memory_is_bounded_by_the_blocks():
    torch.manual_seed(0)
    model, inputs = nn.Linear(90, 4), torch.randn(18, 90)
    sizes = {}
    for most in (4096, 30):
        with Largest() as largest:
            binarize(model, [inputs], layers=[""], rounds=1, most_inputs=most)
        sizes[most] = largest.bytes
    assert sizes[4096] >= 8 * 90**2
    assert sizes[30] <= 8 * 2 * 30**2  # two factors of a block


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* passes take")
def test_a_layer_of_20000_inputs_is_binarised():
    torch.manual_seed(0)
    model, inputs = nn.Linear(20000, 8), correlated(128, 20000)
    row = binarize(model, [inputs], layers=[""], solver="feedback", most_inputs=1000).report.rows[0]
    assert row.shape == (8, 20000)
    assert row.lost < 0.5 * row.rounding


@pytest.mark.parametrize("bad", [0, True, 2.5])
def test_the_width_of_blocks_is_checked(bad):
    with pytest.raises((TypeError, ValueError), match="most_inputs must be an integer of at least 1"):
        binarize(nn.Linear(4, 4), [torch.randn(5, 4)], layers=[""], most_inputs=bad)


def test_numbers_that_are_not_finite_are_found_before_the_blocks():
    inputs = torch.randn(50, 30)
    inputs[3, 29] = torch.inf
    with pytest.raises(ValueError, match="0: its inputs hold NaN or infinite values"):
        binarize(nn.Sequential(nn.Linear(30, 4)), [inputs], layers=["0"], most_inputs=10)


def test_silent_blocks_keep_finite_weights():
    torch.manual_seed(0)
    inputs = torch.cat([torch.zeros(100, 10), torch.randn(100, 20)], 1)
    binary, report = binarize(nn.Linear(30, 4), [inputs], layers=[""], most_inputs=10)
    assert all(p.isfinite().all() for p in binary.parameters())
    assert report.rows[0].lost < report.rows[0].rounding


def test_very_wide_layers_take_fewer_rows_and_say_how_long_they_take(monkeypatch):
    reader = SimpleNamespace(weight=torch.empty(2, 8192), bits=1, count_rows=len)
    run = SimpleNamespace(options=SimpleNamespace(mask=lambda batch: None), _spread=lambda most, count: most)
    run.passes = SimpleNamespace(batches=[None])
    call = LayerCall(torch.empty(200_000, 1), None, None)
    assert LayerRun._chosen(run, None, call, reader)[1] == 4 * 8192
    monkeypatch.setattr(layer_run, "LONG", 0)
    torch.manual_seed(0)
    counted, seen = [], Passes.seen
    monkeypatch.setattr(Passes, "seen", lambda *args, **sums: counted.append(args) or seen(*args, **sums))
    passes = passes_over(20, 8, bits=2, targets=True, effort=Effort("kicks", 1, torch.Generator()))
    with pytest.warns(UserWarning, match=f": {passes} passes take"):
        binarize(nn.Linear(20, 3), [torch.randn(40, 20)], layers=[""], bits=2, rounds=1, most_inputs=8)
    assert len(counted) == passes + 1  # one of the float network, for targets
