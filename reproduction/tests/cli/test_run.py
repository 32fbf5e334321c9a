import io
import json
import os
import re
import shutil
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
from qpsbgd_paper.experiments import EXPERIMENTS, logreg, make_experiment
from qpsbgd_paper.framework.methods import DWAVE
from qpsbgd_qubo.annealers.budget import BudgetSpent
from qpsbgd_qubo.files.atomic import with_checksum


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


def test_a_page_that_is_not_ours_is_overwritten_only_by_force(finished, monkeypatch, capsys, tmp_path):
    page, arguments = (
        tmp_path / "report.html",
        ("report", "--results", finished[0], "--out", tmp_path, "--figures", "svg"),
    )
    page.write_text("<html>Mine", encoding="utf-8")
    code, _, err = called(monkeypatch, capsys, *arguments)
    assert code == 1 and "report.html is there already" in err and "--force" in err
    assert page.read_text(encoding="utf-8") == "<html>Mine"
    code, _, err = called(monkeypatch, capsys, "demo", "--out", tmp_path)
    assert code == 1 and "--out" in err, "before anything is trained"
    assert called(monkeypatch, capsys, *arguments, "--force")[0] == 0
    assert called(monkeypatch, capsys, *arguments)[0] == 0, "a report may be replaced"


def test_a_second_run_reuses_and_replaces_nothing_in_silence(tiny, finished, monkeypatch, capsys):
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}
    arguments = ("run", "logreg", "--quick", "--seeds", 2, "--workers", 1, "--out", folder)
    code, out, err = called(monkeypatch, capsys, *arguments)
    assert code == 0, err
    assert "are reused" in out
    assert "An earlier result with other numbers is kept as" in out.replace("\n", " ")
    assert json.loads((folder / "logreg.1.json").read_text(encoding="utf-8"))["seeds"] == 1
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
        (["run", "logreg", "--dask", "tcp://127.0.0.1:9", "--data", "."], "--data is a folder of this machine"),
        (
            ["run", "logreg", "--dask", "x:1", "--solver", "dwave", "--option", "max_qpu_seconds=1"],
            "answers of 'dwave' are kept on this machine",
        ),
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


def test_a_stopped_run_says_how_to_go_on(tiny, monkeypatch, capsys, tmp_path):
    def stopped(events):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "show", stopped)
    code, out, _ = called(monkeypatch, capsys, "run", "logreg", "--workers", 1, "--fresh", "--out", tmp_path)
    assert code == 130
    assert "without --fresh" in out


@pytest.mark.filterwarnings("default")
def test_damaged_files_of_earlier_runs_are_named(tiny, finished, monkeypatch, capsys, tmp_path):
    shutil.copytree(finished[0], tmp_path / "out")
    (tmp_path / "out" / "logreg.json").write_text("{", encoding="utf-8")
    kept = (tmp_path / "out" / "runs").glob("*.json")
    next(path for path in kept if b'"seed": 0' in path.read_bytes()).write_text("{", encoding="utf-8")
    arguments = ("run", "logreg", "--workers", 1, "--seeds", 1, "--out", tmp_path / "out")
    code, out, err = called(monkeypatch, capsys, *arguments)
    assert code == 0
    assert re.search(r"earlier result .*damaged.*logreg\.\d\.json", out)
    assert re.fullmatch(r"warning: .* is damaged.* is done again\n", err)


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


def test_a_report_needs_a_folder(finished, monkeypatch, capsys):
    file = finished[0] / "logreg.json"
    code, _, err = called(monkeypatch, capsys, "report", "--results", finished[0], "--out", file)
    assert code == 1
    assert "--out must be a folder" in err


def test_a_damaged_result_is_refused_by_the_report(monkeypatch, capsys, tmp_path):
    (tmp_path / "logreg.json").write_text('{"experiment": "cora"}', encoding="utf-8")
    code, _, err = called(monkeypatch, capsys, "report", "--results", tmp_path)
    assert code == 1
    assert "logreg.json is not a result" in err


