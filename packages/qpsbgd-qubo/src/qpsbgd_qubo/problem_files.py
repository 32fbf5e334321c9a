"""Problems and families in files, of every format in `FORMATS`; see `read_problem`."""

import contextlib
import dataclasses
import gzip
import io
import json
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.files.atomic import writing
from qpsbgd_qubo.files.compressed import gunzip, read_arrays
from qpsbgd_qubo.files.visible import visible
from qpsbgd_qubo.formats.beasley import check_number, read_beasley
from qpsbgd_qubo.formats.bqm import read_bqm
from qpsbgd_qubo.formats.lists import BANNER, read_coo, read_mtx, read_qbsolv
from qpsbgd_qubo.formats.text import TextFile
from qpsbgd_qubo.problems import Problem, ising_problem, qubo_problem
from qpsbgd_qubo.sparse import check_dense

_KNOWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "beasley": ("QUBO of the OR-Library: x'Qx is maximised", ()),
    "biqmac": ("QUBO of the Biq Mac library: x'Qx is minimised", (".sparse",)),
    "maxcut": ("graph of rudy, the G-set or Biq Mac: the cut is maximised", (".rud", ".rudy", ".mc", ".gset")),
    "qbsolv": ("QUBO of qbsolv: the energy is minimised", (".qubo",)),
    "coo": ("coefficients i j value: the energy is minimised", (".coo",)),
    "mtx": ("QUBO as a Matrix Market matrix: x'Ax is minimised", (".mtx",)),
    "bqm": ("dimod's binary quadratic model: the energy is minimised", (".bqm",)),
    "npz": ("numpy's arrays: the energy is minimised", (".npz",)),
}
FORMATS: Mapping[str, str] = MappingProxyType({name: text for name, (text, _) in _KNOWN.items()})
"""Name → what such a file holds, and what is wanted."""
_SUFFIXES = {suffix: name for name, (_, suffixes) in _KNOWN.items() for suffix in suffixes}


def read_problem(path: Path | str, *, number: int | None = None, format: str | None = None) -> Problem:
    """The problem in a file, with couplings sparse unless the file itself has them dense.

    The suffix names the format, or the content where the suffix is `.txt`, a number or none. `.gz` may follow. A file
    that fits two formats is refused.

    The page "Solve QUBOs" of the documentation shows the lines of every format.

    Args:
        path: The file, or "-" for standard input.
        number: Which problem, from 1; needed if the file holds several.
        format: One of `FORMATS`; None to go by suffix and content.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It does not hold a problem, or one of several formats; the message says what is wrong.
        MemoryError: A dense problem is too large, or a compressed file expands to more than `compressed.MOST_BYTES`.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; choose one of {', '.join(FORMATS)}")
    with _reading(path) as place:
        return _read(place, number, format)


def _read(path: Path, number: int | None, format: str | None) -> Problem:
    named = format or _by_suffix(path)
    if named in ("bqm", "npz"):
        check_number(number)
        with path.open("rb") as stream:
            plain = io.BytesIO(gunzip(stream).read()) if path.suffix == ".gz" else stream
            problem = read_bqm(plain.read()) if named == "bqm" else _npz_problem(read_arrays(plain))
        return dataclasses.replace(problem, format=named)
    file = TextFile(path)
    with file.open_text() as lines:
        begin = next((line for line in lines if line.strip()), "")
    fields = len(next(file.data(), (0, ""))[1].split())  # of the first line that is no comment
    is_matrix = named == "mtx" or (named in (None, "maxcut") and begin.startswith(BANNER))
    is_qbsolv = named == "qbsolv" or (named is None and begin[:1] in ("c", "p"))
    if not (is_matrix or is_qbsolv or named == "coo" or (named is None and fields > 2)):
        return read_beasley(file, format=named, number=number)
    check_number(number)
    if is_matrix:
        return read_mtx(TextFile(path, "%"), format=format or (named if named == "maxcut" else None))
    return read_qbsolv(TextFile(path, "c")) if is_qbsolv else read_coo(file)


def _by_suffix(path: Path) -> str | None:
    """The format that the suffix names; None if the content must tell."""
    suffix = Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if re.fullmatch(r"\.txt|(\.[0-9]+)?", suffix):  # Biq Mac's graphs end in .0 to .9, the G-set's in nothing
        return None
    raise ValueError(
        f"a problem file must end in .txt, {', '.join(_SUFFIXES)} or one of these and .gz, got {suffix!r}; "
        f"or say what it is: --format NAME (format=NAME in Python), NAME one of {', '.join(FORMATS)}"
    )


def save_assignment(path: Path | str, problem: Problem, spins: Any, *, comments: Sequence[str] = ()) -> None:
    """Write spins (n, m) in the problem's own values, one line per variable: its label, then a value per column."""
    with writing(Path(path)) as file:
        file.write(assignment_text(problem, spins, comments=comments).encode())


def assignment_text(problem: Problem, spins: Any, *, comments: Sequence[str] = ()) -> str:
    """What `save_assignment` writes."""
    lines = [f"# {comment}\n" for comment in comments]
    for label, row in zip(problem.labels, problem.values(spins).tolist(), strict=True):
        name = str(label)
        if not re.fullmatch(r"[^\s\"#]+", name) or visible(name) != name:
            name = json.dumps(name)
        lines.append(f"{name} {' '.join(map(str, row))}\n")
    return "".join(lines)


def _npz_problem(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Problem:
    offset = arrays.get("offset", 0.0)
    for name in ("Q", "qubo"):
        if name in arrays:
            return qubo_problem(arrays[name], offset=offset)
    if {"h", "J"} <= set(arrays):
        return ising_problem(arrays["h"], arrays["J"], offset=offset)
    if not {"quadratic", "linear"} <= set(arrays):
        raise ValueError(f"must hold quadratic, linear, offset of a family, or Q, qubo, h and J, got {sorted(arrays)}")
    model = QuboFamily(*(arrays[name] for name in ("quadratic", "linear", "offset") if name in arrays))
    return Problem(model, "SPIN", tuple(range(check_dense(model.num_spins))))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Where to read the file: a copy of what comes from a pipe; puts its name before what is wrong with it."""
    is_pipe = str(path) == "-" or (path.exists() and not path.is_file() and not path.is_dir())
    place, folder = path, tempfile.TemporaryDirectory() if is_pipe else contextlib.nullcontext("")
    try:
        with folder as name:
            if name:
                if str(path) == "-" and sys.stdin is None:
                    raise ValueError("standard input is closed")
                content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
                compressed = content.startswith(b"\x1f\x8b") and path.suffix != ".gz"
                place = Path(name, path.name + ".gz" * compressed)
                place.write_bytes(content)
            yield place
    except MemoryError as error:
        raise type(error)(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be text in UTF-8, but is not: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {str(error).replace(str(place), str(path))}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: is not a complete .gz file: {error}") from error
