"""The published files of all data sets: where they come from, how long they are, and their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


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


# The authors' own site answers rarely; these two keep its four files byte for byte.
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_LIBSVM = ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",)
_PLANETOID = ("https://github.com/kimiyoung/planetoid/raw/master/data/",)
_CIFAR = ("https://www.cs.toronto.edu/~kriz/",)

_TABLE: Mapping[tuple[str, str, tuple[str, ...]], Mapping[str, tuple[int, str]]] = {
    ("mnist", "mnist", _MNIST): {
        "train-images-idx3-ubyte.gz": (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        "train-labels-idx1-ubyte.gz": (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        "t10k-images-idx3-ubyte.gz": (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        "t10k-labels-idx1-ubyte.gz": (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    },
    ("adult", "adult", _LIBSVM): {
        "a1a": (114818, "eb54c45f1bdb51286f803dd092eb8202b44637a858fc6c4e533a2d64a0d94b4e"),
        "a1a.t": (2215057, "0212d0c4a3996fe6fb6a0ab54033d9f4fa4b60369b6e3bb141821d9ffc40c04d"),
    },
    ("cora", "planetoid", _PLANETOID): {
        "ind.cora.x": (22119, "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab"),
        "ind.cora.y": (4054, "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1"),
        "ind.cora.tx": (148025, "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a"),
        "ind.cora.ty": (28135, "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad"),
        "ind.cora.allx": (257305, "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543"),
        "ind.cora.ally": (47959, "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71"),
        "ind.cora.graph": (59847, "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d"),
        "ind.cora.test.index": (5000, "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875"),
    },
    ("citeseer", "planetoid", _PLANETOID): {
        "ind.citeseer.x": (31087, "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6"),
        "ind.citeseer.y": (3014, "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924"),
        "ind.citeseer.tx": (260321, "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21"),
        "ind.citeseer.ty": (24135, "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce"),
        "ind.citeseer.allx": (595021, "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668"),
        "ind.citeseer.ally": (55623, "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95"),
        "ind.citeseer.graph": (61987, "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7"),
        "ind.citeseer.test.index": (5000, "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4"),
    },
    ("pubmed", "planetoid", _PLANETOID): {
        "ind.pubmed.x": (23172, "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33"),
        "ind.pubmed.y": (854, "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3"),
        "ind.pubmed.tx": (405505, "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d"),
        "ind.pubmed.ty": (12135, "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd"),
        "ind.pubmed.allx": (7578385, "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e"),
        "ind.pubmed.ally": (224739, "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e"),
        "ind.pubmed.graph": (471808, "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9"),
        "ind.pubmed.test.index": (6000, "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5"),
    },
    ("cifar-10", "cifar-10", _CIFAR): {
        "cifar-10-python.tar.gz": (170498071, "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"),
    },
}


def _published() -> Iterator[Published]:
    for (dataset, folder, origins), files in _TABLE.items():
        for file, (size, sha256) in files.items():
            yield Published(f"{folder}/{file}", dataset, size, sha256, tuple(origin + file for origin in origins))


FILES: Mapping[str, Published] = {file.name: file for file in _published()}
"""All files by name."""
