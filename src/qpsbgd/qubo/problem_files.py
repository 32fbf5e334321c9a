"""Problems and families from files and to files: `.txt` (Beasley, COO), dimod's `.bqm`, numpy's `.npz`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd.atomic import writing
from qpsbgd.qubo.family import QuboFamily
from qpsbgd.qubo.problems import Problem, bqm_problem, check_size, ising_problem, qubo_problem


def read_problem(path: Path | str, *, number: int = 1) -> Problem:
    """The problem in a file, of the kind that its suffix says.

    `.txt`: One coefficient a line, `i j value`, over 0/1 variables. Below a line `n count`, Beasley's format: i and j
    count from 1 and Q is symmetric, so that an entry off the diagonal stands for two; several such problems may follow
    a line with their number, as in the OR-Library. Without it, COO: i and j count from 0, equal places add up, and
    every entry counts once; a comment `# vartype=SPIN` says that the variables are ±1, as dimod writes it.
    `.bqm`: What dimod's `to_file` wrote. `.npz`: Arrays `quadratic`, `linear`, `offset` of a family (`save_family`);
    or `Q` or `qubo` over 0/1; or `h` and `J` over ±1. Every entry of a matrix counts once; an `offset` may be there.

    Args:
        path: The file.
        number: Which one, where the file holds several problems; from 1.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It does not hold a problem; the message says what is wrong.
        MemoryError: The problem is too large to be made dense.
    """
    path = Path(path)
    with _reading(path):
        if path.suffix == ".txt":
            return _text_problem(path.read_text(encoding="utf-8"), number)
        if path.suffix not in (".bqm", ".npz"):
            raise ValueError(f"a problem file must end in .txt, .bqm or .npz, got {path.suffix!r}")
        if number != 1:
            raise ValueError(f"holds a single problem, so its number must be 1, got {number}")
        return _bqm_file_problem(path) if path.suffix == ".bqm" else _npz_problem(_arrays(path))


def save_family(path: Path | str, family: QuboFamily) -> None:
    """Write a family as a `.npz` file, whole or not at all; `load_family` gives it back bit for bit."""
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"a family's file must end in .npz, got {path}")
    parts = {name: getattr(family, name).cpu().numpy() for name in ("quadratic", "linear", "offset")}
    with writing(path) as file:
        np.savez(file, **parts)


def load_family(path: Path | str) -> QuboFamily:
    """The family that `save_family` wrote, on the CPU.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It holds no family.
    """
    path = Path(path)
    with _reading(path):
        return _family(_arrays(path))


def save_assignment(path: Path | str, problem: Problem, spins: Tensor, *, comments: Sequence[str] = ()) -> None:
    """Write spins (n, m) in the problem's own values, one line per variable: its label, then a value per column."""
    lines = [f"# {comment}\n" for comment in comments]
    for label, row in zip(problem.labels, problem.values(spins), strict=True):
        name = str(label)
        if not re.fullmatch(r"[^\s\"#]+", name):
            name = json.dumps(name)
        lines.append(f"{name} {' '.join(map(str, row))}\n")
    with writing(Path(path)) as file:
        file.write("".join(lines).encode())


def _text_problem(text: str, number: int) -> Problem:
    spin = re.search(r"^#.*vartype\s*=\s*SPIN", text, re.MULTILINE) is not None
    numbered = ((count, line.partition("#")[0].split()) for count, line in enumerate(text.splitlines(), start=1))
    lines = [(count, fields) for count, fields in numbered if fields]
    if not lines:
        raise ValueError("must hold lines `i j value`, but is empty")
    if len(lines[0][1]) < 3:
        return _beasley_problem(lines, number)
    if number != 1:
        raise ValueError(f"holds a single problem, so its number must be 1, got {number}")
    rows, columns, values = _entries(lines, first=0)
    n = 1 + max(rows.max(), columns.max())
    matrix = np.zeros((n, n))
    np.add.at(matrix, (rows, columns), values)
    if not spin:
        return qubo_problem(matrix)
    fields = matrix.diagonal().copy()
    np.fill_diagonal(matrix, 0)
    return ising_problem(fields, matrix)


