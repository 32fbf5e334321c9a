import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear
from qpsbgd.optim import real_optimizer
from qpsbgd.optim.checkpoint import Checkpoint

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


def train(path, made, *, count=8, stop_at=None, before_step=True, every=None):
    with Checkpoint(path, every=every, **made) as run:
        for step in run.steps(count):
            rows = torch.randint(0, 40, (10,))
            for name in ("binary", "real"):
                made[name].zero_grad()
            F.cross_entropy(made["model"](INPUTS[rows]), TARGETS[rows]).backward()
            made["binary"].step()
            if step == stop_at and before_step:
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


@pytest.mark.parametrize("stop_at", range(8))
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
            rows = torch.randint(0, 40, (10,))
            for name in ("binary", "real"):
                made[name].zero_grad()
            F.cross_entropy(made["model"](INPUTS[rows]), TARGETS[rows]).backward()
            made["binary"].step()
            made["real"].step()
            made["rate"].step()
            if step == 6:
                os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_run_goes_on_from_the_last_written_step(tmp_path, uninterrupted):
    path = tmp_path / "run.pt"
    process = multiprocessing.get_context("spawn").Process(target=_killed, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
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


def test_broken_and_foreign_files_are_refused_and_kept(tmp_path):
    path = tmp_path / "run.pt"
    layer = BinaryLinear(2, 1)
    with Checkpoint(path, model=layer):
        pass
    whole = path.read_bytes()
    for content in (b"", b"no checkpoint", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="delete it to start anew"), Checkpoint(path, model=layer):
            pass
        assert path.read_bytes() == content
    torch.save({"weights": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="no checkpoint of qpsbgd"), Checkpoint(path, model=layer):
        pass


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
    with pytest.raises(ValueError, match="what is to be saved"):
        Checkpoint(tmp_path / "run.pt")
    with pytest.raises(ValueError, match="every must be a whole number"):
        Checkpoint(tmp_path / "run.pt", every=0, model=BinaryLinear(2, 1))
    with pytest.raises(RuntimeError, match="inside the with block"):
        next(Checkpoint(tmp_path / "other.pt", model=BinaryLinear(2, 1)).steps(3))


def test_a_loop_that_is_left_by_break_keeps_its_last_step(tmp_path):
    made = parts()
    with Checkpoint(tmp_path / "run.pt", **made) as run:
        for step in run.steps(8):
            with torch.no_grad():
                made["model"][0].weight.add_(0.01)
            if step == 2:
                break
    resumed = parts(seed=99)
    with Checkpoint(tmp_path / "run.pt", **resumed) as run:
        assert list(run.steps(5)) == [3, 4]
        assert torch.equal(weights(resumed), weights(made))


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
