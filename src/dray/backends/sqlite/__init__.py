"""SQLite: one file, the standard library's driver, one writer at a time.

The names below are loaded when they are first used: a worker makes no backups, and a list waits for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.backends.sqlite.copier import SqliteCopier
    from dray.backends.sqlite.database import SqliteDatabase
    from dray.backends.sqlite.joins import Joins
    from dray.backends.sqlite.tables import SqliteTables
    from dray.backends.sqlite.watch import SqliteWatch
    from dray.backends.store.gate import Gate

__getattr__ = loader(
    __name__,
    {
        "dray.backends.sqlite.copier": "SqliteCopier",
        "dray.backends.sqlite.database": "SqliteDatabase",
        "dray.backends.sqlite.joins": "Joins",
        "dray.backends.sqlite.tables": "SqliteTables",
        "dray.backends.sqlite.watch": "SqliteWatch",
        "dray.backends.store.gate": "Gate",
    },
)

__all__ = ["Gate", "Joins", "SqliteCopier", "SqliteDatabase", "SqliteTables", "SqliteWatch"]
