"""What a worker cannot do at the moment, and what it reports about itself: over HTTP, and in its row.

A worker is healthy while its parts did their work within the last two beats: a beat got through, the engine's
transactions return and succeed, bodies have threads and processes to run in. An engine with nothing to claim and
nothing to write is healthy too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dray.clock import Clock
from dray.errors import StorageError, StorageLocked
from dray.instants import SECOND
from dray.log import log
from dray.model.bounds import ERROR_MESSAGE_BYTES
from dray.sanitize import bounded, escape_control

if TYPE_CHECKING:
    from dray.runtime.crew import Crew
    from dray.runtime.heartbeat import WorkerLease
    from dray.runtime.inbox import Inbox


_LONG_LOCK = 10 * SECOND
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Obstacle(NamedTuple):
    """Something that a worker cannot do, and since when, by the steady clock."""

    since: int
    reason: str
    stops_claims: bool = False  # at once, and not only once it lasts


class Outage:
    """Something that one loop cannot do: logged once, tried again after longer and longer pauses.

    The database may be away or locked, or the machine may have no thread or process left. An outage begins with the
    first try that failed, or that has not returned yet. `what` completes "this worker cannot …". Times are readings
    of the steady clock. The properties are for any thread.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.pause = 0.0  # seconds until the next try; 0: there is no outage
        self.retry_at = 0
        self.began: int | None = None  # the try that is under way; the loop sets it
        self._since: int | None = None  # the first try that failed after the last that succeeded
        self._error = ""
        self._is_lock = False
        self._is_logged = False

    def goes_on(self, error: Exception, now: int) -> float:
        """The try failed. Returns the pause until the next."""
        if self._since is None:
            self._since = now if self.began is None else self.began
        self._error = escape_control(str(error)) or type(error).__name__
        self._is_lock = isinstance(error, StorageLocked)
        # A lock that other transactions hold one after the other is no outage.
        is_news = not self._is_lock or now - self._since > _LONG_LOCK
        if is_news and not self._is_logged:
            self._is_logged = True
            log.warning("this worker cannot %s: %s; going on as soon as it can", self._what, self._error)
        self.pause = min(max(self.pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        self.retry_at = now + int(self.pause * SECOND)
        return self.pause

    def eases(self) -> None:
        """The database can be read. The next write need not wait, but the outage goes on: a full disk can be read."""
        self.pause = 0.0

    def ends(self) -> None:
        """A try succeeded."""
        if self._is_logged:
            log.info("this worker can %s again", self._what)
        self.pause = 0.0
        self._since = None
        self._is_logged = False

    @property
    def is_on(self) -> bool:
        """Whether the last try failed."""
        return self._since is not None

    @property
    def is_locked(self) -> bool:
        """Whether the last try failed because another connection kept the write lock."""
        return self.is_on and self._is_lock

    @property
    def obstacle(self) -> Obstacle | None:
        """The first try that failed or has not returned yet, if there is one."""
        since = self.began if self._since is None else self._since
        return None if since is None else Obstacle(since, self.reason)

    @property
    def reason(self) -> str:
        """In a few words, for people."""
        return f"cannot {self._what}: {self._error}" if self.is_on else f"waits to {self._what}"


class LockPatience:
    """How long `run_until_idle` waits for a write lock. `seconds` None: for ever, as a worker does that goes on.

    The lock may be held by the very thread that waits here, in a transaction which ends after this call or never.
    """

    def __init__(self, place: str, seconds: float | None) -> None:
        self._place, self._seconds = place, seconds
        self._since: float | None = None

    def check(self, *, is_locked: bool, waited: float = 0.0) -> None:
        """Raises `StorageLocked` if it was locked each time, and for longer than that. `waited`: seconds for which
        the caller has just waited for the lock."""
        now = time.monotonic()
        self._since = (now - waited if self._since is None else self._since) if is_locked else None
        if self._seconds is not None and self._since is not None and now - self._since >= self._seconds:
            raise StorageLocked(
                f"{self._place}: another connection has kept the write lock for {self._seconds:g} s, so no job can "
                "be claimed or ended. If a transaction of this process is open, end it first; a test can run jobs "
                "inside it: dray.testing.drain(app, connection=…)"
            )


class Condition(NamedTuple):
    """What a probe is told, as JSON."""

    worker: str | None  # its id; None: it has not started yet
    state: str  # starting, active, draining
    running: int  # bodies
    last_beat_age: float | None  # seconds since its lease was last renewed
    is_healthy: bool  # it can claim, run and write, or could two beats ago
    is_ready: bool  # it claims jobs
    reason: str | None = None  # why it is not healthy, or not ready; None also during a graceful shutdown


@dataclass(eq=False)
class SelfCheck:
    """What keeps a worker from claiming, running and writing, as it sees itself. Its parts set the attributes; the
    methods are for any thread, and do not use the database."""

    _lease: WorkerLease
    _inbox: Inbox
    _crew: Crew
    _clock: Clock
    failure: StorageError | None = None  # one that no waiting can repair
    lost_id: Obstacle | None = None  # it has to take another id before it claims again

    def __post_init__(self) -> None:
        self.outage = Outage("use the database")  # of the engine

    def condition(self, worker_id: str, state: str, running: int) -> Condition:
        inability, idleness = self._inability(), self._why_no_claims()
        return Condition(
            worker_id,
            state,
            running,
            (self._clock.steady() - self._lease.obstacle.since) / SECOND,
            is_healthy=inability is None,
            is_ready=inability is None and idleness is None and not self._inbox.is_draining,
            reason=inability or idleness,
        )

    def trouble(self) -> str | None:
        """What the next beat writes into the worker's row. It is read until the beat after that, so an obstacle
        counts once it has lasted for one beat."""
        lasts = _lasting(self._obstacles(), self._clock.steady(), self._lease.period_us)
        reason = lasts or self._why_no_claims()
        return None if reason is None else bounded(reason, ERROR_MESSAGE_BYTES)

    def _obstacles(self) -> list[Obstacle]:
        found = [each for each in (self.outage.obstacle, self.lost_id) if each is not None]
        missing = (each.obstacle for each in self._crew.outages() if each.is_on)
        return [*found, *(each._replace(stops_claims=True) for each in missing if each is not None)]

    def _inability(self) -> str | None:
        """Why it cannot work, if that has lasted for two beats."""
        if self.failure is not None:
            return str(self.failure)
        obstacles = [self._lease.obstacle, *self._obstacles()]
        return _lasting(obstacles, self._clock.steady(), 2 * self._lease.period_us)

    def _why_no_claims(self) -> str | None:
        """Why it claims nothing, or less than it was asked to, at this moment."""
        if self._inbox.is_cut_off:
            return self._lease.obstacle.reason
        return next((each.reason for each in self._obstacles() if each.stops_claims), None)


def _lasting(obstacles: Sequence[Obstacle], now: int, for_us: int) -> str | None:
    """The reason of the oldest obstacle, if it has lasted longer than `for_us`.

    A transaction that is under way is an obstacle too, until it returns: most are, for a moment.
    """
    found = min(obstacles, key=lambda each: each.since, default=None)
    return None if found is None or now - found.since <= for_us else found.reason
