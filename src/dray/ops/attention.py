"""What needs attention, in sentences: for the first page of the dashboard.

All of it is decided from reads that are bounded. Each sentence names one thing, which the page links to.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dray.instants import HOUR, MINUTE, SECOND
from dray.model.job import State
from dray.ops.failures import ErrorGroup
from dray.wording import counted, listed, plural, span

if TYPE_CHECKING:
    from dray.backends.base import Backend
    from dray.backends.store.overview import Around
    from dray.ops.top import Snapshot

ALIKE = 10  # failures of one kind in an hour
_OLD = 300  # seconds that a job may be ready without being claimed
_LATE_US = MINUTE  # that a schedule may be overdue
_MOST = 5  # sentences of a kind
SINCE_US = HOUR  # how far back workers that died and failures are looked for

Level: TypeAlias = Literal["bad", "warn", "note"]
Kind: TypeAlias = Literal["failures", "paused", "died", "no_worker", "unserved", "old", "late"]


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence, `before` + `name` + `after`, and what there is to say beside it. It is about what is named."""

    kind: Kind
    level: Level
    before: str
    name: str
    after: str
    more: str = ""
    target: str = ""  # by which the page finds it: a queue, a key of failures, a worker's id, a schedule
    count: int = 0  # jobs
    is_capped: bool = False  # there are more
    is_about: bool = False  # counted a moment before
    since: datetime | None = None  # at the end of the sentence

    @property
    def text(self) -> str:
        end = "" if self.since is None else f" since {self.since:%H:%M} UTC"
        return f"{self.before}{self.name}{self.after}{end}."


def notices(
    backend: Backend,
    seen: Snapshot,
    around: Around,
    groups: Sequence[ErrorGroup],
    queues: Collection[str] | None = None,
) -> list[Notice]:
    """What needs attention, the worst first. `groups`: of the failures of the last hour. `queues`: of these alone,
    for those who may not see the others."""
    shown = [queue for queue in seen.queues if queues is None or queue["name"] in queues]
    found = [*_no_worker(seen, shown), *_unserved(seen, shown, queues)]
    if queues is None:
        found += _failures(groups, seen.at)
    found += _paused(backend, shown, seen.at)
    found += _old(seen, shown)
    if queues is None:
        found += [*_late(around), *_died(backend, around)]
    order = {"bad": 0, "warn": 1, "note": 2}
    return sorted(found, key=lambda notice: order[notice.level])


def _failures(groups: Sequence[ErrorGroup], now: datetime) -> Iterable[Notice]:
    many = sorted((each for each in groups if each.count >= ALIKE), key=lambda each: -each.count)
    for each in many[:_MOST]:
        is_new = now - each.first_at < timedelta(microseconds=SINCE_US)
        about = "" if each.counted_at is None else "About "
        jobs = f"{about}{each.count:,}{'+' if each.is_capped else ''} jobs of "
        end = " failed with the same error" + ("" if is_new else " within the last hour")
        yield Notice(
            "failures",
            "bad",
            jobs,
            each.task,
            end,
            each.pattern,
            each.key,
            each.count,
            each.is_capped,
            each.counted_at is not None,
            each.first_at if is_new else None,
        )


def _paused(backend: Backend, queues: Sequence[Mapping[str, Any]], now: datetime) -> Iterable[Notice]:
    paused = sorted((each for each in queues if each["paused_at"] is not None), key=lambda each: -each["queued"])
    for queue in paused[:_MOST]:
        name = queue["name"]
        jobs = queue["queued"]
        wait = f"; {counted(jobs, 'job')} {plural(jobs, 'waits', 'wait')} there" if jobs else ""
        length = span(max(0.0, (now - queue["paused_at"]).total_seconds()))
        yield Notice(
            "paused",
            "warn" if jobs else "note",
            "Queue ",
            name,
            f" has been paused for {length}{wait}",
            who_paused(backend, name),
            name,
            jobs,
        )


def who_paused(backend: Backend, queue: str) -> str:
    """Who paused a queue last, and why, as far as it is known: code that pauses one leaves no word."""
    actions = backend.actions.newest(limit=_MOST, kind="queue", target=queue)
    pause = next((each for each in actions if each.verb == "pause" and each.done), None)
    if pause is None:
        return ""
    return f"Paused by {pause.who}: “{pause.note}”" if pause.note else f"Paused by {pause.who}."


