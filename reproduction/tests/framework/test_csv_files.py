import csv

import pytest

from qpsbgd_paper.framework.experiment import Study
from qpsbgd_paper.framework.result_files import COLUMNS, write_csv
from qpsbgd_paper.framework.runs import run_jobs


def third(*, seed, width):
    return {"third": seed / 3, "loss": float("inf") if seed else 0.5, "curve": [1, 2], "kind": 'a "b", c'}


class Thirds(Study):
    name, title, about, paper = "thirds", "T", "", ""
    work = staticmethod(third)

    def jobs(self):
        return [{"seed": seed, "width": 4} for seed in (0, 1)]

    def quick(self):
        return self

    def shown(self, results):
        return {}


def read(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_every_figure_of_a_run_is_a_row_in_full_precision(tmp_path):
    list(run_jobs(third, Thirds().jobs(), experiment="thirds", folder=tmp_path / "runs"))
    write_csv(tmp_path / "x.csv", [Thirds()], folder=tmp_path / "runs")
    rows = read(tmp_path / "x.csv")
    assert tuple(rows[0]) == COLUMNS
    found = {(row["seed"], row["metric"]): row["value"] for row in rows}
    assert float(found["1", "third"]) == 1 / 3
    assert (found["0", "loss"], found["1", "loss"]) == ("0.5", ""), "what is not finite is empty"
    assert found["0", "kind"] == 'a "b", c'
    assert {row["metric"] for row in rows} == {"third", "loss", "kind", "seconds"}, "lists are left out"
    assert {row["settings"] for row in rows} == {'{"width": 4}'}


def test_nothing_is_written_while_runs_are_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="are not in"):
        write_csv(tmp_path / "x.csv", [Thirds()], folder=tmp_path / "runs")
    assert not (tmp_path / "x.csv").exists()
