"""The thread that speaks to the database for a live view, so that keys are answered while that takes its time.

It looks when the database has changed, no more than four times a second, and at least each second; and it does what
it is asked to. A database that does not answer is asked again, and what was seen last stays.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from dray.errors import DrayError

if TYPE_CHECKING:
    from dray.app import App
    from dray.backends.watch import Watch

T = TypeVar("T")

_PAUSE = 0.25
_LOOK = 1.0
_OUTAGE = 1.0


class Feed(Generic[T]):
    """Within the block `latest` is kept up to date; `ring` is called when there is something new."""

    def __init__(self, app: App, look: Callable[[], T], ring: Callable[[], None]) -> None:
        self.latest: T | None = None
        self.problem: str | None = None  # why there is nothing newer
        self.problem_since = 0.0
        self.said: deque[str] = deque()  # how what was asked for went
        self._app = app
        self._look = look
        self._ring = ring
        self._asked: deque[Callable[[], str]] = deque()
        self._called = threading.Event()
        self._is_over = False
        self._failure: BaseException | None = None
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, name="dray-live", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._call()
        # Not for ever: it may wait for a server that does not answer, and is a daemon.
        self._thread.join(_PAUSE)

    def ask(self, work: Callable[[], str]) -> None:
        """Has something done; what it answers comes to `said`."""
        self._asked.append(work)
        self._call()

    def again(self) -> None:
        """Has it look at once."""
        self._call()

    def check(self) -> None:
        """Raises what the thread has died of."""
        if self._failure is not None:
            raise self._failure

    def _call(self) -> None:
        self._called.set()
        watch = self._watch
        if watch is not None:
            watch.poke()

    # The thread

    def _run(self) -> None:
        try:
            while not self._is_over:
                self._step()
        except BaseException as error:  # noqa: BLE001 - a thread's end: whoever draws has to raise it
            self._failure = error
            self._ring()
        finally:
            if self._watch is not None:
                self._watch.close()

    def _step(self) -> None:
        self._called.clear()
        try:
            if self._watch is None:
                self._watch = self._app.backend.watch()  # before the look: it tells of what happens from here on
            self._do_what_is_asked()
            self.latest = self._look()
            self.problem = None
        except DrayError as error:
            if self.problem is None:
                self.problem_since = time.monotonic()
            self.problem = str(error)
            self._ring()
            self._called.wait(_OUTAGE)
            return
        self._ring()
        if not self._called.wait(_PAUSE) and not self._is_over:
            self._watch.wait(_LOOK)

    def _do_what_is_asked(self) -> None:
        while self._asked:
            try:
                self.said.append(self._asked.popleft()())
            except DrayError as error:
                self.said.append(str(error))
