"""The command line: `qpsbgd demo`, `qpsbgd solvers`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import qpsbgd
from qpsbgd.solvers import SOLVERS

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
        shutil.rmtree(runs)
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
def solvers() -> None:
    """List the solvers, and whether each can be used here."""
    table = Table("solver", "what it does", "usable here", box=None, pad_edge=False)
    for name, place in SOLVERS.items():
        module, kind = place.split(":")
        try:
            described = getattr(import_module(module), kind).__doc__.splitlines()[0]
            state = "[green]yes[/green]"
        except ImportError as error:
            described, state = "", f"[red]no[/red]: {error}"
        table.add_row(f"[bold]{name}[/bold]", described, state)
    console.print(table)


def _show(events: Iterator[tuple[str, int, int]]) -> None:
    columns = (TextColumn("{task.description:<38}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("starting", total=None)
        for phase, done, total in events:
            progress.update(task, description=phase, completed=done, total=total)


def _rich_table(title: str, content: tuple[list[str], list[list[str]]]) -> Table:
    head, body = content
    table = Table(*head, title=title, title_justify="left", title_style="bold")
    for index, row in enumerate(body):
        table.add_row(*row, style="bold" if index == 0 else "")
    return table


def main() -> None:
    """Run the command line; errors that a user can mend are one line."""
    try:
        app()
    except (ImportError, OSError, ValueError) as error:
        if os.environ.get("QPSBGD_DEBUG"):
            raise
        Console(stderr=True).print(f"[red]error:[/red] {error} (QPSBGD_DEBUG=1 shows where)", soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
