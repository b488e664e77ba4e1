"""What has changed in the database, for all pages that are open: one thread a dashboard, however many there are.

It runs while a stream is open. It looks when the database tells of a change (`backend.watch`), at most four times a
second and at least twice, because PostgreSQL does not tell of all changes; where the watch is certain that nothing
was committed, as on SQLite, it does not look. What it publishes are topics, the names of `Page.topics`. If the
database cannot be reached it publishes all topics once, so that the pages find out, tries each second, and publishes
all again when the database is back.

What visits share (`shared.py`) may be two seconds old when a page is made of it. So a topic is published once more
when it has not changed for a little longer: what was the last change is then on every page.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dray.backends.store.live import Pulse
from dray.errors import DrayError
from dray.log import log

if TYPE_CHECKING:
    from dray.app_interface import AppCore
    from dray.backends.watch import Watch

TOPICS = frozenset(Pulse._fields)
STREAMS = 100  # of a dashboard
STREAMS_OF_LOGIN = 4  # browsers open six connections to a server: a fifth stream would leave too few for pages

_BETWEEN = 0.25  # seconds between two looks, at least
_AT_REST = 0.5  # and at most, where the watch is not certain
_TRY_AGAIN = 1.0
_PATIENCE = 0.5  # for the end of the thread
_ECHO = 2.5  # seconds after the last change of a topic
_ALL_EVERY = 60.0  # charts move on, and what a pulse cannot see is seen


class Listener:
    """One stream's view of the feed. `wake` is called from the feed's thread when there is something to take."""

    def __init__(self, login: str, wake: Callable[[], None]) -> None:
        self.login = login
        self.is_over = False  # the feed has ended: nothing more will come
        self._wake = wake
        self._lock = threading.Lock()
        self._changed: set[str] = set()

    def tell(self, topics: Iterable[str]) -> None:
        with self._lock:
            self._changed.update(topics)
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def take(self) -> list[str]:
        """The topics that have changed since the last call."""
        with self._lock:
            taken, self._changed = sorted(self._changed), set()
        return taken


class Feed:
    """From any thread."""

    def __init__(self, core: AppCore, on_change: Callable[[], None] = lambda: None) -> None:
        self._core = core
        self._on_change = on_change  # before anybody is told
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()
        self._looker: _Looker | None = None
        self._left: _Looker | None = None  # told to stop when its last listener left
        self._is_closed = False

    def join(self, login: str, wake: Callable[[], None]) -> Listener | None:
        """Listens from now on; None: there are as many streams as there may be. The first starts the thread."""
        with self._lock:
            logins = Counter(each.login for each in self._listeners)
            if self._is_closed or logins.total() >= STREAMS or logins[login] >= STREAMS_OF_LOGIN:
                return None
            listener = Listener(login, wake)
            self._listeners.add(listener)
            if self._looker is None or not self._looker.is_alive():
                self._looker = _Looker(self._core, self._publish)
                self._looker.start()
            return listener

    def leave(self, listener: Listener) -> None:
        """The last one ends the thread."""
        with self._lock:
            self._listeners.discard(listener)
            looker = self._looker
            if self._listeners or looker is None:
                return
            self._looker, self._left = None, looker
        looker.stop()

    def close(self) -> None:
        """Ends the thread and all streams. Streams that come later are refused.

        Waits for the thread: it would open a connection after its App was closed.
        """
        with self._lock:
            self._is_closed = True
            looker, self._looker = self._looker, None
            listeners, lookers = list(self._listeners), [each for each in (looker, self._left) if each is not None]
        for each in lookers:
            each.stop()
        for listener in listeners:
            listener.end()
        for each in lookers:
            each.wait(_PATIENCE)

    def version(self, topics: Iterable[str]) -> str | None:
        """Changes when one of the topics has; None: no thread looks at the moment, or the database is away."""
        looker = self._looker
        return None if looker is None or not looker.is_alive() else looker.version(topics)

    def tell(self, topics: Iterable[str]) -> None:
        """What pages show has changed without a change in the database: told with the next look."""
        looker = self._looker
        if looker is not None:
            looker.add(topics)

    def _publish(self, looker: _Looker, topics: frozenset[str] | None) -> None:
        """None: this thread has ended."""
        with self._lock:
            if looker is not self._looker:
                return
            if topics is None:
                self._looker = None
            listeners = list(self._listeners)
        self._on_change()
        for listener in listeners:
            listener.end() if topics is None else listener.tell(topics)


class _Looker:
    """The thread."""

    def __init__(self, core: AppCore, publish: Callable[[_Looker, frozenset[str] | None], None]) -> None:
        self._core = core
        self._publish = publish
        self._name = secrets.token_hex(4)  # versions of one thread are not those of another
        self._versions = Counter[str]()
        self._echoes: dict[str, float] = {}  # topic -> when it is published once more
        self._is_sure = False  # of the last look: it saw the database
        self._lock = threading.Lock()
        self._added: set[str] = set()  # to be published with the next look
        self._stopped = threading.Event()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, name="dray-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Does not wait for the thread."""
        self._stopped.set()
        watch = self._watch
        if watch is not None:
            watch.poke()

    def wait(self, seconds: float) -> None:
        """It may wait for a server that does not reply. It is a daemon."""
        self._thread.join(seconds)

    def add(self, topics: Iterable[str]) -> None:
        with self._lock:
            self._added.update(topics)

    def version(self, topics: Iterable[str]) -> str | None:
        if not self._is_sure:
            return None
        return f"{self._name}-" + "-".join(str(self._versions[topic]) for topic in sorted(topics))

    def _run(self) -> None:
        try:
            self._look_until_stopped()
        finally:
            self._is_sure = False
            if self._watch is not None:
                self._watch.close()
            self._publish(self, None)

    def _look_until_stopped(self) -> None:
        before: Pulse | None = None
        all_at = time.monotonic() + _ALL_EVERY
        while not self._stopped.is_set():
            try:
                if self._watch is None:
                    self._watch = self._core.backend.watch()  # before the look: it tells of what happens after
                if before is None or not self._watch.is_unchanged:
                    pulse = self._core.backend.live.pulse()
                    changed = self._changed(before, pulse) if self._is_sure else TOPICS
                    before, self._is_sure = pulse, True
                else:
                    changed = frozenset[str]()
            except DrayError as error:
                self._lose(error)
                continue
            now = time.monotonic()
            changed |= {topic for topic, due in self._echoes.items() if due <= now} | self._take_added()
            self._echoes = {topic: due for topic, due in self._echoes.items() if due > now}
            if now >= all_at:
                all_at, changed = now + _ALL_EVERY, TOPICS
            if changed:
                self._tell(changed)
            self._rest()

    def _take_added(self) -> set[str]:
        with self._lock:
            taken, self._added = self._added, set()
        return taken

    def _changed(self, before: Pulse | None, now: Pulse) -> frozenset[str]:
        found = _differing(before, now)
        self._echoes.update(dict.fromkeys(found, time.monotonic() + _ECHO))
        return found

    def _rest(self) -> None:
        assert self._watch is not None
        if self._stopped.wait(_BETWEEN):
            return
        try:
            self._watch.wait(_AT_REST - _BETWEEN)
        except DrayError as error:
            self._lose(error)

    def _lose(self, error: DrayError) -> None:
        if self._is_sure:
            log.warning("the dashboard cannot see what happens: %s; trying again", error)
            self._is_sure = False
            self._tell(TOPICS)
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        self._stopped.wait(_TRY_AGAIN)

    def _tell(self, topics: frozenset[str]) -> None:
        self._versions.update(topics)
        self._publish(self, topics)


def _differing(before: Pulse | None, now: Pulse) -> frozenset[str]:
    if before is None:
        return TOPICS
    changed = frozenset(topic for topic, was, is_now in zip(Pulse._fields, before, now, strict=True) if was != is_now)
    return TOPICS if "actions" in changed else changed  # a person has acted: on anything
