"""The `.qubo` files of qbsolv."""

from __future__ import annotations

import re

import numpy as np

from qpsbgd_qubo.formats.text import TextFile, shown
from qpsbgd_qubo.problems import Problem, check_variables
from qpsbgd_qubo.sparse import SparseIsing


def read_qbsolv(file: TextFile) -> Problem:
    """The minimum of Σ value · x_i x_j over 0/1, every entry counting once.

        c comment
        p qubo 0 maxNodes nNodes nCouplers
        i i value     nNodes times, from 0
        i j value     nCouplers times

    There are maxNodes variables, each with at most one node.
    """
    begin = next(file.data(), None)
    if begin is None:
        raise ValueError("must begin with a line `p qubo 0 maxNodes nNodes nCouplers`, but is empty")
    header = re.fullmatch(r"p\s+qubo\s+\S+\s+([0-9]{1,18})\s+([0-9]{1,18})\s+([0-9]{1,18})", begin[1])
    if header is None:
        raise ValueError(
            f"line {begin[0]} must be `p qubo 0 maxNodes nNodes nCouplers` with whole numbers, got {shown(begin[1])}"
        )
    n, nodes, couplers = (int(field) for field in header.groups())
    check_variables(n)
    entries = file.entries(skip=1, first=0, last=n - 1)
    on_diagonal = int(np.count_nonzero(entries.rows == entries.cols))
    if not entries.weighted or (on_diagonal, len(entries) - on_diagonal) != (nodes, couplers):
        raise ValueError(
            f"must hold {nodes} nodes `i i value` and {couplers} couplers `i j value` as its header says, but holds "
            f"{on_diagonal} and {len(entries) - on_diagonal}; is the file cut off?"
        )
    entries.check_distinct("node and every coupler", n)
    model = SparseIsing.from_qubo(n, entries.rows, entries.cols, entries.values)
    return Problem(model, "BINARY", tuple(range(n)), format="qbsolv")
