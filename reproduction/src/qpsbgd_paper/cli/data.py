"""`qpsbgd data`: which data files are here, fetching them, checking them."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from qpsbgd.cli.console import console, say
from qpsbgd_paper.datasets import files
from qpsbgd_qubo.files.visible import visible

app = typer.Typer(no_args_is_help=True, help="Data files of the experiments: list, fetch and check them.")

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Data sets, or all; no name means all.")]
Data = Annotated[
    Path | None, typer.Option(help="The data folder, instead of the one in QPSBGD_DATA or the user's cache.")
]


@app.command("list")
def list_(data: Data = None) -> None:
    """List the data sets, where they come from, and whether they are here."""
    folder, _ = files.data_folder(data)
    table = Table(box=None, pad_edge=False)
    for title in ("data set", "files", "bytes", "here"):
        table.add_column(title, no_wrap=True, justify="right" if title in ("files", "bytes") else "left")
    for dataset, members in files.datasets().items():
        states = [files.state(file.name, data=data) for file in members]
        if "wrong" in states:
            here = f"[red]{states.count('wrong')} wrong[/red]"
        elif "missing" in states:
            here = "[red]no[/red]" if set(states) == {"missing"} else f"[red]{states.count('missing')} missing[/red]"
        else:
            here = "[green]yes[/green]"
        size = f"{sum(file.size for file in members):,}"
        table.add_row(f"[bold]{dataset}[/bold]", str(len(members)), size, here)
    say(f"In {folder}:")
    console.print(table)
    say("\nOrigins:")
    for dataset, members in files.datasets().items():  # beside the table, addresses would be broken at 80 columns
        say(f"{dataset:<9} {members[0].origins[0].rpartition('/')[0]}/")


@app.command()
def fetch(names: Names = None, data: Data = None) -> None:
    """Download what is missing or wrong into the user's cache, or into the folder in --data."""
    wanted = _files_of(names)
    named = os.environ.get("QPSBGD_DATA")
    if data is None and named:
        if all(files.state(file.name) == "right" for file in wanted):
            say(f"All files are in QPSBGD_DATA, {named}.")
            return
        raise ValueError(
            f"files are looked for in QPSBGD_DATA, {named}, which is filled only on request: add `--data {named}`, or "
            "unset QPSBGD_DATA to use the cache"
        )
    folder, _ = files.data_folder(data)
    missing = [file for file in wanted if files.state(file.name, data=data) != "right"]
    try:
        for file in missing:
            files.fetch(file.name, data=data and folder)
    except KeyboardInterrupt:
        say("\nStopped. Complete files are kept; the same command goes on from here.")
        raise typer.Exit(130) from None
    say(f"{len(missing)} files fetched, {len(wanted) - len(missing)} were already there, in {folder}.")


@app.command()
def check(names: Names = None, data: Data = None) -> None:
    """Compare the checksums of the data files; the exit code is 1 when one is missing or wrong."""
    wanted = _files_of(names)
    folder, _ = files.data_folder(data)
    problems = [(state, file) for file in wanted if (state := files.state(file.name, data=data)) != "right"]
    for state, file in problems:
        console.print(
            f"[red]{state:<9}[/red]{escape(visible(str(folder / file.name)))}", highlight=False, soft_wrap=True
        )
    if problems:
        sets = " ".join(dict.fromkeys(file.dataset for _, file in problems))
        place = f" --data {folder}" if data or os.environ.get("QPSBGD_DATA") else ""
        say(f"{len(problems)} of {len(wanted)} files are missing or wrong; run `qpsbgd data fetch {sets}{place}`.")
        raise typer.Exit(1)
    say(f"All {len(wanted)} files in {folder} have the right checksums.")


def _files_of(names: list[str] | None) -> list[files.Published]:
    """The files of the named data sets."""
    known = files.datasets()
    unknown = [name for name in names or [] if name not in (*known, "all")]
    if unknown:
        raise typer.BadParameter(f"there is no data set {unknown[0]!r}, only {', '.join(known)} and all")
    chosen = known if not names or "all" in names else dict.fromkeys(names)
    return [file for name in chosen for file in known[name]]
