"""Where running bodies are: their workers are asked through the database, and the answers are kept for a while.

A page that follows its job is fetched again and again; it shows the last answer and does not ask each time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from dray.errors import StorageError
from dray.ops.why import Why, why

if TYPE_CHECKING:
    from dray.app_interface import AppCore

_KEPT = 100  # answers
_AT_ONCE = 2  # questions: each keeps one of the threads that read the database
_PATIENCE = 1.0


class Answer(NamedTuple):
    stack: str
    at: float  # of the process's clock

    @property
    def age(self) -> float:
        return time.monotonic() - self.at


class Asker:
    def __init__(self) -> None:
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._answers = OrderedDict[tuple[str, int], Answer]()  # by job and claim

    def ask(self, core: AppCore, job_id: str) -> Why:
        """What the tables say of a job, and what its worker says if it runs; waits for at most a second."""
        if not self._slots.acquire(blocking=False):
            raise StorageError("Two other workers are being asked at this moment; try again.")
        try:
            found = why(core.backend, job_id, registry=core.registry, new_id=core.new_id, patience=_PATIENCE)
        finally:
            self._slots.release()
        if found.stack is not None:
            with self._lock:
                self._answers[job_id, found.job.claim] = Answer(found.stack, time.monotonic())
                while len(self._answers) > _KEPT:
                    self._answers.popitem(last=False)
        return found

    def last(self, job_id: str, claim: int) -> Answer | None:
        with self._lock:
            return self._answers.get((job_id, claim))
