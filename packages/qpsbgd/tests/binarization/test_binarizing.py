import copy

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD, binarize, load
from qpsbgd.nn import BinaryConv2d, BinaryLayer, BinaryLinear, convert


def blobs(count=600, seed=0):
    """Four classes in 20 dimensions, and the sign of a product, so that hidden layers matter."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(8, 20, generator=torch.Generator().manual_seed(9))
    labels = torch.randint(8, (count,), generator=generator)
    inputs = centres[labels] + 1.6 * torch.randn(count, 20, generator=generator)
    return inputs, labels // 2


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))
    inputs, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model.eval()


def loss(model):
    inputs, labels = blobs(seed=1)
    with torch.no_grad():
        return nn.functional.cross_entropy(model.eval()(inputs), labels).item()


def batches():
    return list(blobs()[0].split(100))


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model, before):
    after = model.state_dict()
    return after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


def test_the_first_and_the_last_layer_stay_real_and_the_model_is_left_alone(trained):
    before = state(trained)
    model, report = binarize(trained, batches())
    assert [type(layer) for layer in model if not isinstance(layer, nn.ReLU)] == [nn.Linear, BinaryLinear, nn.Linear]
    assert [row.name for row in report.rows] == ["2"]
    assert same(trained, before)
    assert type(trained[2]) is nn.Linear


def test_copy_false_changes_the_model_itself(trained):
    given = copy.deepcopy(trained)
    model, _ = binarize(given, batches(), copy=False)
    assert model is given
    assert isinstance(given[2], BinaryLinear)


def test_the_report_has_a_line_per_layer_with_shrinking_losses(trained):
    lines = []
    _, report = binarize(trained, batches(), first=True, last=True, bits={"2": 2}, progress=lines.append)
    assert tuple(lines) == report.rows
    assert [row.bits for row in report.rows] == [1, 2, 1]
    for row in report.rows:
        assert row.search < row.feedback <= row.rounding < 1
        assert row.lost == row.search
    weights = [20 * 48, 48 * 48, 48 * 4]
    assert report.bits_per_weight == pytest.approx((weights[0] + 2 * weights[1] + weights[2]) / sum(weights))
    assert "48 × 20" in str(report) and "search" in str(report)
    assert len(str(report).splitlines()) == 6
    assert str(report).endswith("float remain: scales and biases alone")


def test_the_reported_loss_is_the_lost_energy_of_the_outputs(trained):
    model, report = binarize(trained, [blobs()[0]])
    with torch.no_grad():
        hidden = trained[:2](blobs()[0])
        error = model[2](hidden) - trained[2](hidden)
        wanted = error.var(0).sum() / trained[2](hidden).var(0).sum()
    assert report.rows[0].search == pytest.approx(float(wanted), rel=1e-3)
    assert error.mean(0).abs().max() < 1e-4  # the bias takes the mean


def test_each_layer_sees_what_the_binary_layers_before_it_produce(trained):
    model, _ = binarize(trained, [blobs()[0]], first=True, last=True, targets="own")
    with torch.no_grad():
        hidden = model[:4](blobs()[0])
        error = model[4](hidden) - trained[4](hidden)
    assert error.mean(0).abs().max() < 1e-4


def test_layers_can_be_named_or_chosen_by_a_function(trained):
    by_name = binarize(trained, batches(), layers=["0", "4"]).report
    assert [row.name for row in by_name.rows] == ["0", "4"]
    chosen = binarize(trained, batches(), layers=lambda name, layer: layer.in_features == 48).report
    assert [row.name for row in chosen.rows] == ["2", "4"]


def test_training_goes_on_from_the_binarised_network(trained):
    model, _ = binarize(trained, batches(), first=True, last=True)
    start = loss(model)
    inputs, labels = blobs()
    optimizer = QPSBGD(model, steps=60, real={"lr": 1e-3})
    with torch.no_grad():
        assert loss(copy.deepcopy(model)) == pytest.approx(start)
    model.train()
    for rows in torch.randint(len(inputs), (60, 100), generator=torch.Generator().manual_seed(0)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    assert loss(model) < 0.9 * start


def test_batch_norms_behind_binary_layers_are_estimated_anew():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)),
    )
    images = torch.randn(64, 3, 8, 8)
    model(images)
    before = state(model)
    made, _ = binarize(model, list(images.split(16)), targets="own")
    assert same(model, before) and model.training and made.training
    assert isinstance(made[3], BinaryConv2d)
    torch.testing.assert_close(made[1].running_mean, model[1].running_mean)
    made.eval()
    with torch.no_grad():
        inner = made[:4](images)
    torch.testing.assert_close(made[4].running_mean, inner.mean((0, 2, 3)), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(made[4].running_var, inner.transpose(0, 1).flatten(1).var(1), atol=1e-5, rtol=1e-4)


def test_without_a_bias_the_second_moment_counts_and_none_is_added():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    inputs = torch.randn(200, 8) + 3
    made, report = binarize(model, [inputs], bias=False)
    assert made[1].bias is None
    with torch.no_grad():
        hidden = model[0](inputs)
        wanted = (made[1](hidden) - model[1](hidden)).square().sum() / model[1](hidden).square().sum()
    assert report.rows[0].search == pytest.approx(float(wanted), rel=1e-3)
    assert binarize(model, [inputs]).model[1].bias is not None


class Transformer(nn.Module):
    """Embeddings, blocks, a cell that stays real-valued, and a head or none."""

    def __init__(self, *, head):
        super().__init__()
        self.tokens = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])
        self.memory, self.head = nn.LSTMCell(6, 6), nn.Linear(6, 9) if head else nn.Identity()

    def forward(self, x):
        x = self.tokens(x)
        x = x + self.memory(x[:, 0])[0][:, None]
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@pytest.mark.parametrize("head", [True, False])
def test_in_a_transformer_embeddings_and_head_stay_real_and_what_else_does_is_said(head):
    torch.manual_seed(0)
    model = Transformer(head=head)
    with pytest.warns(UserWarning, match=r"real-valued: memory \(LSTMCell has no binary form\); give"):
        made, report = binarize(model, [torch.randint(9, (20, 5))], rounds=1)
    assert [row.name for row in report.rows] == ["blocks.0.0", "blocks.1.0"]
    assert report.kept == {"memory": "LSTMCell has no binary form"}
    assert "float remain: memory (336), " in str(report).splitlines()[-1]
    converted = convert(model, first=False, last=False, skip=["memory"])
    for network in (made, converted):
        binary = {name for name, module in network.named_modules() if isinstance(module, BinaryLayer)}
        assert binary == {"blocks.0.0", "blocks.1.0"}


class Adapted(nn.Module):
    """A layer with an adapter beside it, as peft has it."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer, self.lora_A = layer, nn.ModuleDict({"default": nn.Linear(6, 2, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_A["default"](x).sum(-1, keepdim=True)


