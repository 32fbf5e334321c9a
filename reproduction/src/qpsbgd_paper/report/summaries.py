"""Results of experiments as their JSON files hold them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qpsbgd_qubo.files.atomic import without_checksum

Summary = Mapping[str, Any]
"""An experiment's results. A figure that is null is not finite: the run diverged."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)  # of Windows, in every folder


def read_summary(path: Path) -> dict[str, Any]:
    """The results in a JSON file.

    Raises:
        ValueError: The file is damaged, or is not a result of `qpsbgd run`; the message names it.
    """
    try:
        content = without_checksum(path.read_bytes())
        check(content)
    except ValueError as error:
        raise ValueError(
            f"{path} is not a result of `qpsbgd run`: {error}; the same `qpsbgd run` makes it again from finished runs"
        ) from error
    return content


def rows_of(summary: Summary) -> list[Mapping[str, Any]]:
    """The rows of all cases, one after the other."""
    return [row for case in summary.get("cases", ()) for row in case["rows"]]


def curves_of(case: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    """The curves of a series in a case, by line; not every line need have one."""
    return {row["line"]: row["curves"][key] for row in case["rows"] if key in row["curves"]}


def check(summary: Summary) -> None:
    """Raise ValueError unless the summary is of an experiment, and its names can be part of a file's name."""
    for name in ("experiment", "title"):
        if name not in summary:
            raise ValueError(f"{name!r} is missing")
    figures, series = summary.get("figures", ()), summary.get("series", ())
    for name in (summary["experiment"], *(figure["name"] for figure in figures), *(one["key"] for one in series)):
        file_name(name)


def file_name(*parts: str) -> str:
    """The parts joined by hyphens: a name for a file, without an ending.

    Raises:
        ValueError: A part is empty, longer than 64 characters, or has other characters than A–Z, a–z, 0–9, ".", "_"
            and "-", such as those that lead out of a folder, or is a device of Windows, such as "con".
    """
    for part in parts:
        if not _NAME.fullmatch(part) or _DEVICES.fullmatch(part):
            shown = repr(part if len(part) <= 80 else f"{part[:80]}…")
            raise ValueError(
                f"{shown} cannot be part of a file name: it takes 1 to 64 of A–Z a–z 0–9 . _ - and begins with a "
                "letter or digit, and is none of Windows' devices"
            )
    return "-".join(parts)
