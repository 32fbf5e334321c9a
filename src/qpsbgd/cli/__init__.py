"""The command line: `qpsbgd demo`, `run`, `report`, `data`, `qpu`, `solve` and `solvers`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import qpsbgd
from qpsbgd.cli import data, qpu, running, solving
from qpsbgd.cli.console import console

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train networks with weights ±1."
)
for command in (running.demo, running.run, running.report, solving.solve, solving.solvers):
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(qpu.app, name="qpu")


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        console.print(qpsbgd.__version__)
        raise typer.Exit


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
