"""The nouns of the storage contract, written once for every database."""

from __future__ import annotations

from typing import Any

from dray.backends.database import Database, Row


class Noun:
    """One noun: its verbs are the methods of its class."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def _read(self, name: str, /, **params: Any) -> list[Row]:
        """All rows of one statement, in a read of its own."""
        return self._db.read(lambda tx: tx.rows(name, **params))
