"""What options must be, checked where a solver or an optimiser is made; and how they are read on the command line."""

import ast
import contextlib
import math
import numbers
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number, finite and within bounds; numpy's are made plain, and booleans are not numbers."""

    whole: bool = False  # whether it must be an integer
    least: float | None = None  # the least value allowed
    positive: bool = False  # whether it must be more than 0
    most: float | None = None  # the largest value allowed
    below: float | None = None  # what it must be smaller than
    optional: bool = False  # whether it may be None

    def __str__(self) -> str:
        bounds = {"at least": self.least, "at most": self.most, "below": self.below}
        words = " and ".join(f"{word} {bound:.12g}" for word, bound in bounds.items() if bound is not None)
        kind = "integer" if self.whole else "finite number"
        kind = f"a positive {kind}" if self.positive else f"an {kind}" if self.whole else f"a {kind}"
        of = " of " if words.startswith("at") else " " if words else ""
        return ("None or " if self.optional else "") + kind + of + words

    def checked(self, name: str, value: Any) -> Any:
        """The value as a plain int, float or None.

        Raises:
            TypeError: It is not a number, or not an integer where `whole`.
            ValueError: It is out of bounds, infinite or NaN.
        """
        if value is None and self.optional:
            return None
        fits = isinstance(value, numbers.Integral if self.whole else numbers.Real)
        if not fits or isinstance(value, bool):
            raise TypeError(f"{name} must be {self}, got {value!r}")
        try:
            plain = int(value) if self.whole else float(value)
        except OverflowError:  # an integer that no float can hold
            plain = math.inf
        if not (
            (self.whole or math.isfinite(plain))
            and (self.least is None or plain >= self.least)
            and (plain > 0 or not self.positive)
            and (self.most is None or plain <= self.most)
            and (self.below is None or plain < self.below)
        ):
            raise ValueError(f"{name} must be {self}, got {value}")
        return plain


@dataclass(frozen=True)
class Flag:
    """True or False, and nothing that merely counts as such."""

    def checked(self, name: str, value: Any) -> bool:
        """The value; raises a TypeError that names the option unless it is a boolean."""
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be true or false, got {value!r}")
        return value


COUNT = Number(whole=True, least=0)
AT_LEAST_ONE = Number(whole=True, least=1)
SEED = Number(whole=True, least=0, most=2**63 - 1)
AT_LEAST_ONE_OR_NONE = Number(whole=True, least=1, optional=True)
POSITIVE = Number(positive=True)
NOT_NEGATIVE = Number(least=0)
BELOW_ONE = Number(least=0, below=1)
SECONDS = Number(least=0, optional=True)  # a time limit; None for no limit
POSITIVE_OR_NONE = Number(positive=True, optional=True)
FLAG = Flag()


def check_options(solver: object, **rules: Number | Flag) -> None:
    """Replace these options of a frozen dataclass by their plain values, or raise for the first that is invalid."""
    for name, rule in rules.items():
        object.__setattr__(solver, name, rule.checked(name, getattr(solver, name)))


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
