import json
import sys
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from small_cifar import archive, batches, made

from qpsbgd.cli import main
from qpsbgd_paper.cli import run as running
from qpsbgd_paper.datasets.cifar import ARCHIVE
from qpsbgd_paper.experiments import cifar, make_experiment
from qpsbgd_paper.experiments.cifar import Cifar, split
from qpsbgd_paper.framework.methods import FROZEN

CONTENT = made(8)


@pytest.fixture(autouse=True)
def _unread():
    read = cifar._loaded
    read.cache_clear()
    yield
    read.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with 40 training and 8 test images."""
    found = tmp_path / "data"
    (found / "cifar-10").mkdir(parents=True)
    train = [np.concatenate([CONTENT[f"data_batch_{k}"][kind] for k in range(1, 6)]) for kind in (0, 1)]
    test = CONTENT["test_batch"]
    arrays = {"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1]}
    np.savez(found / "cifar-10" / "images.npz", **arrays)
    monkeypatch.setenv("QPSBGD_DATA", str(found))
    return found


@pytest.fixture
def small(monkeypatch):
    """The command's experiment with a small network and one seed."""
    monkeypatch.setattr(running, "make_experiment", lambda name: replace(make_experiment(name), depth=8, seeds=1))


def called(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["qpsbgd", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    return stop.value.code or 0, out, err


def jobs(experiment):
    (case,) = experiment.cases()
    for name, line in experiment.lines(case).items():
        yield {"case": case.name, "line": name, **experiment.job(case, line, line.grid[0]), "choosing": False}


@pytest.mark.slow
def test_a_quick_run_has_every_method_and_goes_on_from_what_is_done(folder, small, tmp_path, monkeypatch, capsys):
    arguments = ("run", "cifar", "--quick", "--workers", 1, "--out", tmp_path / "out")
    code, out, err = called(monkeypatch, capsys, *arguments)
    assert code == 0, err
    assert "straight-through (Muon)" in out
    result = json.loads((tmp_path / "out/cifar.json").read_text(encoding="utf-8"))
    (case,) = result["cases"]
    rows = {row["line"]: row for row in case["rows"]}
    assert list(rows) == ["qpsbgd-ridge", "qpsbgd-polar", "qpsbgd", "st-adamw", "st-muon", "bc-adam", FROZEN]
    assert all(0 <= row["values"]["final"][0] <= 1 for row in rows.values())
    assert all(row["curves"]["accuracy"]["x"] == [1, 2, 3, 4] for row in rows.values())
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").iterdir()}
    assert len(kept) == len(rows)
    next(iter(kept)).unlink()
    assert called(monkeypatch, capsys, *arguments)[0] == 0
    now = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").iterdir()}
    assert now.keys() == kept.keys() and sum(now[path] != kept[path] for path in kept) == 1
    assert called(monkeypatch, capsys, "report", "--results", tmp_path / "out", "--figures", "svg")[0] == 0
    assert "ResNet-20" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


def test_runs_of_a_seed_share_start_and_batches_and_can_be_repeated(folder, monkeypatch):
    fitted, seen = cifar.fit, []

    def watched(model, loss, *, rows, optimizers, **others):
        start = [parameter.detach().clone() for parameter in model.parameters()]
        drawn = []
        rows = (drawn.append(batch.tolist()) or batch for batch in rows)
        found = fitted(model, loss, rows=rows, optimizers=optimizers, **others)
        still = [
            name for name, now in zip(names(model), map(torch.equal, start, model.parameters()), strict=True) if now
        ]
        seen.append((start, drawn, torch.rand(1).item(), still))
        return found

    def names(model):
        return [name for name, _ in model.named_parameters()]

    monkeypatch.setattr(cifar, "fit", watched)
    monkeypatch.setattr(cifar, "BATCH", 20)
    experiment = replace(Cifar(), depth=8, epochs=1)
    found = {job["line"]: cifar.train(**job, seed=3) for job in jobs(experiment)}
    first = seen[0]
    for start, drawn, after, _ in seen[1:]:
        assert all(map(torch.equal, start, first[0])) and (drawn, after) == (first[1], first[2])
    assert [len(batch) for batch in first[1]] == [20, 20]
    for line, (*_, still) in zip(found, seen, strict=True):
        binary = [name for name in still if name.endswith(("first.weight", "second.weight"))]
        assert len(binary) == (6 if line == FROZEN else 0), line
        assert len(still) == len(binary), "everything else is trained"
    job = next(jobs(experiment))
    assert cifar.train(**job, seed=3) == found[job["line"]]


@pytest.mark.slow
def test_dark_and_bright_images_are_told_apart(folder, monkeypatch):
    found = cifar._loaded()
    labels = {"train_labels": found.train_labels // 5, "test_labels": found.test_labels // 5}
    monkeypatch.setattr(cifar, "_loaded", lambda: replace(found, **labels))
    monkeypatch.setattr(cifar, "BATCH", 8)
    for job in islice(jobs(replace(Cifar(), depth=8, epochs=8)), 2):
        assert cifar.train(**job, seed=0)["final"] >= 7 / 8, "labels 0 to 4 are the darker ones"


def test_options_are_never_chosen_on_test_images(folder):
    train, _, held, labels = split(None, choosing=True)
    assert (len(train), len(held), len(labels)) == (36, 4, 4)
    whole, _, test, _ = split(None, choosing=False)
    assert torch.equal(torch.cat([train, held]), whole) and len(test) == 8
    assert [len(part) for part in split(10, choosing=False)] == [10, 10, 8, 8]


def test_without_data_the_command_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("QPSBGD_DATA", str(tmp_path / "empty"))
    code, _, err = called(monkeypatch, capsys, "run", "cifar", "--out", tmp_path / "out")
    assert code == 1
    assert ARCHIVE in err and f"`qpsbgd data fetch cifar-10 --data {tmp_path / 'empty'}`" in err
    assert not list((tmp_path / "out/runs").iterdir())


def test_the_archive_is_fetched_with_a_progress_bar(small, publish, origin, tmp_path, monkeypatch, capsys):
    content = archive(batches(CONTENT))
    publish({ARCHIVE: content}, origins=(origin.address,))
    monkeypatch.delenv("QPSBGD_DATA", raising=False)
    monkeypatch.setenv("QPSBGD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cifar.Cifar, "work", staticmethod(lambda **_: {"accuracy": [0.1] * 4, "final": 0.1}))
    arguments = ("run", "cifar", "--quick", "--workers", 1, "--out", tmp_path / "out")
    code, _, err = called(monkeypatch, capsys, *arguments)
    assert code == 0, err
    assert "100%" in err
    assert (tmp_path / "cache" / ARCHIVE).read_bytes() == content
