"""SQLite files with known tables: one transaction per change, a checksum per row, errors that say what to do.

The journal is a rollback journal: a write-ahead log needs memory that all its processes share, which no network file
system has, and the file could not be copied without it. The journal stays beside the file, with nothing in it to undo,
since to delete it each time takes several times as long. Connections last for one transaction: they must not be
carried into a forked process, and a network file system shows what other machines wrote when a file is opened.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qpsbgd_qubo.files.atomic import writing

BUSY_SECONDS = 30.0
"""How long to wait for another process that changes the file, which takes milliseconds."""
_PAGE_SIZE = 16384  # bytes; larger pages keep the tree of a table flat, so that more of a file that was cut is readable
_BEGIN = b"SQLite format 3\0"
_TYPES = {str: "TEXT", int: "INTEGER", float: "REAL", bytes: "BLOB"}
_TROUBLES = {
    "locked": (errno.EBUSY, f"another process has been changing it for {BUSY_SECONDS:g} s"),
    "readonly": (errno.EACCES, "it cannot be written; choose another path"),
    "unable to open": (
        errno.EACCES,
        "choose another path, or check that it is a file in a writable folder",
    ),
    "full": (errno.ENOSPC, "make room on the disk and try again"),
    "disk I/O error": (errno.EIO, "check the disk, its space and its locks, or choose a local disk"),
    "locking protocol": (errno.ENOLCK, "this file system cannot lock files; choose a local disk"),
}


@dataclass(frozen=True)
class Format:
    """What a file of ours holds.

    Every table has its rows' numbers, counted from 1, the columns named here, and a checksum.
    """

    kind: str  # in messages: "ledger"
    application_id: int
    version: int
    tables: Mapping[str, Mapping[str, type]]  # the columns of every table, each str, int, float or bytes
    error: type[Exception]  # what damage raises
    advice: str  # what to do about it

    def sql(self) -> dict[str, str]:
        """The statement that creates each table."""
        columns = {
            name: ", ".join(f"{column} {_TYPES[kind]} NOT NULL" for column, kind in table.items())
            for name, table in self.tables.items()
        }
        return {
            name: f"CREATE TABLE {name} (number INTEGER PRIMARY KEY, {text}, checksum TEXT NOT NULL)"
            for name, text in columns.items()
        }

    def damaged(self, path: Path, reason: str) -> Exception:
        """The error for a damaged file."""
        return self.error(f"the {self.kind} {path} is damaged: {reason}; {self.advice}")

    def not_ours(self, path: Path) -> Exception:
        """The error for a file of another kind."""
        return self.error(f"{path} is not a {self.kind}, or its beginning is damaged; {self.advice}")

    def explained(self, path: Path, error: Exception) -> Exception:
        """The error to raise for one of SQLite's."""
        for words, (number, advice) in _TROUBLES.items():
            if isinstance(error, sqlite3.OperationalError) and words in str(error):
                return OSError(number, f"the {self.kind} was not changed, {error}: {advice}", str(path))
        return self.not_ours(path) if "not a database" in str(error) else self.damaged(path, str(error))


