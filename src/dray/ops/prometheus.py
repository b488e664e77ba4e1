"""What Prometheus scrapes, from the database and from memory (`exposition.py` has the format).

`dray_…` is of the database: every worker and the dashboard show the same, so take the `max` over what is scraped.
`dray_worker_…` is of the process that is scraped, from its memory: these add up.

The database is read at most once in a few seconds, however often it is scraped, on a thread that no scrape waits for
longer than a moment. While it is away, a scrape shows `dray_up 0` and what memory knows. Labels are bounded: no
worker, host, job or error, and of queues and tasks the most used 100 by name. A name that has been shown stays, and
what comes later is `_OTHER`, so that no counter goes down.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dray.backends.store.rollups import Recorded
from dray.errors import DrayError
from dray.instants import HOUR, MINUTE, SECOND
from dray.log import log
from dray.model.rollup import RECOUNTED_US, THRESHOLDS, Counts, Part, floor
from dray.ops.exposition import by, family, histogram
from dray.ops.top import Row, Snapshot, Top
from dray.runtime.ends_counted import MOST_NAMES, OTHER, Attempts

if TYPE_CHECKING:
    from dray.backends.base import Backend
    from dray.backends.store.rollups import Kind

_KEPT = 5.0  # seconds that a reading is shown
_PATIENCE = 2.0  # seconds that a scrape waits for a reading
_COUNTED = 10_000  # where the count of a state ends, as on the dashboard
_WORKERS = 1_000
_RECOUNTED_LATE = 3 * MINUTE  # the duty that counts a minute again may be late by this
_LONGEST_GAP = HOUR  # of what ended while nothing was scraped, no more is added up at once


class Own(NamedTuple):
    """What memory knows of this worker, or of all worker processes here, added up."""

    slots: int
    busy: int
    is_healthy: bool
    is_ready: bool
    attempts: Attempts
    processes: int = 1


@dataclass(eq=False)
class Exporter:
    """One process's metrics. `own` None: it is no worker. For any thread."""

    backend: Callable[[], Backend]
    own: Callable[[], Own] | None = None
    _read_at: float = float("-inf")
    _found: str | None = None  # of the database; None: it could not be read
    _reading: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._readings = _Readings()

    def text(self) -> str:
        return composed(self.database(), None if self.own is None else self.own())

    def database(self) -> str | None:
        """What is known of the database, at most a few seconds old; None: it cannot be read."""
        with self._lock:
            reading = self._reading
            if reading is None and time.monotonic() - self._read_at >= _KEPT:
                reading = threading.Thread(target=self._read, name="dray-metrics", daemon=True)
                try:
                    reading.start()
                except (RuntimeError, MemoryError):
                    return None
                self._reading = reading
        if reading is not None:
            reading.join(_PATIENCE)
            if reading.is_alive():
                return None
        with self._lock:
            return self._found

    def _read(self) -> None:
        found = None
        try:
            found = self._readings.take(self.backend())
        except DrayError as error:  # the next scrape tries again
            log.debug("the database cannot be read for /metrics: %s", error)
        finally:
            with self._lock:
                self._found, self._read_at, self._reading = found, time.monotonic(), None


def composed(database: str | None, own: Own | None) -> str:
    """All of a scrape."""
    is_up = database is not None
    return family("dray_up", [((), is_up)]) + (database or "") + ("" if own is None else _own(own))


def _own(own: Own) -> str:
    attempts = [((("queue", queue), ("outcome", event)), n) for (queue, event), n in sorted(own.attempts.items())]
    return (
        family("dray_worker_slots", [((), own.slots)])
        + family("dray_worker_busy", [((), own.busy)])
        + family("dray_worker_healthy", [((), own.is_healthy)])
        + family("dray_worker_ready", [((), own.is_ready)])
        + family("dray_worker_attempts_total", attempts)
        + family("dray_worker_processes", [((), own.processes)])
    )


