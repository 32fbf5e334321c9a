"""Where the command line prints: one console, a progress bar, tables."""

from collections.abc import Collection, Iterable, Sequence

from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from qpsbgd_qubo.files.visible import visible

console = Console()


def say(text: str) -> None:
    """Print a line as it is, control characters spelt out; the terminal breaks it where it is long."""
    console.print(visible(text), highlight=False, markup=False, soft_wrap=True)


def show(events: Iterable[tuple[str, int, int]]) -> None:
    """A progress bar that follows (phase, done, total) and estimates the time left."""
    columns = (TextColumn("{task.description:<38}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("starting", total=None)
        for phase, done, total in events:
            progress.update(task, description=phase, completed=done, total=total)


def rich_table(
    title: str, head: Sequence[str], body: Sequence[Sequence[str]], *, best: Collection[tuple[int, int]] = ()
) -> Table:
    """A table for the terminal, whose cells (row, column) in `best` are bold."""
    table = Table(title=Text(visible(title), "bold"), title_justify="left", box=HEAVY_HEAD)
    for name in head:
        table.add_column(Text(visible(name), "bold"), overflow="fold")
    for number, row in enumerate(body):
        styles = ("bold green" if (number, column) in best else "" for column in range(len(row)))
        table.add_row(*(Text(visible(cell), style) for cell, style in zip(row, styles, strict=True)))
    return table
