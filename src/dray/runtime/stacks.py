"""Tells who asks where a body is: `dray why`, through the database.

The engine hears of questions where it hears of cancels. They are answered on the heartbeat's thread, one a beat: a
child process may take a quarter of a second to say where it is, and neither outcomes nor the lease should wait long.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dray.model.limits import TRACEBACK_BYTES
from dray.sanitize import clean_traceback, redact

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.backends.store.why import Asked
    from dray.runtime.execution import Execution

_FRAME = re.compile(r'^(?=  File ")', re.MULTILINE)
_OURS = tuple(f'  File "{place}' for place in (Path(__file__).parent, threading.__file__))


class Stacks:
    """Questions that are to be answered. `hear` is for the engine's thread, the others for the heartbeat's."""

    def __init__(self, find: Callable[[Asked], Execution | None], wake: Callable[[], None]) -> None:
        self._find = find
        self._wake = wake
        self._lock = threading.Lock()
        self._asked: dict[str, Asked] = {}

    @property
    def has_more(self) -> bool:
        return bool(self._asked)

    def hear(self, asked: Iterable[Asked]) -> None:
        """Takes in what a look told of: the same again until it is answered."""
        with self._lock:
            new = {each.id: each for each in asked if each.id not in self._asked}
            self._asked |= new
        if new:
            self._wake()

    def answer_one(self, backend: Backend, worker_id: str) -> None:
        """Answers the oldest question. It is kept until that is written: every look before that brings it again."""
        with self._lock:
            asked = next(iter(self._asked.values()))
        try:
            execution = self._find(asked)
            stack = None if execution is None else execution.runner.stack(execution)
            if backend.stacks.answer(worker_id, asked.id, shown(stack or "")):
                backend.announce_done()
        finally:
            with self._lock:
                del self._asked[asked.id]


def shown(stack: str) -> str:
    """A stack for people: without our own frames, which call the body, and no larger than a traceback may be."""
    frames = _FRAME.split(stack)
    while frames and (not frames[0] or frames[0].startswith(_OURS)):
        del frames[0]
    return clean_traceback(redact("".join(frames).rstrip("\n")), TRACEBACK_BYTES)
