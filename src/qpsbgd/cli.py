"""The command line: `qpsbgd demo`, `qpsbgd solve`, `qpsbgd solvers`."""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import qpsbgd
from qpsbgd.problem_files import read_problem, save_assignment
from qpsbgd.solvers import SOLVERS, make_solver

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train networks with weights ±1."
)
console = Console()


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        console.print(qpsbgd.__version__)
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for results and report.")] = Path("results/demo"),
    workers: Annotated[int, typer.Option(min=1, help="Processes to use.")] = min(2, os.cpu_count() or 1),
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method.")] = 5,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the long budget.")] = 10,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete finished runs first instead of reusing them.")] = False,
) -> None:
    """Train a binary network on handwritten digits with QP-SBGD and the baselines, and write a report."""
    from qpsbgd.experiments import digits, logreg
    from qpsbgd.experiments.runs import environment, write_json, write_text
    from qpsbgd.report import demo as report

    runs = out / "runs"
    if fresh and runs.exists():
        for pattern in ("digits-*.json", "logreg-*.json"):
            for path in runs.glob(pattern):
                path.unlink()
    kept = len(list(runs.glob("*.json"))) if runs.exists() else 0
    if kept:
        console.print(f"{kept} finished runs in {runs} are used where they fit; --fresh starts over.", soft_wrap=True)

    budgets = (epochs,) if epochs <= 2 else (2, epochs)
    digits_settings = digits.Digits(budgets=budgets, seeds=seeds)
    logreg_settings = logreg.LogReg()
    console.print(f"Digits, network 64-{digits_settings.hidden}-10 with weights ±1, {workers} processes")
    try:
        _show(digits.run(digits_settings, folder=runs, workers=workers))
        _show(logreg.run(logreg_settings, folder=runs, workers=workers))
    except KeyboardInterrupt:
        console.print("\nStopped. Finished runs are kept; the same command goes on from here.")
        raise typer.Exit(130) from None

    digits_summary = digits.summary(digits_settings, folder=runs)
    logreg_summary = logreg.summary(logreg_settings, folder=runs)
    made_with = environment()
    content = {"made with": made_with, "digits": digits_summary, "logreg": logreg_summary}
    write_json(out / "results.json", content)
    write_text(out / "digits.svg", report.digits_figure(digits_summary))
    write_text(out / "logreg.svg", report.logreg_figure(logreg_summary))
    page = out / "report.html"
    write_text(page, report.demo_page(digits_summary, logreg_summary, made_with=made_with))

    console.print()
    console.print(
        _rich_table("Test accuracy on digits, mean ± standard deviation", report.digits_table(digits_summary))
    )
    console.print(_rich_table("Binary logistic regression, mean ± standard error", report.logreg_table(logreg_summary)))
    for sentence in report.verdicts(digits_summary, logreg_summary):
        console.print(f"• {sentence}", highlight=False, soft_wrap=True)
    console.print(f"\nReport: {page.resolve().as_uri()}", soft_wrap=True)


@app.command()
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
    options = dict(map(_option, option or [])) | ({} if seed is None else {"seed": seed})
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


@app.command()
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


def _show(events: Iterator[tuple[str, int, int]]) -> None:
    columns = (TextColumn("{task.description:<38}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("starting", total=None)
        for phase, done, total in events:
            progress.update(task, description=phase, completed=done, total=total)


def _rich_table(title: str, content: tuple[list[str], list[list[str]]]) -> Table:
    head, body = content
    table = Table(*head, title=title, title_justify="left", title_style="bold")
    for row in body:
        table.add_row(*row)
    return table


def main() -> None:
    """Run the command line; errors that a user can mend are one line."""
    try:
        app()
    except (ImportError, MemoryError, OSError, RuntimeError, ValueError) as error:
        if os.environ.get("QPSBGD_DEBUG"):
            raise
        message = f"[red]error:[/red] {escape(str(error))} (QPSBGD_DEBUG=1 shows where)"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
