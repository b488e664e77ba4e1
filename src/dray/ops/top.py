"""What goes on at this moment: queues, running jobs, failures, workers, counts and rates.

Every look is bounded, however many jobs there are. Counts and rates cost more than the lists, so they are taken less
often the longer they take: at most a fiftieth of the time goes into them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from dray import backends
from dray.backends.store.live import LiveJob, Numbers, Panels
from dray.instants import SECOND, moment, to_datetime
from dray.model.job import State
from dray.ops.tail import id_at

ROWS = 200  # of a list
COUNTED = 100_000  # where the count of a queue ends

_NEWEST = 20_000  # jobs that a rate is taken over at most
_WINDOW = 10 * SECOND
_SHARE = 50
_OFTEN = SECOND
_CHEAP = SECOND // 50  # numbers that took no longer are taken at once when asked for


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    at: datetime
    queues: list[Row]  # name; queued and running jobs; oldest: seconds that its first job has been ready; paused_at
    running: list[Row]  # `LiveJob`s, those that have run longest
    failures: list[Row]  # the same, newest first
    workers: list[Row]  # `LiveWorker`s, with the number of their running jobs
    counts: dict[str, int]  # jobs by state, each at most its `cap`
    rates: dict[str, float]  # enqueued, completed, failed, cancelled: a second, over the last seconds
    counted: int = COUNTED

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
        self._numbers: Numbers | None = None
        self._since = 0
        self._numbers_at = 0  # when they may be taken again
        self._took = 0

    def look(self) -> Snapshot:
        panels = self._backend.live.panels(ROWS)
        began = self._clock.steady()
        if self._numbers is None or began >= self._numbers_at:
            self._since = panels.now - _WINDOW
            self._numbers = self._backend.live.numbers(
                since=self._since, since_id=id_at(self._since), limit=COUNTED, counted=self._counted, newest=_NEWEST
            )
            ended = self._clock.steady()
            self._took = ended - began
            self._numbers_at = ended + max(_OFTEN, _SHARE * self._took)
        return replace(_snapshot(panels, self._numbers, self._since + _WINDOW), counted=self._counted)

    def forget(self) -> None:
        """A person has changed something and looks at it: numbers that are cheap are taken again with the next look.

        Dear ones keep their time: with a million jobs they would take more of a page than all else.
        """
        if self._took <= _CHEAP:
            self._numbers_at = 0


def _snapshot(panels: Panels, numbers: Numbers, counted_at: int) -> Snapshot:
    running = Counter[str]()
    hands = Counter[str]()
    for queue, worker, jobs in panels.hands:
        running[queue] += jobs
        hands[worker] += jobs
    paused = {queue.name: queue.paused_at for queue in panels.queues}
    names = sorted({*paused, *numbers.depths, *running})
    return Snapshot(
        at=to_datetime(panels.now),
        queues=[
            {
                "name": name,
                "queued": numbers.depths.get(name, 0),
                "running": running[name],
                "oldest": (panels.now - numbers.oldest[name]) / SECOND if name in numbers.oldest else None,
                "paused_at": moment(paused.get(name)),
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
        | {state: _rate(*rate, counted_at) for state, rate in numbers.ended.items()},
    )


def _rate(jobs: int, first_at: int | None, until: int) -> float:
    """Jobs a second; where there were more than are counted, over the time that those took."""
    is_cut = jobs >= _NEWEST and first_at is not None and until > first_at
    return jobs * SECOND / (until - first_at if is_cut and first_at is not None else _WINDOW)


def _job(job: LiveJob) -> Row:
    return {**job._asdict(), "started_at": moment(job.started_at), "finished_at": moment(job.finished_at)}
