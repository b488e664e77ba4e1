"""The life of a loop: a thread that calls `tick`, sleeps for the seconds it returns, and can be woken and ended."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dray.interrupts import Signal, start_thread
from dray.log import log

if TYPE_CHECKING:
    from dray.runtime.engine import Engine
    from dray.runtime.inbox import Inbox

_AFTER_A_DEFECT = 5.0


class Service(ABC):
    """Subclasses are dataclasses and define `tick`, which does one step and returns the seconds until the next."""

    name: str  # of its thread

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._woken = Signal()
        self._is_ending = self._has_ended = False
        self._over = Signal()

    @abstractmethod
    def tick(self) -> float: ...

    def start(self) -> None:
        start_thread(self._thread)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and not self._is_ending

    def wake(self) -> None:
        self._woken.set()

    def end(self, timeout: float | None = 5.0) -> None:
        """Allows no further step, and waits for the one under way."""
        self._is_ending = True
        self.wake()
        if self._thread.ident is None or self._thread is threading.current_thread():
            return  # it takes no step any more, even if it begins only now
        # Not by `join` alone: after an interrupt in it, Python up to 3.12 takes a thread for ended that still runs.
        if self._has_ended or self._over.wait(timeout):
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self._step_on()
        finally:
            self._has_ended = True
            self._over.set()

    def _step_on(self) -> None:
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


@dataclass(eq=False)
class EngineLoop(Service):
    """The engine's thread. The engine rests by itself: on the database's watch."""

    name = "dray-engine"
    _engine: Engine
    _inbox: Inbox
    _on_tick: Callable[[], None]
    _pause: float = 0.0
    steps: int = 0  # that were taken; read by other threads

    def tick(self) -> float:
        # The rest first: what this loop does between two ticks would delay the step that follows a wake-up.
        pause, self._pause = self._pause, 0.0
        self._engine.rest(pause)
        if not self._is_ending:
            self.steps += 1
            self._pause = self._engine.tick()
        self._on_tick()
        return 0.0

    def wake(self) -> None:
        self._inbox.ring()
