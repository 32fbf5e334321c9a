"""Coefficients `i j value` and nothing else, as dimod's `coo` writes them."""

from __future__ import annotations

import re

import numpy as np

from qpsbgd_qubo.formats.text import TextFile, shown
from qpsbgd_qubo.problems import MAX_VARIABLES, Problem
from qpsbgd_qubo.sparse import SparseIsing


def read_coo(file: TextFile) -> Problem:
    """The minimum of Σ value · v_i v_j, i and j from 0, every entry counting once; those on the diagonal are linear.

    Variables are 0/1, or ±1 after dimod's comment `# vartype=SPIN` above the first entry.
    """
    vartype = _vartype(file)
    entries = file.entries(skip=0, first=0, last=MAX_VARIABLES - 1)
    if not len(entries):
        raise ValueError("must hold lines `i j value`, but is empty")
    if not entries.weighted:
        raise entries.fault(0, "every entry must have a value, `i j value`")
    n = 1 + int(max(entries.rows.max(), entries.cols.max()))
    labels = tuple(range(n))
    if vartype == "BINARY":
        model = SparseIsing.from_qubo(n, entries.rows, entries.cols, entries.values)
        return Problem(model, vartype, labels, format="coo")
    loops = entries.rows == entries.cols
    fields = np.bincount(entries.rows[loops], entries.values[loops], minlength=n)
    rows, cols, values = (part[~loops] for part in (entries.rows, entries.cols, entries.values))
    return Problem(SparseIsing.from_edges(n, rows, cols, values, fields), vartype, labels, format="coo")


def _vartype(file: TextFile) -> str:
    with file.opened() as stream:
        for number, line in enumerate(stream, start=1):
            found = re.match(r"\s*#.*?vartype\s*[:=]\s*(\S*)", line)
            if found and found[1] not in ("SPIN", "BINARY"):
                raise ValueError(f"line {number}: the vartype must be SPIN or BINARY, got {found[1]!r}")
            if found:
                return found[1]
            if re.match(r"\s*#.*\bSPIN\b", line):
                raise ValueError(
                    f"line {number}: a comment that names SPIN must be `# vartype=SPIN`, got {shown(line)}"
                )
            if line.partition("#")[0].strip():
                break
    return "BINARY"
