"""What the doctor and the audit read, without changing anything.

The doctor reads in whatever state the database is, and never for long. The audit looks at the tables for what should
never be, in parts, so that no look lasts long. Each part is one consistent read of a stretch of all jobs with
everything that belongs to them. What it looks for holds at every commit: work that goes on meanwhile cannot make it
look wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import cached_property
from typing import NamedTuple, TypeVar, get_args

from dray.backends import rows
from dray.backends.database import FIRST_ID, LAST_ID, Database, Row, Session
from dray.backends.store import Store
from dray.backends.store.gate import Gate
from dray.backends.store.limits import stored_rule
from dray.backends.store.liveness import Life, lives
from dray.backends.store.turns import Hops, Turns
from dray.instants import HOUR, to_datetime
from dray.model.action import Kind, Verb, Via
from dray.model.bounds import ATTEMPTS_KEPT, LOG_LINES, PRIORITY_MAX
from dray.model.job import Queue
from dray.model.rollup import ALL
from dray.model.schedule import Schedule
from dray.model.worker import Lease, Worker

T = TypeVar("T")

MOST = 10_000  # jobs that are counted
_PAIRS = 1_000  # queues and tasks that are told apart
_WORKERS = 1_000
_ACTION_WORDS = {"vias": [*get_args(Via)], "verbs": [*get_args(Verb)], "kinds": [*get_args(Kind)]}
_PATIENCE = 1.6  # seconds in which a notification has to arrive


class Seen(NamedTuple):
    worker: Worker
    life: Life


class Ready(NamedTuple):
    """Jobs of one task that are ready in one queue."""

    queue: str
    task: str
    jobs: int  # MOST: there may be more
    since: int


class Running(NamedTuple):
    id: str
    task: str
    worker_id: str
    started_at: int
    timeout: float


class Pages(NamedTuple):
    pages: int
    size: int
    unused: int
    vacuum: int  # 0: unused pages stay in the file


class ServerFacts(NamedTuple):
    now: int
    version_number: int
    version: str
    is_standby: bool
    fsync: str
    synchronous_commit: str
    full_page_writes: str
    autovacuum: str
    connections_max: int
    connections: int
    connections_ours: int
    ahead_us: int  # its clock, of this machine's


class Vacuum(NamedTuple):
    live: int
    dead: int
    last_at: int | None


class OldTransaction(NamedTuple):
    pid: int
    since: int
    state: str | None
    program: str | None


class Listening(NamedTuple):
    """What became of a notification that was sent to try it."""

    is_heard: bool
    is_direct: bool  # no pooler is in between


class Examination:
    """One database; each question may take `seconds`. Most checks ask for its properties, which are read once."""

    def __init__(self, db: Database, seconds: float) -> None:
        self._db = db
        self._seconds = seconds

    def _look(self, work: Callable[[Session], T]) -> T:
        return self._db.inspect(work, seconds=self._seconds)

    def _rows(self, name: str, **params: object) -> list[Row]:
        return self._look(lambda tx: tx.rows(name, **params))

    @property
    def clock_now(self) -> int:
        """This machine's time."""
        return self._db.clock.now()

    @cached_property
    def now(self) -> int:
        """The time that rows are written by."""
        return self._rows("schedule_upcoming")[0][1]

    def known(self) -> dict[str, str]:
        """The versions that the tables note; empty: there are no tables."""
        return self._look(lambda tx: tx.known())

    def pages(self) -> Pages:
        return Pages(*self._rows("doctor_pages")[0])

    def damage(self) -> list[str]:
        """What is wrong inside; on a server the indexes that it does not use."""
        return [row[0] for row in self._rows("doctor_integrity") if row[0] != "ok"]

    def server(self) -> ServerFacts | None:
        """None: a file has no server."""
        if self._db.upkeep is not None:
            return None
        before = self.clock_now
        now, *facts = self._rows("doctor_server")[0]
        return ServerFacts(now, *facts, ahead_us=now - (before + self.clock_now) // 2)

    def vacuum(self) -> Vacuum | None:
        return next((Vacuum(*row) for row in self._rows("doctor_vacuum")), None)

    def oldest_transaction(self) -> OldTransaction | None:
        return next((OldTransaction(*row) for row in self._rows("doctor_transaction")), None)

    def listening(self) -> Listening:
        """Sends itself a notification, as a worker's watch does, and waits for it."""
        with closing(self._db.watch(hears_work=False, hears_done=False)) as watch:
            deadline = time.monotonic() + _PATIENCE
            is_direct = False
            while not watch.is_pushed and time.monotonic() < deadline:
                watch.wait(0.05)
                is_direct = is_direct or watch.is_direct
            return Listening(watch.is_pushed, is_direct)

    @cached_property
    def workers(self) -> list[Seen]:
        """All that have not said good-bye and were not buried."""

        def look(tx: Session) -> tuple[list[Row], dict[str, Life]]:
            return tx.rows("worker_list", limit=_WORKERS), lives(self._db, tx)

        found, known = self._look(look)
        workers = (rows.worker(row) for row in found)
        return [Seen(worker, known[worker.id]) for worker in workers if worker.id in known]

    def has_orphans(self) -> bool:
        """Whether jobs are in the hands of workers that ended."""
        return bool(self._rows("rescue_look")[0][0])

    def leases(self) -> list[Lease]:
        return [Lease(*row) for row in self._rows("lease_list")]

    @cached_property
    def queues(self) -> list[Queue]:
        return [Queue(*row) for row in self._rows("queue_list")]

    def schedules(self) -> list[Schedule]:
        return [Schedule(*row) for row in self._rows("schedule_list")]

    @cached_property
    def ready(self) -> list[Ready]:
        return [Ready(*row) for row in self._rows("doctor_ready", most=MOST, pairs=_PAIRS)]

    @cached_property
    def loads(self) -> dict[str, int]:
        """How many jobs each worker has claimed."""
        return dict(self._rows("worker_loads"))

    def left_alone(self, queue: str, task: str, since: int) -> str | None:
        """A job with a key or under a limit that could start now, while nothing of its queue or task has started or
        ended, and no limit has changed, since an instant; None: there is none."""
        line = {"queue": queue, "task": task}

        def look(tx: Session) -> str | None:
            rules = [
                stored_rule(row)
                for row in (
                    *tx.rows("limit_of", scope="queue", name=queue),
                    *tx.rows("limit_of", scope="task", name=task),
                )
            ]
            is_gated = any(rule.in_force for rule in rules) or tx.rows("turn_level", **line, below=PRIORITY_MAX + 1)
            if not is_gated or any((rule.changed_at or 0) > since for rule in rules):
                return None
            if tx.rows("doctor_moved", **line, since=since, most=MOST)[0][0]:
                return None
            return Gate(tx, Turns(), Hops(), queue, [task]).first()

        return self._look(look)

    def due(self) -> list[Ready]:
        """The first job whose time has come and that is not queued yet, if there is one."""
        return [Ready(queue, task, 1, since) for queue, task, since in self._rows("doctor_due")]

    def running(self) -> list[Running]:
        """Those that have a timeout."""
        return [Running(*row) for row in self._rows("doctor_running", most=MOST)]

    def ended(self, since: int) -> tuple[int, int]:
        """How many jobs have completed and failed; MOST: there may be more."""
        completed, failed = self._rows("doctor_ended", since=since, most=MOST)[0]
        return completed, failed

    def unpruned(self, state: str, before: int) -> int:
        return self._rows("doctor_unpruned", state=state, before=before, most=MOST)[0][0]

    def newest(self) -> int | None:
        """When a row was last written, as far as it is known."""
        return max((at for at in self._rows("doctor_newest")[0] if at is not None), default=None)


_SLACK_US = HOUR  # that a clock may have been set back by
_EDGES, _REACH = 1_000, 100_000  # how far circles are looked for


class Odd(NamedTuple):
    """Something that does not hold: which rule, and of what."""

    rule: str
    id: str


class AuditPart(NamedTuple):
    """One stretch of all jobs."""

    until: str | None  # its last job; None: there are no more
    jobs: int
    found: list[Odd]


class Oddities(NamedTuple):
    """Things that do not hold: which rule, how many of them, and of what the first are."""

    rule: str
    times: int
    ids: list[str]


class AuditStore(Store):
    def part(self, after: str | None, limit: int) -> AuditPart:
        """What does not hold of the `limit` jobs after an id and of all that belongs to them, in one consistent read;
        go on after the `until` that it returns. Both are None for the ends."""
        first = after or FIRST_ID

        def work(tx: Session) -> AuditPart:
            until, jobs = tx.rows("audit_bound", after=first, limit=limit)[0]
            if jobs < limit:
                until = None
            given = {"after": first, "until": until or LAST_ID}
            rows = [
                *tx.rows("audit_jobs", slack_us=_SLACK_US, **given),
                *tx.rows("audit_payloads", **given),
                *tx.rows("audit_edges", **given),
                *tx.rows("audit_attempts", kept=ATTEMPTS_KEPT, **given),
                *tx.rows("audit_logs", kept=LOG_LINES, **given),
            ]
            return AuditPart(until, jobs, sorted({Odd(*row) for row in rows}))

        return self._db.read(work)

    def whole(self, limit: int) -> list[Oddities]:
        """What only all jobs together can show, and what belongs to none; at most `limit` ids of a kind."""

        def repeated(rule: str, statement: str) -> Oddities:
            found = self._read(statement, limit=limit)
            return Oddities(rule, found[0][1] if found else 0, [row[0] for row in found])

        def exceeded(rule: str, statement: str) -> Oddities:
            found = self._read(statement, limit=limit)
            ids = [f"{kind} of {scope} {name}" for scope, name, kind, _ in found]
            return Oddities(rule, found[0][3] if found else 0, ids)

        wrong = self._read("audit_rollups", all=ALL, limit=limit)
        return [
            *(Oddities("circle", 1, [row[0]]) for row in self._read("audit_circles", edges=_EDGES, reach=_REACH)),
            *(Oddities(rule, 1, [odd_id]) for rule, odd_id in self._read("audit_workers")),
            *(Oddities(rule, 1, [odd_id]) for rule, odd_id in self._read("audit_actions", **_ACTION_WORDS)),
            repeated("unique-holder", "audit_unique"),
            repeated("step", "audit_steps"),
            repeated("slot-once", "audit_slots"),
            exceeded("limit", "audit_limits"),
            exceeded("rate", "audit_rates"),
            Oddities("rollup", wrong[0][2] if wrong else 0, [f"{span} {to_datetime(at)}" for span, at, _ in wrong]),
        ]

    def orphans(self) -> set[tuple[str, int]]:
        """(id, claim) of running jobs whose worker has ended: they are about to be taken back."""
        return {(job_id, claim) for job_id, claim in self._read("audit_orphans")}
