"""Follows what happens: events and log lines since the last look, each told once.

There is no journal to read: events are seen in the tables, by comparing one look with the one before. What that
finds, and why:

- **Every end of a job.** Completed and failed jobs have been running. A look reads all that runs; whatever ran at
  the last look and does not now is looked up. What was claimed after the last look ended after it, too, so its
  `finished_at`, which is when its body ended, lies after that look's time: that stretch of the index is read. Only
  jobs that are cancelled before they start come out of nowhere: their stretch is looked back at for a minute.
- **Enqueued jobs** by their ids, which hold the time. A transaction that commits late brings ids that lie behind: ten
  seconds are looked back at.
- **What happens in between** (started, retrying, returned) where a look falls into it, and retries also while they
  wait to be due. Two looks may be 50 ms apart.
- **Log lines** by their sequence numbers. On PostgreSQL a smaller number may be committed later: a gap is waited for.

Not seen: what was deleted before the next look; the first end of a job that ended, was retried and ended again within
one look. When the wall clock of the database is set back, ends may be told twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from dray import backends
from dray.backends.store.live import Ask, Changes, LiveJob, LiveLine, LiveWorker, LookBack, Position
from dray.instants import MILLISECOND, SECOND, moment, to_datetime
from dray.model.job import FINAL, UNSTARTED, Queue, State
from dray.ops.listing import values_of

P = TypeVar("P", Position, str)
Event = dict[str, Any]  # at, event, and more; see the end of this file

# What happened at the same microsecond is told in this order.
_ORDER = (
    *("worker_started", "enqueued", "started", "log", "returned", "retrying", "completed", "failed", "cancelled"),
    *("worker_stopped", "worker_died", "queue_paused", "queue_resumed"),
)
_SLACK = 250 * MILLISECOND  # between a body's end, as it is written down, and the clock of the looks
_PAGE = 5_000  # rows of a kind in one look
_TOLD = 100_000  # things remembered as told, of a kind
_BACK_EVERY = SECOND
_BACK_CANCELLED = 60 * SECOND
_BACK_ENQUEUED = 10 * SECOND
_BACK_PAGE = 2_000
_GAP = 10 * SECOND  # that a missing line is waited for,
_GAP_LINES = 4_000  # and lines that are remembered meanwhile; less than a page, or reading would get stuck
_WORKERS_BACK = 60 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which events are wanted. None: any."""

    queue: str | None = None
    task: str | None = None
    job: str | None = None
    states: frozenset[State] | None = None
    reason: str | None = None
    events: bool = True
    logs: bool = True

    def takes(self, event: Event) -> bool:
        if event["event"] == "log":
            return self.logs and self.states is None and self._fits(event)
        if "job" in event:
            is_in_state = self.states is None or event["state"] in self.states
            return self.events and self._fits(event) and is_in_state and self.reason in {None, event["reason"]}
        is_of_a_job = self.task is not None or self.job is not None or self.states is not None
        return self.events and not is_of_a_job and self.queue in {None, event.get("queue")}

    def _fits(self, event: Event) -> bool:
        wanted = {"queue": self.queue, "task": self.task, "job": self.job}
        return all(value in {None, event[name]} for name, value in wanted.items())


