"""`qpsbgd deploy`: a packed network as C99 or ONNX."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from qpsbgd.cli.console import say
from qpsbgd_qubo.files.atomic import check_folder, check_new


def deploy(
    model: Annotated[Path, typer.Argument(help="A packed file, as qpsbgd.deploy.pack writes it.")],
    to: Annotated[Literal["c", "onnx"], typer.Option(help="What to make.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; for C a folder.")],
    input_shape: Annotated[
        str | None,
        typer.Option(
            help="Shape of one sample, 784 or 1,28,28: for networks that begin with a convolution or read sizes."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the C functions and files.")] = "network",
    layout: Annotated[
        Literal["plain", "arduino", "platformio", "cmake"], typer.Option(help="For which tool the C folder is.")
    ] = "plain",
    ram: Annotated[int | None, typer.Option(help="The most bytes that static buffers in C may take.")] = None,
    compiler: Annotated[
        str | None, typer.Option(help="A gcc's command that measures code and stack of the C: 'gcc -O2'.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Make C99 or ONNX of a packed network."""
    from qpsbgd.deploy import load_packed, to_c, to_onnx
    from qpsbgd.deploy.c_layout import file_names

    shape = _shape(input_shape)
    if out.exists() and out.samefile(model):
        raise ValueError(f"--out must not be the model's own file, got {out}")
    if to == "c":
        check_folder(out)
    for file in [out / end for end in file_names(name, layout)] if to == "c" else [out]:
        check_new(file, force=force)
    network = load_packed(model)
    if to == "c":
        say(str(to_c(network, out, input_shape=shape, name=name, layout=layout, ram=ram, compiler=compiler)))
    else:
        to_onnx(network, out, input_shape=shape)
        say(f"{out}: {out.stat().st_size:,} bytes")


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    sizes = text.replace("x", ",").split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise ValueError(f"--input-shape must be positive numbers such as 784 or 1,28,28, got {text!r}")
    return tuple(int(size) for size in sizes)
