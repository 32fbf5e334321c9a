"""`qpsbgd deploy`: a trained network as a packed file, C99 or ONNX."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from qpsbgd.cli.console import say
from qpsbgd_qubo.files.atomic import check_folder, check_new

if TYPE_CHECKING:
    from torch import nn

    from qpsbgd.deploy import PackedModel


def deploy(
    model: Annotated[
        Path, typer.Argument(help="A packed file, or a whole model that torch.save wrote (with --trust-pickle).")
    ],
    to: Annotated[Literal["packed", "c", "onnx"], typer.Option(help="What to make.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; for C a folder.")],
    input_shape: Annotated[
        str | None,
        typer.Option(
            help="Shape of one sample, 784 or 1,28,28: for networks that begin with a convolution or read sizes."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the C functions and files.")] = "network",
    word_bits: Annotated[int, typer.Option(help="Bits of a machine word in C, 32 or 64.")] = 32,
    layout: Annotated[
        Literal["plain", "arduino", "platformio", "cmake"], typer.Option(help="For which tool the C folder is.")
    ] = "plain",
    ram: Annotated[int | None, typer.Option(help="The most bytes that static buffers in C may take.")] = None,
    weights: Annotated[
        Literal["bits", "float32", "qonnx"],
        typer.Option(help="In ONNX: packed bits, float32, or float32 with QONNX's BipolarQuant."),
    ] = "bits",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    trust_pickle: Annotated[
        bool,
        typer.Option(
            "--trust-pickle", help="Load a model that torch.save wrote: this runs code that the file contains."
        ),
    ] = False,
) -> None:
    """Make a packed file (one bit per weight), C99 or ONNX of a trained network."""
    from qpsbgd.deploy import pack, to_c, to_onnx
    from qpsbgd.deploy.c_layout import file_names

    shape = _shape(input_shape)
    if out.exists() and out.samefile(model):
        raise ValueError(f"--out must not be the model's own file, got {out}")
    if to == "c":
        check_folder(out)
    for file in [out / end for end in file_names(name, layout)] if to == "c" else [out]:
        check_new(file, force=force)
    network = _load(model, trust_pickle=trust_pickle)
    if to == "c":
        options: dict[str, Any] = {"word_bits": word_bits, "layout": layout, "ram": ram}
        say(str(to_c(network, out, input_shape=shape, name=name, **options)))
        return
    if to == "onnx":
        to_onnx(network, out, input_shape=shape, weights=weights)
    else:
        pack(network, out, input_shape=shape)
    say(f"{out}: {out.stat().st_size:,} bytes")


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    sizes = text.replace("x", ",").split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise ValueError(f"--input-shape must be positive numbers such as 784 or 1,28,28, got {text!r}")
    return tuple(int(size) for size in sizes)


def _load(path: Path, *, trust_pickle: bool) -> PackedModel | nn.Module:
    """The packed model in a file, or the torch model if it may be unpickled."""
    from qpsbgd.deploy import load_packed

    if not path.is_file() or not zipfile.is_zipfile(path):  # torch.save writes zip archives
        with path.open("rb") as file:
            if file.read(4) == b"PK\x03\x04":
                raise ValueError(f"{path} is a file of torch.save, but damaged: its end is missing")
        return load_packed(path)
    if not trust_pickle:
        raise ValueError(
            f"{path} is a file of torch.save, and loading a whole model runs code that it contains: add --trust-pickle "
            "if you trust its origin, or write a packed file with qpsbgd.deploy.pack(model, path)"
        )
    from qpsbgd.nn.saving import unpickled

    return unpickled(path)