class Tail:
    """Tells what has happened since the last look. For one thread."""

    def __init__(self, backend: backends.Backend, *, logs: bool = True) -> None:
        self.is_behind = True  # there is more to be read at once
        self.is_idle = False  # nothing runs, nothing is ready or due
        self._backend = backend
        self._clock = backend.db.clock
        self._now = backend.now()
        self._steady = self._clock.steady()
        self._page = _PAGE
        self._running: dict[str, int] = {}  # id -> claim
        self._ended = {state.value: Position(self._now - _SLACK) for state in sorted(FINAL)}
        self._enqueued = id_at(self._now - _SLACK)
        self._put_back_since = self._now - _SLACK
        self._back_at: int | None = None  # when it was last looked back
        self._back_floor: Position | None = None  # what lies below was there before
        self._ends, self._came, self._returns = _Told(), _Told(), _Told()
        self._workers: dict[str, str] = {}  # id -> state
        self._queues: dict[str, int | None] = {}  # name -> paused_at
        self._lines = _LogCursor() if logs else None

    def begin(self, since: int | None = None) -> Iterator[list[Event]]:
        """What happened since an instant, oldest first; None: nothing of the past. From there on `look`."""
        if since is not None:
            # No later than the next look will go back to: what it finds there has to be known.
            first = min(since, self._now - _SLACK)
            self._ended = dict.fromkeys(self._ended, Position(first))
            self._enqueued = id_at(first)
            self._put_back_since = first
        if self._lines is not None:
            self._lines.last = self._backend.live.last_line(since)
        start = moment(since)
        while self.is_behind:
            found = self.look()
            yield [] if start is None else [event for event in found if event["at"] >= start]

    def since_last(self, count: int) -> int:
        """The instant since which about `count` events have happened."""
        times = sorted(self._backend.live.newest_times(count, lines=self._lines is not None), reverse=True)
        return times[: count + 1][-1] if times else self._now

    def look(self) -> list[Event]:
        """What has happened since the last look, by time."""
        ask = self._ask()
        found = self._backend.live.changes(ask)
        told = [
            *self._jobs_told(found),
            *self._workers_told(found.workers),
            *self._queues_told(found.queues, found.now),
            *(self._lines.told(found.lines, self._steady) if self._lines is not None else ()),
        ]
        self._advance(found, ask)
        return sorted(told, key=lambda event: (event["at"], _ORDER.index(event["event"])))

    def _ask(self) -> Ask:
        steady = self._clock.steady()
        now = self._now + steady - self._steady
        back = None
        if self._back_at is None or steady - self._back_at >= _BACK_EVERY:
            self._back_at = steady
            floor = self._back_floor or Position(0)
            enqueued_since = max(id_at(now - _BACK_ENQUEUED), floor.id)
            back = LookBack(max(now - _BACK_CANCELLED, floor.at + 1), enqueued_since, _BACK_PAGE)
        return Ask(
            running=self._running.items(),
            ended=self._ended,
            enqueued_after=self._enqueued,
            enqueued_until=id_at(now + _BACK_ENQUEUED),
            put_back_since=self._put_back_since,
            workers_since=now - _WORKERS_BACK,
            lines_after=None if self._lines is None else self._lines.last,
            page=self._page,
            back=back,
        )

    def _jobs_told(self, found: Changes) -> Iterator[Event]:
        for job in (*found.enqueued, *found.late_enqueued):
            if self._came.add(job.id):
                yield _enqueued(job)
        for job in found.running:
            if self._running.get(job.id) != job.claim:
                yield _of_job(job, "started", job.started_at or job.updated_at)
        # Under another claim it has been put back and taken again: what it shows is of that one.
        left = [job for job in found.left if self._running[job.id] == job.claim]
        for job in (*left, *(each for page in found.ended.values() for each in page), *found.late):
            if job.state in FINAL and self._ends.add((job.id, job.finished_at)):
                yield _of_job(job, job.state, job.finished_at or job.updated_at)
        for job in (*left, *found.put_back):
            if job.state in {State.SCHEDULED, State.QUEUED} and self._returns.add((job.id, job.claim)):
                # Its attempt failed and another follows, or it was given back: snoozed, or its worker stopped.
                yield _of_job(job, "returned" if job.error is None else "retrying", job.updated_at)

    def _workers_told(self, found: Iterable[LiveWorker]) -> Iterator[Event]:
        before, self._workers = self._workers, {worker.id: worker.state for worker in found}
        for worker in found:
            known = before.get(worker.id)
            if known is None:
                yield _of_worker(worker, "worker_started", worker.started_at)
            if worker.stopped_at is not None and known != worker.state:
                event = "worker_died" if worker.state == "dead" else "worker_stopped"
                yield _of_worker(worker, event, worker.stopped_at)

    def _queues_told(self, found: Iterable[Queue], now: int) -> Iterator[Event]:
        before, self._queues = self._queues, {queue.name: queue.paused_at for queue in found}
        for queue in found:
            known = before.get(queue.name)
            if queue.paused_at != known:
                event = "queue_resumed" if queue.paused_at is None else "queue_paused"
                at = now if queue.paused_at is None else queue.paused_at
                yield {"at": to_datetime(at), "event": event, "queue": queue.name}

    def _advance(self, found: Changes, ask: Ask) -> None:
        steady = self._clock.steady()
        until = found.now - _SLACK
        if found.now < self._now + (steady - self._steady) - _SLACK:
            until -= steady - self._steady  # the clock was set back: what happened meanwhile has times of before
        reached = {state: self._reached(page, ask.page, until) for state, page in found.ended.items()}
        self._ended = {state: place or Position(until) for state, place in reached.items()}
        more = _last(found.enqueued, ask.page)
        self._enqueued = id_at(until) if more is None else self._before(more.id, id_at(until))
        self._put_back_since = until
        self._running = {job.id: job.claim for job in found.running}
        if self._back_floor is None:
            # Below what the first look back has seen there may be more of the same, which happened before.
            cancelled, came = _last(found.late, _BACK_PAGE), _last(found.late_enqueued, _BACK_PAGE)
            self._back_floor = Position((cancelled and cancelled.finished_at) or 0, came.id if came else id_at(0))
        has_more_lines = len(found.lines) >= ask.page
        self.is_behind = any(reached.values()) or more is not None or has_more_lines
        self.is_idle = found.is_idle
        self._now, self._steady = found.now, steady

    def _reached(self, page: list[LiveJob], size: int, until: int) -> Position | None:
        """Where to go on after a page that is full; None: there was no more."""
        last = _last(page, size)
        if last is None or last.finished_at is None:
            return None
        return self._before(Position(last.finished_at, last.id), Position(until))

    def _before(self, reached: P, until: P) -> P:
        """What lies after `until` has to be read again, for what comes into sight late: in a larger page."""
        if reached < until:
            return reached
        self._page *= 2
        return until


