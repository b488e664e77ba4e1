"""What a database without a server needs somebody to do for its file."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class LogFile(NamedTuple):
    """The write-ahead log as the file system shows it."""

    size: int  # bytes; what is in use of them only the database knows
    written_ns: int


class Upkeep(Protocol):
    """The file of one database."""

    def log(self) -> LogFile | None:
        """The write-ahead log; None: there is none at the moment."""
        ...

    def checkpoint(self, *, waits: bool = False) -> int:
        """Copies the log back into the file; the pages in it that could not be."""
        ...

    def vacuum(self, pages: int) -> bool:
        """Gives at most so many unused pages back to the file system; whether there are more."""
        ...
