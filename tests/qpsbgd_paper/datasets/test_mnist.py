import gzip

import numpy as np
import pytest
import torch

from qpsbgd_paper.datasets.mnist import load_mnist, read_idx


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "file.gz"
        path.write_bytes(content)
        return path

    return write


def test_an_array_is_read_as_it_was_written(written, idx):
    array = np.arange(24).reshape(2, 3, 4)
    read = read_idx(written(idx(array)), dimensions=3)
    assert read.dtype == np.uint8 and np.array_equal(read, array)


def test_a_truncated_gzip_file_is_refused(written, idx):
    with pytest.raises(ValueError, match=r"file.gz is not a complete gzip file"):
        read_idx(written(idx(np.arange(100))[:-12]), dimensions=1)


def test_a_damaged_gzip_file_is_refused(written, idx):
    content = bytearray(idx(np.arange(100)))
    content[40] ^= 0xFF
    with pytest.raises(ValueError, match="is not a complete gzip file"):
        read_idx(written(bytes(content)), dimensions=1)


def test_what_is_no_gzip_file_is_refused(written):
    with pytest.raises(ValueError, match="is not a complete gzip file"):
        read_idx(written(b"<html>not found</html>"), dimensions=1)


@pytest.mark.parametrize("magic", [b"\0\0\x08\x03", b"\0\0\x0d\x01", b"\x01\0\x08\x01"])
def test_a_wrong_magic_number_is_refused(written, idx, magic):
    with pytest.raises(ValueError, match=rf"number 2049 .*begins with {int.from_bytes(magic, 'big')}"):
        read_idx(written(idx([1, 2], magic=magic)), dimensions=1)


@pytest.mark.parametrize("length", [1, 3])
def test_more_or_fewer_elements_than_announced_are_refused(written, idx, length):
    with pytest.raises(ValueError, match=rf"must hold {length} elements .* but has 2"):
        read_idx(written(idx([1, 2], shape=(length,))), dimensions=1)


@pytest.mark.parametrize(("content", "message"), [(b"", "begins with 0"), (b"\0\0\x08\x01\0\0", "ends after 6")])
def test_a_file_that_ends_in_its_header_is_refused(written, content, message):
    with pytest.raises(ValueError, match=message):
        read_idx(written(gzip.compress(content)), dimensions=1)


def test_both_parts_are_loaded(small_mnist):
    folder, images, labels = small_mnist
    mnist = load_mnist(data=folder)
    assert mnist.train_images.dtype == torch.uint8 and np.array_equal(mnist.train_images, images)
    assert mnist.train_labels.dtype == torch.long and np.array_equal(mnist.train_labels, labels)
    assert len(mnist.test_images) == len(mnist.test_labels) == 10


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 28, 28)), [1, 2, 3], "a label for each image, but train has 2 images and 3 labels"),
        (np.zeros((2, 27, 28)), [1, 2], "must have 28 × 28 pixels"),
        (np.zeros((2, 28, 28)), [1, 10], "labels of MNIST must be 0 to 9"),
    ],
)
def test_parts_that_do_not_fit_are_refused(publish, idx, images, labels, message):
    content = {"images-idx3": idx(images), "labels-idx1": idx(labels)}
    folder = publish({f"mnist/{part}-{kind}-ubyte.gz": content[kind] for part in ("train", "t10k") for kind in content})
    with pytest.raises(ValueError, match=message):
        load_mnist(data=folder)


def test_the_published_images_have_the_known_mean_and_deviation(real_data):
    mnist = load_mnist(data=real_data)
    assert mnist.train_images.shape == (60000, 28, 28) and mnist.test_images.shape == (10000, 28, 28)
    deviation, mean = torch.std_mean(mnist.train_images.float() / 255)
    assert round(float(mean), 4) == 0.1307 and round(float(deviation), 4) == 0.3081
    assert mnist.train_labels[:5].tolist() == [5, 0, 4, 1, 9] and mnist.test_labels[:3].tolist() == [7, 2, 1]