class _Names:
    """Which names are shown by themselves: the most used at the first look, then those that come, up to a number."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def admit(self, used: Iterable[str]) -> None:
        """`used`: the most used first."""
        for name in used:
            if len(self._shown) < MOST_NAMES:
                self._shown.add(name)

    def of(self, name: str) -> str:
        return name if name in self._shown else OTHER


@dataclass(eq=False)
class _Ended:
    """What has ended since the first look, by queue or by task: only ever more."""

    kind: Kind
    names: _Names = field(default_factory=_Names)
    jobs: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    waited: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * (len(THRESHOLDS) + 1)))
    ran: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * (len(THRESHOLDS) + 1)))
    known: dict[tuple[int, Part], Recorded] = field(default_factory=dict[tuple[int, Part], Recorded])

    def admit(self, found: Sequence[Recorded]) -> None:
        used = Counter[str]()
        for each in found:
            used[self._raw(each)] += each.jobs
        self.names.admit(name for name, _ in used.most_common())

    def add(self, found: Sequence[Recorded]) -> None:
        """Adds what is new in these minutes: a minute may have been known before, with fewer jobs."""
        self.admit(found)
        for each in found:
            before = self.known.get((each.at, each.part), _NOTHING)
            name = self.names.of(self._raw(each))
            self.jobs[name, each.part.outcome] += max(0, each.jobs - before.jobs)
            _add_more(self.waited[name], each.waited, before.waited)
            _add_more(self.ran[name], each.ran, before.ran)

    def keep(self, found: Sequence[Recorded], since: int) -> None:
        """Remembers minutes that may still change, and forgets those from before an instant."""
        self.known = {place: each for place, each in self.known.items() if place[0] >= since}
        self.known |= {(each.at, each.part): each for each in found if each.at >= since}

    def _raw(self, each: Recorded) -> str:
        return each.part.queue if self.kind == "queue" else each.part.task

    def text(self) -> str:
        kind = self.kind
        jobs = [(((kind, name), ("outcome", outcome)), n) for (name, outcome), n in sorted(self.jobs.items())]
        waited = histogram(f"dray_{kind}_wait_seconds", kind, self.waited) if kind == "queue" else ""
        finished = family(f"dray_{kind}_finished_total", jobs)
        return finished + waited + histogram(f"dray_{kind}_run_seconds", kind, self.ran)


_NOTHING = Recorded(0, Part("", "", ""), 0, {}, {})


def _add_more(total: list[int], counts: Counts, before: Counts) -> None:
    for place, count in counts.items():
        total[int(place)] += max(0, count - before.get(place, 0))


class _Readings:
    """Reads the database and adds up what has ended. One thread's at a time."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._top: Top | None = None
        self._mark: int | None = None  # all minutes before it are added up
        self._begun_at = 0  # minutes before it do not count
        self._looked_at = 0  # the minute of the last look
        self._ended = (_Ended("queue"), _Ended("task"))

    def take(self, backend: Backend) -> str:
        if backend is not self._backend or self._top is None:
            self._backend, self._top = backend, Top(backend, _COUNTED)
        seen = self._top.look()
        self._add_up(backend, int(seen.at.timestamp() * SECOND))
        queues = self._ended[0].names
        queues.admit(each["name"] for each in sorted(seen.queues, key=lambda each: -each["queued"] - each["running"]))
        gone = backend.workers.gone()
        live = [each for each in backend.workers.all(_WORKERS) if each.stopped_at is None and each.id not in gone]
        states = Counter(each.state for each in live)
        free = dict.fromkeys((lease.duty for lease in backend.leases.all()), 0)
        held = {lease.duty: 1 for lease in backend.leases.held() if lease.holder not in gone}
        return (
            family("dray_jobs", by("state", seen.counts))
            + _queues(seen, queues)
            + family("dray_workers", by("state", {"active": 0, "draining": 0, **states}))
            + family("dray_slots", [((), sum(each.concurrency for each in live))])
            + family("dray_slots_busy", [((), seen.counts["running"])])
            + family("dray_duty_held", by("duty", {**free, **held}))
            + "".join(each.text() for each in self._ended)
        )

    def _add_up(self, backend: Backend, now: int) -> None:
        """Adds the minutes that were rolled up since the last look, and once a minute what was found late in those
        before. The first look counts nothing: what ended before only says which names are used most."""
        mark, minute = backend.rollups.mark(), floor(now, MINUTE)
        if mark is None:
            if self._mark is None:
                self._mark = self._begun_at = now
            return
        if (mark, minute) == (self._mark, self._looked_at):
            return
        changing = minute - RECOUNTED_US - _RECOUNTED_LATE
        if self._mark is None:
            since = mark - HOUR
        else:
            since = max(min(self._mark, changing), mark - _LONGEST_GAP, self._begun_at)
        for each in self._ended if since < mark else ():
            found = backend.rollups.minutes(each.kind, since, mark)
            if self._mark is None:
                each.admit(found)
            else:
                each.add(found)
            each.keep(found, changing)
        self._mark, self._looked_at = mark, minute


def _queues(seen: Snapshot, names: _Names) -> str:
    jobs, together = Counter[tuple[str, str]](), defaultdict[str, list[Row]](list)
    for each in seen.queues:
        name = names.of(each["name"])
        jobs[name, "queued"] += each["queued"]
        jobs[name, "running"] += each["running"]
        together[name].append(each)
    # Of several under one name, those that are paused hide no others: scalers leave out what is paused.
    open_ = {name: [each for each in queues if each["paused_at"] is None] for name, queues in together.items()}
    oldest = {name: max(each["oldest"] or 0.0 for each in open_[name] or queues) for name, queues in together.items()}
    counts = [((("queue", queue), ("state", state)), n) for (queue, state), n in sorted(jobs.items())]
    return (
        family("dray_queue_jobs", counts)
        + family("dray_queue_oldest_ready_seconds", by("queue", oldest))
        + family("dray_queue_paused", by("queue", {name: not queues for name, queues in open_.items()}))
    )
