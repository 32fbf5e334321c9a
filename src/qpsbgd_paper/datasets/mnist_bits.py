"""MNIST images as 16 bits: on which side of 16 lines most of a digit's superpixels lie."""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qpsbgd_files.atomic import writing
from qpsbgd_files.cache import cache_folder
from qpsbgd_paper.datasets.files import find
from qpsbgd_paper.datasets.mnist import Bytes, read_images, read_labels

Bits = npt.NDArray[np.int8]
Points = npt.NDArray[np.float64]
Through = Literal["key points", "image"]

NUM_BITS = 16
NUM_SAMPLES = 4000

ALGORITHM = 1
"""Raise it with every change of `bits_of` that changes bits: what is kept under another number is not used."""

_ON_THE_LINE = 1e-9
_NEEDS = "the 16 features of MNIST need scikit-image: pip install 'qpsbgd[paper]'"


@dataclass(frozen=True)
class Recipe:
    """How an image becomes bits.

    Args:
        segments: Superpixels to ask for (SLIC).
        compactness: Their compactness: the larger, the more they are squares.
        threshold: Superpixels whose mean intensity, from 0 to 1, is above it belong to the digit; their centres are the
            key points.
        through: The lines go through the mean of the "key points" or through the centre of mass of the "image".
    """

    segments: int = 75
    compactness: float = 0.1
    threshold: float = 0.05
    through: Through = "key points"

    def __post_init__(self) -> None:
        if self.segments < 1 or self.compactness <= 0 or not 0 <= self.threshold < 1:
            raise ValueError(f"segments and compactness must be positive and threshold in [0, 1), got {self}")
        if self.through not in get_args(Through):
            raise ValueError(f"through must be one of {get_args(Through)}, got {self.through!r}")


DEFAULT_RECIPE = Recipe()

RECIPES: Mapping[str, Recipe] = {
    "faint": DEFAULT_RECIPE,
    "bright": Recipe(threshold=0.5),
    "bright-mass": Recipe(threshold=0.5, through="image"),
    "compact-mass": Recipe(compactness=1.0, threshold=0.5, through="image"),
}
"""The paper leaves the details open. The first is the default: its accuracies fit the paper's table best, in level and
order. Methods must not be compared across recipes."""


def load_bits(
    pair: tuple[int, int], *, recipe: Recipe = DEFAULT_RECIPE, data: Path | None = None
) -> tuple[Tensor, Tensor]:
    """Bits (4000, 16), float32 ±1, and targets (4000,), long, of the first training images of two digits.

    Images are in the order of MNIST's training file. Bits are kept in the cache, one file per digit, so that no image
    is processed twice.

    Args:
        pair: The digits with target 0 and target 1.
        recipe: How an image becomes bits.
        data: The data folder; see `files.locate`.
    """
    if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(range(10)):
        raise ValueError(f"a pair must be two different digits from 0 to 9, got {pair}")
    labels = read_labels("train", data=data)
    chosen = _samples(pair, labels)

    needed = {digit: chosen[labels[chosen] == digit] for digit in pair}
    places = {digit: _place(digit, recipe) for digit in pair}
    kept = {digit: _read(places[digit], np.flatnonzero(labels == digit)) for digit in pair}
    missing = {digit: needed[digit][len(kept[digit]) :] for digit in pair}
    todo = np.concatenate([missing[digit] for digit in pair])
    if len(todo):
        images = read_images("train", data=data)
        made = bits_of(images[todo], recipe)
        for digit, new in zip(pair, np.split(made, [len(missing[pair[0]])]), strict=True):
            kept[digit] = np.concatenate([kept[digit], new])
            if len(new):
                _write(places[digit], kept[digit], np.flatnonzero(labels == digit)[: len(kept[digit])])

    bits = np.empty((NUM_SAMPLES, NUM_BITS), dtype=np.float32)
    for digit in pair:
        bits[labels[chosen] == digit] = kept[digit][: len(needed[digit])]
    return torch.from_numpy(bits), torch.from_numpy(labels[chosen] == pair[1]).long()


def images_of(pair: tuple[int, int], *, data: Path | None = None) -> Bytes:
    """The images (4000, 28, 28) whose bits `load_bits` gives, in the same order."""
    return read_images("train", data=data)[_samples(pair, read_labels("train", data=data))]


