"""Threads that enqueue at the same moment share one transaction: a commit to disk takes longer than fifty rows.

The thread that finds no other writing writes its jobs, and with them those of all threads that wait. If the database
refuses the data of a shared transaction, each thread writes its own jobs by itself: none gets the error of another's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from typing import Protocol

from dray import forks
from dray.backends.database import DataRefused
from dray.errors import DrayError
from dray.interrupts import OwnedLock, Signal, with_cleanup
from dray.model.new_job import NewJob

_MOST = 100  # threads that share a transaction
_LONGEST_WAIT = 1.0  # seconds until a thread looks by itself whether another still writes


class _Request:
    """The jobs of one thread. Only a thread that has the turn sets what became of them."""

    def __init__(self, jobs: Sequence[NewJob], *, durable: bool) -> None:
        self.jobs = jobs
        self.durable = durable
        self.is_written = False
        self.is_alone = False  # its own thread writes them
        self.error: DrayError | None = None
        self.bell = Signal()

    @property
    def is_over(self) -> bool:
        return self.is_written or self.is_alone or self.error is not None


class Write(Protocol):
    def __call__(self, jobs: Sequence[NewJob], /, *, durable: bool) -> None: ...


class GroupCommit:
    """`write` writes jobs in one transaction, durably if any of the threads asks for that.

    Jobs that are there already, under their ids, count as written: after an interrupt, the next thread may write what
    the last one has committed.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self.after_fork_in_child()
        forks.watch_child(self)

    def after_fork_in_child(self) -> None:
        """The threads that wait, and the one that writes, are the parent's."""
        self._turn = OwnedLock()  # of the thread that writes
        self._waiting: deque[_Request] = deque()

    def add(self, jobs: Sequence[NewJob], *, durable: bool) -> None:
        """Returns when the jobs are committed."""
        request = _Request(jobs, durable=durable)
        with_cleanup(lambda: self._add(request), lambda: self._leave(request))

    def _add(self, request: _Request) -> None:
        while not request.is_over:
            if self._turn.acquire(0):
                self._write_with_others(request)
                self._turn.release_if_mine()
            elif request not in self._waiting:
                self._waiting.append(request)  # then once more: the turn may have ended before it was seen here
            else:
                request.bell.wait(_LONGEST_WAIT)
                request.bell.clear()
        if request.error is not None:
            raise copy(request.error)
        if request.is_alone:
            self._write(request.jobs, durable=request.durable)

    def _write_with_others(self, request: _Request) -> None:
        if request.is_over:
            return  # the last turn has seen to it
        waiting = [each for each in list(self._waiting)[:_MOST] if not each.is_over]
        together = [request, *(each for each in waiting if each is not request)]
        try:
            durable = any(each.durable for each in together)
            self._write([job for each in together for job in each.jobs], durable=durable)
        except DataRefused:
            if len(together) == 1:
                raise
            for each in together:
                each.is_alone = True  # one of them is at fault
        except DrayError as error:  # of the database: alone, each would wait for the same once more
            for each in together:
                each.error = error
        else:
            for each in together:
                each.is_written = True
        for each in together[1:]:
            each.bell.set()

    def _leave(self, request: _Request) -> None:
        """Passes the turn on, however this thread's call has ended."""
        self._turn.release_if_mine()
        if not self._waiting:
            return
        with suppress(ValueError):
            self._waiting.remove(request)
        successor = next((each for each in list(self._waiting) if not each.is_over), None)
        if successor is not None:
            successor.bell.set()
