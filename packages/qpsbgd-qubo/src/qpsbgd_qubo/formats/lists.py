"""Coefficients `i j value` as lists: those of qbsolv, of Matrix Market files, and without a header."""

import dataclasses
import re

import numpy as np

from qpsbgd_qubo.formats.beasley import ambiguous, graph_problem, symmetric_problem
from qpsbgd_qubo.formats.text import Entries, TextFile, quote_start, whole_numbers
from qpsbgd_qubo.problems import MAX_VARIABLES, Problem, check_variables, model_problem
from qpsbgd_qubo.sparse import SparseIsing

BANNER = "%%MatrixMarket"


def read_coo(file: TextFile) -> Problem:
    """The minimum of Σ value · v_i v_j, i and j from 0, every entry counting once; those on the diagonal are linear.

    Variables are 0/1, or ±1 after dimod's comment `# vartype=SPIN` above the first entry.
    """
    vartype = _vartype(file)
    file.first("must hold lines `i j value`, but is empty")
    entries = file.entries(skip=0, first=0, last=MAX_VARIABLES - 1)
    if not entries.weighted:
        raise entries.fault(0, "every entry must have a value, `i j value`")
    n = check_variables(1 + int(max(entries.rows.max(), entries.cols.max())), entries=len(entries))
    loops = entries.rows == entries.cols
    linear = np.bincount(entries.rows[loops], entries.values[loops], minlength=n)
    quadratic = (entries.rows[~loops], entries.cols[~loops], entries.values[~loops])
    problem = model_problem(vartype, linear, quadratic, offset=0.0, labels=tuple(range(n)))
    return dataclasses.replace(problem, format="coo")


def _vartype(file: TextFile) -> str:
    with file.open_text() as stream:
        for number, line in enumerate(stream, start=1):
            match = re.match(r"\s*#.*?vartype\s*[:=]\s*(\S*)", line)
            if match and match[1] not in ("SPIN", "BINARY"):
                raise ValueError(f"line {number}: the vartype must be SPIN or BINARY, got {match[1]!r}")
            if match:
                return match[1]
            if re.match(r"\s*#.*\bSPIN\b", line):
                raise ValueError(
                    f"line {number}: comments that name SPIN must be `# vartype=SPIN`, got {quote_start(line)}"
                )
            if line.partition("#")[0].strip():
                break
    return "BINARY"


def read_qbsolv(file: TextFile) -> Problem:
    """The minimum of Σ value · x_i x_j over 0/1, every entry counting once.

        c comment
        p qubo 0 maxNodes nNodes nCouplers
        i i value     nNodes times, from 0
        i j value     nCouplers times

    There are maxNodes variables, each with at most one node.
    """
    form = "`p qubo 0 maxNodes nNodes nCouplers`"
    number, text = file.first(f"must begin with a line {form}, but is empty")
    header = re.fullmatch(r"p\s+qubo\s+\S+\s+([0-9]{1,18})\s+([0-9]{1,18})\s+([0-9]{1,18})", text)
    if header is None:
        raise ValueError(f"line {number} must be {form} with integers, got {quote_start(text)}")
    n, nodes, couplers = (int(field) for field in header.groups())
    check_variables(n, entries=nodes + couplers)
    entries = file.entries(skip=1, first=0, last=n - 1)
    on_diagonal = int(np.count_nonzero(entries.rows == entries.cols))
    if not entries.weighted or (on_diagonal, len(entries) - on_diagonal) != (nodes, couplers):
        raise ValueError(
            f"must hold {nodes} nodes `i i value` and {couplers} couplers `i j value` as its header says, but holds "
            f"{on_diagonal} and {len(entries) - on_diagonal}; is the file cut off?"
        )
    entries.check_distinct("node and every coupler", n)
    return _from_entries(entries, range(n), format="qbsolv")


def read_mtx(file: TextFile, *, format: str | None) -> Problem:
    """The problem in a coordinate matrix A (n, n); without a format, a diagonal makes it a QUBO."""
    field, symmetry = _banner(file)
    size = file.first("must hold a line `rows columns count` after its comments, but ends before")
    n, columns, count = whole_numbers(size, "rows columns count")
    if n != columns:
        raise ValueError(f"line {size[0]}: the matrix must have as many rows as columns, got {quote_start(size[1])}")
    check_variables(n, entries=count)
    entries = file.entries(skip=1, first=1, last=n)
    if len(entries) != count:
        raise ValueError(f"must hold {count} entries as line {size[0]} says, but holds {len(entries)}; is it cut off?")
    if len(entries) and entries.weighted != (field != "pattern"):
        raise entries.fault(0, f"entries of a {field} matrix must be `i j{'' if field == 'pattern' else ' value'}`")
    broken = entries.values % 1 != 0
    if field == "integer" and broken.any():
        raise entries.fault(int(broken.argmax()), "entries of an integer matrix must be integers")
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
    return _from_entries(entries, range(1, n + 1), format="mtx")


def _banner(file: TextFile) -> tuple[str, str]:
    """What the entries are, and the matrix's symmetry."""
    with file.open_text() as stream:
        line = stream.readline().strip()
    words = line.lower().split()
    if len(words) != 5 or words[0] != BANNER.lower() or words[1:3] != ["matrix", "coordinate"]:
        raise ValueError(
            f"must begin with `{BANNER} matrix coordinate real symmetric` or the like, got {quote_start(line)}; "
            "write a dense matrix to .npz"
        )
    if words[3] not in ("real", "double", "integer", "pattern") or words[4] not in ("general", "symmetric"):
        raise ValueError(f"a matrix must be real, integer or pattern, general or symmetric, got {quote_start(line)}")
    return words[3], words[4]


def _from_entries(entries: Entries, labels: range, *, format: str) -> Problem:
    """The minimum over 0/1 of the sum of all entries."""
    model = SparseIsing.from_qubo(len(labels), entries.rows, entries.cols, entries.values)
    return Problem(model, "BINARY", tuple(labels), format=format)
