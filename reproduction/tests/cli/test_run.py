import io
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from qpsbgd import cli
from qpsbgd_paper.cli import run as running
from qpsbgd_paper.experiments import EXPERIMENTS, logreg
from qpsbgd_paper.framework.checksums import with_checksum, without_checksum
from qpsbgd_paper.framework.methods import DWAVE

PAPER = Path(__file__).parents[2] / "results" / "paper"


def called(monkeypatch, capsys, *arguments):
    """Exit code and what the command prints, on success and on failure."""
    monkeypatch.setattr(sys, "argv", ["qpsbgd", *map(str, arguments)])
    monkeypatch.setattr(running, "console", Console(width=200))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def command(*arguments):
    return [sys.executable, "-m", "qpsbgd.cli", *map(str, arguments)]


def started(*arguments, until):
    """The command, running until `until()` holds."""
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Tests that run in the background of a shell inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not until() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    return process


class Tiny(logreg.LogReg):
    """The experiment logreg in a few short runs, none of them on a chip."""

    def lines(self, case):
        return {name: line for name, line in super().lines(case).items() if name != DWAVE}

    def claims(self):
        return [replace(claim, against=("bc-sgd",)) for claim in super().claims() if claim.line != DWAVE]

    def prepare(self):
        pass

    def quick(self):
        return self


TINY = Tiny(seeds=2, choosing_seeds=0, points=10, steps=20)


