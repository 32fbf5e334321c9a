"""Text files of lines `i j value`: read by numpy, and searched for the line at fault if something is wrong."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from qpsbgd_qubo.files.compressed import gunzip
from qpsbgd_qubo.kernels import Array

_ENCODING = "utf-8-sig"
_WHOLE = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class TextFile:
    """A text file, compressed if its name ends in `.gz`."""

    path: Path
    comment: str = "#"  # begins a comment: a letter only as the first of a line, others anywhere

    @contextlib.contextmanager
    def open_text(self) -> Iterator[IO[str]]:
        """The text, line by line."""
        with self.path.open("rb") as file:
            yield io.TextIOWrapper(gunzip(file) if self.path.suffix == ".gz" else file, encoding=_ENCODING)

    def data(self) -> Iterator[tuple[int, str]]:
        """Number, from 1, and content of every line with data; blanks around it and comments are left out."""
        with self.open_text() as stream:
            yield from self._data(stream)

    def first(self, missing: str) -> tuple[int, str]:
        """The first of them; raises ValueError with that message where there is none."""
        line = next(self.data(), None)
        if line is None:
            raise ValueError(missing)
        return line

    def entries(self, *, skip: int, first: int, last: int, count: int | None = None) -> Entries:
        """The lines `i j value`, or all of them `i j`, after `skip` lines with data; `count` of them, or all."""
        with self.open_text() as stream:
            data = self._data(stream)
            begin = next(itertools.islice(data, skip, None), None) if count != 0 else None
            width = 2 if begin is not None and len(begin[1].split()) == 2 else 3
            try:
                table = np.empty(0, _dtype(3)) if begin is None else self._table(begin, data, count, _dtype(width))
            except UnicodeDecodeError:
                raise
            except ValueError as error:
                raise self._fault(error, skip=skip, width=width, first=first, last=last) from None
        values = table["value"].copy() if width == 3 else np.ones(len(table))
        entries = Entries(self, skip, table["i"] - first, table["j"] - first, values, weighted=width == 3)
        entries.check(first, last)
        return entries

    def _data(self, stream: IO[str]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(stream, start=1):
            if self.comment.isalpha():
                text = "" if line.startswith(self.comment) else line.strip()
            else:
                text = line.partition(self.comment)[0].strip()
            if text:
                yield number, text

    def _table(
        self, begin: tuple[int, str], data: Iterator[tuple[int, str]], count: int | None, dtype: np.dtype[Any]
    ) -> Array:
        """The entries from line `begin` on, what follows being `data`."""
        if count is None and not self.comment.isalpha() and self.path.suffix != ".gz":
            # numpy takes about 0.6 times as long for a file as for an iterator over its lines.
            return np.loadtxt(
                self.path, dtype, comments=self.comment, skiprows=begin[0] - 1, encoding=_ENCODING, ndmin=1
            )
        rest = (text for _, text in itertools.islice(data, None if count is None else count - 1))
        return np.loadtxt(itertools.chain([begin[1]], rest), dtype, comments=None, ndmin=1)

    def _fault(self, error: ValueError, *, skip: int, width: int, first: int, last: int) -> ValueError:
        """What is wrong with the first line that numpy cannot read."""
        form = "`i j value` with integers i and j" if width == 3 else "`i j` with integers i and j"
        for number, text in itertools.islice(self.data(), skip, None):
            fields = text.split()
            if len(fields) != width or not all(map(_WHOLE.fullmatch, fields[:2])) or not _is_number(fields[-1]):
                return ValueError(f"line {number} must be {form}, got {quote_start(text)}")
            if max(len(field.lstrip("+-0")) for field in fields[:2]) > 18:  # more digits than 64 bits hold
                return _out_of_range(number, text, first, last)
        return error


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of a file: rows and columns, counted from 0, and values, each of shape (k,)."""

    file: TextFile  # where they are from
    skip: int  # how many lines with data come before them
    rows: Array  # i
    cols: Array  # j
    values: Array  # the values; 1 if there are none in the file
    weighted: bool  # whether the file has values

    def __len__(self) -> int:
        return len(self.rows)

    def check(self, first: int, last: int) -> None:
        """Raise ValueError if an index is out of range, counted from `first` up to `last`, or a value not finite."""
        for indices in (self.rows, self.cols):
            if len(indices) and (indices.min() < 0 or indices.max() > last - first):
                wrong = (indices < 0) | (indices > last - first)
                raise _out_of_range(*self.line(int(wrong.argmax())), first, last)
        finite = np.isfinite(self.values)
        if not finite.all():
            raise self.fault(int(finite.argmin()), "the value must be finite, not NaN or infinite")

    def check_distinct(self, what: str, n: int) -> None:
        """Raise ValueError if a pair of indices below n comes twice, in either order."""
        keys = np.minimum(self.rows, self.cols) * n + np.maximum(self.rows, self.cols)
        if (keys[1:] > keys[:-1]).all():
            return
        order = np.argsort(keys, kind="stable")
        again = order[1:][keys[order[1:]] == keys[order[:-1]]]
        if len(again):
            raise self.fault(int(again.min()), f"every {what} must be listed once, but this one comes twice")

    def line(self, place: int) -> tuple[int, str]:
        """Number and content of the line of an entry."""
        return next(itertools.islice(self.file.data(), self.skip + place, None))

    def fault(self, place: int, reason: str) -> ValueError:
        """The error that says what is wrong with an entry."""
        number, text = self.line(place)
        return ValueError(f"line {number}: {reason}, got {quote_start(text)}")


def whole_numbers(line: tuple[int, str], names: str) -> list[int]:
    """The numbers in a line, one for each of the names."""
    number, text = line
    fields = text.split()
    if len(fields) != len(names.split()) or not all(re.fullmatch(r"\+?[0-9]{1,18}", field) for field in fields):
        raise ValueError(f"line {number} must hold integers `{names}`, got {quote_start(text)}")
    return [int(field) for field in fields]


def quote_start(text: str) -> str:
    """The beginning of a line, in quotes."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _out_of_range(number: int, text: str, first: int, last: int) -> ValueError:
    return ValueError(f"line {number}: i and j must be from {first} to {last}, got {quote_start(text)}")


def _dtype(width: int) -> np.dtype[Any]:
    return np.dtype([("i", np.int64), ("j", np.int64), ("value", np.float64)][:width])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
