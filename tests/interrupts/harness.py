"""Raises an exception into a call at a random moment, and looks at what the call has left behind.

Two ways: by a signal handler, as Ctrl-C and time limits do, into the main thread, and by `PyThreadState_SetAsyncExc`
into another one. The moment is chosen at random within the time that the call takes undisturbed.

Not while `logging` runs: it takes its locks before the `try` that frees them. An exception in between leaves the lock
of all loggers taken, and the next thread that asks a logger for its level waits for ever.
"""

from __future__ import annotations

import ctypes
import logging
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Call = Callable[[], object]


class Interrupt(BaseException):
    """What is raised into calls."""


class BySignal:
    """Into the main thread."""

    name = "a signal"

    def __init__(self) -> None:
        self._is_inside = False

    @contextmanager
    def ready(self) -> Generator[None]:
        before = signal.signal(signal.SIGALRM, self._handle)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        if self._is_inside and _is_in_logging(frame):
            signal.setitimer(signal.ITIMER_REAL, 0.000_05)  # a moment later
        elif self._is_inside:
            self._is_inside = False
            raise Interrupt

    def hits(self, call: Call, delay: float) -> bool:
        """Makes a call and interrupts it after so many seconds; whether it was still under way."""
        try:
            self._is_inside = True
            signal.setitimer(signal.ITIMER_REAL, delay)
            call()
            self._is_inside = False
        except Interrupt:
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False


class ByThread:
    """Into a thread of its own, from this one."""

    name = "another thread"

    @contextmanager
    def ready(self) -> Generator[None]:
        before = sys.getswitchinterval()
        sys.setswitchinterval(0.000_01)  # so that the exception comes anywhere, and not only where the call waits
        try:
            yield
        finally:
            sys.setswitchinterval(before)

    def hits(self, call: Call, delay: float) -> bool:
        victim = _Victim(call)
        victim.start()
        victim.begun.wait()
        until = time.perf_counter() + delay
        while time.perf_counter() < until:
            time.sleep(0)  # a longer one takes longer than an enqueue in memory does
        with victim.guard:
            while victim.is_inside and not _raise_into(victim):
                time.sleep(0)
        victim.join(30)
        assert not victim.is_alive(), "the call hangs"
        if victim.error is not None:
            raise victim.error
        return victim.was_hit


def _raise_into(victim: threading.Thread) -> bool:
    """False: not at this moment."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1)  # what is seen still holds when it is acted upon
    try:
        frame = sys._current_frames().get(victim.ident or 0)
        if _starts_a_thread(frame) or _is_in_logging(frame):
            return False
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim.ident or 0), ctypes.py_object(Interrupt))
        return True
    finally:
        sys.setswitchinterval(before)


def _is_in_logging(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_globals.get("__name__") == "logging"


def _starts_a_thread(frame: FrameType | None) -> bool:
    """CPython raises into the new thread then, which ends before it has begun, and `start` waits for it for ever."""
    while frame is not None:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


class _Victim(threading.Thread):
    """Makes one call; an exception comes while `is_inside`, or it waits for the one that is on its way."""

    def __init__(self, call: Call) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.guard = threading.Lock()
        self.begun = threading.Event()
        self.is_inside = True
        self.was_hit = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            try:
                self.begun.set()
                self._call()
            finally:
                with self.guard:
                    self.is_inside = False
            time.sleep(0)  # here, at the latest, what is on its way arrives
        except Interrupt:
            self.was_hit = True
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error


class Account:
    """How many calls were interrupted."""

    def __init__(self) -> None:
        self.calls = 0
        self.hits = 0

    def __repr__(self) -> str:
        return f"{self.hits} of {self.calls} calls interrupted"


def bombard(
    way: BySignal | ByThread, make_call: Callable[[], Call], check: Callable[[], None], hits: int, rng: random.Random
) -> Account:
    """Interrupts calls until so many were hit, and checks after each of these."""
    account = Account()
    took = statistics.median(_time_of(make_call()) for _ in range(7))
    with way.ready():
        while account.hits < hits:
            assert account.calls < 50 * hits + 1_000, f"calls are over before they are interrupted: {account}"
            account.calls += 1
            if way.hits(make_call(), rng.uniform(0.000_001, 1.1 * took)):
                account.hits += 1
                assert not logging._lock._is_owned(), "no other thread could use a logger"  # type: ignore[attr-defined]
                check()
    check()
    return account


def _time_of(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
