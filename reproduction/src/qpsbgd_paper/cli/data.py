"""`qpsbgd data`: fetching the data files of the experiments."""

from typing import Annotated

import typer

from qpsbgd.cli.console import say
from qpsbgd_paper.datasets import files

app = typer.Typer(no_args_is_help=True)

Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help=f"{', '.join(files.ORIGINS)}; no name means all.")
]


@app.callback()
def data() -> None:
    """Data files of the experiments."""


@app.command()
def fetch(names: Names = None) -> None:
    """Download what is missing or wrong in the data folder: the one in QPSBGD_DATA, or the user's cache."""
    for name in names or ():
        if name not in files.ORIGINS:
            raise typer.BadParameter(f"there is no data set {name!r}, only {', '.join(files.ORIGINS)}")
    folder, _ = files.data_folder()
    wanted = [file for file in files.CHECKSUMS if file.split("/")[0] in (names or files.ORIGINS)]
    missing = [name for name in wanted if files.state(name, folder) != "right"]
    for name in missing:
        files.fetch(name, folder)
    say(f"{len(missing)} files fetched, {len(wanted) - len(missing)} were already there, in {folder}.")
