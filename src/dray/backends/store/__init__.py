"""The stores: all operations on the tables, written once for both databases."""

from __future__ import annotations

from typing import Any

from dray.backends.database import Database, Row


class Store:
    """Operations on one kind of thing. Each method says what is atomic in it."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def _read(self, name: str, /, **params: Any) -> list[Row]:
        """All rows of one statement, in a read of its own."""
        return self._db.read(lambda tx: tx.rows(name, **params))


def containing(part: str) -> str:
    """The pattern of text that contains a part; its own signs are text."""
    escaped = "".join(f"!{char}" if char in "%_!" else char for char in part.lower())
    return f"%{escaped}%"
