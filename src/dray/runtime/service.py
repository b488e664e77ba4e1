"""The life of a loop: a thread that calls `tick`, sleeps for the seconds it returns, and can be woken and ended."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from dray.interrupts import Signal
from dray.log import log

_AFTER_A_DEFECT = 5.0


class Service(ABC):
    """Subclasses are dataclasses and define `tick`, which does one step and returns the seconds until the next."""

    name: str  # of its thread

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._woken = Signal()
        self._is_ending = False

    @abstractmethod
    def tick(self) -> float: ...

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and not self._is_ending

    def wake(self) -> None:
        self._woken.set()

    def end(self, timeout: float | None = 5.0) -> None:
        """Allows no further step, and waits for the one under way."""
        self._is_ending = True
        self.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._woken.clear()
            if self._is_ending:  # checked after the clear: or it would sleep through an `end` in between
                return
            self._woken.wait(self._step())

    def _step(self) -> float:
        try:
            return self.tick()
        except Exception:
            # A defect in Dray must not end what keeps a worker alive.
            log.exception("%s: unexpected error; going on", self._thread.name)
            return _AFTER_A_DEFECT


@dataclass(eq=False)
class Loop(Service):
    name: str
    _tick: Callable[[], float]

    def tick(self) -> float:
        return self._tick()
