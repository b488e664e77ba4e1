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


class FileFacts(NamedTuple):
    """A file as the file system shows it."""

    path: str
    size: int
    mode: int
    folder_mode: int
    owner: int
    can_read: bool  # this user
    can_write: bool  # this user, to it and to what is written beside it
    strange: tuple[str, ...]  # files beside it that belong to somebody else
    log_size: int | None  # None: nobody has it open
    journal: str | None  # "wal", "rollback"; None: it has no header, or it may not be read
    file_system: str | None  # as the kernel names it; None: it does not say
    is_network: bool
    free: int  # bytes on its disk


class Upkeep(Protocol):
    """The file of one database."""

    def facts(self) -> FileFacts:
        """What the file system tells of it; OSError if there is no file."""
        ...

    def lock_holder(self) -> int | None:
        """The process that has kept the write lock for a second; None: nobody, or it cannot be told. Takes that long
        only while somebody has it."""
        ...

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
