"""The published files of all data sets: where they come from, how long they are, and their checksums."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """A file as its authors published it.

    Attributes:
        name: Path under a data folder, such as "mnist/t10k-labels-idx1-ubyte.gz".
        dataset: The data set it belongs to: "mnist", "adult", "cora", "citeseer", "pubmed" or
            "cifar-10".
        size: Bytes.
        sha256: Checksum, as hexadecimal digits.
        origins: Addresses that give these bytes, the first to be tried first.
    """

    name: str
    dataset: str
    size: int
    sha256: str
    origins: tuple[str, ...]


_ORIGINS: Mapping[str, tuple[str, ...]] = {
    # The authors' own site answers rarely; these two keep its four files byte for byte.
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "adult": ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",),
    "planetoid": ("https://github.com/kimiyoung/planetoid/raw/master/data/",),
    "cifar-10": ("https://www.cs.toronto.edu/~kriz/",),
}
"""By the folder under a data folder."""


def _published() -> Iterator[Published]:
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        dataset, name, size, sha256 = line.split()
        folder, file = name.split("/")
        yield Published(name, dataset, int(size), sha256, tuple(origin + file for origin in _ORIGINS[folder]))


FILES: Mapping[str, Published] = {file.name: file for file in _published()}
"""All files by name, from published.txt: data set, name, bytes and checksum."""
