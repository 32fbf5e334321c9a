"""Attacks on what reads and writes files; see attacks.py."""

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors
from forks import in_fork, limit

from qpsbgd.deploy import load_packed, pack, to_c, to_onnx

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "shared"))
from crafted import crafted
from packed_contents import packed_contents, write_packed

EXTREMES = (-(2**31), -1, 0, 1, 2, 7, 255, 256, 2**15, 2**24, 2**31 - 1)


def changed_tensor(array, source):
    """A tensor with other numbers, of another type or another shape."""
    array = array.copy()
    kind = source.randrange(6)
    if kind == 0:
        return array[:-1]
    if kind == 1:
        return array.astype(source.choice(["f4", "f8", "i1", "u1", "i4", "i8", "?", "f2"]))
    if kind == 2:
        return np.concatenate([array, array])
    if kind == 3:
        return array.reshape(source.choice([(-1,), (1, *array.shape), (*array.shape, 1)]))
    flat = array.reshape(-1)
    if flat.size:
        values = EXTREMES if array.dtype.kind in "iub" else (np.nan, np.inf, -0.0, 3e38, 1e-45, -1e30)
        with np.errstate(all="ignore"):
            flat[source.randrange(flat.size)] = np.array(source.choice(values)).astype(array.dtype)
    return flat.reshape(array.shape)


def packed_files(source, trials):
    """Packed files with one to three parts changed under a right checksum: loaded, run, written as C and as ONNX"""
    contents = packed_contents()
    for _ in range(trials):
        content, tensors, shape = source.choice(contents)
        for _ in range(source.choice((1, 1, 2, 3))):
            if source.random() < 0.5:
                name = source.choice(list(tensors))
                tensors = {**tensors, name: changed_tensor(tensors[name], source)}
            else:
                content = with_extreme(content, source)
        if source.random() < 0.4:
            content = {**content, **crafted({"operations": content["operations"]}, source)}
        yield in_fork(_uses, content, tensors, shape) is True


def with_extreme(content, source):
    """The content with one of its whole numbers at an extreme."""
    text, numbers = json.dumps(content["operations"]), []
    json.loads(text, parse_int=numbers.append)
    if not numbers:
        return content
    at, count = source.randrange(len(numbers)), iter(range(len(numbers)))
    value = source.choice(EXTREMES)
    return {**content, "operations": json.loads(text, parse_int=lambda n: value if next(count) == at else int(n))}


def _uses(content, tensors, shape):
    limit(10**9, 60)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net"
        try:
            write_packed(path, content, tensors)
        except (KeyError, TypeError, ValueError, safetensors.SafetensorError):
            return True  # nobody can write this
        try:
            model = load_packed(path)
        except ValueError:
            return True
        rows = np.ones((2, *(model.input_shape or shape)), np.float32)
        for use in (
            lambda: model(rows),
            lambda: to_c(model, folder, input_shape=model.input_shape or shape),
            lambda: to_onnx(model, Path(folder) / "net.onnx", input_shape=model.input_shape or shape),
            lambda: (repr(model), pack(model, Path(folder) / "again"), load_packed(Path(folder) / "again")),
        ):
            with contextlib.suppress(ValueError):
                use()
    return True
