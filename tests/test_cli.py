import sys

import pytest
from typer.testing import CliRunner

import qpsbgd
from qpsbgd import cli
from qpsbgd.solvers import SOLVERS


def test_the_version_is_printed():
    assert CliRunner().invoke(cli.app, ["--version"]).stdout.strip() == qpsbgd.__version__


def test_solvers_are_listed_with_whether_they_can_be_used(monkeypatch):
    result = CliRunner().invoke(cli.app, ["solvers"])
    assert all(name in result.stdout for name in SOLVERS)
    monkeypatch.setitem(sys.modules, "dimod", None)
    monkeypatch.delitem(sys.modules, "qpsbgd.solvers.dimod", raising=False)
    assert "no" in CliRunner().invoke(cli.app, ["solvers"]).stdout


@pytest.mark.parametrize("arguments", [["demo", "--seeds", "0"], ["demo", "--sedes", "1"], ["dmeo"]])
def test_wrong_arguments_are_refused(arguments):
    assert CliRunner().invoke(cli.app, arguments).exit_code == 2


def test_an_error_that_a_user_can_mend_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["qpsbgd", "demo", "--out", str(tmp_path / "file" / "x"), "--seeds", "1"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert "error:" in capsys.readouterr().err
