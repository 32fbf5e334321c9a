import re
import sys

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import qpsbgd
from qpsbgd import cli
from qpsbgd.cli import solve as solving
from qpsbgd.cli.app import application
from qpsbgd.qubo.problem_files import save_family
from qpsbgd.solvers import SOLVERS
from qpsbgd.solvers.search.descent import Descent
from qpsbgd.testing import random_family


def test_the_version_is_printed():
    assert CliRunner().invoke(application(), ["--version"]).stdout.strip() == qpsbgd.__version__


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setattr(solving, "console", Console(width=400))


def test_solvers_are_listed_with_whether_they_can_be_used(wide):
    listed = CliRunner().invoke(application(), ["solvers"]).stdout
    assert all(name in listed for name in SOLVERS)
    assert re.search(r"dimod sampler=tabu +yes", listed)


@pytest.mark.parametrize(
    ("package", "row"),
    [
        ("dimod", r"dimod +no +.*pip install 'qpsbgd\[dimod\]'"),
        ("gurobipy", r"gurobi +no +.*pip install 'qpsbgd\[gurobi\]'"),
        ("openjij", r"dimod sampler=openjij +no +.*pip install 'qpsbgd\[openjij\]'"),
        ("dwave.system", r"leap-hybrid +no +.*pip install 'qpsbgd\[dwave\]'"),
    ],
)
def test_what_lacks_a_package_is_listed_with_its_install_line(wide, monkeypatch, package, row):
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("dimod", "gurobi", "dwave", "leap_hybrid"):
        monkeypatch.delitem(sys.modules, f"qpsbgd.solvers.{name}", raising=False)
    assert re.search(row, CliRunner().invoke(application(), ["solvers"]).stdout)


def test_a_solver_without_licence_is_listed_with_the_reason(wide, monkeypatch, tmp_path):
    monkeypatch.setenv("GRB_LICENSE_FILE", str(tmp_path / "none.lic"))
    assert re.search(
        r"gurobi +no +Gurobi finds no valid licence", CliRunner().invoke(application(), ["solvers"]).stdout
    )


@pytest.mark.parametrize("arguments", [["demo", "--seeds", "0"], ["demo", "--sedes", "1"], ["dmeo"]])
def test_wrong_arguments_are_refused(arguments):
    assert CliRunner().invoke(application(), arguments).exit_code == 2


def test_an_error_that_a_user_can_mend_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["qpsbgd", "demo", "--out", str(tmp_path / "file" / "x"), "--seeds", "1"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert "error:" in capsys.readouterr().err


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """A problem of Beasley's format in the current folder: x₁ alone gives the highest value, 5, x₃ alone the lowest."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("3 4\n1 1 5\n1 2 -3\n2 2 4\n3 3 -1\n", encoding="utf-8")
    return tmp_path / "p.txt"


def called(monkeypatch, capsys, *arguments):
    """What the command prints, on success and on failure."""
    monkeypatch.setattr(sys, "argv", ["qpsbgd", *map(str, arguments)])
    monkeypatch.setattr(solving, "console", Console(width=400))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_solve_prints_and_writes_the_answer_in_the_problems_own_terms(problem, monkeypatch, capsys):
    code, out, _ = called(monkeypatch, capsys, "solve", problem)
    assert code == 0
    assert re.search(r"n = 3 variables \(BINARY\), m = 1\n", out)
    assert re.search(r"best energy +-1\n", out)
    assert re.search(r"proven optimal +yes\n", out)
    assert re.search(r"solver +exact", out)
    assert re.search(r"time +[\d.e-]+ s\n", out)
    assert np.loadtxt("spins.txt").tolist() == [[1, 0], [2, 0], [3, 1]]


def test_solve_maximizes_on_demand(problem, monkeypatch, capsys):
    _, out, _ = called(monkeypatch, capsys, "solve", problem, "--maximize", "--out", "best.txt")
    assert re.search(r"best energy +5\n", out)
    assert np.loadtxt("best.txt").tolist() == [[1, 1], [2, 0], [3, 0]]


def test_solve_gives_options_and_seed_to_the_solver(problem, monkeypatch, capsys):
    given = []
    monkeypatch.setattr(Descent, "__post_init__", lambda self: given.append(self))
    options = ["--option", "tabu=7", "--option", "max_flips=none", "--seed", "3"]
    code, out, _ = called(monkeypatch, capsys, "solve", problem, "--solver", "descent", *options)
    assert code == 0
    assert "descent, " in out
    assert given[0] == Descent(tabu=7, max_flips=None, seed=3)


def test_solve_takes_names_and_mappings_as_options(problem, monkeypatch, capsys):
    options = ["--option", "sampler=tabu", "--option", "parameters={'timeout': 5}"]
    _, out, _ = called(monkeypatch, capsys, "solve", problem, "--solver", "dimod", *options)
    assert re.search(r"solver +dimod, sampler tabu\n", out)


def test_solve_answers_a_family_recorded_from_training(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    save_family("f.npz", random_family(6, 3, 8))
    _, out, _ = called(monkeypatch, capsys, "solve", "f.npz")
    assert re.search(r"n = 6 variables \(SPIN\), m = 3\n", out)
    assert re.search(r"proven optimal +3 of 3\n", out)
    assert set(np.loadtxt("spins.txt")[:, 1:].ravel()) == {-1.0, 1.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nix.txt"], r"No such file.*nix\.txt"),
        (["p.csv"], r"p\.csv: a problem file must end in \.txt"),
        (["p.txt", "--number", "2"], "no number 2"),
        (["p.txt", "--solver", "magic"], "unknown solver 'magic'"),
        (["p.txt", "--option", "seed"], "--option must be key=value, got 'seed'"),
        (["p.txt", "--option", "sweeps=3"], "'auto' has no option sweeps"),
        (["p.txt", "--solver", "exact", "--seed", "1"], "'exact' has no option seed"),
        (["p.txt", "--out", "no/folder/s.txt"], "--out must name a file"),
        (["p.txt", "--out", "p.txt"], "--out must name a file, not the problem's own"),
        (["p.txt", "--solver", "dimod", "--option", "sampler=crystal-ball"], "unknown sampler"),
    ],
)
def test_what_solve_cannot_do_is_told_in_one_line(problem, monkeypatch, capsys, arguments, message):
    code, out, err = called(monkeypatch, capsys, "solve", *arguments)
    assert code == 1
    assert re.search(message, err)
    assert err.count("\n") == 1
    assert out == ""
    assert [path.name for path in problem.parent.iterdir()] == ["p.txt"]


def test_an_install_line_is_told_with_its_brackets(problem, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "dwave.system", None)
    monkeypatch.delitem(sys.modules, "qpsbgd.solvers.annealer.dwave", raising=False)
    _, _, err = called(monkeypatch, capsys, "solve", problem, "--solver", "dwave")
    assert "pip install 'qpsbgd[dwave]'" in err


def test_an_interrupted_solve_writes_nothing(problem, monkeypatch, capsys):
    def interrupted(self, family):
        raise KeyboardInterrupt

    monkeypatch.setattr(Descent, "solve", interrupted)
    code, out, _ = called(monkeypatch, capsys, "solve", problem, "--solver", "descent")
    assert code == 130
    assert "nothing was written" in out
    assert [path.name for path in problem.parent.iterdir()] == ["p.txt"]
