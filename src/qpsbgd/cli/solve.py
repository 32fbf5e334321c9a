"""`qpsbgd solve` and `qpsbgd solvers`."""

from __future__ import annotations

import ast
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from qpsbgd.cli.console import console
from qpsbgd.qubo.problem_files import read_problem, save_assignment
from qpsbgd.solvers import SOLVERS, make_solver


def solve(
    file: Annotated[Path, typer.Argument(help="A problem: .txt (Beasley or COO), .bqm (dimod) or .npz (numpy).")],
    solver: Annotated[str, typer.Option(help="A name that `qpsbgd solvers` lists.")] = "auto",
    option: Annotated[list[str] | None, typer.Option(help="Option of the solver, key=value; repeat at will.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the variables' values.")] = Path("spins.txt"),
    seed: Annotated[int | None, typer.Option(help="Short for --option seed=….")] = None,
    maximize: Annotated[bool, typer.Option("--maximize", help="Look for the highest value, not the lowest.")] = False,
    number: Annotated[int, typer.Option(help="Which problem of a file that holds several, from 1.")] = 1,
) -> None:
    """Solve a QUBO or Ising problem, or a family recorded from training, from a file."""
    options = read_options(option) | ({} if seed is None else {"seed": seed})
    try:
        chosen = make_solver(solver, **options)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if not out.resolve().parent.is_dir() or out.is_dir() or out.resolve() == file.resolve():
        raise ValueError(f"--out must name a file, not the problem's own, in a folder that exists, got {out}")
    problem = read_problem(file, number=number)
    problem = problem.maximized() if maximize else problem
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(f"{solver}: {problem.family.num_spins} variables, {problem.family.num_columns} columns")
        begin = time.perf_counter()
        try:
            solution = chosen.solve(problem.family)
        except KeyboardInterrupt:
            progress.stop()
            console.print("Stopped; nothing was written.")
            raise typer.Exit(130) from None
        seconds = time.perf_counter() - begin

    facts = problem.summary(solution) | {"time": f"{seconds:.3g} s"}
    save_assignment(out, problem, solution.spins, comments=[f"{name}: {fact}" for name, fact in facts.items()])
    for name, fact in (facts | {"written to": str(out)}).items():
        console.print(f"[bold]{name:<15}[/bold]{escape(fact)}", highlight=False, soft_wrap=True)


def solvers() -> None:
    """List the solvers, whether each can be used here, and if not, what is missing."""
    table = Table(box=None, pad_edge=False)
    for title in ("solver", "usable", "what it does, or what is missing"):
        table.add_column(title, no_wrap=title == "solver")
    for name, place in SOLVERS.items():
        module, kind = place.split(":")
        try:
            found = getattr(import_module(module), kind)
        except ImportError as error:
            table.add_row(f"[bold]{name}[/bold]", "[red]no[/red]", escape(str(error)))
            continue
        described = found.__doc__.splitlines()[0]
        for variant, obstacle in found.variants().items():
            state = "[red]no[/red]" if obstacle else "[green]yes[/green]"
            table.add_row(f"[bold]{name}[/bold] {variant}", state, escape(obstacle or described))
            described = ""
    console.print(table)


def read_options(texts: list[str] | None) -> dict[str, Any]:
    """A solver's options from `key=value` texts."""
    return dict(map(_option, texts or []))


def _option(text: str) -> tuple[str, Any]:
    """Name and value of `key=value`, the value a Python literal where it is one."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"--option must be key=value, got {text!r}")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return key, words[value.lower()]
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
