"""Where the command line prints: one console, a progress bar, tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

console = Console()


def show(events: Iterable[tuple[str, int, int]]) -> None:
    """A progress bar that follows (phase, done, total) and estimates the time left."""
    columns = (TextColumn("{task.description:<38}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("starting", total=None)
        for phase, done, total in events:
            progress.update(task, description=phase, completed=done, total=total)


def rich_table(title: str, content: tuple[list[str], list[list[str]]]) -> Table:
    """A table from its head and rows."""
    head, body = content
    table = Table(*head, title=title, title_justify="left", title_style="bold")
    for row in body:
        table.add_row(*row)
    return table
