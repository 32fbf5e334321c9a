"""Whoever crafts a file gets the documented error, and neither another one nor the machine's memory."""

import contextlib
import json
import random
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from crafted import crafted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rewriting import rewritten

pytest.importorskip("safetensors.numpy")
pytest.importorskip("dwave.graphs")

from packed_contents import packed_contents, write_packed

from qpsbgd.deploy import load_packed
from qpsbgd.testing import random_family
from qpsbgd_qubo.annealers import frame_file
from qpsbgd_qubo.annealers.ledger import Ledger
from qpsbgd_qubo.annealers.recordings import Recording, RecordingError
from qpsbgd_qubo.annealers.replay import Replay
from qpsbgd_qubo.annealers.virtual_qpu import VirtualQPU
from qpsbgd_qubo.files.atomic import with_checksum

MOST_MEMORY = 200_000_000
SEEDS = st.integers(0, 2**32)
FUZZED = settings(
    max_examples=75,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@contextlib.contextmanager
def refused_with(*errors):
    """Nothing but these errors, and no more memory than a reader may take."""
    tracemalloc.start()
    try:
        with contextlib.suppress(*errors):
            yield
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def networks():
    return packed_contents()


@FUZZED
@given(SEEDS)
def test_crafted_packed_models_raise_value_errors(networks, tmp_path, seed):
    source = random.Random(seed)
    content, tensors, shape = source.choice(networks)
    if source.random() < 0.3:
        name = source.choice(list(tensors))
        changed = source.choice([tensors[name][:-1], np.float32([np.nan]), np.zeros((2, 2), np.int64), None])
        tensors = {key: value for key, value in tensors.items() if key != name or changed is not None}
        tensors |= {} if changed is None else {name: changed}
    else:
        content = {**content, **crafted({k: v for k, v in content.items() if k != "version"}, source)}
    with contextlib.suppress(KeyError, TypeError):  # without operations there is no checksum either
        write_packed(tmp_path / "net", content, tensors)
    with refused_with(ValueError):
        model = load_packed(tmp_path / "net")
        model(np.ones((2, *(model.input_shape or shape)), np.float32))


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """The frames of a recording, and the families in it."""
    folder = tmp_path_factory.mktemp("recording")
    families = [random_family(4, 3, 8, seed=seed) for seed in range(2)]
    with VirtualQPU(size=2, cache=folder, num_reads=3, record=folder / "run.chip") as solver:
        for family in families:
            solver.solve(family)
    file = frame_file.FrameFile(folder / "run.chip", kinds=("header", "tiles", "graph", "answer"))
    return [(kind, *file.read(at)) for kind, at in file.scan()], families


def write_frames(path, frames):
    content = b"".join(frame_file._frame(kind, meta, arrays) for kind, meta, arrays in frames)
    rewritten(path, frame_file._MAGIC + content)


@FUZZED
@given(SEEDS)
def test_crafted_recordings_raise_recording_errors(frames, tmp_path, seed):
    source = random.Random(seed)
    content, families = list(frames[0]), frames[1]
    at = source.randrange(len(content))
    kind, meta, arrays = content[at]
    if arrays and source.random() < 0.4:
        name = source.choice(list(arrays))
        arrays = {**arrays, name: source.choice([arrays[name][:-1], arrays[name].astype(float), np.zeros(0)])}
        arrays = arrays if source.random() < 0.7 else {}
    else:
        meta = crafted(meta, source)
    content[at] = (kind, meta, arrays)
    write_frames(tmp_path / "run.chip", content)
    with refused_with(RecordingError):
        Recording(tmp_path / "run.chip").verify()
        replay = Replay(tmp_path / "run.chip")
        for family in families:
            replay.solve(family)


def framed(kind, body):
    head = frame_file._HEAD.pack(kind, len(body), frame_file.hashlib.sha256(body).digest())
    return frame_file._MAGIC + head + struct.pack("<I", zlib.crc32(head)) + body


def packed(data):
    content = zlib.compress(data)
    return struct.pack("<I", len(content)) + content


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (b"header", lambda: packed(b'{"a": "' + b"x" * 100_000_000 + b'"}')),
        (b"header", packed(b"[" * 100_000)),
        (b"header", packed(b"\xff\xfe")),
        (b"header", packed(b"[1]")),
        (b"header", b"\1"),
        (b"header", struct.pack("<I", 9) + b"not zlib."),
        (b"header", packed(b"{}")[:-2]),
        (b"header", packed(b"{}") + b"not an archive"),
        (b"\xff\xfe", packed(b"{}")),
        (b"tiles", packed(b"{}")),
        (b"graph", packed(b"{}")),
    ],
)
def test_frames_that_nobody_wrote_raise_recording_errors(tmp_path, kind, body):
    (tmp_path / "run.chip").write_bytes(framed(kind, body() if callable(body) else body))
    with refused_with(), pytest.raises(RecordingError, match=r"run\.chip"):
        Recording(tmp_path / "run.chip")


@FUZZED
@given(SEEDS)
def test_crafted_ledgers_raise_value_errors(tmp_path, seed):
    counts = {"submissions": 3, "qpu_seconds": 0.5, "recorded": {"run.chip": 2}}
    with contextlib.suppress(ValueError):  # what JSON cannot say
        rewritten(tmp_path / "qpu.ledger", with_checksum(crafted(counts, random.Random(seed))))
        with refused_with(ValueError):
            found = Ledger(tmp_path / "qpu.ledger")
            assert found.submissions >= 0 and 0 <= found.qpu_seconds < float("inf")


def test_the_crafted_content_differs_from_what_was_there(networks):
    """Otherwise the tests above would test nothing."""
    source, operations = random.Random(0), networks[0][0]["operations"]
    changed = sum(json.dumps(crafted(operations, source)) != json.dumps(operations) for _ in range(100))
    assert changed > 90
