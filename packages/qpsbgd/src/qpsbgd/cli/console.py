"""Where the command line prints: one console, a progress bar, tables."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.box import HEAVY_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from qpsbgd_qubo.files.visible import visible

console = Console()


def say(text: str) -> None:
    """Print a line as it is, control characters spelt out; the terminal breaks it where it is long."""
    console.print(visible(text), highlight=False, markup=False, soft_wrap=True)


def say_fact(name: str, fact: str) -> None:
    """Print a name in bold, and what there is to say of it."""
    console.print(Text.assemble((f"{name:<15}", "bold"), visible(fact)), soft_wrap=True)


def show(events: Iterable[tuple[str, int, int]]) -> None:
    """A progress bar that follows (phase, done, total) and estimates the time left."""
    columns = (TextColumn("{task.description:<38}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("starting", total=None)
        for phase, done, total in events:
            progress.update(task, description=phase, completed=done, total=total)


def rich_table(
    title: str, head: Sequence[str], body: Sequence[Sequence[str]], *, best: Collection[tuple[int, int]] = ()
) -> RenderableType:
    """A table for the terminal, whose cells (row, column) in `best` are bold; of a narrow one, the rows one by one."""
    cells = [
        [Text(visible(cell), style="bold green" if (number, i) in best else "") for i, cell in enumerate(row)]
        for number, row in enumerate(body)
    ]
    return _Table(visible(title), [Text(visible(cell), style="bold") for cell in head], cells)


@dataclass(frozen=True)
class _Table:
    title: str
    head: list[Text]
    body: list[list[Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="bold")
        columns = list(zip(self.head, *self.body, strict=True))
        # Every column needs its longest word; lines with a box around them need more than those without.
        least = [max(cell_len(word) for cell in column for word in cell.plain.split() or [""]) for column in columns]
        for box, between in ((HEAVY_HEAD, 3 * len(columns) + 1), (None, 2 * len(columns) - 2)):
            spare = options.max_width - between - sum(least)
            if spare < 0:
                continue
            table = Table(box=box, pad_edge=box is not None)
            for column, width in zip(columns, _widths(columns, least, spare), strict=True):
                table.add_column(column[0], width=width)
            for row in self.body:
                table.add_row(*row)
            yield table
            return
        for row in self.body:
            for name, cell in zip(self.head, row, strict=True):
                yield Text.assemble(name, ": " if name.plain else "", cell)
            yield ""


def _widths(columns: list[tuple[Text, ...]], least: list[int], spare: int) -> list[int]:
    """The width of every column: at least that of its words, and those that need little more get it first."""
    widths = list(least)
    wanted = [max(cell.cell_len for cell in column) for column in columns]
    for index in sorted(range(len(columns)), key=lambda index: wanted[index] - least[index]):
        more = min(spare, wanted[index] - widths[index])
        widths[index] += more
        spare -= more
    return widths
