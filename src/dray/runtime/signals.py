"""SIGTERM, SIGINT and SIGHUP of a worker in the foreground.

The kernel gives a signal to any thread of a process, and Python's handler runs in the main one once that runs at all.
So the main thread must not sleep on a lock, which nothing would wake, but on a pipe that every signal writes to.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Self

from dray.backends.watch import rest
from dray.log import log

SUPERVISED = "DRAY_SUPERVISED"  # in the environment of workers that have a supervisor


def ends_by() -> tuple[signal.Signals, ...]:
    """The signals that end a worker. Not SIGHUP under `nohup`: the worker outlives its terminal."""
    stays = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *(() if stays else (signal.SIGHUP,)))


@contextmanager
def handling(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], object]], wakeup: int = -1
) -> Generator[None]:
    """Calls these handlers, and writes each signal to the descriptor `wakeup`, if any. Puts the old ones back."""
    before_wakeup = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        signal.set_wakeup_fd(before_wakeup)


def keep_reload() -> None:
    """Before this process is replaced: a SIGHUP that comes now is the new program's, once that can take it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def _pass_over(_: int, __: FrameType | None) -> None:
    """A reload that is asked for when the process is about to end, or to start over with all that is new."""


class Signals:
    """Takes these signals over for as long as it is entered. The second one ends the process at once.

    Not a second SIGHUP: when a terminal is closed, both the shell and the kernel send one. With `reloads`, SIGHUP
    asks for a new start and does not count: a service manager sends it, and there is no terminal. One that comes
    while the process starts over must not end it: see `keep_reload`.
    """

    def __init__(self, on_first: Callable[[], None], *, reloads: bool = False) -> None:
        self._on_first = on_first
        self._reloads = reloads
        self.is_reload = False  # one was asked for
        self.count = 0
        self._hears, self._writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(self._writes, False)
        self._taken = ExitStack()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python handles signals nowhere else
            numbers = set(ends_by())
            if self._reloads and signal.SIGHUP in numbers:
                numbers.remove(signal.SIGHUP)
                signal.signal(signal.SIGHUP, self._handle)
                self._taken.callback(signal.signal, signal.SIGHUP, _pass_over)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            self._taken.enter_context(handling(dict.fromkeys(numbers, self._handle), self._writes))
        return self

    def __exit__(self, *_: object) -> None:
        self._taken.close()
        os.close(self._hears)
        os.close(self._writes)

    def wake(self) -> None:
        """Makes `wait` look again. From any thread."""
        with suppress(OSError):  # full, so it will look; or closed, so nothing waits
            os.write(self._writes, b"\0")

    def wait(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            rest([self._hears])
            with suppress(BlockingIOError):
                os.read(self._hears, 4096)

    def run_beside(self, work: Callable[[], None]) -> None:
        """Runs `work` in another thread, so that a second signal finds this one awake; here, if it has to."""
        ended: list[bool] = []

        def run() -> None:
            try:
                work()
            finally:
                ended.append(True)
                self.wake()

        thread = threading.Thread(target=run, name="dray-stop")
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            log.warning("no thread can be started to stop this worker: %s; a second signal may be heard late", error)
            work()
            return
        self.wait(lambda: bool(ended))
        thread.join()

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP and self._reloads:
            self.is_reload = True
            self._on_first()
            return
        if self.count and number == signal.SIGHUP:
            return
        self.count += 1
        # A supervisor's worker may get a signal twice, from it and from what stops the whole service. The supervisor
        # ends it if need be.
        if self.count > 1 and SUPERVISED not in os.environ:
            os._exit(128 + number)
        self._on_first()