def _no_worker(seen: Snapshot, queues: Sequence[Mapping[str, Any]]) -> Iterable[Notice]:
    ready = [queue for queue in queues if queue["queued"] and queue["paused_at"] is None]
    jobs = sum(queue["queued"] for queue in ready)
    if jobs and not seen.workers:
        verb = plural(jobs, "waits", "wait")
        yield Notice(
            "no_worker",
            "bad",
            "",
            "No worker is alive",
            f", and {counted(jobs, 'job')} {verb}",
            "Start one: dray worker",
            count=jobs,
        )


def _unserved(
    seen: Snapshot, queues: Sequence[Mapping[str, Any]], visible: Collection[str] | None
) -> Iterable[Notice]:
    if not seen.workers or any(not worker["queues"] for worker in seen.workers):
        return
    served = {name for worker in seen.workers for name in worker["queues"]}
    left = [each for each in queues if each["queued"] and each["paused_at"] is None and each["name"] not in served]
    told = sorted(name for name in served if visible is None or name in visible)
    others = f"The live ones serve {listed(told)}. " if told else ""
    for queue in sorted(left, key=lambda each: -each["queued"])[:_MOST]:
        jobs, name = queue["queued"], queue["name"]
        verb = plural(jobs, "waits", "wait")
        yield Notice(
            "unserved",
            "bad",
            "No worker serves queue ",
            name,
            f"; {counted(jobs, 'job')} {verb} there",
            f"{others}Start one: dray worker -q {shlex.quote(name)}",
            name,
            jobs,
        )


def _old(seen: Snapshot, queues: Sequence[Mapping[str, Any]]) -> Iterable[Notice]:
    """Jobs that wait although a worker serves their queue: one sentence for all such queues."""
    if not seen.workers:
        return
    all_served = any(not worker["queues"] for worker in seen.workers)
    served = {name for worker in seen.workers for name in worker["queues"]}
    old = [
        each
        for each in queues
        if (each["oldest"] or 0) > _OLD and each["paused_at"] is None and (all_served or each["name"] in served)
    ]
    busy = sum(worker["running"] for worker in seen.workers)
    slots = sum(worker["concurrency"] for worker in seen.workers)
    why = (
        "All slots are in use: more workers would help."
        if busy >= slots
        else "Slots are free: the page of that job says what keeps it."
    )
    old.sort(key=lambda each: -each["oldest"])
    for queue in old[:1]:
        others = [each["name"] for each in old[1:]]
        also = f"; {listed(others)} {plural(len(others), 'waits', 'wait')} too" if others else ""
        yield Notice(
            "old",
            "warn",
            "The oldest job of queue ",
            queue["name"],
            f" has waited for {span(queue['oldest'])}{also}",
            why,
            queue["name"],
            queue["queued"],
        )


def _late(around: Around) -> Iterable[Notice]:
    for schedule in around.next_schedules[:_MOST]:
        late_us = around.now - (schedule.next_at or around.now)
        if late_us > _LATE_US:
            yield Notice(
                "late",
                "warn",
                "Schedule ",
                schedule.name,
                f" should have run {span(late_us / SECOND)} ago",
                "A worker fires schedules; see whether one is alive.",
                schedule.name,
            )


def _died(backend: Backend, around: Around) -> Iterable[Notice]:
    died = around.died[:_MOST]
    taken = backend.overview.taken_back([each.id for each in died]) if died else {}
    for worker in died:
        states = taken[worker.id]
        jobs = sum(states.values())
        ago = span(max(0.0, (around.now - (worker.stopped_at or around.now)) / SECOND))
        yield Notice(
            "died",
            "note",
            "Worker ",
            worker.name,
            f" (pid {worker.pid}) died {ago} ago",
            became_of(states),
            worker.id,
            jobs,
        )


def became_of(states: Mapping[str, int]) -> str:
    """What became of the jobs of a dead worker, by the states that they are in now."""
    jobs = sum(states.values())
    if not jobs:
        return "It held no job, or its jobs are gone."
    now = [f"{states[state]:,} {_NOW[state]}" for state in State if states.get(state)]
    taken = "Its job was taken back" if jobs == 1 else f"Its {jobs:,} jobs were taken back"
    return f"{taken}: {', '.join(now)}." if jobs > 1 else f"{taken}; it {_ONE[next(iter(states))]}."


_NOW = {
    State.WAITING: "waiting",
    State.SCHEDULED: "scheduled to run again",
    State.QUEUED: "queued again",
    State.RUNNING: "running again",
    State.COMPLETED: "completed since",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
_ONE = {
    "waiting": "waits",
    "scheduled": "is scheduled to run again",
    "queued": "is queued again",
    "running": "runs again",
    "completed": "has completed since",
    "failed": "failed",
    "cancelled": "was cancelled",
}
