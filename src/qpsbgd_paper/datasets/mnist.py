"""MNIST: handwritten digits, 28 × 28 pixels, from its original IDX files."""

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qpsbgd_paper.datasets.files import locate

Part = Literal["train", "t10k"]
Bytes = npt.NDArray[np.uint8]

_UINT8 = 0x08


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images (N, height, width) or (N, height, width, 3), uint8, and their labels (N,), long, from 0 to 9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_mnist(*, data: Path | None = None) -> LabelledImages:
    """All 60000 training and 10000 test images (28, 28), and their labels; `data` as in `files.locate`."""
    parts: list[Tensor] = []
    for part in ("train", "t10k"):
        images, labels = read_images(part, data=data), read_labels(part, data=data)
        if len(images) != len(labels):
            raise ValueError(
                f"MNIST must have a label for each image, but {part} has {len(images)} images and {len(labels)} labels"
            )
        parts += [torch.from_numpy(images), torch.from_numpy(labels).long()]
    return LabelledImages(*parts)


def read_images(part: Part, *, data: Path | None = None) -> Bytes:
    """The images of a part, (N, 28, 28)."""
    path = locate(f"mnist/{part}-images-idx3-ubyte.gz", data=data)
    images = read_idx(path, dimensions=3)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"images of MNIST must have 28 × 28 pixels, {path} has shape {images.shape}")
    return images


def read_labels(part: Part, *, data: Path | None = None) -> Bytes:
    """The digits of a part, (N,)."""
    path = locate(f"mnist/{part}-labels-idx1-ubyte.gz", data=data)
    labels = read_idx(path, dimensions=1)
    if labels.size and labels.max() > 9:
        raise ValueError(f"labels of MNIST must be 0 to 9, {path} has {labels.max()}")
    return labels


def read_idx(path: Path, *, dimensions: int) -> Bytes:
    """The array of bytes in a gzipped IDX file.

    Such a file is 0, 0, the type (8 for bytes), the number of dimensions, then each dimension's length in four bytes,
    most significant first, then the elements in C order.

    Args:
        path: The file.
        dimensions: How many dimensions it must have.
    """
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file ({error}); delete it and fetch it again") from error
    magic, wanted = content[:4], bytes([0, 0, _UINT8, dimensions])
    if magic != wanted:
        raise ValueError(
            f"{path} must begin with the IDX number {int.from_bytes(wanted, 'big')} (bytes in {dimensions} "
            f"dimensions), but begins with {int.from_bytes(magic, 'big')}"
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"{path} must have {start} bytes of IDX header, but ends after {len(content)}")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{path} must hold {math.prod(shape)} elements of shape {shape}, but has {len(content) - start}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()
