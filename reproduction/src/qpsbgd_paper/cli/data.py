"""`qpsbgd data`: fetching the data files of the experiments."""

from pathlib import Path
from typing import Annotated

import typer

from qpsbgd.cli.console import say
from qpsbgd_paper.datasets import files

app = typer.Typer(no_args_is_help=True)

Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help=f"{', '.join(files.ORIGINS)}; no name means all.")
]
Data = Annotated[
    Path | None, typer.Option(help="The data folder, instead of the one in QPSBGD_DATA or the user's cache.")
]


@app.callback()
def data() -> None:
    """Data files of the experiments."""


@app.command()
def fetch(names: Names = None, data: Data = None) -> None:
    """Download what is missing or wrong in the data folder."""
    for name in names or ():
        if name not in files.ORIGINS:
            raise typer.BadParameter(f"there is no data set {name!r}, only {', '.join(files.ORIGINS)}")
    folder, _ = files.data_folder(data)
    wanted = [file for file in files.CHECKSUMS if file.split("/")[0] in (names or files.ORIGINS)]
    missing = [name for name in wanted if files.state(name, folder) != "right"]
    for name in missing:
        files.fetch(name, folder)
    say(f"{len(missing)} files fetched, {len(wanted) - len(missing)} were already there, in {folder}.")
