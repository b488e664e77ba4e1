"""Threads that enqueue at the same moment share one transaction: a commit to disk takes longer than fifty rows.

The thread that finds no other writing writes its jobs, and with them those of all threads that come until its
transaction has begun. The next transaction begins when all of these have been told and are gone: most come back at
once, with the next jobs. If the database refuses the data of a shared transaction, each thread writes its own jobs by
itself: none gets the error of another's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from queue import Empty, SimpleQueue
from typing import Protocol

from dray import forks
from dray.backends.database import DataRefused
from dray.errors import DrayError
from dray.interrupts import OwnedLock, with_cleanup
from dray.model.new_job import AlikeJobs

_MOST = 100  # threads that share a transaction
_LONGEST_WAIT = 0.1  # seconds until a thread looks by itself: the one that is to wake it may be in a signal handler


class _Request:
    """The jobs of one thread. Only a thread that has the turn sets what became of them."""

    __slots__ = ("batch", "durable", "error", "is_alone", "is_over")

    def __init__(self, batch: Sequence[AlikeJobs], *, durable: bool) -> None:
        self.batch = batch
        self.durable = durable
        self.is_over = False  # they are written, its own thread writes them, or there is an error
        self.is_alone = False  # its own thread writes them
        self.error: DrayError | None = None


class Write(Protocol):
    def __call__(self, gather: Callable[[], Sequence[AlikeJobs]], /, *, durable: bool) -> None: ...


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
        self._waiting: dict[_Request, SimpleQueue[None]] = {}  # each with what is rung for its thread

    def add(self, batch: Sequence[AlikeJobs], *, durable: bool) -> None:
        """Returns when the jobs are committed."""
        request = _Request(batch, durable=durable)
        with_cleanup(lambda: self._add(request), lambda: self._leave(request))

    def _add(self, request: _Request) -> None:
        if not self._writes(request, is_patient=True):
            bell = self._waiting[request] = SimpleQueue[None]()
            is_patient = True
            # Once more before it waits: all may have left before it was seen here.
            while not (request.is_over or self._writes(request, is_patient=is_patient)):
                try:
                    bell.get(timeout=_LONGEST_WAIT)
                except Empty:
                    is_patient = False
        if request.error is not None:
            raise copy(request.error)
        if request.is_alone:
            self._leave(request)  # the others need not wait for this
            self._write(lambda: request.batch, durable=request.durable)

    def _writes(self, request: _Request, *, is_patient: bool) -> bool:
        """Takes the turn and writes, if it is free now and may be taken."""
        if (is_patient and self._waiting and self._are_leaving()) or not self._turn.acquire(0):
            return False
        if not request.is_over:  # the last turn may have seen to it
            self._write_with_others(request)
        return True

    def _are_leaving(self) -> bool:
        """Whether threads that shared the last commit are still on their way out. Mostly they come back at once: a
        thread that did not wait for them would write without their next jobs, and these would wait for its commit."""
        for each in self._waiting.copy():  # noqa: SIM110 - a generator costs as much as the loop
            if each.is_over:
                return True
        return False

    def _write_with_others(self, request: _Request) -> None:
        durable = request.durable or any(each.durable for each in self._waiting.copy())
        together = {request: None}

        def gather() -> list[AlikeJobs]:
            if self._waiting:
                for each in list(self._waiting.copy())[:_MOST]:
                    if not each.is_over and (durable or not each.durable):
                        together[each] = None
            return [jobs for each in together for jobs in each.batch]

        try:
            gather()
            self._write(gather, durable=durable)
        except DataRefused:
            if len(together) == 1:
                raise
            for each in together:
                each.is_alone = each.is_over = True  # one of them is at fault
        except DrayError as error:  # of the database: alone, each would wait for the same once more
            for each in together:
                each.error = error
                each.is_over = True
        else:
            for each in together:
                each.is_over = True

    def _leave(self, request: _Request) -> None:
        """Passes the turn on, however this thread's call has ended, and wakes one thread: of those whose jobs are
        written, or, if it is the last of them, of those that wait. Each wakes the next. When one woke them all, each
        of them waited twice: for that, and for the GIL."""
        self._turn.release_if_mine()
        if not self._waiting:
            return
        self._waiting.pop(request, None)
        waiting = self._waiting.copy()
        for each in waiting:
            if each.is_over:
                waiting[each].put(None)
                return
        if waiting:
            next(iter(waiting.values())).put(None)
