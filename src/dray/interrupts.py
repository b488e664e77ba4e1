"""Cleaning up although an exception may be raised into this thread at any moment.

Ctrl-C, a time limit set by a signal and `PyThreadState_SetAsyncExc` raise wherever the thread happens to be: after a
lock is taken and before the `try` that frees it, inside a `finally`, or at the first instruction of an `__exit__`
written in Python, which then does nothing. A lock or a transaction left behind there stops every other thread, and on
SQLite every other process. CPython raises after a call and at the start of a function, never between two plain
assignments, and C functions (`with` on a `threading.Lock`) run to their end. The tools here build on that:

- The lock or the connection itself tells afterwards what was taken, never a variable that notes it.
- Cleaning up is idempotent, so it can be done twice.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

T = TypeVar("T")


def with_cleanup(work: Callable[[], T], cleanup: Callable[[], None]) -> T:
    """Runs `work`, then `cleanup`, which must be idempotent: an exception that cuts it short makes it run again."""
    is_clean = False
    try:
        return work()
    finally:
        try:
            cleanup()
            is_clean = True
        finally:
            if not is_clean:
                cleanup()


class OwnedLock:
    """A lock that knows whether this thread holds it: an exception may hit a timed `acquire` just before it returns.

    Without a time limit, take it as ``with owned.lock:``, which no exception can cut in half.
    """

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """In a forked child: whatever thread held it, it is free."""
        self.lock = threading.RLock()

    @property
    def is_mine(self) -> bool:
        return self.lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 - as threading.Condition does

    def acquire(self, seconds: float) -> bool:
        return self.lock.acquire(timeout=seconds)

    def release_if_mine(self) -> None:
        lock = self.lock  # the same one all along: after a fork in between, the child has another
        if lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            lock.release()


class Signal:
    """As `threading.Event`, which an interrupt can leave locked for ever. This is a queue, whose methods are in C."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return not self._queue.empty()

    def set(self) -> None:
        if self._queue.empty():
            self._queue.put(None)

    def clear(self) -> None:
        with suppress(Empty):
            while True:
                self._queue.get_nowait()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is set; returns whether it is."""
        try:
            self._queue.get(timeout=None if seconds is None else max(0.0, seconds))
        except Empty:
            return False
        self._queue.put(None)
        return True


def start_thread(thread: threading.Thread) -> None:
    """As ``thread.start()``, which waits for the new thread under a lock that an interrupt may leave taken: the new
    thread then never begins, and never ends. Here a third one waits for it, in which no signal arrives. After an
    interrupt the thread may still begin."""
    ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def start() -> None:
        try:
            thread.start()
        except BaseException as error:  # noqa: BLE001 - raised below
            ends.put(error)
        else:
            ends.put(None)

    _thread.start_new_thread(start, ())
    error = ends.get()
    if error is not None:
        raise error


class _Anchor:
    """Lives as long as the `__exit__` that a `with` statement holds."""

    __slots__ = ("__weakref__",)


_armed: set[weakref.ref[_Anchor]] = set()


class CleanExit(ABC):
    """A context manager whose `cleanup` runs at the end of its block, wherever an exception interrupts the rest.

    A `with` statement looks up `__exit__` before it calls `__enter__`, and is the only one to hold what it finds.
    Here that is a function with an anchor. When the statement drops it, the anchor dies, and the callback of a weak
    reference cleans up, unless `leave` has returned by then.
    """

    @abstractmethod
    def leave(self, error: BaseException | None) -> None:
        """Ends the block, and cleans up. `error`: the exception that ended the block."""

    @abstractmethod
    def cleanup(self) -> None:
        """Frees what was taken so far; idempotent."""

    if TYPE_CHECKING:

        def __exit__(self, *_: object) -> None: ...
    else:

        @property
        def __exit__(self):  # noqa: PLE0302 - it is looked up, not called, by the `with` statement
            return _leaving(self.leave, self.cleanup)


class Lent(CleanExit, Generic[T]):
    """``with Lent(take, give_back) as thing``: `give_back` finds out itself what was taken."""

    def __init__(self, take: Callable[[], T], give_back: Callable[[], None]) -> None:
        self._take = take
        self._give_back = give_back

    def __enter__(self) -> T:
        return self._take()

    def leave(self, error: BaseException | None) -> None:  # noqa: ARG002 - the end is the same
        self._give_back()

    def cleanup(self) -> None:
        self._give_back()


def _leaving(leave: Callable[[BaseException | None], None], cleanup: Callable[[], None]) -> Callable[..., None]:
    anchor = _Anchor()

    def on_drop(reference: weakref.ref[_Anchor]) -> None:
        _armed.discard(reference)
        cleanup()

    reference = weakref.ref(anchor, on_drop)
    _armed.add(reference)

    def leave_whole(_: object, error: BaseException | None, __: object) -> None:
        leave(error)
        _armed.discard(reference)

    leaver = partial(leave_whole)
    leaver.anchor = anchor  # type: ignore[attr-defined]
    return leaver
