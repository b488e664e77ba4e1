"""Copies of a whole database as it was at one moment, made while others write to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

Progress = Callable[[int, int | None], None]  # how much is done, of how much in all if that is known


class Copier(Protocol):
    """Makes copies of one database."""

    @property
    def name(self) -> str:
        """What a copy may be called, without an ending."""
        ...

    @property
    def ending(self) -> str:
        """Of the names of copies."""
        ...

    def mode(self) -> int:
        """Who may read a copy, as permissions of its file: nobody who may not read the database."""
        ...

    def refuse(self, target: Path) -> None:
        """An error if a copy must not be put there, even where what is there may be replaced."""
        ...

    def copy(self, draft: Path, progress: Progress) -> int | None:
        """Fills a file that is there, empty and private, and checks it: it needs no other file beside it. Answers the
        number of jobs in it, where that is known. After an error the file is worth nothing."""
        ...
