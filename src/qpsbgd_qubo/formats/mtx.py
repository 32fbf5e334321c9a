"""Sparse matrices in Matrix Market files."""

from __future__ import annotations

import dataclasses

from qpsbgd_qubo.formats.beasley import ambiguous, graph_problem, symmetric_problem
from qpsbgd_qubo.formats.text import TextFile, shown, whole_numbers
from qpsbgd_qubo.problems import Problem, check_variables
from qpsbgd_qubo.sparse import SparseIsing

BANNER = "%%MatrixMarket"


def read_mtx(file: TextFile, *, format: str | None) -> Problem:
    """The problem in a coordinate matrix A (n, n) of real numbers, general or symmetric.

    The formats are "mtx" and "maxcut". If None, a pattern without a diagonal is a graph, a matrix with a diagonal a
    QUBO.
    """
    field, symmetry = _banner(file)
    size = next(file.data(), None)
    if size is None:
        raise ValueError("must hold a line `rows columns count` after its comments, but ends before")
    n, columns, count = whole_numbers(size, "rows columns count")
    if n != columns:
        raise ValueError(f"line {size[0]}: the matrix must have as many rows as columns, got {shown(size[1])}")
    check_variables(n)
    entries = file.entries(skip=1, first=1, last=n)
    if len(entries) != count:
        raise ValueError(f"must hold {count} entries as line {size[0]} says, but holds {len(entries)}; is it cut off?")
    if len(entries) and entries.weighted != (field != "pattern"):
        raise entries.fault(0, f"entries of a {field} matrix must be `i j{'' if field == 'pattern' else ' value'}`")
    if field == "integer" and (entries.values % 1).any():
        raise entries.fault(
            int((entries.values % 1 != 0).argmax()), "entries of an integer matrix must be whole numbers"
        )
    if format is None:
        if (entries.rows == entries.cols).any():
            format = "mtx"
        elif field == "pattern":
            format = "maxcut"
        else:
            raise ambiguous(file, "the matrix of a QUBO to be minimised", "mtx")
    if format == "maxcut":
        return graph_problem(entries, n)
    if symmetry == "symmetric":
        return dataclasses.replace(symmetric_problem(entries, n, maximize=False), format="mtx")
    model = SparseIsing.from_qubo(n, entries.rows, entries.cols, entries.values)
    return Problem(model, "BINARY", tuple(range(1, n + 1)), format="mtx")


def _banner(file: TextFile) -> tuple[str, str]:
    """What the entries are, and the matrix's symmetry."""
    with file.opened() as stream:
        line = stream.readline().strip()
    words = line.lower().split()
    if len(words) != 5 or words[0] != BANNER.lower() or words[1:3] != ["matrix", "coordinate"]:
        raise ValueError(
            f"must begin with `{BANNER} matrix coordinate real symmetric` or the like, got {shown(line)}; "
            "write a dense matrix to .npz"
        )
    if words[3] not in ("real", "double", "integer", "pattern") or words[4] not in ("general", "symmetric"):
        raise ValueError(f"the matrix must be real, integer or pattern, and general or symmetric, got {shown(line)}")
    return words[3], words[4]
