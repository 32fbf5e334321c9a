import copy
import hashlib
import io
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_networks import small_model
from small_networks import train as train_small

from qpsbgd import QPSBGD
from qpsbgd.checkpoint import Checkpoint
from qpsbgd.nn import BinaryLinear
from qpsbgd.optim import real_optimizer

INPUTS = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
TARGETS = (INPUTS.sum(1) > 0).long()


class Stop(Exception):
    pass


def parts(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(BinaryLinear(6, 5), torch.nn.Hardtanh(), BinaryLinear(5, 2), torch.nn.BatchNorm1d(2))
    binary = QPSBGD(model, lr=0.05, solver="exact")
    real = real_optimizer(model, binary, lr=0.01)
    return {"model": model, "binary": binary, "real": real, "rate": torch.optim.lr_scheduler.ExponentialLR(real, 0.9)}


def update(made, names=("binary", "real", "rate")):
    """A batch, and the steps of these parts."""
    rows = torch.randint(0, 40, (10,))
    for name in ("binary", "real"):
        made[name].zero_grad()
    F.cross_entropy(made["model"](INPUTS[rows]), TARGETS[rows]).backward()
    for name in names:
        made[name].step()


def train(path, made, *, count=8, stop_at=None):
    with Checkpoint(path, **made) as run:
        for step in run.steps(count):
            update(made, ("binary",))
            if step == stop_at:
                raise Stop
            made["real"].step()
            made["rate"].step()


def weights(made):
    return torch.cat([p.detach().flatten() for p in made["model"].state_dict().values()])


@pytest.fixture
def uninterrupted(tmp_path):
    made = parts()
    train(tmp_path / "whole.pt", made)
    return weights(made)


@pytest.mark.parametrize("stop_at", [0, 1, 4, 7])
def test_a_run_interrupted_in_any_step_ends_with_the_same_weights(tmp_path, uninterrupted, stop_at):
    path = tmp_path / "run.pt"
    with pytest.raises(Stop):
        train(path, parts(), stop_at=stop_at)
    resumed = parts(seed=99)
    train(path, resumed)
    assert torch.equal(weights(resumed), uninterrupted)


def _killed(path):
    made = parts()
    with Checkpoint(path, every=2, **made) as run:
        for step in run.steps(8):
            update(made)
            if step == 6:
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_run_goes_on_from_the_last_written_step(tmp_path, uninterrupted):
    path = tmp_path / "run.pt"
    # A script, since the module's name, by which a spawned process would import it, depends on how pytest was called.
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run([sys.executable, __file__, path], env=paths, capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    resumed = parts(seed=99)
    with Checkpoint(path, **resumed) as run:
        assert run.step == 6
    train(path, resumed)
    assert torch.equal(weights(resumed), uninterrupted)


def test_a_finished_run_has_no_steps_left_and_a_longer_one_goes_on(tmp_path, uninterrupted):
    made = parts()
    train(tmp_path / "run.pt", made, count=5)
    before = weights(made)
    train(tmp_path / "run.pt", made, count=5)
    assert torch.equal(weights(made), before)
    train(tmp_path / "run.pt", made, count=8)
    assert torch.equal(weights(made), uninterrupted)


def test_a_generator_is_restored(tmp_path):
    generator = torch.Generator().manual_seed(5)
    with Checkpoint(tmp_path / "run.pt", order=generator) as run:
        first = [torch.rand((), generator=generator).item() for _ in run.steps(2)]
    again = torch.Generator()
    with Checkpoint(tmp_path / "run.pt", order=again) as run:
        rest = [torch.rand((), generator=again).item() for _ in run.steps(4)]
    whole = torch.Generator().manual_seed(5)
    assert first + rest == [torch.rand((), generator=whole).item() for _ in range(4)]


@pytest.fixture
def written(tmp_path):
    """The file of a small run, and its layer."""
    layer = BinaryLinear(2, 1)
    with Checkpoint(tmp_path / "run.pt", model=layer):
        pass
    return tmp_path / "run.pt", layer


def refused(path, layer, content):
    path.write_bytes(content)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match=r"run\.pt is .*delete it"):
        Checkpoint(path, model=layer).__enter__()
    assert torch.equal(layer.weight, before)
    assert path.read_bytes() == content


def test_no_flipped_bit_is_accepted(written):
    path, layer = written
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    places = {*range(60), *range(len(whole) - 20, len(whole)), *generator.integers(len(whole), size=220).tolist()}
    for place in places:
        content = bytearray(whole)
        content[place] ^= 1 << generator.integers(8)
        refused(path, layer, bytes(content))


def test_no_part_of_a_file_is_accepted_and_nothing_after_its_end(written):
    path, layer = written
    whole = path.read_bytes()
    for length in {*range(80), *range(80, len(whole), 61), len(whole) - 1}:
        refused(path, layer, whole[:length])
    refused(path, layer, whole + b"\0")
    refused(path, layer, bytes(len(whole)))


def test_foreign_files_are_refused_and_kept(written):
    path, layer = written
    torch.save({"weights": torch.ones(2)}, path)
    refused(path, layer, path.read_bytes())
    refused(path, layer, b"no checkpoint")


def test_other_parts_are_refused(tmp_path):
    with Checkpoint(tmp_path / "run.pt", model=BinaryLinear(2, 1)):
        pass
    with (
        pytest.raises(ValueError, match="holds model, but this run has net"),
        Checkpoint(tmp_path / "run.pt", net=BinaryLinear(2, 1)),
    ):
        pass
    with pytest.raises(TypeError, match="must have state_dict"):
        Checkpoint(tmp_path / "run.pt", model=3)
    with pytest.raises(ValueError, match="something to save"):
        Checkpoint(tmp_path / "run.pt")
    with pytest.raises(ValueError, match="every must be None or an integer of at least 1"):
        Checkpoint(tmp_path / "run.pt", every=0, model=BinaryLinear(2, 1))
    with pytest.raises(RuntimeError, match="inside the with block"):
        next(Checkpoint(tmp_path / "other.pt", model=BinaryLinear(2, 1)).steps(3))


def trained(projection="ridge", hidden=4, last=None):
    """A model, a generator and an optimiser after one step; `last` is a part more."""
    torch.manual_seed(hidden)
    model = torch.nn.Sequential(BinaryLinear(3, hidden), torch.nn.BatchNorm1d(hidden), BinaryLinear(hidden, 2))
    optimizer = QPSBGD(model, lr=0.1, projection=projection, real={"lr": 0.01})
    model(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()
    found = {"draws": torch.Generator().manual_seed(hidden), "model": model, "optimizer": optimizer}
    return found if last is None else {**found, "last": last}


class Refusing:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise OSError("not today")


@pytest.mark.parametrize(
    ("saved", "own", "message"),
    [
        ({"projection": "spins"}, {"projection": "ridge"}, "does not fit optimizer.*projection=.spins."),
        ({"hidden": 5}, {"hidden": 4}, "(?s)does not fit model.*size mismatch"),
        ({"last": BinaryLinear(2, 1)}, {"last": BinaryLinear(3, 1)}, "(?s)does not fit last.*start over$"),
        ({"last": Refusing()}, {"last": Refusing()}, "does not fit last.*not today"),
    ],
)
def test_a_checkpoint_that_does_not_fit_changes_nothing(saved, own, message, tmp_path):
    with Checkpoint(tmp_path / "run.pt", **trained(**saved)):
        pass
    content, made = (tmp_path / "run.pt").read_bytes(), trained(**own)

    def state():
        parts = {name: part.state_dict() for name, part in made.items() if name != "draws"}
        data = io.BytesIO()
        torch.save(copy.deepcopy([parts, made["draws"].get_state(), torch.get_rng_state()]), data)
        return data.getvalue()

    before = state()
    with pytest.raises(ValueError, match=message), Checkpoint(tmp_path / "run.pt", **made):
        raise AssertionError("training began")
    assert state() == before
    assert (tmp_path / "run.pt").read_bytes() == content


def test_a_loop_after_one_that_was_left_by_break_goes_on_with_the_next_step(tmp_path, uninterrupted):
    made = parts()
    taken = []

    def train_until(run, last):
        for step in run.steps(8):
            taken.append(step)
            update(made)
            if step == last:
                break

    with Checkpoint(tmp_path / "run.pt", every=3, **made) as run:
        train_until(run, 2)
        train_until(run, 2 + 1)
        assert run.step == 3
        train_until(run, None)
    assert taken == list(range(8))
    assert torch.equal(weights(made), uninterrupted)


def test_a_run_interrupted_in_a_second_loop_repeats_that_step_only(tmp_path):
    layer = BinaryLinear(2, 1)
    with pytest.raises(Stop), Checkpoint(tmp_path / "run.pt", model=layer) as run:
        for _ in run.steps(8):
            break
        for _ in run.steps(8):
            raise Stop
    with Checkpoint(tmp_path / "run.pt", model=layer) as run:
        assert list(run.steps(3)) == [1, 2]


def test_a_folder_in_place_of_the_file_is_an_error_before_training(tmp_path):
    with pytest.raises(IsADirectoryError), Checkpoint(tmp_path, model=BinaryLinear(2, 1)):
        raise AssertionError("training began")


def test_what_could_not_be_read_back_is_refused_before_training(tmp_path):
    class Numpy:
        def state_dict(self):
            return {"lr": np.float64(0.1)}

        def load_state_dict(self, state):
            pass

    with (
        pytest.raises(TypeError, match="the state of schedule holds more"),
        Checkpoint(tmp_path / "a", schedule=Numpy()),
    ):
        pass
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError), Checkpoint(tmp_path / "file" / "run.pt", model=BinaryLinear(2, 1)):
        raise AssertionError("training began")


@pytest.mark.parametrize(
    "changed",
    [
        lambda state: {**state, "parts": {**state["parts"], "optimizer": {}}},
        lambda state: {**state, "parts": {**state["parts"], "optimizer": [1, 2]}},
        lambda state: {**state, "parts": {**state["parts"], "optimizer": {"state": 3, "param_groups": [{}]}}},
    ],
)
def test_a_crafted_file_with_a_right_checksum_raises_a_value_error(tmp_path, changed):
    path, model = tmp_path / "run.pt", small_model()
    optimizer = QPSBGD(model)
    with Checkpoint(path, model=model, optimizer=optimizer):
        train_small(model, optimizer, range(2))
    content = path.read_bytes()
    start = len(b"qpsbgd-checkpoint-2\n")
    state = torch.load(io.BytesIO(content[start + 32 :]), weights_only=True)
    data = io.BytesIO()
    torch.save(changed(state), data)
    path.write_bytes(content[:start] + hashlib.sha256(data.getvalue()).digest() + data.getvalue())
    with (
        pytest.raises(ValueError, match=r"run\.pt|is not a state of QPSBGD"),
        Checkpoint(path, model=model, optimizer=optimizer),
    ):
        pass


def test_a_foreign_file_with_a_right_checksum_is_refused(tmp_path):
    path, payload = tmp_path / "run.pt", b"not a pickle"
    path.write_bytes(b"qpsbgd-checkpoint-2\n" + hashlib.sha256(payload).digest() + payload)
    with (
        pytest.raises(ValueError, match="is not a checkpoint, though its checksum is right"),
        Checkpoint(path, model=small_model()),
    ):
        pass


def test_a_state_whose_solver_does_not_fit_changes_nothing():
    model = small_model()
    optimizer = QPSBGD(model, solver="exact", projection="spins")
    train_small(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    train_small(model, optimizer, range(2, 4))
    before = copy.deepcopy(optimizer.state_dict())
    saved["solvers"] = [{"position": 3}]
    saved["param_groups"][0]["lr"] = 7.0
    with pytest.raises(ValueError, match="keeps no state"):
        optimizer.load_state_dict(saved)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"] and "solvers" not in after
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)


if __name__ == "__main__":
    _killed(sys.argv[1])
