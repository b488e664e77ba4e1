"""Whether work that somebody else does for a coroutine is still wanted."""

from __future__ import annotations


class Stopped(Exception):
    """Nobody waits for the answer any more; raised inside the work, seen by nobody else."""


class Stop:
    """Says so to the work, and by it whether a statement under way may be interrupted."""

    def __init__(self) -> None:
        self.is_set = False
        self.is_guarded = False  # whatever fails from here on is undone

    def set(self) -> None:
        self.is_set = True

    def check(self) -> None:
        """Raises `Stopped` if it is not wanted any more."""
        if self.is_set:
            raise Stopped

    def guard(self) -> None:
        """For work that has set its savepoint. In this order: either it sees the stop, or is seen to be guarded."""
        self.is_guarded = True
        self.check()
