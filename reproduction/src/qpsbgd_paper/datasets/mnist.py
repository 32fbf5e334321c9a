"""MNIST: handwritten digits, 28 × 28 pixels, from its original IDX files."""

import gzip
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


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images (N, 28, 28), uint8, and their labels (N,), long, from 0 to 9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_mnist(*, data: Path | None = None) -> LabelledImages:
    """All 60000 training and 10000 test images (28, 28), and their labels; `data` as in `files.locate`."""
    parts: list[Tensor] = []
    for part in ("train", "t10k"):
        parts += [torch.from_numpy(read_images(part, data=data)), torch.from_numpy(read_labels(part, data=data)).long()]
    return LabelledImages(*parts)


def read_images(part: Part, *, data: Path | None = None) -> Bytes:
    """The images of a part, (N, 28, 28)."""
    return read_idx(locate(f"mnist/{part}-images-idx3-ubyte.gz", data=data), dimensions=3)


def read_labels(part: Part, *, data: Path | None = None) -> Bytes:
    """The digits of a part, (N,)."""
    return read_idx(locate(f"mnist/{part}-labels-idx1-ubyte.gz", data=data), dimensions=1)


def read_idx(path: Path, *, dimensions: int) -> Bytes:
    """The array of bytes in a gzipped IDX file, which is trusted: `locate` has compared its checksum.

    Such a file is 0, 0, the type (8 for bytes), the number of dimensions, then each dimension's length in four bytes,
    most significant first, then the elements in C order.
    """
    content = gzip.decompress(path.read_bytes())
    start = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:start], dtype=">u4")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()