class Database:
    """An open connection to a file of this format."""

    def __init__(self, connection: sqlite3.Connection, path: Path, form: Format) -> None:
        self.connection, self._path, self._form = connection, path, form

    def create_tables(self) -> None:
        """Make an empty file one of this format."""
        self.connection.execute(f"PRAGMA application_id = {self._form.application_id}")
        self.connection.execute(f"PRAGMA user_version = {self._form.version}")
        for statement in self._form.sql().values():
            self.connection.execute(statement)

    def check_format(self) -> None:
        """Raise the format's error unless the file has its marks and its tables, and nothing else."""
        if self._pragma("application_id") != self._form.application_id:
            raise self._form.not_ours(self._path)
        if (version := self._pragma("user_version")) != self._form.version:
            raise self.damaged(f"its format must have version {self._form.version}, got {version}")
        if dict(self.connection.execute("SELECT name, sql FROM sqlite_master")) != self._form.sql():
            raise self.damaged(f"it must have the tables {', '.join(self._form.tables)}, and no others")

    def check_pages(self) -> None:
        """Raise the format's error where pages are damaged so that a change might overwrite good rows."""
        if (found := self._pragma("quick_check(1)")) != "ok":
            raise self.damaged(str(found))

    def check_writable(self) -> None:
        """Raise the OSError that a change would raise."""
        self.connection.execute(f"PRAGMA user_version = {self._form.version}")

    def missing_bytes(self) -> int:
        """How many bytes at the end a file has lost that was cut; SQLite itself refuses one without its last page."""
        full: int = self._pragma("page_count") * self._pragma("page_size")
        return max(0, full - self._path.stat().st_size)

    def last(self, table: str) -> int:
        """The number of the table's last row; 0 without rows."""
        return int(self.connection.execute(f"SELECT COALESCE(MAX(number), 0) FROM {table}").fetchone()[0])

    def count(self, table: str) -> int:
        """The number of rows; raises the format's error where one is missing."""
        count = int(self.connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])
        if count != self.last(table):
            raise self.damaged(f"{table} must have {self.last(table)} rows, got {count}")
        return count

    def put(self, table: str, number: int, *values: str | int | float | bytes) -> None:
        """Write a row, new or in place of the one with that number."""
        kept = [kind(value) for kind, value in zip(self._form.tables[table].values(), values, strict=True)]
        row = number, *kept, _checksum(kept)
        self.connection.execute(f"REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def get(self, table: str, number: int) -> tuple[Any, ...]:
        """The row's values; raises the format's error unless they are as they were written."""
        row = self.connection.execute(f"SELECT * FROM {table} WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise self.damaged(f"row {number} of {table} is missing")
        _, *values, checksum = row
        for (column, kind), value in zip(self._form.tables[table].items(), values, strict=True):
            if type(value) is not kind:
                what = f"{column} must be of type {kind.__name__}, got {value!r:.40}"
                raise self.damaged(f"row {number} of {table}: {what}")
        if checksum != _checksum(values):
            raise self.damaged(f"row {number} of {table}: its checksum is wrong")
        return tuple(values)

    def damaged(self, reason: str) -> Exception:
        """The error for a damaged file."""
        return self._form.damaged(self._path, reason)

    def _pragma(self, name: str) -> Any:
        return self.connection.execute(f"PRAGMA {name}").fetchone()[0]


@contextmanager
def reading(path: Path, form: Format) -> Iterator[Database]:
    """The file, to be read; what a killed process had begun to change is undone first."""
    with _connected(path, form) as database:
        database.connection.execute("BEGIN")
        yield database


@contextmanager
def changing(path: Path, form: Format) -> Iterator[Database]:
    """The file, to be changed in one transaction by one process at a time; after an error it is as it was."""
    with _connected(path, form) as database:
        database.connection.execute("PRAGMA journal_mode = PERSIST")
        database.connection.execute("PRAGMA synchronous = FULL")
        database.connection.execute("BEGIN IMMEDIATE")
        yield database
        database.connection.execute("COMMIT")


def create(path: Path, form: Format, fill: Callable[[Database], None]) -> None:
    """Make a new file with the rows that `fill` puts into it; it takes the place of `path` when it is complete.

    Raises:
        OSError: The file cannot be written; nothing was changed.
    """
    with TemporaryDirectory() as folder:
        made = Path(folder) / "new"
        with _connected(made, form, mode="rwc") as database:
            database.connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
            database.connection.execute("BEGIN")
            database.create_tables()
            fill(database)
            database.connection.execute("COMMIT")
        path.parent.mkdir(parents=True, exist_ok=True)
        target = Path(os.path.realpath(path))  # where SQLite looks for a journal, which would undo the new file
        target.with_name(f"{target.name}-journal").unlink(missing_ok=True)
        with made.open("rb") as source, writing(path) as file:
            shutil.copyfileobj(source, file)


def missing_bytes(path: Path) -> int:
    """How many bytes a file that was cut has lost."""
    return max(0, _full_size(path) - path.stat().st_size)


def readable_part(path: Path, form: Format) -> Database:
    """The rows of a file that was cut, in memory: those of every table up to the first that is not complete."""
    remains = Database(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False), path, form)
    remains.create_tables()
    with TemporaryDirectory() as folder:
        padded = Path(folder) / "padded"  # SQLite refuses a file that is shorter than it says
        shutil.copyfile(path, padded)
        try:
            os.truncate(padded, _full_size(path))
        except OSError as error:
            raise form.damaged(path, f"it says that it had {_full_size(path)} bytes") from error
        try:
            with _connected(padded, form) as database:
                database.check_format()
                for table in form.tables:
                    copy_rows(table, database, remains)
        except form.error as error:
            raise form.damaged(path, "it was cut before its first row") from error
    return remains


def copy_rows(table: str, source: Database, target: Database) -> None:
    """Copy rows up to the first that is missing or damaged."""
    for number in itertools.count(1):
        try:
            values = source.get(table, number)
        except (sqlite3.DatabaseError, source._form.error):
            return
        target.put(table, number, *values)


@contextmanager
def _connected(path: Path, form: Format, mode: str = "rw") -> Iterator[Database]:
    name = f"{path.absolute().as_uri()}?mode={mode}"
    try:
        with closing(sqlite3.connect(name, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            yield Database(connection, path, form)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # a damaged name in SQLite's own message
        raise form.explained(path, error) from error


def _full_size(path: Path) -> int:
    """The bytes that a file should have by its header; 0 without one."""
    with path.open("rb") as file:
        begin = file.read(100)
    return int.from_bytes(begin[16:18], "big") * int.from_bytes(begin[28:32], "big") if begin[:16] == _BEGIN else 0


def _checksum(values: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
