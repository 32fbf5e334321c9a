"""Whoever crafts a file gets the documented error, and neither another one nor the machine's memory."""

import contextlib
import json
import random
import sqlite3
import tracemalloc

import numpy as np
import pytest
from crafted import crafted
from crafted_rows import rewrite_row, rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rewriting import rewritten

pytest.importorskip("safetensors.numpy")
pytest.importorskip("dwave.graphs")

from packed_contents import packed_contents, write_packed

from qpsbgd.deploy import load_packed
from qpsbgd.testing import random_family
from qpsbgd_qubo.annealers.ledger import Ledger
from qpsbgd_qubo.annealers.recordings import RecordingError
from qpsbgd_qubo.annealers.replay import Replay
from qpsbgd_qubo.annealers.virtual_qpu import VirtualQPU

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
def record(tmp_path_factory):
    """The bytes of a recording, its rows by table, and the families in it."""
    folder = tmp_path_factory.mktemp("recording")
    families = [random_family(4, 3, 8, seed=seed) for seed in range(2)]
    with VirtualQPU(size=2, cache=folder, num_reads=3, record=folder / "run.chip") as solver:
        for family in families:
            solver.solve(family)
    return (folder / "run.chip").read_bytes(), rows(folder / "run.chip"), families


@FUZZED
@given(SEEDS)
def test_crafted_recordings_raise_recording_errors(record, tmp_path, seed):
    content, tables, families = record
    path, source = rewritten(tmp_path / "run.chip", content), random.Random(seed)
    table = source.choice(list(tables))
    row = source.choice(tables[table])
    column, value = source.choice(list(row.items()))
    if isinstance(value, bytes):
        value = source.choice([value[:-1], value + b"x", b"", "x", 3])
    elif isinstance(value, str) and "digest" not in column and column != "structure":
        value = json.dumps(crafted({"value": json.loads(value)}, source).get("value"))
    else:
        value = source.choice([None, -1, 0, 1, 2**62, float("nan"), float("inf"), -1e300, "x", b"x", ""])
    with contextlib.suppress(sqlite3.IntegrityError):  # what no column may hold
        rewrite_row(path, table, 1 + tables[table].index(row), **{column: value})
    with refused_with(RecordingError):
        replay = Replay(path)
        for family in families:
            replay.solve(family)


@FUZZED
@given(SEEDS)
def test_recordings_with_damaged_bytes_raise_recording_errors(record, tmp_path, seed):
    source, content = random.Random(seed), bytearray(record[0])
    used = [at for at, byte in enumerate(content) if byte]
    for _ in range(source.randint(1, 20)):
        content[source.choice(used)] = source.choice((0, 1, 127, 255, source.randrange(256)))
    if source.random() < 0.3:
        del content[source.randrange(len(content)) :]
    path = rewritten(tmp_path / "run.chip", bytes(content))
    with refused_with(RecordingError):
        replay = Replay(path)
        for family in record[2]:
            replay.solve(family)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE more (number INTEGER)",
        "DROP TABLE tiles",
        "ALTER TABLE tiles ADD COLUMN more TEXT",
        "CREATE TRIGGER more AFTER INSERT ON answers BEGIN DELETE FROM answers; END",
        "CREATE INDEX more ON answers (digest)",
        "PRAGMA user_version = 2",
        "PRAGMA application_id = 2",
        "DELETE FROM header",
        "DELETE FROM answers WHERE number = 1",
        "PRAGMA journal_mode = WAL",
    ],
)
def test_databases_that_nobody_recorded_raise_recording_errors(record, tmp_path, statement):
    path = rewritten(tmp_path / "run.chip", record[0])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement).fetchall()
    with (
        refused_with(RecordingError),
        contextlib.nullcontext() if "WAL" in statement else pytest.raises(RecordingError, match=r"run\.chip"),
    ):
        replay = Replay(path)
        for family in record[2]:
            replay.solve(family)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "not JSON", "{}", '{"a": ' + "9" * 5000 + "}"])
def test_headers_that_nobody_wrote_raise_recording_errors(record, tmp_path, text):
    path = rewritten(tmp_path / "run.chip", record[0])
    rewrite_row(path, "header", 1, content=text)
    with refused_with(), pytest.raises(RecordingError, match=r"run\.chip"):
        Replay(path)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """The bytes of a ledger with two rows."""
    path = tmp_path_factory.mktemp("ledger") / "qpu.ledger"
    with Ledger(path).changing() as counts:
        counts.submissions, counts.qpu_seconds, counts.recorded["run.chip"] = 3, 0.5, 2
    return path.read_bytes()


@FUZZED
@given(SEEDS)
def test_crafted_ledgers_raise_value_errors(ledger, tmp_path, seed):
    path, source = rewritten(tmp_path / "qpu.ledger", ledger), random.Random(seed)
    table, column = source.choice([("spent", "submissions"), ("spent", "qpu_seconds"), ("recorded", "answers")])
    value = source.choice([None, -1, 0, 2, 2**62, float("nan"), float("inf"), -1e300, 0.5, "x", b"x", ""])
    with contextlib.suppress(sqlite3.IntegrityError):
        rewrite_row(path, table, 1, **{column: value})
    with refused_with(ValueError):
        found = Ledger(path)
        assert found.submissions >= 0 and 0 <= found.qpu_seconds < float("inf")
