import json
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from qpsbgd.analysis import minimize
from qpsbgd_paper.experiments.rosenbrock import valley
from qpsbgd_paper.framework.methods import chosen_solver
from qpsbgd_paper.framework.paid import keeping_answers
from qpsbgd_paper.framework.runs import RunFailed, run_jobs
from qpsbgd_paper.framework.workers import local_workers

virtual_qpu = pytest.importorskip("qpsbgd_qubo.annealers.virtual_qpu")

CHIP = {"name": "virtual-qpu", "size": 2, "num_reads": 5, "sweeps": 8, "slices": 2}
ENOUGH = 1.0


def descend(*, x, log, solver):
    """A few steps on a virtual chip; every submission really sent adds a letter to the file `log`."""
    sample = virtual_qpu.VirtualChip.sample

    def counted(chip, *arguments, **options):
        with Path(log).open("a", encoding="utf-8") as file:
            file.write("s")
        return sample(chip, *arguments, **options)

    start = torch.linspace(-0.5, 0.4, 6).roll(x)
    with patch.object(virtual_qpu.VirtualChip, "sample", counted):
        found = minimize(
            lambda spins: valley(spins, numbers=2, bits=3),
            lambda y: y.square().sum(),
            start,
            steps=6,
            solver=chosen_solver(solver),
            stop_at_fixed_point=False,
            lr=0.1,
        )
    return {"values": found.values}


def results(folder, *, limit, count=1, **options):
    log = str(folder / "log")
    jobs = [{"x": x, "log": log, "solver": {**CHIP, "max_qpu_seconds": limit}} for x in range(count)]
    done = run_jobs(descend, jobs, experiment="toy", folder=folder, **options)
    return {one.settings["x"]: one.result["values"] for one in done}


def sent(folder):
    return len((folder / "log").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def limit():
    """QPU time for less than half of the steps."""
    return 2.5 * chosen_solver(CHIP).estimate([(6, 1)]).qpu_seconds


@pytest.fixture
def uninterrupted(tmp_path):
    folder = tmp_path / "uninterrupted"
    folder.mkdir()
    return results(folder, limit=ENOUGH, count=2), sent(folder)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_whose_budget_was_spent_goes_on_without_paying_twice(tmp_path, limit, uninterrupted, processes):
    folder = tmp_path / "stopped"
    folder.mkdir()
    with local_workers(processes) if processes > 1 else nullcontext() as workers:
        with pytest.raises(RunFailed, match=r"paid is kept: .*--option max_qpu_seconds"):
            results(folder, limit=limit, count=2, workers=workers)
        paid = sent(folder)
        assert 0 < paid < uninterrupted[1] and not list(folder.glob("*.json"))
        with pytest.raises(RunFailed):
            results(folder, limit=limit, count=processes, workers=workers)
        assert sent(folder) == paid, "the same limit pays for nothing more"
        found = results(folder, limit=ENOUGH, count=2, workers=workers)
    assert (found, sent(folder)) == uninterrupted
    assert not list(folder.glob("*.chip*")), "results are written: the answers are not needed any more"
    for path in folder.glob("*.json"):
        assert ".chip" not in json.dumps(json.loads(path.read_text(encoding="utf-8"))["settings"])


def test_a_fresh_start_pays_again(tmp_path, limit, uninterrupted):
    with pytest.raises(RunFailed):
        results(tmp_path, limit=limit)
    paid = sent(tmp_path)
    results(tmp_path, limit=ENOUGH, fresh=True)
    assert sent(tmp_path) == paid + uninterrupted[1] // 2


def test_answers_that_cannot_be_used_are_refused_with_the_file(tmp_path, limit):
    with pytest.raises(RunFailed):
        results(tmp_path, limit=limit)
    (path,) = tmp_path.glob("*.chip")
    path.write_bytes(b"damaged")
    with pytest.raises(RunFailed, match=rf"{path.name} is not a recording.* delete that file"):
        results(tmp_path, limit=ENOUGH)


def test_every_solver_of_a_run_has_a_file_of_its_own_and_free_ones_have_none(tmp_path):
    limited = {**CHIP, "max_qpu_seconds": ENOUGH}
    with keeping_answers(tmp_path / "toy-1.json"):
        names = [chosen_solver(choice).record for choice in (limited, CHIP, limited)]
        assert names == [tmp_path / "toy-1.chip", None, tmp_path / "toy-1.1.chip"]
        assert chosen_solver({**limited, "record": "own.chip"}).record == "own.chip"
        assert chosen_solver("exact") == "exact"
    assert chosen_solver(limited).record is None
