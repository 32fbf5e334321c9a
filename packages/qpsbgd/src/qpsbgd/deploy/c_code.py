"""Networks as plain C99: constant arrays and loops, no heap, and no floating point in fully binary networks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qpsbgd.deploy.c_layout import Layout, file_names
from qpsbgd.deploy.c_network import CStep, Network, largest_step
from qpsbgd.deploy.c_sizes import sizes
from qpsbgd.deploy.c_source import source_texts
from qpsbgd_qubo.files.atomic import writing
from qpsbgd_runtime.operations import Operation, Shape


@dataclass(frozen=True)
class CSource:
    """The C code of a network; `print` tells where it is and what it needs.

    Attributes:
        files: The header, the source, the self-test, then what the layout adds.
        flash_bytes: Size of all constant arrays in the source, without the code. A compiler may put an array of one
            number into the code instead, and adds a few constants of its own.
        ram_bytes: Size of the static buffers, without the caller's arrays and the stack.
        integer: Whether only integers occur.
        steps: What every step needs, in the order in which they run.
        code_bytes: Size of the machine code as the given compiler makes it, without library functions; None without.
        stack_bytes: The deepest use of the stack by NAME_run, without library functions; None without a compiler.
    """

    files: tuple[Path, ...]
    flash_bytes: int
    ram_bytes: int
    integer: bool
    steps: tuple[CStep, ...]
    code_bytes: int | None = None
    stack_bytes: int | None = None

    def __str__(self) -> str:
        names = ", ".join(str(path) for path in self.files)
        numbers = "integer-only" if self.integer else "with floating point"
        flash = max(self.steps, key=lambda step: step.flash_bytes)
        compiled = ""
        if self.code_bytes is not None:
            deepest = max(self.steps, key=lambda step: step.stack_bytes or 0)
            compiled = (
                f"; {self.code_bytes:,} bytes of code (flash) and {self.stack_bytes:,} of stack, most of it in "
                f"{deepest.name}, without library functions"
            )
        return (
            f"{names}: {self.flash_bytes:,} bytes of constants (flash), {self.ram_bytes:,} bytes of buffers (RAM), no "
            f"heap, {numbers}; most flash is for {flash.name}, most RAM for {largest_step(self.steps).name}{compiled}"
        )


def write_c(
    operations: Sequence[Operation],
    folder: Path,
    *,
    input_shape: Shape,
    name: str,
    word_bits: int,
    layout: Layout,
    ram: int | None,
    compiler: str | None = None,
) -> CSource:
    """Write all files of a layout into a folder, which is created where it is missing."""
    names = file_names(name, layout)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"name must be a C identifier that begins with a letter, got {name!r}")
    if word_bits not in (32, 64):
        raise ValueError(f"word_bits must be 32 or 64, got {word_bits!r}")
    network = Network(operations, input_shape, word_bits)
    if ram is not None and network.ram_bytes > ram:
        network = network.in_bands(ram)
    if ram is not None and network.ram_bytes > ram:
        step = largest_step(network.used)
        raise ValueError(
            f"the network needs {network.ram_bytes:,} bytes of buffers, but ram={ram:,}: most of them in {step.name}, "
            "with what goes in and what comes out"
            f"{', by bands of rows where images allow it' if network.integer else ''}; give that layer fewer channels "
            "or a smaller image, or a pool or a stride before it"
            f"{'' if network.integer else '; integers take a quarter, and go by bands: see QuantActivation'}"
        )
    files = tuple(folder / file_name for file_name in names)
    for path, text in zip(files, source_texts(network, name, layout), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            file.write(text.encode())
    source = CSource(files, network.constants.size, network.ram_bytes, network.integer, network.used)
    if compiler is None:
        return source
    whole, steps = sizes(files[1], name, compiler)
    used = list[CStep]()
    for number, step in zip(network.shared_functions().values(), network.used, strict=True):
        size = steps[number]
        first = number == len(used) + 1
        used.append(step._replace(code_bytes=size.code if first else 0, stack_bytes=size.stack))
    return replace(source, steps=tuple(used), code_bytes=whole.code, stack_bytes=whole.stack)
