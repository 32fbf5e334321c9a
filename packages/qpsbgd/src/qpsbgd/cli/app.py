"""All commands as one application."""

import sys
import warnings
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer

import qpsbgd
from qpsbgd.cli import COMMANDS
from qpsbgd.cli.console import console
from qpsbgd_qubo.terminal import complain, complain_of, degrade, show_warning

_UsageError: Any = typer.BadParameter.__mro__[1]  # of click, which newer versions of typer have inside them

OWN = (
    EntryPoint("deploy", "qpsbgd.cli.deploy:deploy", COMMANDS),
    EntryPoint("qpu", "qpsbgd.cli.qpu:app", COMMANDS),
    EntryPoint("solve", "qpsbgd_qubo.command:solve", COMMANDS),  # which `main` runs itself
    EntryPoint("solvers", "qpsbgd.cli.solvers:solvers", COMMANDS),
)

SUMMARIES = {
    "data": "Data files of the experiments: fetch and check them.",
    "demo": "Train a binary network on handwritten digits with QP-SBGD and the baselines, and write a report.",
    "deploy": "Make C99 or ONNX of a packed network.",
    "qpu": "What a run costs on a quantum annealer.",
    "report": "Make one HTML page and the figures from the results of `qpsbgd run`.",
    "run": "Run experiments of the paper: every method at its own best options, several seeds, results as JSON.",
    "solve": (
        "Solve a QUBO, an Ising problem, a graph's maximum cut, or a family recorded from training, from a file."
    ),
    "solvers": "List the solvers, whether each can be used here and, if not, what is missing.",
}
"""Lines of the overview, which loads no command."""


def application(wanted: str = "") -> typer.Typer:
    """The library's own commands, and those of entry points: the `wanted` one, or all for the overview."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Train neural networks with weights ±1, and solve the QUBOs behind their steps.",
    )
    app.callback(invoke_without_command=True)(_options)
    points = [*sorted(entry_points(group=COMMANDS), key=lambda point: point.name), *OWN]
    chosen = [point for point in points if point.name == wanted]
    for point in points if not chosen else ():
        app.command(point.name, help=SUMMARIES.get(point.name, ""))(lambda: None)
    for point in chosen:
        command = point.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=point.name)
        else:
            app.command(point.name)(command)
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
