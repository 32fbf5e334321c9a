"""Problems and families in files: `.txt` (Beasley, COO), dimod's `.bqm`, numpy's `.npz`."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd.atomic import writing
from qpsbgd.qubo.bqm_format import read_bqm
from qpsbgd.qubo.family import QuboFamily
from qpsbgd.qubo.npz_format import read_arrays
from qpsbgd.qubo.problems import MAX_VARIABLES, Problem, check_size, ising_problem, qubo_problem
from qpsbgd.qubo.text_format import read_text


def read_problem(path: Path | str, *, number: int = 1) -> Problem:
    """The problem in a file, whose suffix names the format.

    `.txt`: One coefficient per line, `i j value`, over 0/1 variables. After a line `n count`, this is Beasley's format:
    i and j count from 1 and Q is symmetric, so that an entry off the diagonal stands for two; several such problems may
    follow a line with their number, as in the OR-Library. Otherwise it is COO: i and j count from 0, entries for the
    same i and j add up, and each counts once; the comment `# vartype=SPIN`, which dimod writes, makes the variables ±1.

    `.bqm`: What dimod's `to_file` writes.

    `.npz`: The arrays `quadratic`, `linear` and `offset` of a family (see `save_family`); or `Q` or `qubo` over 0/1; or
    `h` and `J` over ±1. Every entry of a matrix counts once; `offset` is optional.

    Args:
        path: The file.
        number: Which problem, if the file holds several; from 1.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It does not hold a problem; the message says what is wrong.
        MemoryError: The problem is too large to be made dense.
    """
    path = Path(path)
    with _reading(path):
        if path.suffix == ".txt":
            return read_text(path.read_text(encoding="utf-8"), number=number)
        if path.suffix not in (".bqm", ".npz"):
            raise ValueError(f"a problem file must end in .txt, .bqm or .npz, got {path.suffix!r}")
        if number != 1:
            raise ValueError(f"holds a single problem, so its number must be 1, got {number}")
        if path.suffix == ".bqm":
            return read_bqm(path.read_bytes())
        return _npz_problem(read_arrays(path, most=MAX_VARIABLES**2))


def save_family(path: Path | str, family: QuboFamily) -> None:
    """Write a family to a `.npz` file, completely or not at all; `load_family` gives it back bit for bit."""
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
        ValueError: It does not hold a family, or is damaged.
    """
    path = Path(path)
    with _reading(path):
        # A family that `save_family` wrote is not compressed and may be of any size.
        return _family(read_arrays(path, most=max(MAX_VARIABLES**2, path.stat().st_size)))


def save_assignment(path: Path | str, problem: Problem, spins: Tensor, *, comments: Sequence[str] = ()) -> None:
    """Write spins (n, m) in the problem's own values, one line per variable: its label, then a value per column."""
    lines = [f"# {comment}\n" for comment in comments]
    for label, row in zip(problem.labels, problem.values(spins), strict=True):
        name = str(label)
        if not re.fullmatch(r"[^\s\"#\ud800-\udfff]+", name):
            name = json.dumps(name)
        lines.append(f"{name} {' '.join(map(str, row))}\n")
    with writing(Path(path)) as file:
        file.write("".join(lines).encode())


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


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Puts the file's name before what is wrong with it."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be text in UTF-8, but is not: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
