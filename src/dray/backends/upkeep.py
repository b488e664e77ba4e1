"""What a database without a server needs somebody to do for its file."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class LogFile(NamedTuple):
    """The write-ahead log as the file system shows it."""

    size: int  # bytes; what is in use of them only the database knows
    written_ns: int
    starts: int  # how often it started over, in the room there is


class Checkpoint(NamedTuple):
    """What a checkpoint found."""

    frames: int  # pages in the log
    left: int  # those among them that could not be copied back


class Upkeep(Protocol):
    """The file of one database."""

    def log(self) -> LogFile | None:
        """The write-ahead log; None: there is none at the moment."""
        ...

    def checkpoint(self, *, waits: bool = False) -> Checkpoint:
        """Copies the log back into the file. Waits: keeps writers out until the log can start over, if that takes no
        longer than a second."""
        ...

    def vacuum(self, pages: int) -> bool:
        """Gives at most so many unused pages back to the file system; whether there are more."""
        ...
