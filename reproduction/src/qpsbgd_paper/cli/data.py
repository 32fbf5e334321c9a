"""`qpsbgd data`: fetching the data files of the experiments, and checking them."""

from pathlib import Path
from typing import Annotated

import typer

from qpsbgd.cli.console import say
from qpsbgd_paper.datasets import files

app = typer.Typer(no_args_is_help=True, help="Data files of the experiments: fetch and check them.")

Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help=f"{', '.join(files.ORIGINS)}; no name means all.")
]
Data = Annotated[
    Path | None, typer.Option(help="The data folder, instead of the one in QPSBGD_DATA or the user's cache.")
]


@app.command()
def fetch(names: Names = None, data: Data = None) -> None:
    """Download what is missing or wrong in the data folder."""
    folder, _ = files.data_folder(data)
    wanted = _files_of(names)
    missing = [name for name in wanted if files.state(name, folder) != "right"]
    for name in missing:
        files.fetch(name, folder)
    say(f"{len(missing)} files fetched, {len(wanted) - len(missing)} were already there, in {folder}.")


@app.command()
def check(names: Names = None, data: Data = None) -> None:
    """Compare the checksums of the data files; the exit code is 1 when one is missing or wrong."""
    folder, _ = files.data_folder(data)
    wanted = _files_of(names)
    problems = [(state, name) for name in wanted if (state := files.state(name, folder)) != "right"]
    for state, name in problems:
        say(f"{state:<9}{folder / name}")
    if problems:
        say(f"{len(problems)} of {len(wanted)} files are missing or wrong; `qpsbgd data fetch` downloads them.")
        raise typer.Exit(1)
    say(f"All {len(wanted)} files in {folder} have the right checksums.")


def _files_of(names: list[str] | None) -> list[str]:
    """The files of the named data sets."""
    for name in names or ():
        if name not in files.ORIGINS:
            raise typer.BadParameter(f"there is no data set {name!r}, only {', '.join(files.ORIGINS)}")
    return [file for file in files.CHECKSUMS if file.split("/")[0] in (names or files.ORIGINS)]
