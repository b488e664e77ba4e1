"""What a claim may take where there are limits and keys, over plain rows.

Whose turn it is among tasks that have jobs of the same priority is left to the databases, which must agree. All else
is said here: no job starts without room, none of a lower priority before one that could start, jobs without keys
start by their time, and the keys of a task in turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dray.model.job import Job, State
from dray.model.limit import Kind, StoredRule

Start = tuple[str, str, str, int, int]  # scope, name, key, period and end of a slice
_SLICES = 100


@dataclass
class Limits:
    """The rules that are in force, and what counts for them at one moment."""

    rules: Sequence[StoredRule]
    jobs: Iterable[Job]
    starts: Mapping[Start, int]
    now: int

    def over(self, job: Job) -> list[StoredRule]:
        """The rules of a job's task and queue."""
        scopes = {("task", job.task), ("queue", job.queue)}
        return [rule for rule in self.rules if (rule.scope, rule.name) in scopes]

    def of(self, job: Job) -> Iterator[tuple[StoredRule, str]]:
        """The rules that bound this job, each with the key it counts by; empty for all jobs of its scope."""
        for rule in self.over(job):
            if rule.kind in {Kind.LIMIT, Kind.RATE}:
                yield rule, ""
            elif job.key is not None:
                yield rule, job.key

    def counts(self, job: Job) -> bool:
        """Whether limits count this job while it runs."""
        return job.key is not None or bool(self.over(job))

    def has_room(self, job: Job) -> bool:
        return all(self.used(rule, key) < (rule.most or 0) for rule, key in self.of(job))

    def used(self, rule: StoredRule, key: str) -> int:
        if rule.period_us:
            return sum(
                n
                for (*what, at), n in self.starts.items()
                if what == [rule.scope, rule.name, key, rule.period_us] and abs(at - self.now) <= rule.period_us
                if at > self.now - rule.period_us
            )
        return sum(
            job.state == State.RUNNING
            and rule.name == (job.task if rule.scope == "task" else job.queue)
            and (not key or job.key == key)
            for job in self.jobs
        )

    def spent(self, job: Job) -> Iterator[Start]:
        """What the start of this job counts for."""
        for rule, key in self.of(job):
            if rule.period_us:
                span = max(1, rule.period_us // _SLICES)
                yield rule.scope, rule.name, key, rule.period_us, (self.now // span + 1) * span


def rank(job: Job) -> tuple[int, int, str]:
    return -job.priority, job.run_at, job.id


def complaint(job: Job, startable: Sequence[Job], laps: Counter[tuple[str, int, str]], last: str) -> str | None:
    """Why this job should not be the next of those in its queue that could start; None: it may be.

    `laps` counts the turns that keys had in this claim, by task, priority and key; `last` is the key of this task
    that had the last turn before it.
    """
    if job not in startable:
        return "has no room, or is not ready"
    if any(other.priority > job.priority for other in startable):
        return "starts before a higher priority"
    beside = [other for other in startable if other.priority == job.priority]
    if job.key is None:
        first = min((other for other in beside if other.key is None), key=rank)
        return None if job == first else f"starts before {first.id}"
    line = [(other.key, other) for other in beside if other.task == job.task and other.key is not None]
    _, first = min(
        line, key=lambda each: (laps[job.task, job.priority, each[0]], each[0] <= last, each[0], rank(each[1]))
    )
    return None if job == first else f"takes the turn of {first.key}, {first.id}"
