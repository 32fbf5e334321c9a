"""All commands as one application."""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import qpsbgd
from qpsbgd.cli import COMMANDS
from qpsbgd_files.visible import visible
from qpsbgd_qubo.console import console, degrade

_UsageError: Any = typer.BadParameter.__mro__[1]  # of click, which newer versions of typer have inside them

OWN = (
    EntryPoint("deploy", "qpsbgd.cli.deploy:deploy", COMMANDS),
    EntryPoint("qpu", "qpsbgd.cli.qpu:app", COMMANDS),
    EntryPoint("solvers", "qpsbgd.cli.solvers:solvers", COMMANDS),
)


def application(wanted: str = "") -> typer.Typer:
    """The library's own commands, and those of the entry points in `COMMANDS`.

    Args:
        wanted: The one to load: others may need packages that take seconds. All of them if there is none of this name.
    """
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Train neural networks with weights ±1, and solve the QUBOs behind their steps.",
    )
    app.callback(invoke_without_command=True)(_options)
    points = [*sorted(entry_points(group=COMMANDS), key=lambda point: point.name), *OWN]
    for point in [point for point in points if point.name == wanted] or points:
        command = point.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=point.name)
        else:
            app.command(point.name)(command)
    return app


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        console.print(qpsbgd.__version__)
        raise typer.Exit


def run() -> None:
    """Run the command line; wrong arguments, and errors that a user can fix, are one line."""
    degrade()
    try:
        code = application(*sys.argv[1:2])(prog_name="qpsbgd", standalone_mode=False)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            error.show()
        else:
            _complain(f"{error.format_message()} (see {error.ctx.command_path if error.ctx else 'qpsbgd'} --help)")
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    except (ImportError, MemoryError, OSError, RuntimeError, ValueError) as error:
        if os.environ.get("QPSBGD_DEBUG"):
            raise
        _complain(f"{error} (QPSBGD_DEBUG=1 shows where)")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> None:
    text = Text.assemble(("error:", "red"), " ", visible(" ".join(message.split())))
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)
