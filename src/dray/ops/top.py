"""What goes on at this moment: queues, running jobs, failures, workers, counts and rates.

Every look is bounded, however many jobs there are. Counts and rates cost more than the lists, so they are taken less
often the longer they take: at most a fiftieth of the time goes into them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from dray import backends
from dray.backends.store.live import QUEUES, LiveJob, Numbers, Panels
from dray.instants import SECOND, moment, to_datetime
from dray.model.job import Queue, State
from dray.ops.tail import id_at

ROWS = 200  # of a list
COUNTED = 100_000  # where the count of a queue ends

_NEWEST = 20_000  # jobs that a rate is taken over at most
_WINDOW = 10 * SECOND
_SHARE = 50
_OFTEN = SECOND
_CHEAP = SECOND // 50  # numbers that took no longer are taken at once when asked for
_DEAR = _CHEAP + 1
_FEW = 1_000  # where the first counts of states end, if others are taken beside


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    at: datetime
    # Of each: name, priority, queued and running jobs; oldest: seconds that its first job has been ready; paused_at.
    # At most 1,000 that were made, paused ones first, and those in which jobs are ready or run.
    queues: list[Row]
    running: list[Row]  # `LiveJob`s, those that have run longest
    failures: list[Row]  # the same, newest first
    workers: list[Row]  # `LiveWorker`s, with the number of their running jobs
    counts: dict[str, int]  # jobs by state, each at most its `cap`
    rates: dict[str, float]  # enqueued, completed, failed, cancelled: a second, over the last seconds
    counted: int = COUNTED
    queue_count: int = 0  # of all queues that were made, counted up to 10,000
    has_all_queues: bool = True  # there is no other queue, nor another in which jobs are ready

    def cap(self, state: str) -> int:
        """Where the count of this state ends."""
        return COUNTED if state in {State.QUEUED, State.RUNNING} else self.counted

    @property
    def is_cut(self) -> bool:
        """Whether there are more jobs than were counted."""
        return any(count >= self.cap(state) for state, count in self.counts.items())


class Top:
    """Takes snapshots. One thread's. `counted`: where the counts of waiting, scheduled and ended jobs end."""

    def __init__(self, backend: backends.Backend, counted: int = COUNTED) -> None:
        self._backend = backend
        self._counted = counted
        self._clock = backend.db.clock
        self._taken: _Taken | None = None

    def look(self, beside: Callable[[Callable[[], None]], object] | None = None) -> Snapshot:
        """`beside`: has numbers that take long taken without being waited for; a later look shows them. The first
        counts of states end at 1,000 then."""
        panels = self._backend.live.panels(ROWS)
        taken = self._taken
        if taken is None and beside is not None:
            taken = self._take(panels.now, min(_FEW, self._counted))
        if taken is None or self._clock.steady() >= taken.next_at:
            if taken is None or beside is None or taken.took <= _CHEAP:
                taken = self._take(panels.now, self._counted)
            else:
                beside(self._take_all)
        return _snapshot(panels, taken)

    def forget(self) -> None:
        """A person has changed something and looks at it: numbers that are cheap are taken again with the next look.

        Dear ones keep their time: with a million jobs they would take more of a page than all else.
        """
        if self._taken is not None and self._taken.took <= _CHEAP:
            self._taken = self._taken._replace(next_at=0)

    def _take_all(self) -> None:
        self._take(self._backend.now(), self._counted)

    def _take(self, now: int, counted: int) -> _Taken:
        began, since = self._clock.steady(), now - _WINDOW
        numbers = self._backend.live.numbers(
            since=since, since_id=id_at(since), limit=COUNTED, counted=counted, newest=_NEWEST
        )
        ended = self._clock.steady()
        found = _Taken(numbers, now, counted, ended - began, ended + max(_OFTEN, _SHARE * (ended - began)))
        if any(count >= counted for count in numbers.counts.values()):
            if counted < self._counted:  # there are more, and it is not known what counting them takes
                found = found._replace(took=_DEAR, next_at=0)
        else:
            found = found._replace(counted=self._counted)
        self._taken = found
        return found


class _Taken(NamedTuple):
    """Numbers, and how they were taken. Written as one: another thread may read them."""

    numbers: Numbers
    at: int
    counted: int  # where the count of a state ended
    took: int
    next_at: int  # when they may be taken again


def queue_row(name: str, queue: Queue | None, queued: int) -> Row:
    """A queue in which nothing runs. `queue`: None, if it was not made."""
    priority, paused_at = (0, None) if queue is None else (queue.priority, queue.paused_at)
    return {
        "name": name,
        "priority": priority,
        "queued": queued,
        "running": 0,
        "oldest": None,
        "paused_at": moment(paused_at),
    }


def _snapshot(panels: Panels, taken: _Taken) -> Snapshot:
    numbers = taken.numbers
    running = Counter[str]()
    hands = Counter[str]()
    for queue, worker, jobs in panels.hands:
        running[queue] += jobs
        hands[worker] += jobs
    made = {queue.name: queue for queue in panels.queues}
    names = sorted({*made, *numbers.depths, *running})
    return Snapshot(
        at=to_datetime(panels.now),
        queues=[
            {
                **queue_row(name, made.get(name), numbers.depths.get(name, 0)),
                "running": running[name],
                "oldest": (panels.now - numbers.oldest[name]) / SECOND if name in numbers.oldest else None,
            }
            for name in names
        ],
        running=[_job(job) for job in panels.running],
        failures=[_job(job) for job in panels.failures],
        workers=[
            {
                **dict(zip(each._fields[:6], each, strict=False)),
                "running": hands[each.id],
                "concurrency": each.concurrency,
                "started_at": to_datetime(each.started_at),
                "last_seen_at": to_datetime(each.last_seen_at),
            }
            for each in panels.workers
        ],
        counts={
            **numbers.counts,
            State.QUEUED.value: min(COUNTED, sum(numbers.depths.values())),
            State.RUNNING.value: running.total(),
        },
        rates={"enqueued": numbers.enqueued / (_WINDOW / SECOND)}
        | {state: _rate(*rate, taken.at) for state, rate in numbers.ended.items()},
        counted=taken.counted,
        queue_count=panels.queue_count,
        has_all_queues=len(panels.queues) < QUEUES and len(numbers.depths) < QUEUES,
    )


def _rate(jobs: int, first_at: int | None, until: int) -> float:
    """Jobs a second; where there were more than are counted, over the time that those took."""
    is_cut = jobs >= _NEWEST and first_at is not None and until > first_at
    return jobs * SECOND / (until - first_at if is_cut and first_at is not None else _WINDOW)


def _job(job: LiveJob) -> Row:
    return {**job._asdict(), "started_at": moment(job.started_at), "finished_at": moment(job.finished_at)}
