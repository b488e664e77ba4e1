"""SQLite: one file, the standard library's driver, one writer at a time."""

from dray.backends.sqlite.database import SqliteDatabase

__all__ = ["SqliteDatabase"]
