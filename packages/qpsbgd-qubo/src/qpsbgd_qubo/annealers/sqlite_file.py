"""SQLite files of a known kind, one transaction at a time, and errors that say what to do.

The rollback journal works on any file system; it is overwritten, not deleted (PERSIST), which is faster, and makes
`synchronous = NORMAL` as safe as FULL.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUSY_SECONDS = 30.0  # how long to wait for another process that changes the file, which takes milliseconds
_NOT_DAMAGED = ("locked", "readonly", "unable to open", "full", "disk I/O", "locking protocol")


@dataclass(frozen=True)
class Kind:
    """What files of a kind hold, and the error for those that do not."""

    name: str  # in messages
    error: type[Exception]
    advice: str  # what to do about a damaged file
    application_id: int
    version: int
    statements: tuple[str, ...]  # make an empty file one of this kind

    def damaged(self, path: Path, reason: object) -> Exception:
        """The error for a damaged or foreign file."""
        return self.error(f"{path} is not a {self.name}, or is damaged: {reason}; {self.advice}")


def is_new(path: Path) -> bool:
    """Whether nothing was committed there yet."""
    return not path.exists() or path.stat().st_size == 0


@contextmanager
def transaction(path: Path, kind: Kind, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection for one transaction, which an error undoes; `write` makes a new file and keeps other writers out."""
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
    name = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'rw'}"
    try:
        with closing(sqlite3.connect(name, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            if write:
                connection.execute("PRAGMA journal_mode = PERSIST")
            if write and is_new(path):
                marks = f"PRAGMA application_id = {kind.application_id}", f"PRAGMA user_version = {kind.version}"
                for statement in (*marks, *kind.statements):
                    connection.execute(statement)
            yield connection
            connection.execute("COMMIT")
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter from a damaged name in SQLite's own message
        if isinstance(error, sqlite3.OperationalError) and any(words in str(error) for words in _NOT_DAMAGED):
            hint = "let no other process hold it, or choose a file in a writable folder, on a disk with space"
            raise OSError(f"the {kind.name} {path} was not changed: {error}; {hint}") from error
        raise kind.damaged(path, error) from error


def check(connection: sqlite3.Connection, path: Path, kind: Kind) -> None:
    """Raise the kind's error for a file that is of another kind, cut or damaged; its values have no checksums."""
    if _pragma(connection, "application_id") != kind.application_id:
        raise kind.damaged(path, "it is a database of another program")
    if (version := _pragma(connection, "user_version")) != kind.version:
        raise kind.damaged(path, f"its version must be {kind.version}, got {version}")
    tables = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")}
    if tables != {statement for statement in kind.statements if statement.startswith("CREATE")}:
        raise kind.damaged(path, "its tables are not those of this version")
    if path.stat().st_size % _pragma(connection, "page_size"):  # a cut that SQLite itself may not notice
        raise kind.damaged(path, "it was cut within a page")
    if (problem := _pragma(connection, "quick_check(1)")) != "ok":
        raise kind.damaged(path, problem)


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
