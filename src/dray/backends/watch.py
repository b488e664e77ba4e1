"""Waiting for a database to change: what a watch promises, and the parts both databases' watches share.

A watch is a hint, never the truth. It may wake for nothing; it must not stay asleep over a change, and where no
push can be had it wakes each second (the safety poll), so that a look then misses nothing.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from dray.errors import ForkedConnection, StorageError


class Watch(ABC):
    """Tells one thread when to look at the database again. One a process and database is enough.

    One thread waits at a time; the other verbs may come from any. Look once after making a watch: it tells of what
    happens from then on. After a fork it stays the parent's: in the child `wait` raises `ForkedConnection` and
    `close` does no harm; make another one there.
    """

    is_direct: bool  # connected to the database itself, and to no pooler
    hears_own: bool  # what this very process commits is a change too
    is_unchanged = False  # the last `wait` has read, for certain, that nothing was committed since the one before

    def __init__(self, place: str) -> None:
        self._place = place
        self._bell = Bell()
        self._lock = threading.Lock()  # around all use of the connection
        self._forked = self._closed = False

    @property
    @abstractmethod
    def is_pushed(self) -> bool:
        """Whether changes are known to arrive by themselves, and not by polling."""

    @property
    def hears_deaths(self) -> bool:
        """Whether it tells of every worker of this machine that dies."""
        return False

    def tell_of_deaths(self, tell: Callable[[], None]) -> None:  # noqa: B027 - most watches cannot
        """Calls `tell`, on the thread that waits, when a worker may have died; where that can be heard."""

    def expect_own(self) -> None:  # noqa: B027 - most watches do not hear it
        """This process is about to commit something small. From any thread."""

    @abstractmethod
    def wait(self, seconds: float | None = None) -> bool:
        """Sleeps until the database may have changed since the last call, `poke`, or the time is over.

        True: look. False: the time is over, or the safety poll's, whichever was first; None: only the latter.
        """

    def poke(self) -> None:
        """Ends the wait under way, or the next one. For any thread and any signal handler; many count as one."""
        self._bell.ring()

    def close(self) -> None:
        """Lets go of everything. A second time does nothing."""
        with self._lock:
            self._closed = True
            self._let_go()
        if not self._forked:
            self._bell.ring()  # the parent would hear it

    @abstractmethod
    def _let_go(self) -> None:
        """Closes what is open; the lock is held."""

    def _refuse_if_over(self) -> None:
        if self._forked:
            raise ForkedConnection(f"{self._place}: this watch is the parent process's; make another one here")
        if self._closed:
            raise StorageError(f"{self._place}: this watch is closed; make another one")


class Bell:
    """Wakes a thread that rests; rung any number of times before that thread looks, it wakes it once."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._hears = self._rings = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._hears, self._rings = os.pipe()
            os.set_blocking(self._hears, False)
            os.set_blocking(self._rings, False)
        # Closed with the last reference and not before: a late ring must not write into another file that has its
        # number.
        weakref.finalize(self, _close, {self._hears, self._rings}).atexit = False

    def fileno(self) -> int:
        return self._hears

    def ring(self) -> None:
        # A lock here would be one that the interrupted code below a signal handler may hold.
        with suppress(BlockingIOError):
            os.write(self._rings, _ONE)

    def silence(self) -> bool:
        """Whether it was rung since the last time."""
        try:
            return bool(os.read(self._hears, 1 << 16))
        except BlockingIOError:
            return False


_ONE = (1).to_bytes(8, sys.byteorder)  # what an eventfd adds up


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def rest(descriptors: Sequence[int], seconds: float | None = None) -> bool:
    """Sleeps until a descriptor can be read or the time is over, if there is one; whether one can.

    One that was closed meanwhile counts as readable: its owner has rung, or finds out when it looks.
    """
    seconds = None if seconds is None else max(0.0, seconds)
    if max(descriptors) < _SELECT_LIMIT:
        # Counts in microseconds, where poll() does in milliseconds, and knows terminals on every system.
        try:
            return bool(select.select(descriptors, (), (), seconds)[0])
        except OSError:
            return True
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1_000))


_SELECT_LIMIT = 1024  # descriptors from here on are refused: a process may have more files open than that
