import pickle

import numpy as np
import pytest
import torch
from python2_pickles import Malicious, array, mapping, numbers, whole
from small_cifar import NAMES, archive, batch, batches, made

from qpsbgd_paper.datasets.cifar import ARCHIVE, find_images, load_cifar10

CONTENT = made()
TRAIN = [np.concatenate([CONTENT[name][kind] for name in NAMES[:5]]) for kind in (0, 1)]
TEST = CONTENT["test_batch"]


def unpack(folder, files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def arrays(folder, **changes):
    whole = {"x_train": TRAIN[0], "y_train": TRAIN[1], "x_test": TEST[0], "y_test": TEST[1]} | changes
    (folder / "cifar-10").mkdir(parents=True)
    np.savez(folder / "cifar-10/images.npz", **{name: part for name, part in whole.items() if part is not None})


def is_whole(found):
    for images, labels, wanted in (
        (found.train_images, found.train_labels, TRAIN),
        (found.test_images, found.test_labels, TEST),
    ):
        assert images.dtype == torch.uint8 and np.array_equal(images, wanted[0])
        assert labels.dtype == torch.long and np.array_equal(labels, wanted[1])


@pytest.fixture
def official(publish):
    return publish({ARCHIVE: archive(batches(CONTENT))})


def test_the_archive_is_read_in_the_order_of_its_batches(official):
    is_whole(load_cifar10(data=official))
    (official / ARCHIVE).rename(official / "cifar-10-python.tar.gz")
    is_whole(load_cifar10(data=official))


@pytest.mark.parametrize("place", ["cifar-10", "."])
def test_the_unpacked_folder_is_read(tmp_path, place):
    unpack(tmp_path / "data" / place / "cifar-10-batches-py", batches(CONTENT))
    is_whole(load_cifar10(data=tmp_path / "data"))


def test_a_file_of_arrays_is_read(tmp_path):
    arrays(tmp_path)
    is_whole(load_cifar10(data=tmp_path))


def test_what_is_missing_comes_with_the_command_that_gets_it(tmp_path):
    assert find_images(data=tmp_path) is None
    wanted = rf"expected at .*cifar-10-python.tar.gz; `qpsbgd data fetch cifar-10 --data {tmp_path}` .*cs.toronto.edu"
    with pytest.raises(FileNotFoundError, match=wanted):
        load_cifar10(data=tmp_path)


def test_without_a_named_folder_the_archive_is_downloaded_once(publish, origin, cache):
    publish({ARCHIVE: archive(batches(CONTENT))}, origins=(origin.address,))
    is_whole(load_cifar10())
    is_whole(load_cifar10())
    assert origin.asked == [f"/{ARCHIVE}"] and find_images() == cache / ARCHIVE


@pytest.mark.parametrize("place", [ARCHIVE, "cifar-10-python.tar.gz"])
def test_an_archive_with_another_checksum_is_not_even_opened(official, monkeypatch, place):
    (official / ARCHIVE).rename(official / place)
    (official / place).write_bytes((official / place).read_bytes()[:-1] + b"?")
    monkeypatch.setattr("qpsbgd_paper.datasets.cifar.tarfile", None)
    with pytest.raises(ValueError, match=r"not the published .*qpsbgd data fetch cifar-10"):
        load_cifar10(data=official)


def test_a_folder_without_a_batch_is_refused(tmp_path):
    files = batches(CONTENT)
    del files["data_batch_3"]
    unpack(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(FileNotFoundError, match=r"lacks data_batch_3: .*cifar-10-python.tar.gz"):
        load_cifar10(data=tmp_path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_batch_that_would_run_a_program_is_refused(tmp_path, protocol):
    marker = tmp_path / "marker"
    hostile = pickle.dumps({"data": Malicious(f"touch {marker}"), "labels": []}, protocol=protocol)
    unpack(tmp_path / "cifar-10-batches-py", {**batches(CONTENT), "data_batch_2": hostile})
    with pytest.raises(ValueError, match=r"data_batch_2 in .* is not a batch of CIFAR-10 \(it names (posix|nt).system"):
        load_cifar10(data=tmp_path)
    assert not marker.exists()


IMAGES, LABELS = CONTENT["test_batch"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a batch of CIFAR-10"),
        (batch(IMAGES, LABELS)[:-100], "is not a batch of CIFAR-10"),
        (whole(numbers([1])), "must have data, rows of 3072 bytes, and labels"),
        (whole(mapping({b"labels": numbers([1])})), "must have data"),
        (whole(mapping({b"data": array(IMAGES.reshape(4, -1))})), "must have data"),
        (batch(IMAGES[:, :, :31], LABELS), "must have data"),
        (batch(IMAGES, LABELS[:-1]), "an integer as the label of each image, but has 4 images"),
        (batch(IMAGES, [0, 1, 2, 10]), "must be 0 to 9, got 0 to 10"),
        (batch(IMAGES, [0, 1, 2, -1]), "must be 0 to 9, got -1 to 2"),
        (batch(IMAGES.astype(np.int16), LABELS), "must be uint8"),
    ],
)
def test_a_batch_that_is_none_is_refused(tmp_path, content, message):
    unpack(tmp_path / "cifar-10-batches-py", {**batches(CONTENT), "test_batch": content})
    with pytest.raises(ValueError, match=message):
        load_cifar10(data=tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "with x_train, y_train, x_test, y_test"),
        ({"x_test": TEST[0].transpose(0, 3, 1, 2)}, r"must be uint8 \(N, 32, 32, 3\)"),
        ({"y_train": TRAIN[1].astype(float)}, "an integer as the label"),
        ({"y_train": np.array([None])}, "must be a complete .npz file"),
    ],
)
def test_a_file_of_other_arrays_is_refused(tmp_path, changes, message):
    arrays(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load_cifar10(data=tmp_path)


def test_a_truncated_file_of_arrays_is_refused(tmp_path):
    arrays(tmp_path)
    path = tmp_path / "cifar-10/images.npz"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"must be a complete .npz file"):
        load_cifar10(data=tmp_path)
