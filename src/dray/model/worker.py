"""A worker: one process that claims and runs jobs; its proof of life, and the leases of duties."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dray.model.job import Held


class WorkerState(StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorker:
    """A worker about to register; its id is new at every boot and never used again."""

    id: str
    name: str
    host: str
    pid: int
    boot: str
    lock: str | None = None  # dev:ino of the lock file that proves it alive
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    concurrency: int = 1


@dataclass(frozen=True, slots=True)
class Worker:
    id: str
    name: str
    host: str
    pid: int
    boot: str
    lock: str | None
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    state: str
    started_at: int
    last_seen_at: int
    lease_until: int  # by the clock that leases use: steady time on SQLite, the server's on PostgreSQL
    stopped_at: int | None
    trouble: str | None = None  # what keeps it from working, as it said with its last beat


class Beat(NamedTuple):
    """The result of a beat. Not alive: this worker was declared dead and must come back under a new id."""

    alive: bool
    held: list[Held]


class Signs(NamedTuple):
    """What a live worker's row says about whether it lives."""

    id: str
    boot: str
    lock: str | None
    lease_until: int
    left_us: int  # of its lease; negative once it is over
    unseen_us: int  # since its row was last written to; negative: the clock was set back since

    @property
    def has_missed_beats(self) -> bool:
        """Two and more: a worker beats three times in a lease."""
        return 3 * self.unseen_us > 2 * (self.left_us + self.unseen_us)


class DeathVerdict(NamedTuple):
    """A judgement that a worker is dead, made when it had this lease: void if the worker has renewed it since."""

    worker_id: str
    lease_until: int


class Judgement(NamedTuple):
    """Workers that may be dead, by what is known. Leaves out those proven alive and those whose lease holds."""

    dead: list[DeathVerdict]  # proven, whatever their lease says
    overdue: list[DeathVerdict]  # their lease is over, and nothing proves them alive
    strangers: list[DeathVerdict]  # leases of another clock, which cannot be compared, and nothing proves anything
    left_us: int | None  # of the asker's own lease; None: it has none
    has_orphans: bool  # whether a job is held by a worker that is dead, stopped or unknown
    clock_at: int  # a reading of the clock that leases are given by: the server's where there is one


class Rescued(NamedTuple):
    """One job taken back from a worker that is gone, and what became of it."""

    id: str
    claim: int
    worker_id: str | None
    state: str
    queue: str
    had_ended: bool = False  # its body had ended: the worker left the outcome


@dataclass(frozen=True, slots=True)
class Lease:
    """Which worker has a duty (rescue, promote, prune …), so that not all of them do it.

    Holding it saves work; it is never needed for correctness. It has no clock: it is free as soon as its holder is
    dead. `term` goes up with every new holder, so a late holder can tell that it was replaced.
    """

    duty: str
    holder: str | None
    term: int
    taken_at: int
