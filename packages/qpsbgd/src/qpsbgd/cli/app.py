"""All commands as one application."""

import sys
import warnings
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

import qpsbgd
from qpsbgd.cli import COMMANDS, qpu
from qpsbgd.cli.console import console
from qpsbgd.cli.deploy import deploy
from qpsbgd.cli.solvers import solvers
from qpsbgd_qubo.terminal import complain, complain_of, degrade, show_warning

SOLVE = "Solve a QUBO, an Ising problem, a graph's maximum cut, or a family recorded from training, from a file."
_UsageError: Any = typer.BadParameter.__mro__[1]  # of click, which newer versions of typer have inside them
OWN = ("deploy", "qpu", "solve", "solvers")
"""The library's own commands."""


def application(wanted: str = "") -> typer.Typer:
    """The library's own commands and those of entry points.

    Of the latter only the `wanted` one is loaded, so that a package whose command fails to load breaks no other; all of
    them are where `wanted` is not a command.
    """
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Train neural networks with weights ±1, and solve the QUBOs behind their steps.",
    )
    app.callback(invoke_without_command=True)(_options)
    points = sorted(entry_points(group=COMMANDS), key=lambda point: point.name)
    for point in [] if wanted in OWN else [point for point in points if point.name == wanted] or points:
        command = point.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=point.name)
        else:
            app.command(point.name)(command)
    app.command()(deploy)
    app.add_typer(qpu.app, name="qpu")
    app.command("solve", help=SOLVE)(lambda: None)  # which `main` runs itself
    app.command()(solvers)
    return app


def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        console.print(qpsbgd.__version__)
        raise typer.Exit


def run() -> None:
    """Run the command line; wrong arguments, errors that a user can fix, and warnings are one line each."""
    degrade()
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        sys.exit(_exit_code())


def _exit_code() -> int:
    try:
        code = application(*sys.argv[1:2])(prog_name="qpsbgd", standalone_mode=False)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            error.show()
        else:
            command = error.ctx.command_path if error.ctx else "qpsbgd"
            name = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
            takes_options = name and error.ctx and any(each.name == "option" for each in error.ctx.command.params)
            hint = f"; if it is the solver's: --option {name}=VALUE" if takes_options else ""
            complain("error", f"{error.format_message()}{hint} (see {command} --help)")
        return 2
    except typer.Abort:
        return 130
    except (ImportError, MemoryError, OSError, RuntimeError, ValueError) as error:
        complain_of(error)
        return 1
    return code if isinstance(code, int) else 0