def test_adapters_stay_real_and_are_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Adapted(nn.Linear(6, 6)), nn.Linear(6, 3))
    with pytest.warns(UserWarning, match=r"real-valued: 1\.lora_A\.default \(it is an adapter of another layer; merge"):
        _, report = binarize(model, [torch.randn(50, 6)], rounds=1)
    assert [row.name for row in report.rows] == ["1.base_layer"]
    with pytest.warns(UserWarning, match=r"1\.lora_A\.default \(it is an adapter"):
        converted = convert(model)
    assert type(converted[1].lora_A["default"]) is nn.Linear


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.begin, self.again, self.inner, self.end = (nn.Linear(6, 6) for _ in range(4))
        self.unused = nn.Linear(6, 6)

    def forward(self, x):
        x = self.again(self.begin(x))
        return self.end(self.inner(self.again(x.relu())))


class Tied(Twice):
    """An autoencoder whose decoder is the encoder's matrix, transposed."""

    def forward(self, x):
        x = self.again(self.begin(x)).tanh() + self.inner.weight.new_zeros(6)
        return self.end(self.inner(nn.functional.linear(x, self.again.weight.T)) @ self.unused.weight)


def test_a_weight_that_is_read_outside_its_layer_stays_real():
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=r"again \(its weight is used elsewhere.*\); unused \(no calibration batch"):
        _, report = binarize(Tied(), [torch.randn(50, 6)])
    assert [row.name for row in report.rows] == ["inner"]


@pytest.mark.parametrize("targets", ["own", "float"])
def test_a_layer_that_is_called_twice_is_fitted_to_the_rows_of_both_calls(targets):
    torch.manual_seed(0)
    model, x = Twice(), torch.randn(200, 6)
    made, report = binarize(model, [x[:120], x[120:]], layers=["again"], targets=targets)
    with torch.no_grad():
        first = model.begin(x)
        rows = torch.cat([first, model.again(first).relu()])
        outputs, found = model.again(rows), made.again(rows)
    lost = (outputs - found).var(0).sum() / outputs.var(0).sum()
    assert report.rows[0].lost == pytest.approx(float(lost), rel=0.02)
    torch.testing.assert_close(found.mean(0), outputs.mean(0), atol=1e-4, rtol=1e-3)


