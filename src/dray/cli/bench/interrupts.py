"""Ctrl-C and SIGTERM of a command that has to tidy up: the first is a KeyboardInterrupt, another changes nothing."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Takes over both signals while it is entered."""

    def __init__(self) -> None:
        self._is_held = self._is_asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Generator[None]:
        """Not now: a process that is being started would be left behind, as nobody knew of it yet."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_asked:
            raise KeyboardInterrupt

    def _handle(self, _: int, __: FrameType | None) -> None:
        is_first, self._is_asked = not self._is_asked, True
        if is_first and not self._is_held:
            raise KeyboardInterrupt
