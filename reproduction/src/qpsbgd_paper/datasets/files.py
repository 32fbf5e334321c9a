"""Published files: where they come from, and on this machine found, checked, and fetched when they may be."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from qpsbgd_qubo.files.cache import cache_folder

State = Literal["right", "missing", "wrong"]

CHECKSUMS: Mapping[str, str] = {
    name: checksum
    for checksum, name in map(str.split, Path(__file__).with_name("published.txt").read_text("utf-8").splitlines())
}
"""The sha256 of every published file, by its name: the data set and the file, such as "adult/a1a"."""

ORIGINS: Mapping[str, str] = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",  # the authors' own site answers rarely
    "adult": "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
    "planetoid": "https://github.com/kimiyoung/planetoid/raw/master/data/",
}
"""Addresses of the data sets' files."""


def locate(name: str, *, data: Path | None = None) -> Path:
    """The path of a published file, one of `CHECKSUMS`, whose checksum is right.

    A folder that was named, here or in `QPSBGD_DATA`, is only read. Otherwise the file is looked for in the user's
    cache, and downloaded to it when it is missing or broken.
    """
    folder, ours = data_folder(data)
    here = state(name, folder)
    if here != "right" and ours:
        return fetch(name, folder)
    dataset = name.split("/")[0]
    remedy = f"`qpsbgd data fetch {dataset} --data {folder}` downloads it from {ORIGINS[dataset]}"
    if here == "missing":
        raise FileNotFoundError(f"{name} is not in the data folder; it was expected at {folder / name}; {remedy}")
    if here == "wrong":
        raise ValueError(f"{folder / name} is not the published {name}: the sha256 must be {CHECKSUMS[name]}; {remedy}")
    return folder / name


def fetch(name: str, folder: Path) -> Path:
    """Download a published file to a folder, unless it is there; complete and checked, or not at all."""
    import pooch

    path, (dataset, file) = folder / name, name.split("/")
    checksum = f"sha256:{CHECKSUMS[name]}"
    try:
        pooch.retrieve(ORIGINS[dataset] + file, checksum, fname=file, path=path.parent, progressbar=True)
        path.chmod(0o644)
    except (OSError, ValueError) as error:
        raise OSError(
            f"could not download {name} from {ORIGINS[dataset]}: {error}; get the file some other way and put it at "
            f"{path}, or set QPSBGD_DATA to a folder that has it under this name"
        ) from error
    return path


def state(name: str, folder: Path) -> State:
    """Whether the published file is in this folder, with the right checksum."""
    import pooch

    if name not in CHECKSUMS:
        raise ValueError(f"there is no published file {name!r}, only: {', '.join(CHECKSUMS)}")
    if not (folder / name).is_file():
        return "missing"
    return "right" if pooch.file_hash(str(folder / name)) == CHECKSUMS[name] else "wrong"


def data_folder(data: Path | None = None) -> tuple[Path, bool]:
    """Where data files are looked for, and whether that is the user's cache, which we may fill."""
    named = data or os.environ.get("QPSBGD_DATA")
    return (Path(named).expanduser(), False) if named else (cache_folder(), True)
