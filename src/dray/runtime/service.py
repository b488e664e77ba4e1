"""The life of a loop: a thread that calls `tick`, rests for as long as that says, and can be woken and ended."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from dray.interrupts import Signal

log = logging.getLogger("dray")

_AFTER_A_DEFECT = 5.0


class Service(ABC):
    """Subclasses write `tick`, which does one step and returns the seconds until the next."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._woken = Signal()
        self._is_ending = False

    @abstractmethod
    def tick(self) -> float: ...

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether further steps come."""
        return self._thread.is_alive() and not self._is_ending

    def wake(self) -> None:
        """The next step comes now."""
        self._woken.set()

    def end(self, timeout: float | None = 5.0) -> bool:
        """No further step; whether the one under way is over."""
        self._is_ending = True
        self._woken.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._woken.clear()
            if self._is_ending:  # looked at after the clear: or an `end` in between would be slept through
                return
            self._woken.wait(self._step())

    def _step(self) -> float:
        try:
            return self.tick()
        except Exception:
            # A defect of ours must not end what keeps a worker alive.
            log.exception("%s: an error that nobody expected; going on", self._thread.name)
            return _AFTER_A_DEFECT


class Loop(Service):
    """A tick of somebody else's."""

    def __init__(self, name: str, tick: Callable[[], float]) -> None:
        super().__init__(name)
        self._tick = tick

    def tick(self) -> float:
        return self._tick()
