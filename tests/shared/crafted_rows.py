"""Rows of our SQLite files, to compare and to change under a right checksum."""

import sqlite3
from contextlib import closing

from qpsbgd_qubo.annealers import sqlite_file


def rows(path):
    """All rows of all tables."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY number").fetchall() for name in names}


def rewrite_row(path, table, number, **values):
    """Put these values into a row, and its checksum; IntegrityError for None and NaN, which no column may hold."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for column, value in values.items():
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE number = ?", (value, number))
        _, *row, _ = connection.execute(f"SELECT * FROM {table} WHERE number = ?", (number,)).fetchone()
        checksum = sqlite_file._checksum(row)
        connection.execute(f"UPDATE {table} SET checksum = ? WHERE number = ?", (checksum, number))
