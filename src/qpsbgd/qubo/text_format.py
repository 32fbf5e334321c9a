"""Problems as text, one coefficient per line: Beasley's format of the OR-Library, and COO."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np

from qpsbgd.qubo.problems import Problem, check_size, ising_problem, qubo_problem


def read_text(text: str, *, number: int) -> Problem:
    """Problem `number`, from 1, of a text in Beasley's format or in COO; see `read_problem`.

    Raises:
        ValueError: The text holds no such problem.
        MemoryError: There are too many variables.
    """
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
            raise ValueError("must list every entry of the symmetric matrix once, but one of them comes twice")
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
