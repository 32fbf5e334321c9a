"""CIFAR-10: photographs of ten kinds of things, 32 × 32 pixels, from its official archive."""

import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd_paper.datasets.files import data_folder, find, locate, state_of
from qpsbgd_paper.datasets.mnist import LabelledImages
from qpsbgd_paper.datasets.pickles import unpickled

ARCHIVE = "cifar-10/cifar-10-python.tar.gz"  # the published file
_UNPACKED, _ARRAYS = "cifar-10-batches-py", "images.npz"
_TRAIN, _TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)
_CLASSES = 10


def load_cifar10(*, data: Path | None = None) -> LabelledImages:
    """All 50000 training and 10000 test images (32, 32, 3), red, green and blue, and their labels.

    From `cifar-10-python.tar.gz`, whose checksum must be right, the folder `cifar-10-batches-py` that it unpacks to, or
    `images.npz` with `x_train`, `y_train`, `x_test` and `y_test`, in the folder `cifar-10` of the data folder.
    """
    place = find_images(data=data) or locate(ARCHIVE, data=data)
    if place.suffix == ".npz":
        return _from_arrays(place)
    contents = _unpacked(place) if place.is_dir() else _from_archive(place)
    parts = {name: _batch(place, name, content) for name, content in contents.items()}
    joined = [np.concatenate([parts[name][kind] for name in names]) for names in (_TRAIN, _TEST) for kind in (0, 1)]
    return _images(place, *joined)


def find_images(*, data: Path | None = None) -> Path | None:
    """Where the images are: an archive with the right checksum, a folder or a file of arrays, or None."""
    folder, ours = data_folder(data)
    archive, flat = folder / ARCHIVE, folder / Path(ARCHIVE).name
    for path in (archive, flat):
        state = state_of(path, find(ARCHIVE))
        if state == "right":
            return path
        if state == "wrong" and not ours:
            raise ValueError(
                f"{path} is not the published {path.name}: its sha256 must be {find(ARCHIVE).sha256}; delete it, then "
                f"`qpsbgd data fetch cifar-10 --data {folder}` downloads it"
            )
    others = (archive.parent / _UNPACKED, folder / _UNPACKED, archive.parent / _ARRAYS)
    return next((path for path in others if path.exists()), None)


def _from_archive(path: Path) -> dict[str, bytes]:
    """The batches by name, from an archive whose checksum is right; nothing is unpacked to the disk."""
    batches = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:  # in the archive's order, so that it is read once
            name = member.name.removeprefix(f"{_UNPACKED}/")
            if name in (*_TRAIN, *_TEST) and (content := archive.extractfile(member)) is not None:
                batches[name] = content.read()
    return batches


def _unpacked(folder: Path) -> dict[str, bytes]:
    missing = [name for name in (*_TRAIN, *_TEST) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}: unpack {Path(ARCHIVE).name} again")
    return {name: (folder / name).read_bytes() for name in (*_TRAIN, *_TEST)}


def _batch(place: Path, name: str, content: bytes) -> tuple[Any, Any]:
    """Images and labels of a batch, a pickled mapping; a row is 1024 red, 1024 green and 1024 blue pixels."""
    try:
        found = unpickled(BytesIO(content))
    except pickle.UnpicklingError as error:
        raise ValueError(f"{name} in {place} is not a batch of CIFAR-10 ({error}); fetch it again") from error
    rows = found.get("data") if isinstance(found, Mapping) else None
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3072 or "labels" not in found:
        raise ValueError(f"{name} in {place} must have data, rows of 3072 bytes, and labels; fetch it again")
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.asarray(found["labels"])


def _from_arrays(path: Path) -> LabelledImages:
    names = ("x_train", "y_train", "x_test", "y_test")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = [content[name] for name in names]
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} must be a complete .npz file with {', '.join(names)} ({error}); delete it, and the official "
            "archive is looked for"
        ) from error
    return _images(path, *arrays)


def _images(place: Path, *arrays: Any) -> LabelledImages:
    """The arrays as tensors, once they are what they must be."""
    parts: list[Tensor] = []
    for images, labels in zip(arrays[::2], arrays[1::2], strict=True):
        if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or not len(images):
            raise ValueError(f"images in {place} must be uint8 (N, 32, 32, 3), got {images.dtype} {images.shape}")
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
            raise ValueError(
                f"{place} must have an integer as the label of each image, but has {len(images)} images and labels "
                f"{labels.dtype} {labels.shape}"
            )
        if labels.min() < 0 or labels.max() >= _CLASSES:
            raise ValueError(f"labels in {place} must be 0 to 9, got {labels.min()} to {labels.max()}")
        pixels, classes = np.ascontiguousarray(images), labels.astype(np.int64)
        parts += [torch.from_numpy(pixels), torch.from_numpy(classes)]
    return LabelledImages(*parts)
