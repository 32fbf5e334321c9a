"""Results of experiments as their JSON files hold them: read, and checked once before anything is drawn or written."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qpsbgd_files.atomic import without_checksum

Summary = Mapping[str, Any]
"""An experiment's results. A figure that is null is not finite: the run diverged."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)  # of Windows, in every folder
_NAMED = {"key": str, "label": str}
_CURVE = {"x": [float], "mean": [float, None], "deviation": [float, None]}
_ROW = {"line": str, "label": str, "values": {"*": [float, None]}, "curves": {"*": _CURVE}, "?options": dict}
_SUMMARY = {
    "experiment": str,
    "title": str,
    "?metrics": [_NAMED],
    "?series": [_NAMED],
    "?cases": [{"label": str, "?group": str, "?short": str, "rows": [_ROW]}],
    "?figures": [{"name": str, "title": str, "panels": [dict]}],
    "?tables": [{"title": str, "head": [object], "body": [[object]]}],
    "?claims": [{"text": str, "verdict": str}],
    "?made with": dict,
}
_WORDS = {str: "a text", float: "a number", dict: "an object", list: "a list"}


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


def check(summary: Any) -> None:
    """Make sure that a summary can be shown.

    Raises:
        ValueError: Something is missing or has the wrong type, or a name cannot be part of a file's name.
    """
    _compare(summary, _SUMMARY, "")
    file_name(summary["experiment"])
    for figure in summary.get("figures", ()):
        file_name(figure["name"])
    for series in summary.get("series", ()):
        file_name(series["key"])
    for case in summary.get("cases", ()):
        for row in case["rows"]:
            for key, curve in row["curves"].items():
                if len({len(curve[part]) for part in _CURVE}) > 1:
                    place = f"curve {key!r} of {row['line']!r} in {case['label']!r}"
                    raise ValueError(f"{place} needs as many means and deviations as positions x")


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


def _compare(found: Any, wanted: Any, place: str) -> None:
    """A pattern is a type, [pattern] for a list, [pattern, None] for one with gaps, or keys ("?": may be missing)."""
    if isinstance(wanted, list):
        _require(found, list, place)
        for number, item in enumerate(found):
            if item is not None or len(wanted) == 1:
                _compare(item, wanted[0], f"{place}[{number}]")
    elif isinstance(wanted, dict):
        _require(found, dict, place)
        names = {name.lstrip("?"): name for name in wanted} if "*" not in wanted else dict.fromkeys(found, "*")
        for name, key in names.items():
            inside = f"{place}.{name}".lstrip(".")
            if name in found:
                _compare(found[name], wanted[key], inside)
            elif not key.startswith("?"):
                raise ValueError(f"{inside!r} is missing")
    else:
        _require(found, wanted, place)


def _require(found: Any, kind: Any, place: str) -> None:
    numbers = (int, float) if kind is float else kind
    if not isinstance(found, numbers) or (kind is float and isinstance(found, bool)):
        got = _WORDS.get(float if type(found) is int else type(found), "null" if found is None else "true or false")
        raise ValueError(f"{place!r} must be {_WORDS[kind]}, not {got}" if place else f"it holds {got}, not an object")