def key_points(image: npt.NDArray[np.float64], recipe: Recipe = DEFAULT_RECIPE) -> tuple[Points, Points]:
    """The key points (k, 2) of an image of intensities from 0 to 1, and the point (2,) that all lines go through.

    Points are (y, x), in pixels. An image without any is as good as black: the point is then meaningless.
    """
    try:
        from skimage.segmentation import slic
    except ImportError as error:
        raise ImportError(_NEEDS) from error
    y, x = (axis.ravel().astype(np.float64) for axis in np.indices(image.shape))
    labels = slic(
        image, n_segments=recipe.segments, compactness=recipe.compactness, channel_axis=None, start_label=0
    ).ravel()
    values = image.ravel()
    count = np.maximum(np.bincount(labels), 1)
    belong = np.bincount(labels, values) / count > recipe.threshold
    points = np.stack([np.bincount(labels, y) / count, np.bincount(labels, x) / count], axis=1)[belong]
    if not len(points):
        return points, np.zeros(2)
    middle = points.mean(axis=0) if recipe.through == "key points" else np.stack([y, x]) @ values / values.sum()
    return points, middle


def bits_of(images: Bytes, recipe: Recipe = DEFAULT_RECIPE) -> Bits:
    """The bits (N, 16) of images (N, height, width) of bytes.

    Line k has the angle kπ/16 with the x axis, x to the right and y down. All lines go through a point c. Bit k is +1
    when there are more key points p with cos(kπ/16)·(p_y − c_y) − sin(kπ/16)·(p_x − c_x) > 0 than with < 0, and -1
    otherwise: also when both sides have as many, or none at all. (With y up, accuracies fit the paper's less
    well.)

    Args:
        images: Intensities from 0 to 255.
        recipe: What key points and c are.
    """
    images = np.asarray(images)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise ValueError(f"images must be (N, height, width) of uint8, got {images.shape} of {images.dtype}")
    angles = np.arange(NUM_BITS) * np.pi / NUM_BITS
    normals = np.stack([np.cos(angles), -np.sin(angles)])

    bits = np.full((len(images), NUM_BITS), -1, dtype=np.int8)
    for row, image in zip(bits, images / 255.0, strict=True):
        points, middle = key_points(image, recipe)
        sides = (points - middle) @ normals
        row[(sides > _ON_THE_LINE).sum(axis=0) > (sides < -_ON_THE_LINE).sum(axis=0)] = 1
    return bits


def _samples(pair: tuple[int, int], labels: Bytes) -> npt.NDArray[np.int64]:
    """The places of the first images of these digits."""
    chosen = np.flatnonzero(np.isin(labels, pair))[:NUM_SAMPLES]
    if len(chosen) < NUM_SAMPLES:
        raise ValueError(f"MNIST must have {NUM_SAMPLES} training images of the digits {pair}, but has {len(chosen)}")
    return chosen


def _place(digit: int, recipe: Recipe) -> Path:
    try:
        scikit_image = version("scikit-image")
    except PackageNotFoundError as error:
        raise ImportError(_NEEDS) from error
    sources = [find(f"mnist/train-{kind}-ubyte.gz").sha256 for kind in ("images-idx3", "labels-idx1")]
    identity = json.dumps([ALGORITHM, asdict(recipe), digit, sources, scikit_image], sort_keys=True)
    folder = cache_folder() / "mnist-bits"
    return folder / f"digit-{digit}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npz"


def _read(path: Path, indices: npt.NDArray[np.int64]) -> Bits:
    """The bits that are kept for the first of these images; none when the file is missing or damaged."""
    nothing = np.empty((0, NUM_BITS), dtype=np.int8)
    if not path.exists():
        return nothing
    try:
        # numpy leaves a damaged file open when it opens it itself.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            bits, of = content["bits"], content["indices"]
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return nothing
    sound = bits.dtype == np.int8 and bits.shape == (len(of), NUM_BITS) and bool((np.abs(bits) == 1).all())
    return bits if sound and np.array_equal(of, indices[: len(of)]) else nothing


def _write(path: Path, bits: Bits, indices: npt.NDArray[np.int64]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            np.savez(file, bits=bits, indices=indices)
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error}); set QPSBGD_CACHE to a folder that is writable") from error
