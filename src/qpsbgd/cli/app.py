"""All commands as one application."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import qpsbgd
from qpsbgd.cli import COMMANDS, qpu, solve
from qpsbgd.cli.console import console


def application() -> typer.Typer:
    """The library's own commands, and those of the entry points in `COMMANDS`."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Train networks with weights ±1.",
    )
    app.callback(invoke_without_command=True)(_options)
    for point in sorted(entry_points(group=COMMANDS), key=lambda point: point.name):
        added = point.load()
        if isinstance(added, typer.Typer):
            app.add_typer(added, name=point.name)
        else:
            app.command(point.name)(added)
    for command in (solve.solve, solve.solvers):
        app.command()(command)
    app.add_typer(qpu.app, name="qpu")
    return app


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        console.print(qpsbgd.__version__)
        raise typer.Exit


def run() -> None:
    """Run the command line; errors that a user can mend are one line."""
    try:
        application()()
    except (ImportError, MemoryError, OSError, RuntimeError, ValueError) as error:
        if os.environ.get("QPSBGD_DEBUG"):
            raise
        message = f"[red]error:[/red] {escape(str(error))} (QPSBGD_DEBUG=1 shows where)"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(1)
