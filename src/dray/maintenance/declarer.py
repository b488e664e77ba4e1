"""Writes the schedules that a worker's code declares: when it starts, and when it is asked to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.backends import Backend

_PAUSE = 3600.0  # seconds; there is something to do only after somebody has asked


class Declarer:
    name = "declare"
    is_exclusive = False  # each worker knows the code it was started with

    def __init__(self, backend: Backend, declare: Callable[[Backend], None]) -> None:
        self._backend = backend
        self._declare = declare
        self._is_asked = True

    def ask(self) -> None:
        """There may be something new to write."""
        self._is_asked = True

    def tick(self) -> float:
        if self._is_asked:
            self._is_asked = False  # before: what is declared meanwhile asks again
            try:
                self._declare(self._backend)
            except BaseException:
                self._is_asked = True
                raise
        return _PAUSE