@pytest.fixture
def tiny(monkeypatch):
    """`qpsbgd run logreg` is a few short runs."""
    monkeypatch.setattr(running, "make_experiment", lambda name: TINY)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a small run, and what was printed."""
    folder = tmp_path_factory.mktemp("run")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(running, "make_experiment", lambda name: TINY)
        patch.setattr(running, "console", Console(width=200))
        running.run(["logreg"], seeds=1, workers=1, out=folder)
    return folder, printed.getvalue()


def test_a_run_prints_tables_and_verdicts_and_keeps_results(finished):
    folder, printed = finished
    assert "QP-SBGD as printed, scale" in printed
    assert re.search(r"QP-SBGD \(G\) is best .*(yes|no|cannot tell)", printed)
    assert f"qpsbgd report --results {folder}" in printed.replace("\n", "")
    summary = json.loads((folder / "logreg.json").read_text(encoding="utf-8"))
    assert summary["command"] == "qpsbgd run logreg"
    assert summary["seeds"] == 1
    assert {"torch", "qpsbgd", "machine", "cpus"} <= set(summary["made with"])
    run = next((folder / "runs").glob("logreg-*.json"))
    assert len(json.loads(run.read_text(encoding="utf-8"))["result"][summary["series"][0]["key"]]) >= 20


def test_the_report_is_one_page_that_needs_no_network(finished, monkeypatch, capsys):
    folder, _ = finished
    code, out, _ = called(monkeypatch, capsys, "report", "--results", folder)
    assert code == 0 and "report.html" in out
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "qpsbgd run logreg" in page
    assert not re.search(r"(src|href)=.?http|url\(http|@import", page)
    for name in ("logreg.svg", "logreg.png"):
        assert (folder / "figures" / name).stat().st_size > 1000


def test_a_second_run_reuses_finished_runs(tiny, finished, monkeypatch, capsys):
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}
    arguments = ("run", "logreg", "--quick", "--seeds", 2, "--workers", 1, "--out", folder)
    code, out, err = called(monkeypatch, capsys, *arguments)
    assert code == 0, err
    assert "are reused" in out
    assert json.loads((folder / "logreg.json").read_text(encoding="utf-8"))["seeds"] == 2
    assert all(path.stat().st_mtime_ns == made for path, made in before.items())


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_is_done_and_goes_on(tmp_path):
    arguments = ("demo", "--out", tmp_path, "--seeds", 1, "--epochs", 1)
    process = started(*arguments, until=lambda: len(list(tmp_path.glob("runs/*.json"))) >= 3)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*.json")}
    assert process.returncode == 130, output
    assert "Finished runs are kept" in output
    assert "Traceback" not in output
    assert len(kept) >= 3

    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(path.stat().st_mtime_ns == made for path, made in kept.items())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "data:image/svg+xml" in page and "QP-SBGD" in page and "qpsbgd demo" in page
    assert {"digits.json", "tour.json"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are looked up in /proc")
def test_processes_end_with_a_parent_that_was_killed(tmp_path):
    process = started(
        *("demo", "--out", tmp_path, "--seeds", 1, "--epochs", 1),
        until=lambda: list(tmp_path.glob("runs/*.json")),
    )
    children = [int(pid) for pid in _children(process.pid)]
    assert children
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 30
    while any(_runs(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in children if _runs(pid)]
    assert all(json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("runs/*.json"))


def _children(pid):
    return (Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text(encoding="utf-8").split()


def _runs(pid):
    try:
        state = (Path("/proc") / str(pid) / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "coral"], "unknown experiment 'coral'"),
        (["run", "logreg", "--solver", "replay"], "needs --option path="),
        (["run", "logreg", "--solver", "dwave"], "give --option max_qpu_seconds"),
        (["run", "logreg", "--option", "seed=1"], "belongs to a solver: name it"),
        (["run", "logreg", "--solver", "exacct"], "unknown solver 'exacct'"),
        (["run", "logreg", "-o", "file"], "--out must be a folder, but file is a file"),
        (["demo", "-o", "file/x"], "--out must be a folder, but file is a file"),
        (["report"], "there are no results in results/paper or results/quick"),
        (["report", "--results", "nowhere"], "there are no results in nowhere"),
    ],
)
def test_what_is_invalid_is_one_line(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    code, _, err = called(monkeypatch, capsys, *arguments)
    assert code == 1
    assert message in err
    assert "Traceback" not in err


def test_missing_data_is_an_error_before_anything_is_trained(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("QPSBGD_DATA", str(tmp_path / "empty"))
    code, _, err = called(monkeypatch, capsys, "run", "logreg", "adult-2", "--out", tmp_path / "out")
    assert code == 1
    assert "adult/a1a" in err and "qpsbgd data fetch" in err
    assert not list((tmp_path / "out" / "runs").iterdir())


def test_a_missing_package_is_named_with_the_line_to_install(monkeypatch, capsys):
    monkeypatch.setattr(running, "find_spec", lambda name: None if name == "skimage" else name)
    monkeypatch.setattr(running, "_run", lambda *_, **__: [])
    code, _, err = called(monkeypatch, capsys, "run", "logreg")
    assert code == 1
    assert "needs skimage: pip install './reproduction[paper]'" in err.replace("\n", " ")


def test_a_damaged_result_is_refused_by_the_report(monkeypatch, capsys, tmp_path):
    (tmp_path / "logreg.json").write_text('{"experiment": "cora"}', encoding="utf-8")
    code, _, err = called(monkeypatch, capsys, "report", "--results", tmp_path)
    assert code == 1
    assert "logreg.json is not a result" in err


@pytest.mark.parametrize(
    "change",
    [
        {"cases": [3]},
        {"metrics": None},
        {"metrics": [{}]},
        {"series": 2.5},
        {"figures": "x"},
        {"tables": [{"title": "T", "head": ["a"]}]},
        {"claims": [{"source": [None]}]},
        {"made with": [1]},
        {"seconds of training": 10**400},
    ],
)
def test_a_result_of_another_form_is_refused_by_the_report_in_one_line(change, monkeypatch, capsys, tmp_path):
    for name, changed in (("logreg", {}), ("cora", change)):
        content = without_checksum((PAPER / f"{name}.json").read_bytes()) | changed
        (tmp_path / f"{name}.json").write_bytes(with_checksum(content))
    code, _, err = called(monkeypatch, capsys, "report", "--results", tmp_path)
    assert code == 1
    assert re.search(r"cora.json (is not|has not the form of) a result of `qpsbgd run`", err.replace("\n", " "))


def test_the_report_replaces_reports_alone(monkeypatch, capsys, tmp_path):
    page = tmp_path / "report.html"
    (tmp_path / "cora.json").write_bytes((PAPER / "cora.json").read_bytes())
    for _ in range(2):
        assert called(monkeypatch, capsys, "report", "--results", tmp_path)[0] == 0
    page.write_text("mine", encoding="utf-8")
    code, _, err = called(monkeypatch, capsys, "report", "--results", tmp_path)
    assert code == 1 and "is there already and no report of ours" in err.replace("\n", " ")
    assert page.read_text(encoding="utf-8") == "mine"


def test_all_means_every_experiment_of_the_paper(monkeypatch, capsys, tmp_path):
    seen = []
    monkeypatch.setattr(running, "_run", lambda experiments, **_: seen.extend(e.name for e in experiments))
    code, _, _ = called(monkeypatch, capsys, "run", "all", "--quick", "--solver", "annealing", "--out", tmp_path)
    assert code == 0
    assert seen == list(EXPERIMENTS)


def test_a_solver_can_be_given_options(tiny, tmp_path, monkeypatch, capsys):
    arguments = ("--solver", "annealing", "--option", "sweeps=7", "--workers", 1, "--out", tmp_path)
    code, _, _ = called(monkeypatch, capsys, "run", "logreg", "--quick", *arguments)
    assert code == 0
    summary = json.loads((tmp_path / "logreg.json").read_text(encoding="utf-8"))
    (row,) = [row for row in summary["cases"][0]["rows"] if row["line"] == "qpsbgd-annealing"]
    assert row["options"]["solver"] == {"name": "annealing", "sweeps": 7}
    assert summary["about"].startswith("A quick look")
