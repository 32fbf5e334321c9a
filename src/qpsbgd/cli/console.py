"""Where the command line prints: one console, a progress bar, tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

console = Console()


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
    """A table for the terminal; the cells (row, column) in `best` are bold."""
    table = Table(*map(escape, head), title=escape(title), title_justify="left", title_style="bold")
    for number, row in enumerate(body):
        cells = [Text(cell, style="bold green" if (number, i) in best else "") for i, cell in enumerate(row)]
        table.add_row(*cells)
    return table
