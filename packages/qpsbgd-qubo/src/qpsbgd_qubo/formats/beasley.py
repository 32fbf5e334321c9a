"""Files that begin with a line `n count`: QUBOs of the OR-Library and of Biq Mac, and graphs of rudy and the G-set."""

import collections
import itertools
from collections.abc import Iterator

import numpy as np

from qpsbgd_qubo.formats.text import Entries, TextFile, whole_numbers
from qpsbgd_qubo.problems import Problem, check_variables
from qpsbgd_qubo.sparse import SparseIsing


def read_beasley(file: TextFile, *, format: str | None, number: int | None) -> Problem:
    """The problem of this number in lines `n count` and then, `count` times, `i j value`, counted from 1."""
    skip, n, count, last = _place(file, several=format not in ("maxcut", "biqmac"), number=number)
    check_variables(n, entries=count)
    entries = file.entries(skip=skip, first=1, last=n, count=None if last else count)
    if len(entries) != count:
        raise ValueError(f"must hold {count} entries as its header says, but holds {len(entries)}; is it cut off?")
    if format is None:
        if entries.weighted and skip == 1 and (entries.rows != entries.cols).all():
            raise ambiguous(file, "a QUBO whose x'Qx is to be maximised", "beasley", more="; biqmac to minimise it")
        format = "beasley" if entries.weighted else "maxcut"
    if format == "maxcut":
        return graph_problem(entries, n)
    if not entries.weighted:
        raise entries.fault(0, "every entry of a QUBO must have a value, `i j value`")
    return symmetric_problem(entries, n, maximize=format == "beasley")


def symmetric_problem(entries: Entries, n: int, *, maximize: bool) -> Problem:
    """The highest or lowest xᵀ Q x over 0/1, Q symmetric and each of its entries listed once."""
    entries.check_distinct("entry of the symmetric matrix", n)
    values = np.where(entries.rows == entries.cols, entries.values, 2 * entries.values)
    model = SparseIsing.from_qubo(n, entries.rows, entries.cols, -values if maximize else values)
    quantity, format = ("value", "beasley") if maximize else ("energy", "biqmac")
    return Problem(model, "BINARY", tuple(range(1, n + 1)), maximize=maximize, quantity=quantity, format=format)


def graph_problem(entries: Entries, n: int) -> Problem:
    """The largest cut of a graph: the weight Σ w (1 − g_i g_j) / 2 of the edges between its two sides, 0 and 1."""
    loops = entries.rows == entries.cols
    if loops.any():
        raise entries.fault(int(loops.argmax()), "an edge must join two different nodes (is it a QUBO, not a graph?)")
    entries.check_distinct("edge", n)
    half = entries.values / 2
    model = SparseIsing.from_edges(n, entries.rows, entries.cols, half, offset=-float(half.sum()))
    return Problem(model, "BINARY", tuple(range(1, n + 1)), maximize=True, quantity="cut", format="maxcut")


def ambiguous(file: TextFile, reading: str, format: str, *, more: str = "") -> ValueError:
    """The error for a file that may be a graph or something else."""
    return ValueError(
        f"may be {reading}, or a graph whose largest cut is wanted, and nothing in it tells which; choose "
        f"--format {format} (format={format!r} in Python{more}) or --format maxcut (format='maxcut'): "
        f"`qpsbgd-qubo solve {file.path} --format {format}` or `qpsbgd-qubo solve {file.path} --format maxcut`"
    )


def _place(file: TextFile, *, several: bool, number: int | None) -> tuple[int, int, int, bool]:
    """How many lines come before the entries, n, how many entries there are, and whether they end the file."""
    begin = file.first("must hold lines `i j value`, but is empty")
    if not several or len(begin[1].split()) != 1:
        n, count = whole_numbers(begin, "n count")
        check_number(number)
        return 1, n, count, True
    problems = whole_numbers(begin, "number-of-problems")[0]
    if problems == 0:
        raise ValueError("holds no problem: its first line, the number of problems, is 0")
    data = itertools.islice(file.data(), 1, None)
    if number is not None and not 1 <= number <= problems:
        raise ValueError(f"holds {problems} problem(s), counted from 1, so there is no number {number}")
    if number is None and problems > 1:
        sizes = [
            f"{place}: n = {n}, {count} entries" for place, (_, n, count) in enumerate(_headers(data, problems), 1)
        ]
        listed = "; ".join(sizes if len(sizes) <= 30 else [*sizes[:29], "..."])
        raise ValueError(f"holds {problems} problems ({listed}); choose one: --instance K (number=K in Python)")
    chosen = number or 1
    header = next(itertools.islice(_headers(data, problems), chosen - 1, None))
    return *header, chosen == problems


def _headers(data: Iterator[tuple[int, str]], problems: int) -> Iterator[tuple[int, int, int]]:
    """For every problem, how many lines come before its entries, n, and how many entries it has."""
    skip = 1
    for place in range(1, problems + 1):
        header = next(data, None)
        if header is None:
            raise ValueError(f"ends before problem {place} of {problems}; is the file cut off?")
        n, count = whole_numbers(header, "n count")
        skip += 1
        yield skip, n, count
        collections.deque(itertools.islice(data, count), maxlen=0)
        skip += count


def check_number(number: int | None) -> None:
    """Raise ValueError if a problem other than the first is asked for."""
    if number not in (None, 1):
        raise ValueError(f"holds a single problem, so its number must be 1, got {number}")