class Remembering(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.memory, self.last = network, nn.Linear(12, 3)

    def forward(self, x):
        return self.last(self.memory(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_networks_become_binary(kind, tmp_path):
    torch.manual_seed(0)
    model, batches = Remembering(kind(5, 12, batch_first=True)), [torch.randn(30, 7, 5) for _ in range(4)]
    made, report = binarize(model, batches, bits=4, first=True, rounds=5)
    assert [row.name for row in report.rows] == ["memory.inputs.0", "memory.recurrent.0"]
    with torch.no_grad():
        wanted, found, half = (each(batches[0]) for each in (model, made, binarize(model, batches, first=True).model))
    error, coarse = ((one - wanted).square().sum() / wanted.var() for one in (found, half))
    assert error < coarse / 4
    torch.save(made.state_dict(), tmp_path / "binary.pt")
    torch.testing.assert_close(load(tmp_path / "binary.pt", model)(batches[0]), made(batches[0]))
    kept, _ = binarize(model, batches, layers=["last"], rounds=1)
    assert type(kept.memory) is kind


def test_layers_that_cannot_be_binarised_are_named():
    torch.manual_seed(0)
    model, data = Twice(), [torch.randn(50, 6)]
    with pytest.warns(UserWarning, match=r"real-valued: unused \(no calibration batch reaches it"):
        _, report = binarize(model, data)
    assert [row.name for row in report.rows] == ["again", "inner"]
    assert set(report.kept) == {"unused"}
    assert "unused stays real-valued" in str(report)
    with pytest.raises(ValueError, match=r"unused \(no calibration batch reaches it"):
        binarize(model, data, layers=["unused"])
    model.inner.weight = model.end.weight
    with pytest.raises(ValueError, match=r"inner \(it shares its weight"):
        binarize(model, data, layers=["inner"])


WRONG = {
    "bits must be integers from 1 to 8, got 0": {"bits": 0},
    "bits must be integers from 1 to 8, got .*1.5": {"bits": {"2": 1.5}},
    "bits names layers that are not binarised: 0": {"bits": {"0": 2}},
    'solver must be one of "kicks", "feedback", "rounding", or a QUBO solver, auto, .* got .gptq': {"solver": "gptq"},
    'targets must be "own" or "float", got .both': {"targets": "both"},
    "layers must name .* got 2, 7; there are 0, 2, 4": {"layers": [2, "7"]},
    "no layer to binarise": {"layers": []},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_say_what_must_hold(trained, message):
    with pytest.raises(ValueError, match=message):
        binarize(trained, batches(), **WRONG[message])


def test_a_failure_names_the_layer_and_leaves_the_model_alone(trained):
    given = nn.Sequential(*trained[:3], nn.BatchNorm1d(48), Spoils(), trained[4])
    given = copy.deepcopy(given).eval()
    bad = batches()
    bad[-1] = bad[-1].clone()
    bad[-1][0, 0] = 1e9
    before = state(given)
    with pytest.raises(ValueError, match="5: its inputs hold NaN or infinite values"):
        binarize(given, bad, copy=False, last=True)
    assert same(given, before)
    assert not any(isinstance(module, BinaryLayer) for module in given.modules())
    assert "forward" not in given[0].__dict__


class Spoils(nn.Module):
    """Numbers that are too large become infinite."""

    def forward(self, x):
        return torch.where(x.abs() > 15, torch.inf, x.relu())


def test_a_model_on_several_devices_and_missing_data_are_refused(trained):
    model = copy.deepcopy(trained)
    model[4].to("meta")
    with pytest.raises(ValueError, match="one device, got parts on cpu, meta"):
        binarize(model, batches())
    with pytest.raises(ValueError, match="needs calibration data"):
        binarize(trained, [])


def test_a_bar_counts_the_layers(trained, capsys):
    binarize(trained, batches(), first=True, last=True, rounds=1, progress=True)
    assert "3/3" in capsys.readouterr().err


def test_a_convolution_that_is_called_twice_stays_real():
    class TwiceConvolved(nn.Module):
        def __init__(self):
            super().__init__()
            self.again, self.more = nn.Conv1d(3, 3, 1), nn.Conv1d(3, 3, 1)

        def forward(self, x):
            return self.more(self.again(self.again(x)))

    with pytest.raises(ValueError, match=r"again \(it is a convolution that is used more than once"):
        binarize(TwiceConvolved(), [torch.randn(4, 3, 5)], layers=["again"])
