"""The figures of finished runs as CSV, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpsbgd_paper.framework.result_files import write_bytes

if TYPE_CHECKING:
    from qpsbgd_paper.framework.experiment import Experiment

COLUMNS = ("experiment", "case", "line", "options", "settings", "seed", "metric", "value")


def write_csv(path: Path, experiments: Sequence[Experiment], *, folder: Path) -> None:
    """Write one row per final run and figure, as `csv_rows` has them; the file is there complete or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for experiment in experiments:
        writer.writerows(csv_rows(experiment, folder=folder))
    write_bytes(path, text.getvalue().encode())


def csv_rows(experiment: Experiment, *, folder: Path) -> Iterator[list[Any]]:
    """The `COLUMNS` of every figure of every final run, in full precision; empty where a figure is not finite.

    Options, and settings that have no column, are JSON. Curves and other lists are left out: the runs' own files in
    `folder` hold them.

    Raises:
        FileNotFoundError: Some runs are not done yet.
    """
    for job, result in experiment.finished(folder=folder):
        known = {name: job.get(name, "") for name in ("case", "line", "seed")}
        others = {key: value for key, value in job.items() if key not in (*known, "options", "choosing")}
        before = [experiment.name, known["case"], known["line"], _json(job.get("options", {})), _json(others)]
        for metric, value in result.items():
            if not isinstance(value, list | dict):
                yield [*before, known["seed"], metric, value]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
