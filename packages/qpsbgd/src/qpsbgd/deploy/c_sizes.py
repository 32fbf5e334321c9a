"""Code and stack of generated C, as a compiler makes it: from its call graph and the symbols of its object file."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_APART = ("-fno-inline", "-fno-ipa-icf")
"""Keep every step a function, whose size and stack are its own."""


class Sizes(NamedTuple):
    """Bytes of machine code, and the deepest use of the stack by a function and all that it calls."""

    code: int
    stack: int


def sizes(source: Path, name: str, compiler: str) -> tuple[Sizes, dict[int, Sizes]]:
    """Sizes of a network's source as the compiler makes it, and of each step where steps stay functions.

    Library functions, such as expf, are not included: their stack is not known. Integer-only networks call none but
    memset.

    Args:
        source: NAME.c, beside NAME.h.
        name: NAME.
        compiler: The command of a gcc: "arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -O2".

    Raises:
        ValueError: The command is not a gcc of version 10 or later that can compile the source.
    """
    code, stacks = _compile(source, compiler)
    whole = Sizes(sum(code.values()), stacks[f"{name}_run"])
    code, stacks = _compile(source, compiler, *_APART)
    steps: dict[int, Sizes] = {}
    for function, stack in stacks.items():  # with and without population counts, a step is two functions
        if match := re.match(r"step(\d+)(?!\d)", function):
            known = steps.get(int(match[1]), Sizes(0, 0))
            steps[int(match[1])] = Sizes(known.code + code.get(function, 0), max(known.stack, stack))
    return whole, steps


def _compile(source: Path, compiler: str, *options: str) -> tuple[dict[str, int], dict[str, int]]:
    """Code and stack of every function."""
    with tempfile.TemporaryDirectory() as folder:
        target, command = Path(folder) / "network.o", shlex.split(compiler)
        flags = ("-std=c99", "-w", "-fcallgraph-info=su", *options, "-c", str(source), "-o", str(target))
        try:
            _output([*command, *flags])
            graph = target.with_suffix(".ci").read_text(encoding="utf-8").replace(f'"{source}:', '"')
            tool = _output([*command, "-print-prog-name=nm"]).strip()
            symbols = _output([tool, "-S", str(target)])
        except (OSError, IndexError, subprocess.CalledProcessError) as error:
            said = f"{error}\n{getattr(error, 'stderr', None) or ''}".strip()
            raise ValueError(
                f"compiler must be the command of a gcc, version 10 or later, got {compiler!r}: {said}"
            ) from error
    code = {
        words[3]: int(words[1], 16)
        for words in map(str.split, symbols.splitlines())
        if len(words) == 4 and words[2] in "tT"
    }
    frames = {title: int(size) for title, size in re.findall(r'title: "([^"]*)" label: "[^"]*?(\d+) bytes', graph)}
    edges = re.findall(r'sourcename: "([^"]*)" targetname: "([^"]*)"', graph)
    calls = {title: {target for source, target in edges if source == title and target in frames} for title in frames}
    return code, {title: _deepest(title, frames, calls) for title in frames}


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _deepest(title: str, frames: Mapping[str, int], calls: Mapping[str, set[str]]) -> int:
    """Generated C has no recursion."""
    return frames[title] + max((_deepest(other, frames, calls) for other in calls[title]), default=0)
