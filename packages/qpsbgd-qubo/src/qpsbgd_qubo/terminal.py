"""What commands print on a terminal that may not have all characters: errors and warnings, one line each."""

import io
import os
import sys

from qpsbgd_qubo.files.visible import visible

_COLOURS = {"error": 31, "warning": 33}


def degrade() -> None:
    """Print question marks for characters that the terminal's encoding lacks instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def complain(kind: str, message: str) -> None:
    """Print one line on standard error, an "error" or a "warning"."""
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    head = f"\x1b[{_COLOURS[kind]}m{kind}:\x1b[0m" if coloured else f"{kind}:"
    sys.stderr.write(f"{head} {visible(' '.join(message.split()))}\n")


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """`warnings.showwarning` for users, who need no source lines."""
    complain("warning", str(message))


def complain_of(error: Exception) -> None:
    """Print what is wrong for a user who can do something about it; the error itself where QPSBGD_DEBUG is set."""
    if os.environ.get("QPSBGD_DEBUG"):
        raise error
    words = str(error)
    if isinstance(error, OSError) and error.strerror:  # the path, then the reason, without its number
        words = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    complain("error", f"{words} (QPSBGD_DEBUG=1 shows where)")
