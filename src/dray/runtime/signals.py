"""SIGTERM, SIGINT and SIGHUP of a worker in the foreground.

The kernel gives a signal to any thread of a process, and Python's handler runs in the main one once that runs at all.
So the main thread must not sleep on a lock, which nothing would wake, but on a pipe that every signal writes to.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

from dray.backends.watch import rest

SUPERVISED = "DRAY_SUPERVISED"  # in the environment of workers that have a supervisor


def _is_supervised() -> bool:
    """A supervisor's workers may be told twice, by it and by whoever tells the whole service; it does the rest."""
    return SUPERVISED in os.environ


def ends_by() -> tuple[signal.Signals, ...]:
    """The signals that end a worker; a terminal that is closed is none under `nohup`."""
    stays = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *(() if stays else (signal.SIGHUP,)))


class Signals:
    """Takes these signals over for as long as it is entered; the second one to come ends the process at once. Not a
    second SIGHUP: of a closed terminal the shell tells, and the kernel too."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self.count = 0
        self._hears, self._writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(self._writes, False)
        self._is_main = threading.current_thread() is threading.main_thread()
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if self._is_main:  # only there can signals be taken
            self._before_fd = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._handle) for number in ends_by()}
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_main:
            for number, handler in self._before.items():
                signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - it came from there
            signal.set_wakeup_fd(self._before_fd)
        os.close(self._hears)
        os.close(self._writes)

    def wake(self) -> None:
        """Has `wait` look again. From any thread."""
        try:
            os.write(self._writes, b"\0")
        except OSError:
            return  # full, so it will look; or closed, so nobody waits

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Sleeps until it is."""
        while not is_over():
            rest([self._hears])
            try:
                os.read(self._hears, 4096)
            except BlockingIOError:
                continue

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.count and number == signal.SIGHUP:
            return
        self.count += 1
        if self.count > 1 and not _is_supervised():
            os._exit(128 + number)
        self._on_first()
