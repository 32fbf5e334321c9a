"""A CIFAR-10 of a few images in the layout of the official archive."""

import io
import tarfile

import numpy as np
from python2_pickles import array, mapping, numbers, whole

NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def made(per_batch=4):
    """Images (N, 32, 32, 3) and labels of every batch: each class has a brightness of its own."""
    generator = np.random.default_rng(0)
    found = {}
    for name in NAMES:
        labels = generator.integers(0, 10, per_batch)
        noise = generator.integers(0, 25, (per_batch, 32, 32, 3))
        found[name] = ((noise + 23 * labels[:, None, None, None]).astype(np.uint8), labels)
    return found


def batch(images, labels):
    """The content of a batch's file."""
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return whole(mapping({b"batch_label": numbers([]), b"labels": numbers(labels), b"data": array(rows)}))


def batches(content):
    """All files by name."""
    return {name: batch(*part) for name, part in content.items()}


def archive(files):
    """The archive of these files."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as opened:
        for name, content in {"readme.html": b"<html>", **files}.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(content)
            opened.addfile(entry, io.BytesIO(content))
    return target.getvalue()
