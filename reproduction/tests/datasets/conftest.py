import gzip
import os
from pathlib import Path

import numpy as np
import pytest

NAMED = os.environ.get("QPSBGD_DATA")
BESIDE = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture
def real_data():
    """The folder with the published files."""
    folder = Path(NAMED) if NAMED else BESIDE
    if not folder.is_dir():
        pytest.skip("needs the published files: set QPSBGD_DATA to their folder (`qpsbgd data fetch --data FOLDER`)")
    return folder


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """A user's cache that is this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.delenv("QPSBGD_DATA", raising=False)
    monkeypatch.setenv("QPSBGD_CACHE", str(folder))
    return folder


def idx(array, *, magic=None, shape=None):
    """A gzipped IDX file."""
    array = np.asarray(array, dtype=np.uint8)
    header = bytes([0, 0, 8, array.ndim]) if magic is None else magic
    lengths = b"".join(int(length).to_bytes(4, "big") for length in (shape or array.shape))
    return gzip.compress(header + lengths + array.tobytes(), mtime=0)


@pytest.fixture(name="idx")
def _idx():
    return idx


@pytest.fixture
def small_mnist(publish):
    """A folder with an MNIST of 60 training and 10 test images: thick random strokes."""
    generator = np.random.default_rng(0)

    def images(count):
        made = np.zeros((count, 28, 28), dtype=np.uint8)
        for image in made:
            for row, column in generator.integers(4, 20, (3, 2)):
                image[row : row + 5, column : column + 3] = generator.integers(100, 256)
        return made

    train, test = images(60), images(10)
    train_labels, test_labels = generator.integers(0, 3, 60), generator.integers(0, 3, 10)
    folder = publish(
        {
            "mnist/train-images-idx3-ubyte.gz": idx(train),
            "mnist/train-labels-idx1-ubyte.gz": idx(train_labels),
            "mnist/t10k-images-idx3-ubyte.gz": idx(test),
            "mnist/t10k-labels-idx1-ubyte.gz": idx(test_labels),
        }
    )
    return folder, train, train_labels