def test_all_means_every_experiment_of_the_paper(monkeypatch, capsys, tmp_path):
    seen = []
    monkeypatch.setattr(running, "_run", lambda experiments, **_: seen.extend(e.name for e in experiments))
    code, _, _ = called(monkeypatch, capsys, "run", "all", "--quick", "--solver", "annealing", "--out", tmp_path)
    assert code == 0
    assert seen == list(EXPERIMENTS)


def test_the_data_folder_of_the_command_line_reaches_the_processes(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(running, "_run", lambda *_, **__: [])
    monkeypatch.setenv("QPSBGD_DATA", "before")
    called(monkeypatch, capsys, "run", "cora", "--data", tmp_path, "--out", tmp_path)
    assert os.environ["QPSBGD_DATA"] == str(tmp_path)


def test_a_solver_can_be_given_options(tiny, tmp_path, monkeypatch, capsys):
    arguments = ("--solver", "annealing", "--option", "sweeps=7", "--workers", 1, "--out", tmp_path)
    code, _, _ = called(monkeypatch, capsys, "run", "logreg", "--quick", *arguments)
    assert code == 0
    summary = json.loads((tmp_path / "logreg.json").read_text(encoding="utf-8"))
    (row,) = [row for row in summary["cases"][0]["rows"] if row["line"] == "qpsbgd-annealing"]
    assert row["options"]["solver"] == {"name": "annealing", "sweeps": 7}
    assert summary["about"].startswith("A quick look")


def test_without_a_name_all_names_are_listed_with_a_line_each(monkeypatch, capsys):
    code, out, _ = called(monkeypatch, capsys, "run")
    assert code == 2, "nothing was run"
    listed = dict(line.split(maxsplit=1) for line in out.splitlines()[1:])
    assert listed == {name: make_experiment(name).title for name in EXPERIMENTS}


def test_a_spent_budget_ends_the_command_with_one_line_and_keeps_what_is_done(tiny, tmp_path, monkeypatch, capsys):
    trained = logreg.train

    def until_it_is_spent(**job):
        if job["line"] == "bc-sgd" and job["seed"] == 1:
            raise BudgetSpent("the next step would pass max_qpu_seconds = 2, of which 1.9 are spent")
        return trained(**job)

    until_it_is_spent.__module__, until_it_is_spent.__name__ = trained.__module__, trained.__name__
    monkeypatch.setattr(logreg.LogReg, "work", staticmethod(until_it_is_spent))
    arguments = ("run", "logreg", "--workers", 1, "--out", tmp_path)
    code, _, err = called(monkeypatch, capsys, *arguments)
    assert code == 1
    assert "error: logreg: the run with case \"paper's learning rates\", line 'bc-sgd'" in err
    assert "seed 1" in err and "1.9 are spent" in err and "goes on from here" in err
    assert "Traceback" not in err
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*.json")}
    assert kept and not (tmp_path / "logreg.json").exists()
    monkeypatch.setattr(logreg.LogReg, "work", staticmethod(trained))
    assert called(monkeypatch, capsys, *arguments)[0] == 0
    assert all(path.stat().st_mtime_ns == made for path, made in kept.items())


def test_a_run_that_diverges_is_shown_and_the_others_too(tiny, tmp_path, monkeypatch, capsys):
    trained = logreg.train

    def diverging(**job):
        found = trained(**job)
        return {**found, "late_loss": float("nan")} if job["line"] == "bc-sgd" else found

    monkeypatch.setattr(logreg.LogReg, "work", staticmethod(diverging))
    code, out, err = called(monkeypatch, capsys, "run", "logreg", "--workers", 1, "--out", tmp_path)
    assert code == 0, err
    assert "not finite" in out
    assert called(monkeypatch, capsys, "report", "--results", tmp_path)[0] == 0
    assert "not finite" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_figures_come_in_the_formats_that_are_wanted(finished, monkeypatch, capsys, tmp_path):
    folder, _ = finished
    arguments = ("report", "--results", folder, "--out", tmp_path, "--figures")
    assert called(monkeypatch, capsys, *arguments, "pdf, PNG")[0] == 0
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["logreg.pdf", "logreg.png"]
    assert (tmp_path / "figures" / "logreg.pdf").read_bytes().startswith(b"%PDF")
    code, _, err = called(monkeypatch, capsys, *arguments, "gif")
    assert code == 1
    assert "drawn as svg, png, pdf, not as 'gif'" in err


@pytest.fixture(scope="module")
def scheduler():
    """The address of a Dask cluster with two worker processes on this machine."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of Dask's own threads
def test_a_run_on_a_dask_cluster_gives_the_numbers_of_a_run_here(scheduler, tiny, tmp_path, monkeypatch, capsys):
    for place, options in (("here", ("--workers", 2)), ("there", ("--dask", scheduler))):
        code, _, err = called(monkeypatch, capsys, "run", "logreg", *options, "--out", tmp_path / place)
        assert code == 0, err
    here, there = (
        json.loads((tmp_path / place / "logreg.json").read_text(encoding="utf-8")) for place in ("here", "there")
    )
    assert (here["cases"], here["claims"]) == (there["cases"], there["claims"])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_interrupted_run_on_a_dask_cluster_leaves_nothing_there_and_goes_on(scheduler, tmp_path):
    import distributed

    arguments = ("run", "logreg", "--quick", "--dask", scheduler, "--out", tmp_path)
    process = started(*arguments, until=lambda: len(list(tmp_path.glob("runs/*.json"))) >= 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*.json")}
    assert process.returncode == 130, output
    assert "Finished runs are kept" in output and "Traceback" not in output
    with distributed.Client(scheduler, set_as_default=False) as client:
        deadline = time.monotonic() + 60
        while any(client.processing().values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(client.processing().values())
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert kept and all(path.stat().st_mtime_ns == made for path, made in kept.items())


@pytest.fixture
def written(monkeypatch):
    """What `qpsbgd report` would write: the names of the experiments, and the folder."""
    found = []
    monkeypatch.setattr(
        running, "_write_report", lambda summaries, out, **_: found.append(([s["experiment"] for s in summaries], out))
    )
    return found


def stored(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.json").write_bytes(with_checksum({"experiment": name.split(".")[0], "title": "T"}))


def test_after_a_quick_run_the_report_finds_its_results_and_says_so(written, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "results/quick", "logreg")
    code, out, _ = called(monkeypatch, capsys, "report")
    assert code == 0
    assert "There are no results in results/paper; these are the quick ones in results/quick." in out
    stored(tmp_path / "results/paper", "cora")
    code, out, _ = called(monkeypatch, capsys, "report")
    assert "quick" not in out
    assert written == [(["logreg"], Path("results/quick")), (["cora"], Path("results/paper"))]


def test_the_report_has_every_experiment_of_the_folder_and_no_earlier_results(written, monkeypatch, capsys, tmp_path):
    stored(tmp_path, "logreg", "logreg.1", "digits", "cora", "mine")
    (tmp_path / "notes.json").write_text("[1]", encoding="utf-8")
    code, *_ = called(monkeypatch, capsys, "report", "--results", tmp_path)
    assert code == 0
    assert written == [(["digits", "logreg", "cora", "mine"], tmp_path)]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_commands_work_in_80_columns_and_locales_without_unicode(tmp_path_factory, tmp_path, encoding):
    folder = tmp_path_factory.getbasetemp() / "locales"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding, "COLUMNS": "80"}
    for arguments in (
        ("run", "logreg", "--quick", "--seeds", 1, "--workers", 1, "--out", folder),
        ("run",),
        ("run", "--help"),
        ("report", "--results", folder, "--out", tmp_path),
        ("data", "list", "--data", tmp_path),
        ("data", "check", "--data", tmp_path),
    ):
        done = subprocess.run(command(*arguments), capture_output=True, timeout=300, env=environment)
        shown = (done.stdout + done.stderr).decode(encoding)
        assert "codec" not in shown and "Traceback" not in shown, arguments
        assert done.returncode == (2 if arguments == ("run",) else 1 if "check" in arguments else 0), shown
        if "logreg" in arguments:
            assert {"(signSGD)", "ProxQuant", "learning"} <= set(shown.split()), "words of the table are not broken"
