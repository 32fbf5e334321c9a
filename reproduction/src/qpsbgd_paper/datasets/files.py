"""Published files: where they come from, and on this machine found, checked, and fetched when they may be."""

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qpsbgd_qubo.files.cache import cache_folder

State = Literal["right", "missing", "wrong"]


@dataclass(frozen=True)
class Published:
    """A file as its authors published it."""

    name: str  # path under a data folder, such as "mnist/t10k-labels-idx1-ubyte.gz"
    dataset: str  # the data set it belongs to: "mnist", "adult", "cora", "citeseer" or "pubmed"
    size: int  # bytes
    sha256: str  # checksum, as hexadecimal digits
    origins: tuple[str, ...]  # addresses that give these bytes, the first to be tried first


_ORIGINS: Mapping[str, tuple[str, ...]] = {
    # The authors' own site answers rarely; these two keep its four files byte for byte.
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    "adult": ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",),
    "planetoid": ("https://github.com/kimiyoung/planetoid/raw/master/data/",),
}
"""By the folder under a data folder."""


def _read_published() -> Iterator[Published]:
    for line in Path(__file__).with_name("published.txt").read_text(encoding="utf-8").splitlines():
        dataset, name, size, sha256 = line.split()
        folder, file = name.split("/")
        yield Published(name, dataset, int(size), sha256, tuple(origin + file for origin in _ORIGINS[folder]))


FILES: Mapping[str, Published] = {file.name: file for file in _read_published()}
"""All files by name, from published.txt: data set, name, bytes and checksum."""


def locate(name: str, *, data: Path | None = None) -> Path:
    """The path of a published file, one of `FILES`, whose checksum is right.

    A folder that was named, here or in `QPSBGD_DATA`, is only read. Otherwise the file is looked for in the user's
    cache, and downloaded to it when it is missing or broken.
    """
    file = find(name)
    folder, ours = data_folder(data)
    here = state(name, data=data)
    if here != "right" and ours:
        return fetch(name)
    path = folder / name
    remedy = f"`qpsbgd data fetch {file.dataset} --data {folder}` downloads it from {file.origins[0]}"
    if here == "missing":
        raise FileNotFoundError(f"{name} is not in the data folder; it was expected at {path}; {remedy}")
    if here == "wrong":
        raise ValueError(
            f"{path} is not the published {name}: the sha256 must be {file.sha256}; delete it, then {remedy}"
        )
    return path


def fetch(name: str, *, data: Path | None = None) -> Path:
    """Download a published file to a folder or the cache, unless it is there; complete and checked, or not at all."""
    file = find(name)
    path = (cache_folder() if data is None else data.expanduser()) / name
    if state_of(path, file) == "right":
        return path
    failures = []
    for origin in file.origins:
        failure = _download(origin, file, path)
        if failure is None:
            return path
        failures.append(f"{origin}: {failure}")
    raise OSError(
        f"could not download {name} ({'; '.join(failures)}); get the file some other way and put it at {path}, or set "
        "QPSBGD_DATA to a folder that has it under this name"
    )


def state(name: str, *, data: Path | None = None) -> State:
    """Whether the published file is in the data folder, with the right checksum."""
    return state_of(data_folder(data)[0] / name, find(name))


def state_of(path: Path, file: Published) -> State:
    """Whether the published file is at this path, with the right checksum."""
    if not path.is_file():
        return "missing"
    stat = path.stat()
    # A wrong size shows a broken file before anything is read.
    if stat.st_size != file.size or _sha256(path.resolve(), stat.st_mtime_ns, stat.st_size) != file.sha256:
        return "wrong"
    return "right"


def find(name: str) -> Published:
    """The published file of this name."""
    if name not in FILES:
        raise ValueError(f"there is no published file {name!r}, only: {', '.join(FILES)}")
    return FILES[name]


def datasets() -> dict[str, list[Published]]:
    """The published files of each data set."""
    names = dict.fromkeys(file.dataset for file in FILES.values())
    return {name: [file for file in FILES.values() if file.dataset == name] for name in names}


def data_folder(data: Path | None = None) -> tuple[Path, bool]:
    """Where data files are looked for, and whether that is the user's cache, which we may fill."""
    named = data or os.environ.get("QPSBGD_DATA")
    return (Path(named).expanduser(), False) if named else (cache_folder(), True)


def _download(origin: str, file: Published, path: Path) -> Exception | None:
    """Download a file to its place, or return what went wrong: no connection, no permission, another checksum."""
    import pooch

    try:
        # Written under another name beside its place, and moved there once the checksum is right.
        pooch.retrieve(origin, known_hash=f"sha256:{file.sha256}", fname=path.name, path=path.parent, progressbar=True)
        path.chmod(0o644)
    except (OSError, ValueError) as error:
        return error
    return None


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, mtime_ns: int, size: int) -> str:
    """The checksum, computed once as long as time and size of the file stay the same."""
    with path.open("rb") as content:
        digest = hashlib.sha256()
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
