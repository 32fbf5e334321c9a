import re
import sys
from importlib.metadata import EntryPoint

import pytest
from rich.console import Console
from typer.testing import CliRunner

import qpsbgd
from qpsbgd import cli
from qpsbgd.cli import app
from qpsbgd.cli import solvers as listing
from qpsbgd.cli.app import SOLVE, application
from qpsbgd.solvers import SOLVERS


def test_the_version_is_printed():
    assert CliRunner().invoke(application(), ["--version"]).stdout.strip() == qpsbgd.__version__


def test_solve_is_the_command_of_the_solvers_package(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["qpsbgd", "solve", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("usage: qpsbgd solve") and SOLVE in shown


def test_a_package_whose_command_cannot_be_loaded_breaks_no_other(monkeypatch, capsys):
    broken = EntryPoint("broken", "no_such_module:command", cli.COMMANDS)
    monkeypatch.setattr(app, "entry_points", lambda group: [broken])
    for command, code in (("solvers", 0), ("deploy", 0), ("broken", 1)):
        monkeypatch.setattr(sys, "argv", ["qpsbgd", command, "--help"])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == code
    assert "no_such_module" in capsys.readouterr().err


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setattr(listing, "console", Console(width=400))


def test_solvers_are_listed_with_whether_they_can_be_used(wide):
    listed = CliRunner().invoke(application(), ["solvers"]).stdout
    assert all(name in listed for name in SOLVERS)
    assert re.search(r"\ndimod +yes .*(\n +yes +sampler=[\w-]+ *)*\n +yes +sampler=tabu *\n", listed)


@pytest.mark.parametrize(
    ("package", "row"),
    [
        ("gurobipy", r"gurobi +no +.*pip install 'qpsbgd-qubo\[gurobi\]'"),
        ("dwave.system", r"leap-hybrid +no +.*pip install 'qpsbgd-qubo\[dwave\]'"),
    ],
)
def test_what_lacks_a_package_is_listed_with_its_install_line(wide, monkeypatch, package, row):
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("solvers.external.dimod", "solvers.external.gurobi", "annealers.dwave", "annealers.leap_hybrid"):
        monkeypatch.delitem(sys.modules, f"qpsbgd_qubo.{name}", raising=False)
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


def test_without_arguments_the_help_is_shown(monkeypatch, capsys):
    code, out, err = called(monkeypatch, capsys)
    assert code in (0, 2)  # depends on typer's version
    assert "Usage: qpsbgd" in out + err
    assert "error:" not in out + err


def called(monkeypatch, capsys, *arguments):
    """What the command prints, on success and on failure."""
    monkeypatch.setattr(sys, "argv", ["qpsbgd", *map(str, arguments)])
    monkeypatch.setattr(listing, "console", Console(width=400))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return stop.value.code, out, err
