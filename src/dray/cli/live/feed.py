"""The thread that reads the database for `dray top`, so that keys work while the database is slow.

It looks when the database has changed, at most four times a second and at least once a second, and runs the actions
of keys. If the database cannot be reached, it retries, and the last contents stay.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import dray
from dray.errors import DrayError

if TYPE_CHECKING:
    from dray.backends.watch import Watch

T = TypeVar("T")

_PAUSE = 0.25
_LOOK = 1.0
_OUTAGE = 1.0


class Feed(Generic[T]):
    """Within the block `latest` is kept up to date; `ring` is called when there is something new."""

    def __init__(self, app: dray.App, look: Callable[[], T], ring: Callable[[], None]) -> None:
        self.latest: T | None = None
        self.problem: str | None = None  # why the contents are old
        self.problem_since = 0.0
        self.said: deque[str] = deque()  # the outcomes of actions
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
        # With a limit: the thread may wait for a server that does not reply. It is a daemon.
        self._thread.join(_PAUSE)

    def ask(self, work: Callable[[], str]) -> None:
        """Runs an action on the thread; its sentence goes to `said`."""
        self._asked.append(work)
        self._call()

    def look_now(self) -> None:
        """Looks at the database at once."""
        self._call()

    def check(self) -> None:
        """Raises the error that ended the thread."""
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
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the main thread
            self._failure = error
            self._ring()
        finally:
            if self._watch is not None:
                self._watch.close()

    def _step(self) -> None:
        self._called.clear()
        try:
            if self._watch is None:
                self._watch = self._app.backend.watch()  # before the look: it tells of changes after that
            self._run_actions()
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

    def _run_actions(self) -> None:
        while self._asked:
            try:
                self.said.append(self._asked.popleft()())
            except DrayError as error:
                self.said.append(str(error))
