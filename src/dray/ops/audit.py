"""Whether the tables hold what they promise: every rule in a sentence, and what breaks it.

It writes nothing and blocks no one. The rules hold at every commit, so a live database gives no false alarm; the one
thing that heals by itself, a job whose worker has just ended, is looked at again.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from dray import backends
from dray.errors import ConfigError, StorageDamaged, StorageError
from dray.model.schedule import Schedule

RULES: dict[str, str] = {
    # Jobs
    "state": "a job is in a state that this version knows",
    "reason": "a failed or cancelled job says why, in a word that goes with its state, and no other job does",
    "finished": "a job has an end if, and only if, it is completed, failed or cancelled",
    "running": "a running job has a worker that is known, and a start",
    "orphan": "a running job's worker has not ended; those of one that has are taken back within seconds",
    "unstarted": "a job that has not started has no worker, no start and no request to stop",
    "attempts": "a job has no more attempts behind it than it may have, and fewer if it is still to run",
    "crashes": "a job has no more crashes behind it than attempts, and none too many if it is to go on",
    "claim": "a job was claimed at least as often as it was attempted, and once if it runs, completed or failed",
    "recorded": "a failed job has a record of its last attempt",
    "error-key": "the key of an error has 16 digits, and no completed job has one; an earlier release may leave one",
    "arguments": "a job that is still to run has its arguments",
    "payload": "large arguments and results belong to a job, and stand in one place only",
    "due": "a queued job may run now: its time has come",
    "times": "no job ended before it started",
    "turn": "a queued job takes turns if, and only if, it has a key",
    "counted": "limits count a job if, and only if, it runs and has a key or a limit, unless it stands by",
    "limit": "no more jobs run at the same time than a limit allows, unless it was lowered since",
    "rate": "no more attempts have started within a period than a rate allows, unless it was lowered since",
    # One another
    "edge": "a job that runs after another is there, and so is the other",
    "waiting-on": "a waiting job waits for as many parents as it counts, and for one at least",
    "freed": "a job that does not wait has no parent left to wait for",
    "told": "a child of a job that has ended has been told, or is about to be",
    "fan-out": "only a job that has ended has children that are still to be told",
    "held": "only a job that is to be held waits for a parent that has failed or was cancelled",
    "circle": "no waiting job waits for itself",
    "workflow": "the workflow of a job is there",
    "step": "a workflow has each step once",
    # Uniqueness and schedules
    "unique-lock": "a unique lock is held under the job's own key, and no longer than it should be",
    "unique-holder": "a unique lock is held by one job",
    "slot": "a job of a slot is a job of a schedule",
    "slot-once": "a slot of a schedule has one job",
    "schedule": "a schedule waits for a slot after its last one, unless its rule has none",
    # What is kept
    "attempt": "a recorded attempt belongs to a job",
    "attempt-claim": "a recorded attempt is older than the one that its job shows",
    "attempt-times": "no recorded attempt ended before it started",
    "attempts-kept": "a job keeps its newest 100 attempts",
    "log": "a captured log line belongs to a job",
    "logs-kept": "a job keeps its newest 1,000 log lines",
    "rollup": "the sums of a minute or an hour are those of its queues and tasks",
    # People
    "action": "an action says who did what, in words that this version knows",
    "action-count": "an action on one job, queue or schedule was done once, or refused",
    # Workers
    "worker": "a worker is in a state that this version knows, and has an end if it is stopped or dead",
    "duty": "the terms of a duty count from 1",
}

CHUNK = 20_000  # jobs in one read
SHOWN = 20  # of what breaks a rule
PATIENCE = 10.0  # seconds that those whose worker has ended are given to be taken back
_GLANCE = 0.25


@dataclass(frozen=True, slots=True)
class Broken:
    rule: str
    says: str  # what should hold
    count: int  # how often it does not
    ids: tuple[str, ...]  # the first 20 that break it: jobs, or schedules, minutes, workers, duties and actions


@dataclass(frozen=True, slots=True)
class Audit:
    jobs: int  # that were looked at
    rules: int
    seconds: float
    broken: tuple[Broken, ...]

    @property
    def holds(self) -> bool:
        return not self.broken


@dataclass(frozen=True, slots=True)
class Check:
    """What an audit, and the database's own checks before it, found."""

    damage: tuple[str, ...]  # what is wrong with how the tables are stored
    audit: Audit | None  # None: not made, because of the damage

    @property
    def holds(self) -> bool:
        return not self.damage and self.audit is not None and self.audit.holds


def audit(
    backend: backends.Backend,
    *,
    patience: float = PATIENCE,
    chunk: int = CHUNK,
    progress: Callable[[int], None] = lambda _: None,
) -> Audit:
    """Looks at everything; `progress` is told how many jobs have been looked at."""
    began = time.monotonic()
    counts, first = Counter[str](), defaultdict[str, list[str]](list)  # by the rule that is broken

    def add(rule: str, ids: list[str], count: int) -> None:
        first[rule] += ids[: SHOWN - len(first[rule])]
        counts[rule] += count

    jobs, after, is_over = 0, None, False
    while not is_over:
        part = backend.audit.part(after, chunk)
        for rule, odd_id in part.found:
            add(rule, [odd_id], 1)
        jobs += part.jobs
        progress(jobs)
        after, is_over = part.until, part.until is None
    for rule, count, ids in backend.audit.whole(SHOWN):
        add(rule, ids, count)
    now = backend.now()
    stray = [schedule.name for schedule in backend.schedules.all() if _is_stray(schedule, now)]
    add("schedule", stray, len(stray))
    orphans = _orphans(backend, patience)
    add("orphan", orphans, len(orphans))
    broken = [Broken(rule, RULES[rule], counts[rule], tuple(first[rule])) for rule in RULES if counts[rule]]
    return Audit(jobs, len(RULES), time.monotonic() - began, tuple(broken))


def check(backend: backends.Backend, *, full: bool, patience: float, progress: Callable[[int], None]) -> Check:
    """Has the database check itself, then what it holds. Full: everything is read."""
    damage: list[str] = []
    try:
        damage += backend.verify(full=full)
        return Check(tuple(damage), audit(backend, patience=patience, progress=progress))
    except StorageError as error:
        if type(error) not in {StorageError, StorageDamaged}:  # out of reach, full: nothing is known of what is in it
            raise
        return Check((*damage, str(error)), None)


def _orphans(backend: backends.Backend, patience: float) -> list[str]:
    """Running jobs whose worker has ended, and that no worker takes back for a while."""
    deadline, left = time.monotonic() + patience, backend.audit.orphans()
    while left and time.monotonic() < deadline:
        time.sleep(_GLANCE)
        left &= backend.audit.orphans()
    return sorted(job_id for job_id, _ in left)


def _is_stray(schedule: Schedule, now: int) -> bool:
    if schedule.next_at is not None:
        return schedule.last_at is not None and schedule.next_at <= schedule.last_at
    if schedule.paused_at is not None:
        return False
    try:
        return schedule.rule.next_after(max(now, schedule.last_at or 0), schedule.created_at) is not None
    except ConfigError:
        return False  # a zone that is not known on this machine: those who fire it know better
