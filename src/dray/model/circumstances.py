"""What the tables say about one job at one moment: all that is needed to tell why it is where it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dray.model.job import Attempt, Job
from dray.model.limit import StoredRule
from dray.model.lost_parents import NOTHING_LOST, Lost
from dray.model.worker import Worker, WorkerState

AHEAD_LIMIT = 1_000  # jobs of one task that are counted before one in the queue
PARENTS_LIMIT = 10  # parents that are named
HOLDERS_LIMIT = 3  # running jobs that are named for a limit


@dataclass(frozen=True, slots=True)
class Closed:
    """A database in which nothing may change: its queue has moved, or is being moved into it. Holds no password."""

    sentence: str  # what a refused writer is told
    target: str | None  # where the queue is now; None: it is being moved into this database

    @staticmethod
    def of(known: Mapping[str, str]) -> Closed | None:
        """None: it is open."""
        sentence = known.get("closed")
        return None if sentence is None else Closed(sentence, json.loads(known.get("move", "{}")).get("target"))

    @property
    def text(self) -> str:
        if self.target is not None:
            return f"this queue has moved to {self.target}"
        return f"this database {self.sentence.partition(';')[0]}"

    @property
    def fix(self) -> str:
        if self.target is not None:
            return f"use that address: --url {self.target}"
        return "let `dray db move` end; if it was cut off, run it again"


@dataclass(frozen=True, slots=True)
class Parent:
    """A job that another one comes after."""

    id: str
    task: str
    step: str | None
    state: str
    reason: str | None
    satisfied: int  # of the edge: 0 it was not told of an end, -1 the parent ended otherwise


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as a job sees it."""

    worker: Worker
    running: int  # jobs that it has claimed
    is_proven: bool | None  # alive or dead by its proof of life; None: nothing is known of that
    left_us: int | None  # of its lease; None: it cannot be compared with a clock here

    @property
    def is_gone(self) -> bool:
        """Nothing comes of it any more; its jobs are taken back."""
        return self.is_proven is False or self.worker.state not in (WorkerState.ACTIVE, WorkerState.DRAINING)

    @property
    def is_silent(self) -> bool:
        """Its lease is over, and nothing proves that it lives."""
        return not self.is_gone and self.is_proven is None and (self.left_us is None or self.left_us < 0)

    @property
    def is_alive(self) -> bool:
        return not self.is_gone and not self.is_silent

    @property
    def is_full(self) -> bool:
        return self.running >= self.worker.concurrency

    def serves(self, queue: str) -> bool:
        """Whether it claims from a queue; one that ends claims nothing."""
        is_listed = not self.worker.queues or queue in self.worker.queues
        return self.is_alive and self.worker.state == WorkerState.ACTIVE and is_listed

    def knows(self, task: str) -> bool:
        return task in self.worker.tasks


@dataclass(frozen=True, slots=True)
class LimitHolder:
    """A running job that a limit counts."""

    id: str
    task: str
    worker: str | None  # its name
    started_at: int


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A rule that is in force for a job, and how much of it is used."""

    rule: StoredRule
    most: int
    used: int  # running, or started within the period
    holders: tuple[LimitHolder, ...] = ()  # of what runs, at most HOLDERS_LIMIT, those that have run longest
    opens_at: int | None = None  # of a rate: when the next may start; None: now


@dataclass(frozen=True, slots=True)
class Turn:
    """What comes before a job with a key, among those of its task in its queue; AHEAD_LIMIT: there may be more."""

    keys: int  # other keys with jobs of its priority
    of_key: int  # jobs of its own key and priority
    higher: int  # jobs of a higher priority


@dataclass(frozen=True, slots=True)
class Circumstances:
    """One job and what is around it, in one consistent read."""

    now: int
    job: Job
    paused_at: int | None  # its queue
    workers: tuple[WorkerView, ...]  # workers that are not known to have ended
    holder: WorkerView | None  # the worker that has it; None: no worker, or an unknown one
    parents: tuple[Parent, ...]  # whose edges are not fulfilled, at most PARENTS_LIMIT, those that ended first
    ahead: Mapping[str, int]  # task -> jobs without keys that come before it in its queue, at most AHEAD_LIMIT each
    ahead_keyed: Mapping[str, int]  # as many with keys and a higher priority; of its own task only if it has no key
    last: Attempt | None  # the newest that is recorded
    closed: Closed | None = None  # the database
    start: int = 1  # how often it was started, by its recorded attempts: one more after each retry
    lost: Lost = NOTHING_LOST  # what keeps it from being freed, or from starting over
    limits: tuple[LimitUse, ...] = ()  # of its task and its queue, while it has not started
    turn: Turn | None = None  # None: it has no key, or is not ready
