"""Whether work that somebody else does for a coroutine is still wanted."""

from __future__ import annotations


class Stopped(Exception):
    """Nobody waits for the answer any more; raised inside the work, seen by nobody else."""


class Stop:
    """Whether the work is still wanted."""

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def check(self) -> None:
        """Raises `Stopped` if it is not."""
        if self.is_set:
            raise Stopped
