"""Options of a solver on the command line."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def options_named(solver: str, options: dict[str, Any]) -> Iterator[None]:
    """Turns an error that an option's value causes deep inside a library into one line that names the options."""
    try:
        yield
    except (ImportError, MemoryError, OSError, RuntimeError):
        raise  # these have a message for the user
    except Exception as error:
        if not options or (isinstance(error, ValueError) and any(name in str(error) for name in options)):
            raise
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"--solver {solver} with {given}: {reason}") from error


def read_options(texts: list[str] | None) -> dict[str, Any]:
    """A solver's options from `key=value` texts."""
    return dict(map(_option, texts or []))


def _option(text: str) -> tuple[str, Any]:
    """Name and value of `key=value`, the value a Python literal where it is one."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"--option must be key=value, got {text!r}")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return key, words[value.lower()]
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return key, value
