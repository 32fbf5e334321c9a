"""Packed models on disk: safetensors files with one bit per weight, a version and a checksum.

The metadata hold one entry, JSON with the version, the checksum, the shape of a sample where it is known, and the
operations, in which arrays are named; the tensors are those arrays. Booleans are packed eight to a byte, and
integers take as few bytes as they need.
"""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from qpsbgd_runtime.checks import check
from qpsbgd_runtime.files import write_atomically
from qpsbgd_runtime.image_operations import Window
from qpsbgd_runtime.operations import Array, Weights
from qpsbgd_runtime.packed_model import PackedModel
from qpsbgd_runtime.stages import KINDS
from qpsbgd_runtime.unit_operations import Steps

ENTRY, VERSION = "qpsbgd packed model", 2

_DAMAGES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading raises where a part is not of the type or the size that is expected there."""
_PARTS: dict[str, type[Any]] = {"Steps": Steps, "Weights": Weights, "Window": Window}


def save(model: PackedModel, path: Path) -> None:
    """Write the model; the file is complete, and one that `load` takes, or not there at all."""
    tensors: dict[str, Array] = {}
    written = [_to_json(operation, f"{place}", tensors) for place, operation in enumerate(model.operations)]
    content: dict[str, Any] = {"version": VERSION, "input_shape": model.input_shape, "operations": written}
    content["checksum"] = _checksum(content, tensors)
    text = json.dumps(content)
    _model(json.loads(text), tensors)
    write_atomically(path, safetensors.numpy.save(tensors, {ENTRY: text}))


def load(path: Path) -> PackedModel:
    """The model in a file.

    Raises:
        ValueError: It is not a packed model, of another version, or damaged.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:  # an OSError that names the file
        file.read(1)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            content = _content(file.metadata() or {}, path)
            try:
                return _model(content, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
            except _DAMAGES as error:
                raise ValueError(f"{path} is damaged: {error}; copy or pack it again") from error
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a packed model, or is damaged or cut off: {error}") from error


def _model(content: dict[str, Any], tensors: dict[str, Array]) -> PackedModel:
    """The model of a file's content; a checksum, operations or a shape that are wrong raise one of `_DAMAGES`."""
    if content.pop("checksum", None) != _checksum(content, tensors):
        raise ValueError("its checksum does not fit its content")
    operations = tuple(_from_json(operation, tensors) for operation in content["operations"])
    shape = content.get("input_shape")
    shape = tuple(shape) if isinstance(shape, list) else shape
    check(operations, shape)
    return PackedModel(operations, shape)


def _content(metadata: dict[str, str], path: Path) -> dict[str, Any]:
    """The JSON of a packed model of a known version."""
    if ENTRY not in metadata:
        raise ValueError(f"{path} is a safetensors file, but not a packed model; make one with qpsbgd.deploy.pack")
    try:
        content: dict[str, Any] = json.loads(metadata[ENTRY])
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}; copy or pack it again") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise ValueError(
            f"{path} has version {version!r:.20} of the format, this qpsbgd reads version {VERSION}; "
            "pack the model again, or use the qpsbgd that packed it"
        )
    return content


def _checksum(content: dict[str, Any], tensors: dict[str, Array]) -> str:
    """SHA-256 of the content and of every tensor with its name, type and shape."""
    digest = hashlib.sha256(json.dumps(content).encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _to_json(value: Any, name: str, tensors: dict[str, Array]) -> Any:
    """A value as JSON; its arrays go to `tensors`, under names that begin with `name`."""
    if isinstance(value, np.ndarray):
        if value.dtype == bool:
            tensors[name] = np.packbits(value)
            return {"packed bits": name, "shape": list(value.shape)}
        # The smallest signed type that holds the extremes: ~x is −1 − x.
        small = np.min_scalar_type(min(value.min(), ~value.max())) if value.dtype.kind == "i" else value.dtype
        tensors[name] = value.astype(small)
        return {"tensor": name}
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"is": type(value).__name__} | {k: _to_json(v, f"{name}.{k}", tensors) for k, v in fields.items()}
    if isinstance(value, tuple):
        return [_to_json(entry, name, tensors) for entry in value]
    return value


def _from_json(value: Any, tensors: dict[str, Array]) -> Any:
    """The inverse of `_to_json`."""
    if isinstance(value, list):
        return tuple(_from_json(entry, tensors) for entry in value)
    if not isinstance(value, dict):
        return value
    if "packed bits" in value:
        bits, shape = tensors[value["packed bits"]], value["shape"]
        if not all(type(size) is int and size >= 0 for size in shape) or bits.dtype != np.uint8 or bits.ndim != 1:
            raise ValueError(f"{value['packed bits']!r} must be bytes with a shape of integers")
        count = math.prod(shape)
        if len(bits) != -(-count // 8):
            raise ValueError(f"{value['packed bits']!r} must have {count} bits, got {8 * len(bits)}")
        return np.unpackbits(bits, count=count).astype(bool).reshape(shape)
    if "tensor" in value:
        array = tensors[value["tensor"]]
        return array.astype(np.int32) if array.dtype.kind == "i" and array.dtype.itemsize < 8 else array
    kind = (KINDS | _PARTS)[value["is"]]
    return kind(**{name: _from_json(entry, tensors) for name, entry in value.items() if name != "is"})
