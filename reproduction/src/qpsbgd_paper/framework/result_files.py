"""Results as files, complete or not at all: JSON under a checksum, with what they were made with."""

import contextlib
import json
import math
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from qpsbgd_qubo.files.atomic import writing


def as_json(value: Any) -> Any:
    """The value in JSON's own types: tuples as lists, and None for a number that is not finite."""
    if isinstance(value, dict):
        return {key: as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that the file is there complete or not at all; raises where a number is not finite."""
    write_bytes(path, (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is there complete or not at all, in a folder that is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        file.write(content)


def environment() -> dict[str, str]:
    """Versions and hardware that a result was made with."""
    versions = {"python": platform.python_version(), "machine": platform.machine(), "cpus": str(os.cpu_count())}
    for package in ("qpsbgd", "torch", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    if torch.cuda.is_available():
        versions["gpu"] = torch.cuda.get_device_name()
    return versions
