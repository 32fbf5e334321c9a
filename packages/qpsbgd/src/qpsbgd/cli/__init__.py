"""The command line: `qpsbgd solve`, `solvers`, `qpu` and `deploy`, and the commands that other packages add."""

from __future__ import annotations

import sys

from qpsbgd.openmp import wait_passively

COMMANDS = "qpsbgd.commands"
"""Entry points with further commands: name → a function, or a typer app for a group of them."""


def main() -> None:
    """Run the command line; without its packages, say how to install them."""
    try:
        _main()
    except KeyboardInterrupt:  # while Python imports; commands have their own answers
        sys.exit(130)


def _main() -> None:
    wait_passively()
    if sys.argv[1:2] == ["solve"]:
        from qpsbgd_qubo import command

        sys.exit(command.main(sys.argv[1:], program="qpsbgd"))
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        sys.exit("error: the command line needs typer and rich: pip install 'qpsbgd[cli]'")
    from qpsbgd.cli.app import run

    run()
