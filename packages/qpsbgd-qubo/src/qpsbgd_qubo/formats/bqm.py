"""dimod's `.bqm` files, read without dimod: it crashes the interpreter on damaged ones."""

import io
import json
from collections.abc import Hashable
from typing import Any

import numpy as np

from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.problems import Problem, check_variables, model_problem
from qpsbgd_qubo.sparse import SparseIsing

_MAGIC = b"DIMODBQM"
_FLOATS = ("float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def read_bqm(content: bytes) -> Problem:
    """The problem in what dimod's `BinaryQuadraticModel.to_file` writes, of versions 1 and 2.

        DIMODBQM, version (2 bytes), length (4 bytes), header (JSON)
        offset,  n × (first neighbour's place, linear bias),  2 · interactions × (neighbour, quadratic bias)
        VARS, length (4 bytes), labels (JSON): in version 2, if the header says so

    Couplings stand there twice, once per end, and both must agree.
    """
    file = io.BytesIO(content)
    if file.read(len(_MAGIC)) != _MAGIC:
        raise _damaged_file(f"it does not begin with {_MAGIC.decode()}")
    version, minor = _take(file, 2)
    if version not in (1, 2) or minor:
        raise _damaged_file(f"its version must be 1.0 or 2.0, got {version}.{minor}")
    header = _json(file, dict)
    if header.get("type") != "BinaryQuadraticModel" or not isinstance(header.get("variables"), bool | list):
        raise _damaged_file("its header must say that it is a BinaryQuadraticModel, and whether variables have labels")
    vartype, labelled = header.get("vartype"), header.get("variables")
    if vartype not in ("SPIN", "BINARY"):
        raise _damaged_file(f"the vartype is {vartype!r}")
    shape = header.get("shape")
    if not isinstance(shape, list) or [type(part) for part in shape] != [int, int]:
        raise _damaged_file(f"the shape is {shape!r}")
    n, interactions = shape
    check_variables(n)
    if not 0 <= interactions <= n * (n - 1) // 2:
        raise _damaged_file(f"{n} variables cannot have {interactions} interactions")
    real, index, place = (_dtype(header.get(key), key) for key in ("dtype", "itype", "ntype"))

    offset = np.frombuffer(_take(file, real.itemsize), real)[0]
    linear = _table(file, n, [("place", place), ("bias", real)])
    quadratic = _table(file, 2 * interactions, [("neighbour", index), ("bias", real)])
    if version == 2 and labelled:
        if _take(file, 4) != b"VARS":
            raise _damaged_file("the variables' labels are missing")
        labelled = _json(file, list)
    if file.read(1):
        raise _damaged_file("something follows its end")

    places = np.append(linear["place"].astype(np.int64), len(quadratic))
    try:
        couplings = SparseIsing(places, quadratic["neighbour"], quadratic["bias"], np.zeros(n)).edges()
    except ValueError as error:
        raise _damaged_file(f"of its quadratic biases, {error}") from error
    labels = _frozen(labelled) if labelled else tuple(range(n))
    if not isinstance(labels, tuple) or (labelled and (len(labels) != n or len(set(labels)) < n)):
        raise _damaged_file(f"it must name {n} different variables")
    return model_problem(vartype, linear["bias"], couplings, offset=offset, labels=labels)


def _frozen(label: Any) -> Hashable:
    if isinstance(label, dict):
        raise _damaged_file("a variable's label is a mapping")
    return tuple(map(_frozen, label)) if isinstance(label, list) else label


def _dtype(name: Any, key: str) -> np.dtype[Any]:
    if name not in (_FLOATS if key == "dtype" else _INTEGERS):
        raise _damaged_file(f"the {key} is {name!r}")
    return np.dtype(name).newbyteorder("<")


def _table(file: io.BytesIO, rows: int, columns: list[tuple[str, np.dtype[Any]]]) -> Array:
    dtype = np.dtype(columns)
    return np.frombuffer(_take(file, rows * dtype.itemsize), dtype)


def _json(file: io.BytesIO, kind: type) -> Any:
    """What stands in JSON after its length."""
    data = _take(file, int.from_bytes(_take(file, 4), "little"))
    try:
        content = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise _damaged_file("its JSON is damaged") from error
    if not isinstance(content, kind):
        raise _damaged_file(f"its JSON must be a {kind.__name__}, but is a {type(content).__name__}")
    return content


def _take(file: io.BytesIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise _damaged_file("it is cut off")
    return data


def _damaged_file(reason: str) -> ValueError:
    return ValueError(f"is not a complete .bqm file of dimod: {reason}")