def _beasley_problem(lines: list[tuple[int, list[str]]], number: int) -> Problem:
    several = len(lines[0][1]) == 1
    problems = _integers(*lines[0])[0] if several else 1
    if not 1 <= number <= problems:
        raise ValueError(f"holds {problems} problem(s), counted from 1, so there is no number {number}")
    begin, count, n = int(several), -1, 0
    for _ in range(number):
        begin += count + 1
        if begin >= len(lines):
            raise ValueError(f"ends before problem {number} of {problems}; is the file cut off?")
        header = _integers(*lines[begin])
        if len(header) != 2 or min(header) < 0:
            raise ValueError(f"line {lines[begin][0]} must be a header `n count`, got {' '.join(lines[begin][1])!r}")
        n, count = header
    check_size(n)
    entries = lines[begin + 1 : begin + 1 + count]
    left = len(lines) - begin - 1 - count
    if len(entries) < count or (number == problems and left):
        held = len(entries) + max(left, 0)
        raise ValueError(f"must hold {count} entries as its header says, but holds {held}; is the file cut off?")
    matrix = np.zeros((n, n))
    if entries:
        rows, columns, values = _entries(entries, first=1, last=n)
        low, high = np.minimum(rows, columns), np.maximum(rows, columns)
        if len(np.unique(low * n + high)) < count:
            raise ValueError("must list every entry of the symmetric matrix once, but some place comes twice")
        matrix[low, high] = matrix[high, low] = values
    return dataclasses.replace(qubo_problem(matrix), labels=tuple(range(1, n + 1)))


def _entries(
    lines: list[tuple[int, list[str]]], *, first: int, last: int | None = None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows and columns, counted from 0, and values of lines `i j value`."""
    places, values = [], []
    for count, fields in lines:
        try:
            row, column, value = (kind(field) for kind, field in zip((int, int, float), fields, strict=True))
        except ValueError:
            text = " ".join(fields)
            raise ValueError(f"line {count} must be `i j value` with whole numbers i and j, got {text!r}") from None
        if min(row, column) < first or (last is not None and max(row, column) > last):
            upper = "" if last is None else f" to n = {last}"
            raise ValueError(f"line {count}: i and j must be from {first}{upper}, got {row} and {column}")
        places.append((row - first, column - first))
        values.append(value)
    check_size(1 + max(map(max, places)))
    indices = np.array(places)
    return indices[:, 0], indices[:, 1], np.array(values)


def _integers(count: int, fields: list[str]) -> list[int]:
    try:
        return [int(field) for field in fields]
    except ValueError:
        raise ValueError(f"line {count} must hold whole numbers, got {' '.join(fields)!r}") from None


def _bqm_file_problem(path: Path) -> Problem:
    try:
        import dimod
    except ImportError as error:
        raise ImportError("a .bqm file needs dimod: pip install 'qpsbgd[dimod]'") from error
    with path.open("rb") as file:
        try:
            bqm = dimod.BinaryQuadraticModel.from_file(file)
        # What a damaged file raises depends on where it is damaged and on dimod's version.
        except Exception as error:
            raise ValueError(f"is no whole file of a dimod model: {type(error).__name__}: {error}") from error
    return bqm_problem(bqm)


def _npz_problem(arrays: dict[str, np.ndarray[Any, Any]]) -> Problem:
    offset = arrays.get("offset", 0.0)
    for name in ("Q", "qubo"):
        if name in arrays:
            return qubo_problem(arrays[name], offset=offset)
    if {"h", "J"} <= set(arrays):
        return ising_problem(arrays["h"], arrays["J"], offset=offset)
    family = _family(arrays)
    check_size(family.num_spins)
    return Problem(family, "SPIN", tuple(range(family.num_spins)))


def _family(arrays: dict[str, np.ndarray[Any, Any]]) -> QuboFamily:
    if not {"quadratic", "linear"} <= set(arrays):
        raise ValueError(
            "must hold arrays quadratic, linear, offset of a family (or, as a problem, Q, qubo, or h and J), "
            f"got {sorted(arrays)}"
        )
    return QuboFamily(*(torch.from_numpy(arrays[name]) for name in ("quadratic", "linear", "offset") if name in arrays))


def _arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays of a `.npz` file, in single precision where they are so, otherwise in double."""
    arrays = {}
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("is no numpy .npz archive; is the file cut off?")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            for name in archive.files:
                array = archive[name]
                if array.dtype.kind not in "biuf":
                    raise ValueError(f"array {name!r} must hold real numbers, got {array.dtype}")
                arrays[name] = array if array.dtype == np.float32 else array.astype(np.float64)
    return arrays


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Puts the file's name before what is wrong with it."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be text in UTF-8, but is not: {error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: {error}") from error
