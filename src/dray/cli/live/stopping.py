"""When a command that goes on for ever ends: a signal, or nobody who reads its output any more."""

from __future__ import annotations

import select
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from dray.backends.watch import Bell
from dray.cli.exits import drop_output

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Within the block SIGINT and SIGTERM do not raise: they end the wait under way, and `is_over` says so.

    While something is being written they do raise, as a KeyboardInterrupt: who reads may have stopped reading, and
    the write would never end.
    """

    def __init__(self) -> None:
        self._bell = Bell()
        self._is_told = False
        self._is_writing = False
        self._before: dict[signal.Signals, Any] = {}
        self.wakes: Callable[[], None] | None = None  # ends a wait of somebody else's

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as the interpreter calls it
        self._is_told = True
        if self._is_writing:
            raise KeyboardInterrupt
        self._bell.ring()
        if self.wakes is not None:
            self.wakes()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Around what writes to stdout."""
        self._is_writing = True
        try:
            yield
            sys.stdout.flush()
        except KeyboardInterrupt:
            drop_output()  # what could not be written is still buffered, and would be tried again at the end
            raise
        finally:
            self._is_writing = False

    @property
    def is_over(self) -> bool:
        return self.wait(0)

    def wait(self, seconds: float) -> bool:
        """Sleeps; whether it is over."""
        if self._is_told:
            return True
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(sys.stdout, 0)  # tells when the other end is closed
        return bool(poll.poll(seconds * 1000)) or self._is_told
