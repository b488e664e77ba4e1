"""Runs `dray top`: a thread reads the database, the main thread draws and handles keys."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from dray.app import App
from dray.app_interface import core_of
from dray.backends.watch import Watch
from dray.cli.live import layout
from dray.cli.live.screen import Screen
from dray.cli.live.view import Contents, View
from dray.cli.terminal import rendered
from dray.errors import DrayError, UnknownJob
from dray.ops.top import Top

_PAUSE = 0.25  # seconds between two looks


class Feed:
    """The thread that reads the database, so that keys work while the database is slow.

    It looks when the database has changed, at most four times a second and at least once a second, and runs the
    actions of keys. If the database cannot be reached, it retries, and the last contents stay. `ring` is called when
    `latest` is new.
    """

    def __init__(self, app: App, first: Contents, look: Callable[[], Contents], ring: Callable[[], None]) -> None:
        self.latest = first
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
        self.look_now()
        # With a limit: the thread may wait for a server that does not reply. It is a daemon.
        self._thread.join(_PAUSE)

    def ask(self, work: Callable[[], str]) -> None:
        """Runs an action on the thread; its sentence goes to `said`."""
        self._asked.append(work)
        self.look_now()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def look_now(self) -> None:
        self._called.set()
        watch = self._watch
        if watch is not None:
            watch.poke()

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
                self._watch = core_of(self._app).backend.watch()  # before the look: it tells of changes after that
            while self._asked:
                self.said.append(_said_by(self._asked.popleft()))
            self.latest = self._look()
            self.problem = None
        except DrayError as error:
            if self.problem is None:
                self.problem_since = time.monotonic()
            self.problem = str(error)
            self._ring()
            self._called.wait(1.0)
            return
        self._ring()
        if not self._called.wait(_PAUSE) and not self._is_over:
            self._watch.wait(1.0)


def _said_by(action: Callable[[], str]) -> str:
    try:
        return action()
    except DrayError as error:
        return str(error)


def run(app: App, *, read_only: bool) -> None:
    source = Top(core_of(app).backend)
    first = Contents(source.look())  # an error of the database is reported before the screen is taken

    def look() -> Contents:
        snapshot, reading = source.look(), view.reading
        if reading is None:
            return Contents(snapshot)
        try:
            return Contents(snapshot, reading, reading.source())
        except UnknownJob as error:
            return Contents(snapshot, reading, [str(error)])

    screen = Screen()
    feed = Feed(app, first, look, screen.bell.ring)
    view = View(app, read_only, first, feed.ask, feed.look_now)
    with screen.taken(), feed:
        _loop(view, screen, feed)


def _loop(view: View, screen: Screen, feed: Feed) -> None:
    seen_at = time.monotonic()
    while not (view.is_over or screen.is_over):
        feed.check()
        if view.contents is not feed.latest:
            view.contents, seen_at = feed.latest, time.monotonic()
        if feed.said:
            view.said = feed.said.popleft()
        width, height = screen.size
        silent = f"no answer for {int(time.monotonic() - feed.problem_since)}s"
        problem = None if feed.problem is None else f"{silent}: {feed.problem}"
        # Whole seconds: the ages on the screen tick together, and between two ticks nothing is sent.
        ahead = float(int(time.monotonic() - seen_at))
        screen.draw([rendered(line, width) for line in layout.screen(view, width, height, problem, ahead)])
        for key in screen.wait(1.0):
            view.press(key)