def id_at(at: int) -> str:
    """The first id of an instant."""
    digits = f"{max(0, at // MILLISECOND):012x}"
    return f"{digits[:8]}-{digits[8:]}-7000-8000-000000000000"


def _last(page: list[LiveJob], size: int) -> LiveJob | None:
    return page[-1] if len(page) >= size else None


class _Told:
    def __init__(self) -> None:
        self._keys: OrderedDict[Hashable, None] = OrderedDict()

    def add(self, key: Hashable) -> bool:
        """False: it had been told."""
        if key in self._keys:
            return False
        self._keys[key] = None
        if len(self._keys) > _TOLD:
            self._keys.popitem(last=False)
        return True


class _LogCursor:
    """Log lines by their numbers, each once, though smaller ones may come into sight later."""

    def __init__(self) -> None:
        self.last = 0  # all up to here have been told, or will never come
        self._beyond: dict[int, int] = {}  # those that lie after a gap, and when they were told

    def told(self, lines: Iterable[LiveLine], steady: int) -> Iterator[Event]:
        for line in lines:
            if line.seq not in self._beyond:
                self._beyond[line.seq] = steady
                values = values_of(line, "task queue seq level logger message")
                yield {"at": to_datetime(line.at), "event": "log", "job": line.job_id, **values}
        self._close_up()
        while self._beyond:
            after_gap = min(self._beyond)
            if steady - self._beyond[after_gap] <= _GAP and len(self._beyond) <= _GAP_LINES:
                return
            self.last = after_gap - 1
            self._close_up()

    def _close_up(self) -> None:
        while self.last + 1 in self._beyond:
            self.last += 1
            del self._beyond[self.last]


def _enqueued(job: LiveJob) -> Event:
    """The job as it was when it came, whatever it has become since."""
    is_later = job.run_at > job.created_at
    state = job.state if job.state in UNSTARTED else State.SCHEDULED if is_later else State.QUEUED
    return {
        **_of_job(job, "enqueued", job.created_at),
        "state": str(state),
        "attempt": 0,
        "run_at": to_datetime(job.run_at) if is_later else None,
        **dict.fromkeys(("reason", "worker", "error", "seconds")),
    }


def _of_job(job: LiveJob, event: str, at: int) -> Event:
    """What has just happened to a job, which is still as that left it."""
    began, finished = job.started_at, job.finished_at
    waits = job.state in UNSTARTED and job.run_at > job.updated_at
    return {
        "at": to_datetime(at),
        "event": event,
        "job": job.id,
        **values_of(job, "task queue state reason attempt max_attempts claim"),
        "worker": job.worker_id,
        "error": None if event == "started" else job.error,
        "run_at": to_datetime(job.run_at) if waits else None,
        "seconds": (finished - began) / SECOND if job.state in FINAL and began and finished else None,  # of its body
    }


def _of_worker(worker: LiveWorker, event: str, at: int) -> Event:
    return {"at": to_datetime(at), "event": event, "worker": worker.id, **values_of(worker, "name host pid")}
