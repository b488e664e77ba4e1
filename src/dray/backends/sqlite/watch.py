"""Who commits to a SQLite file, any process by any means, is noticed within a fraction of a millisecond.

The kernel tells that the -wal was written (inotify); whether that was a commit, `PRAGMA data_version` tells, on a
connection of the watch's own that never writes, because its own commits would not show. The order is: the
connection first, which pins the -wal for as long as it is open; then the watches; then the first reading.

An event comes when the -wal is written, and under synchronous=FULL the commit is visible only after the fsync that
follows, without another event. So after an event the watch doubts: it reads at once, then after 50 µs, each pause a
tenth longer, up to 50 ms, for a second. A change does not end the doubt: the event may have been that of the
next commit, which began when the one now seen was over. But most often there is none, so from there on it reads
after 1 ms, 2 ms, 4 ms … 32 ms, then after 256 ms, 7 times instead of 80. Such a commit is seen after at most twice
the time it took, if that was 60 ms or less. After a commit that this process had told of (a beat) it makes sure
instead: it takes the write lock if that is free, and while it has it no commit can be under way.

Where there is no inotify (macOS, 128 instances of this user in use) the watch polls: the pause is a tenth of the
time since the last change, at least 1 ms and at most 50 ms, which costs 0.4 % of a core when idle. With or without,
every two seconds it reads, looks whether the path still leads to the same file and sets the watches again.

The kernel also tells when a process has closed the lock file that proves it alive (see `proof`), mostly by dying.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dray import forks
from dray.backends.sqlite import faults, files, fork, inotify, proof
from dray.backends.sqlite.connect import connect, patiently
from dray.backends.sqlite.files import Way
from dray.backends.watch import Watch, rest
from dray.errors import StorageError
from dray.interrupts import with_cleanup
from dray.log import log

SAFETY_POLL = 2.0

_DOUBT = 1.0
_FIRST_PAUSE = 0.000_05
_GROWTH = 1.1
_LONGEST_PAUSE = 0.05
_CONFIRM_PAUSE = 0.001
_CONFIRM_GROWTH = 2.0
_LATE_CONFIRM, _LATE_GROWTH = 0.032, 8.0
_DEAF_PAUSE = 0.002  # a large transaction writes the -wal all the time before it commits: not a look for each write

_POLL_SHARE = 0.1
_SHORTEST_POLL = 0.001
_LONGEST_POLL = 0.05
_REOPEN_PAUSE = 0.1
_FORK_PATIENCE = 2.0

_OF_WAL = inotify.MODIFY | inotify.DELETE_SELF | inotify.MOVE_SELF
_OF_FOLDER = inotify.CREATE | inotify.MOVED_TO | inotify.DELETE
_OF_PROOFS = inotify.CLOSE_WRITE  # those who look at them open them to read


class SqliteWatch(Watch):
    """A `Watch` on one file, which must be there and in WAL mode.

    Has an inotify instance of its own, of which a user has 128: make one watch a process and share what it tells.
    """

    hears_own = True
    is_direct = True

    def __init__(self, path: Path, *, busy_timeout: float = 30.0) -> None:
        self._path = Path(os.path.realpath(path))  # a link's target is where the -wal lies
        super().__init__(str(self._path))
        self._wal = files.beside(self._path, "-wal")
        self._names = {os.fsencode(self._path.name), os.fsencode(self._wal.name)}
        self._proofs = proof.folder_of(self._path)
        self._tell_of_death: Callable[[], None] | None = None
        self._process_locks = fork.ProcessLocks(self._path)
        self._inotify: inotify.Inotify | None = None
        self._watches: dict[Path, int] = {}
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int, Way] | None = None
        self._version = 0
        self._expects_own = False
        self._waiter = 0  # the thread that waits
        patiently(self._open, busy_timeout, self._place)
        self._pace = Pace(time.monotonic())
        self._check_at = time.monotonic() + SAFETY_POLL
        if not self.is_pushed:
            log.info("%s: there is no inotify to be had; polling for changes", self._path)
        forks.watch(self)

    @property
    def is_pushed(self) -> bool:
        return self._connection is not None and self._wal in self._watches

    @property
    def hears_deaths(self) -> bool:
        return self._proofs in self._watches

    def tell_of_deaths(self, tell: Callable[[], None]) -> None:
        with self._lock:
            self._tell_of_death = tell
            self._arm()

    def expect_own(self) -> None:
        self._expects_own = True

    def wait(self, seconds: float | None = None) -> bool:
        self._refuse_if_over()
        if self._inotify is not None and self._waiter != threading.get_ident():
            self._waiter = threading.get_ident()
            self._inotify.wake_on_time()
        until = time.monotonic() + (SAFETY_POLL if seconds is None else min(seconds, SAFETY_POLL))
        while True:
            poked = self._bell.silence()
            now = time.monotonic()
            with self._lock:
                if self._closed:
                    return True
                changed = self._look(now)
                pause, deaf = self._pace.pauses(now, is_pushed=self.is_pushed)
                bell = self._bell.fileno()
                both = (bell,) if self._inotify is None else (bell, self._inotify.fileno())
            if changed or poked:
                return True
            left = until - now
            if left <= 0:
                return self._connection is None  # cannot be read at the moment: who knows
            if deaf and rest((bell,), min(deaf, left)):
                continue
            if pause > deaf:
                rest(both, min(pause, left) - deaf)

    # Looking

    def _look(self, now: float) -> bool:
        """Whether anything changed since the last look."""
        is_written, is_upset = self._events()
        if is_upset or now >= self._check_at:
            is_upset |= self._check(now)
        version = self._read()
        is_changed = is_upset or version not in {None, self._version}
        self.is_unchanged = not is_changed and version is not None
        self._version = self._version if version is None else version
        # While another process recovers the file, nothing can be read: as with a commit that is not visible yet.
        is_held_up = version is None and self._connection is not None
        # Before the watches were set again a commit may have begun that no event will tell of.
        self._pace.note(now, is_written=is_written or is_held_up or is_upset, is_changed=is_changed)
        if self._expects_own and self._pace.is_confirming and self._connection is not None:
            with_cleanup(lambda: self._make_sure(now), self._let_go_of_lock)
        return is_changed

    def _make_sure(self, now: float) -> None:
        """Ends the doubt, if no other connection has the write lock: all that events told of is visible then."""
        assert self._connection is not None
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            _, is_upset = self._events()
            version = _data_version(self._connection)
        except sqlite3.Error:
            return  # another one has it; or this file can only be read
        if is_upset:
            self._check_at = now
        if version == self._version and not is_upset:
            self._expects_own = False
            self._pace.end_doubt(now)

    def _let_go_of_lock(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._disconnect()  # which frees it too

    def _events(self) -> tuple[bool, bool]:
        """Whether the -wal was written, and whether the watches may no longer be where they should."""
        events = self._inotify.read() if self._inotify is not None else []
        wal = self._watches.get(self._wal)
        is_written = any(event.watch == wal for event in events)
        if self._tell_of_death is not None and any(event.mask & inotify.CLOSE_WRITE for event in events):
            self._tell_of_death()
        is_upset = any(
            event.mask & inotify.Q_OVERFLOW
            or event.name in self._names
            or (event.watch in self._watches.values() and not event.name and event.mask != inotify.MODIFY)
            for event in events
        )
        return is_written, is_upset

    def _read(self) -> int | None:
        """The file's version; None if it cannot be read now."""
        if self._connection is None:
            return None
        try:
            return _data_version(self._connection)
        except sqlite3.Error as error:
            if not faults.is_busy(error):
                log.warning("%s: cannot be watched: %s; trying again", self._path, error)
                self._disconnect()
            return None

    def _check(self, now: float) -> bool:
        """Sets all right again; whether anything was not."""
        self._check_at = now + SAFETY_POLL
        if self._connection is not None and self._identity == _identity(self._path):
            return self._arm()
        self._disconnect()
        try:
            self._open()
        except sqlite3.Error:
            self._check_at = now + _REOPEN_PAUSE
            return False
        return True

    def _open(self) -> None:
        # Before connecting: if the file is replaced in between, the next check sees another one and comes back.
        identity = _identity(self._path)
        connection = connect(self._path, way=Way.WRITE if identity is None else identity[2])
        try:
            _data_version(connection)  # makes the -wal, if there is none
            self._arm()
            self._version = _data_version(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity = connection, identity

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _arm(self) -> bool:
        """Watches what is at the paths now; whether that is something else than before."""
        if self._inotify is None:
            self._inotify = inotify.start()
        if self._inotify is None:
            return False
        before, self._watches = self._watches, {}
        wanted = [(self._path.parent, _OF_FOLDER), (self._wal, _OF_WAL)]
        if self._tell_of_death is not None:
            wanted.append((self._proofs, _OF_PROOFS))
        for path, mask in wanted:
            try:
                self._watches[path] = self._inotify.add(path, mask)
            except OSError as error:
                log.debug("%s: not watched: %s", path, error)
        for watch in set(before.values()).difference(self._watches.values()):
            try:
                self._inotify.remove(watch)
            except OSError:
                continue  # it went with its file
        return self._watches != before

    # Fork and end

    def before_fork(self) -> None:
        self._fork_holds_lock = self._lock.acquire(timeout=_FORK_PATIENCE)  # what uses SQLite has ended
        if self._connection is not None:
            self._process_locks.remember()

    _fork_holds_lock = False

    def after_fork_in_parent(self) -> None:
        if self._fork_holds_lock:
            self._fork_holds_lock = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        if self._connection is not None:
            fork.leak(self._connection)
            self._connection = None
            # SQLite believes that the process has them, also for connections that are opened from now on.
            self._process_locks.take()
        self._forked = True
        self.close()

    def _let_go(self) -> None:
        self._disconnect()
        self._watches = {}
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


class Pace:
    """When to read again without having been told."""

    def __init__(self, now: float) -> None:
        self._changed_at = now
        self._doubt_ends = now + _DOUBT  # of a commit that began before there was a watch
        self._is_unexplained = False  # an event came after the last change
        self._pause = _FIRST_PAUSE
        self._look_at = now

    def note(self, now: float, *, is_written: bool, is_changed: bool) -> None:
        """What the look at this moment showed, whether its time had come or not."""
        pause = self._pause
        if now >= self._look_at:
            pause = min(pause * _GROWTH, _LONGEST_PAUSE) if self._is_unexplained else _next_confirmation(pause)
        if is_written:
            was_doubting = self._is_unexplained and now < self._doubt_ends
            pause = min(pause, _DEAF_PAUSE) if was_doubting else _FIRST_PAUSE
            self._doubt_ends = now + _DOUBT
            self._is_unexplained = True
        if is_changed:
            pause = _CONFIRM_PAUSE
            self._changed_at = now
            self._is_unexplained = False
        if is_written or is_changed or now >= self._look_at:
            self._pause, self._look_at = pause, now + pause

    @property
    def is_confirming(self) -> bool:
        """Whether it reads again although a change explains the last event."""
        return not self._is_unexplained and self._look_at < self._doubt_ends

    def end_doubt(self, now: float) -> None:
        self._doubt_ends = now

    def pauses(self, now: float, *, is_pushed: bool) -> tuple[float, float]:
        """How long until the next look, and for how much of that events are better not listened to."""
        if not is_pushed:
            return min(max((now - self._changed_at) * _POLL_SHARE, _SHORTEST_POLL), _LONGEST_POLL), 0.0
        if now >= self._doubt_ends:
            return SAFETY_POLL, 0.0
        pause = self._look_at - now
        return pause, min(pause, _DEAF_PAUSE) if self._is_unexplained else 0.0


def _next_confirmation(pause: float) -> float:
    return min(pause * (_CONFIRM_GROWTH if pause < _LATE_CONFIRM else _LATE_GROWTH), _DOUBT)


def _data_version(connection: sqlite3.Connection) -> int:
    # fetchall: a row left unread would be a read transaction left open, and the -wal could never start over.
    return connection.execute("PRAGMA data_version").fetchall()[0][0]


def _identity(path: Path) -> tuple[int, int, Way] | None:
    """Which file it is, and how it can be opened: who may only read has to see a -wal come."""
    try:
        found, way = path.stat(), files.way(path)
    except (OSError, StorageError):
        return None
    return None if way is None else (found.st_dev, found.st_ino, way)
