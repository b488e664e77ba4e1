"""Telling other processes through PostgreSQL: NOTIFY after a commit, no more often than listeners need.

Inside a transaction NOTIFY takes a lock that the whole server has once, at its commit; so it is sent afterwards, in
a transaction of its own, and debounced.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import LiteralString, NamedTuple

import psycopg

from dray import forks
from dray.errors import DrayError
from dray.log import log

NOTIFY: LiteralString = "SELECT pg_notify(%s, %s)"  # channel, payload

WINDOW = 0.005  # between two NOTIFYs of the same queue by this process
DONE_WINDOW = 0.02
_LINGER = 0.01
_FLUSH_PATIENCE = 5.0

Send = Callable[[str, str], None]  # runs NOTIFY on a pooled connection, outside any transaction


class Channels(NamedTuple):
    work: str  # payload: the queue that has something ready
    done: str  # no payload


def channels(schema: str | None) -> Channels:
    """The channels of the tables in a schema; without one those of `public`.

    A colon is in no schema's name, so no two schemas share a channel.
    """
    name = schema or "public"
    if len(name) > 50:  # names of channels end at 63 bytes
        name = f"{name[:40]}:{zlib.crc32(name.encode()):08x}"
    return Channels(f"dray_{name}", f"dray_{name}:done")


class Note(NamedTuple):
    channel: str
    payload: str
    window: float


class Notifier:
    """Sends each note at most once in its window, and the last of a burst always.

    The first goes out in the caller's thread. One that comes within the window goes out at its end, by a thread
    that lives as long as there are any; the interpreter does not end before it. Notes are hints: an error is logged
    and forgotten. Works in a forked child too; what was waiting is sent by the parent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.after_fork_in_child()
        forks.watch_child(self)

    def after_fork_in_child(self) -> None:
        """Starts with nothing."""
        self._lock = threading.Lock()  # around all below; a Condition may be left half locked by an interrupt
        self._bell: SimpleQueue[None] = SimpleQueue()  # rung for the thread
        self._free_at: dict[Note, float] = {}
        self._due: dict[Note, float] = {}
        self._thread: threading.Thread | None = None

    def push(self, note: Note) -> None:
        """Sends a note, now or at the end of its window."""
        if self.take(note):
            self._deliver(note)
            return
        with self._lock:
            is_left_to_thread = self._plan(note, self._free_at.get(note, 0.0))
        if not is_left_to_thread:
            self._deliver(note)

    def take(self, note: Note) -> bool:
        """Whether a note may go out now: then the caller sends it, after its commit and maybe in the same round trip.
        False: it has to wait, `push` it after the commit."""
        now = time.monotonic()
        with self._lock:
            if self._free_at.get(note, now) > now or note in self._due:
                return False
            self._mark(note, now)
            return True

    def push_soon(self, note: Note) -> None:
        """Sends a note without making the caller wait for it."""
        with self._lock:
            is_left_to_thread = self._plan(note, time.monotonic())
        if not is_left_to_thread:
            self._deliver(note)

    def flush(self) -> None:
        """Sends what is waiting for the end of its window; the thread sends nothing more when this returns."""
        with self._lock:
            notes = list(self._due)
            self._due.clear()
            thread = self._thread
        for note in notes:
            self._deliver(note)
        if thread is not None and thread.is_alive():
            # The thread that closes this may next close the connection that the thread is sending on.
            thread.join(_FLUSH_PATIENCE)

    def _plan(self, note: Note, at: float) -> bool:
        """Leaves a note to the thread. False: there can be none."""
        is_known = note in self._due
        self._due.setdefault(note, at)
        if self._thread is not None and self._thread.is_alive():  # an interrupt may have kept it from starting
            if not is_known:  # woken for every enqueue, it took a fifth of their time
                self._bell.put(None)
            return True
        # Not a daemon: the end of the program waits for it, so that the last note of a script is sent.
        self._thread = threading.Thread(target=self._run, name="dray-notify", daemon=False)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads, or the interpreter is about to end
            self._thread = None
            del self._due[note]
            return False
        return True

    def _mark(self, note: Note, now: float) -> None:
        if len(self._free_at) > 1_000:
            self._free_at = {known: at for known, at in self._free_at.items() if at > now}
        self._free_at[note] = now + note.window

    def _run(self) -> None:
        while (note := self._next()) is not None:
            self._deliver(note)

    def _next(self) -> Note | None:
        """Waits for the next note that is due; None: there has been none for a while."""
        ends = time.monotonic() + _LINGER
        while True:
            with self._lock:
                now = time.monotonic()
                note = min(self._due, key=self._due.__getitem__, default=None)
                if note is None and now >= ends:
                    self._thread = None
                    return None
                if note is not None and self._due[note] <= now:
                    del self._due[note]
                    # Before it is sent: a call from here on may have committed too late for it.
                    self._mark(note, now)
                    return note
                wait = (ends if note is None else self._due[note]) - now
            with suppress(Empty):
                self._bell.get(timeout=max(0.0, wait))

    def _deliver(self, note: Note) -> None:
        try:
            self._send(note.channel, note.payload)
        except (DrayError, psycopg.Error, OSError) as error:
            log.debug("a notification on %s was not sent: %s", note.channel, error)
