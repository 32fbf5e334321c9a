import numpy as np
import pytest
import torch

from qpsbgd_paper.datasets import mnist_bits
from qpsbgd_paper.datasets.mnist_bits import bits_of, load_bits


def squares(*corners, size=28):
    """An image of bright squares of 3 × 3 pixels, each a superpixel or a few of its own."""
    image = np.zeros((1, size, size), dtype=np.uint8)
    for row, column in corners:
        image[0, row : row + 3, column : column + 3] = 255
    return image


def slow_bits(image):
    """The definition, word by word, with scikit-image's own region properties."""
    from skimage.measure import regionprops
    from skimage.segmentation import slic

    image = image / 255
    labels = slic(image, n_segments=75, compactness=0.1, channel_axis=None)
    points = [r.centroid for r in regionprops(labels, image) if r.intensity_mean > 0.05]
    if not points:
        return [-1] * 16
    row, column = sum(p[0] for p in points) / len(points), sum(p[1] for p in points) / len(points)
    bits = []
    for k in range(16):
        angle = k * np.pi / 16
        sides = [np.cos(angle) * (p[0] - row) - np.sin(angle) * (p[1] - column) for p in points]
        bits.append(1 if sum(s > 1e-9 for s in sides) > sum(s < -1e-9 for s in sides) else -1)
    return bits


@pytest.fixture
def small(small_mnist, monkeypatch):
    monkeypatch.setattr(mnist_bits, "NUM_SAMPLES", 20)
    return small_mnist


@pytest.fixture
def worked_on(monkeypatch):
    """How many images each call of `bits_of` was given."""
    counts = []
    monkeypatch.setattr(mnist_bits, "bits_of", lambda images: counts.append(len(images)) or bits_of(images))
    return counts


@pytest.fixture
def clear_squares(monkeypatch):
    """Superpixels that keep to the squares of `squares`."""
    for name, value in {"SEGMENTS": 49, "COMPACTNESS": 0.01, "THRESHOLD": 0.5}.items():
        monkeypatch.setattr(mnist_bits, name, value)


def test_bits_are_what_the_definition_says(small_mnist):
    images = small_mnist[1][:25]
    bits = bits_of(images)
    assert bits.dtype == np.int8 and bits.shape == (25, 16)
    assert bits.tolist() == [slow_bits(image) for image in images]


def test_bits_by_hand(clear_squares):
    for bit, more, less in (
        (0, ((20, 4), (20, 12), (4, 8)), ((4, 4), (4, 12), (20, 8))),  # below the middle
        (8, ((4, 4), (12, 4), (8, 20)), ((4, 20), (12, 20), (8, 4))),  # left of it
    ):
        assert (bits_of(squares(*more))[0, bit], bits_of(squares(*less))[0, bit]) == (1, -1)
    assert (bits_of(squares((12, 12)))[0] == -1).all(), "as many on both sides"
    assert (bits_of(np.zeros((1, 28, 28), dtype=np.uint8)) == -1).all()
    assert bits_of(np.zeros((0, 28, 28), dtype=np.uint8)).shape == (0, 16)


def test_the_first_images_of_a_pair_come_in_the_order_of_the_file(small):
    folder, images, labels = small
    bits, targets = load_bits((2, 0), data=folder)
    chosen = np.flatnonzero((labels == 0) | (labels == 2))[:20]
    assert bits.dtype == torch.float32 and targets.dtype == torch.long
    assert targets.tolist() == (labels[chosen] == 0).astype(int).tolist()
    assert np.array_equal(bits, bits_of(images[chosen]))


@pytest.mark.parametrize("what", ["threshold", "algorithm", "scikit-image"])
def test_nothing_is_reused_after_a_change(small, worked_on, monkeypatch, what):
    folder = small[0]
    load_bits((0, 2), data=folder)
    if what == "threshold":
        monkeypatch.setattr(mnist_bits, "THRESHOLD", 0.4)
    elif what == "algorithm":
        monkeypatch.setattr(mnist_bits, "ALGORITHM", mnist_bits.ALGORITHM + 1)
    else:
        monkeypatch.setattr(mnist_bits, "version", lambda package: "another")
    load_bits((0, 2), data=folder)
    assert sum(worked_on) == 40


def test_whatever_byte_of_a_kept_file_is_damaged_the_bits_stay_right(small, cache):
    folder = small[0]
    expected, _ = load_bits((0, 2), data=folder)
    path = next((cache / "mnist-bits").glob("digits-0-2-*"))
    whole, right = path.read_bytes(), mnist_bits._read(path)
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        kept = mnist_bits._read(path)
        assert kept is None or np.array_equal(kept, right), place
    for length in range(0, len(whole), 40):
        path.write_bytes(whole[:length])
        assert mnist_bits._read(path) is None
    assert torch.equal(load_bits((0, 2), data=folder)[0], expected)
    assert np.array_equal(mnist_bits._read(path), right)


@pytest.mark.parametrize("pair", [(1, 1), (0, 10), (-1, 2), (0, 1, 2)])
def test_what_is_no_pair_of_digits_is_refused(pair):
    with pytest.raises(ValueError, match="two different digits"):
        load_bits(pair)


@pytest.mark.slow
def test_real_digits_are_told_apart_about_as_well_as_in_the_paper(real_data, monkeypatch):
    from sklearn.linear_model import LogisticRegression

    monkeypatch.setattr(mnist_bits, "NUM_SAMPLES", 1500)
    for pair, expected in {(0, 2): 0.69, (1, 2): 0.73, (1, 7): 0.76}.items():
        bits, targets = load_bits(pair, data=real_data)
        model = LogisticRegression().fit(bits[:500], targets[:500])
        assert model.score(bits[500:], targets[500:]) == pytest.approx(expected, abs=0.03)
