import re

import pytest
from typer.testing import CliRunner

from qpsbgd.cli.app import application

pytest.importorskip("dwave.graphs")
pytest.importorskip("minorminer")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("QPSBGD_CACHE", str(tmp_path_factory.getbasetemp()))


def called(*arguments):
    return CliRunner().invoke(application(), ["qpu", *map(str, arguments)], terminal_width=120)


def test_the_cost_of_a_run_is_given_for_both_ways_of_sending():
    out = called("estimate", "16-4-4-2", "--steps", 50, "--option", "num_reads=100", "--option", "size=6").stdout
    assert "16-4-4-2 on virtual-pegasus-6, 100 reads" in out
    assert re.search(r"submissions, one step +│ 1 +│ 10 ", out)
    assert re.search(r"submissions, 50 steps +│ 50 +│ 500 ", out)
    assert re.search(r"QPU time, 50 steps +│ 835 ms +│ 8.35 s ", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["16"], "at least two positive numbers"),
        (["16-0"], "at least two positive numbers"),
        (["sixteen-4"], "at least two positive numbers"),
        (["16-4", "--solver", "exact"], "uses no annealer"),
        (["16-4", "--option", "reads=3"], "has no option reads"),
        (["600-4", "--option", "size=3"], "needs a clique of 600 chains, but the largest"),
    ],
)
def test_what_cannot_be_estimated_is_refused(arguments, message):
    result = called("estimate", *arguments)
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
