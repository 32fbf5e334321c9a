"""`qpsbgd qpu`: what a run costs on a quantum annealer."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qpsbgd.cli.console import console, rich_table
from qpsbgd_qubo.options import options_named, read_options

if TYPE_CHECKING:
    from qpsbgd_qubo.annealers.budget import Estimate

app = typer.Typer(no_args_is_help=True, help="What a run costs on a quantum annealer.")


@app.command()
def estimate(
    widths: Annotated[str, typer.Argument(help="Widths of the network's layers, such as 16-4-4-2.")],
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps of the run.")] = 1,
    solver: Annotated[str, typer.Option(help="virtual-qpu, dwave or leap-hybrid.")] = "virtual-qpu",
    option: Annotated[list[str] | None, typer.Option(help="Option of the solver, key=value; may be repeated.")] = None,
) -> None:
    """Estimate the submissions and the QPU time of a training run; sends no problem.

    The solver virtual-qpu needs no token: it is a perfect Pegasus chip, or with --option topology=zephyr and --option
    size=15 a Zephyr chip, with the times of D-Wave's mock. The solver dwave reads your chip's graph and times.
    """
    from qpsbgd.solvers import make_solver

    shapes = _shapes(widths)
    options = read_options(option)
    with options_named(solver, options):
        made: Any = make_solver(solver, **options)
    if not hasattr(made, "estimate"):
        raise ValueError(f"solver {solver!r} uses no annealer; choose virtual-qpu, dwave or leap-hybrid")
    with made:
        ways: dict[str, Estimate] = {"all columns together": made.estimate(shapes)}
        if solver != "leap-hybrid":
            ways["one column at a time"] = made.estimate(shapes, one_by_one=True)
        chip = made.connect().properties.get("chip_id", solver)
    counts = dict.fromkeys((1, steps))
    body = [[f"submissions, {_steps(n)}", *(str((cost * n).submissions) for cost in ways.values())] for n in counts]
    body += [[f"QPU time, {_steps(n)}", *(_time((cost * n).qpu_seconds) for cost in ways.values())] for n in counts]
    reads = f", {made.num_reads} reads" if hasattr(made, "num_reads") else ""
    console.print(rich_table(f"{widths} on {chip}{reads}", ["", *ways], body))


def _shapes(text: str) -> list[tuple[int, int]]:
    widths = text.replace("x", "-").split("-")
    if len(widths) < 2 or not all(width.strip().isdecimal() and int(width) > 0 for width in widths):
        raise ValueError(f"widths must be at least two positive numbers joined by -, such as 16-4-4-2, got {text!r}")
    return list(pairwise(map(int, widths)))


def _steps(count: int) -> str:
    return "one step" if count == 1 else f"{count} steps"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.4g} ms"
    return f"{seconds:.4g} s" if seconds < 120 else f"{seconds / 60:.4g} min"
