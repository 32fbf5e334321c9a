"""Rows of SQLite files, to compare and to change."""

import sqlite3
from contextlib import closing


def rows(path):
    """All rows of all tables, each a dict."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: [dict(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY rowid")] for name in names
        }


def rewrite_row(path, table, row, **values):
    """Put these values into the row, from 1; IntegrityError for None and NaN, which no column may hold."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for column, value in values.items():
            number = f"(SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET {row - 1})"
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = {number}", (value,))
