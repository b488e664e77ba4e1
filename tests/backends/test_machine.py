"""SQLite, PostgreSQL and a plain Python model take the same steps, in any order, and must stay the same.

Each rule calls one verb with the same arguments on all three, under one clock that the test controls, and compares
the results; after each step all rows of all tables are compared. Where the contract leaves an order open, results
are sorted; no other difference is allowed. `DRAY_SOAK_STEPS=100000` runs until that many steps changed a row.
"""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from inspect import isfunction
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast
from unittest.mock import patch

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dray.backends import Backend, open_backend, rows
from dray.backends.postgres.adapt import adapt
from dray.backends.store import jobs, work, workers
from dray.backends.store.graph import FanOut, GraphStore
from dray.backends.store.jobs import Filter
from dray.errors import DrayError
from dray.instants import DAY, HOUR, MINUTE, SECOND
from dray.model import settlement as model
from dray.model.job import LIVE, Attempt, Claim, Demand, Held, Job, LogLine, Outcome, Queue, Reason, State
from dray.model.new_job import NewJob
from dray.model.retention import Retention
from dray.model.schedule import Schedule
from dray.model.settlement import Settlement
from dray.model.worker import DeathVerdict, Lease, NewWorker, Worker
from dray.model.workflow import Workflow
from tests import verbs
from tests.backends.reference import Reference
from tests.manual_clock import ManualClock

STEPS = int(os.environ.get("DRAY_SOAK_STEPS", "2000"))  # that changed a row
CALLS = 20  # of every verb, at least
PATIENCE_S = max(300, STEPS / 10)  # it takes 30 s on a quiet machine
ATTEMPTS_KEPT, LOG_LINES, MANY = 2, 4, 3  # instead of 100, 1,000 and 50, so that a short run reaches them

QUEUES = ("mail", "bulk", "Default")
TASKS = ("send", "scan", "sync")
DUTIES = ("rescue", "prune")
SCHEDULES = ("nightly", "beat")
LEASE_US = 15 * SECOND
LARGE = "x" * 1500  # more than SQLite keeps in the job's row

# Options of a job, in parts that are combined. What is not a field of
# `NewJob` (`in`, `expires_in`, `is_large`) is computed when the job is built.
TIMES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {},
    {},
    {"delay_us": 5 * SECOND},
    {"delay_us": HOUR},
    {"in": -MINUTE},
    {"in": 20 * SECOND},
    {"expires_us": 10 * SECOND},
    {"delay_us": 20 * SECOND, "expires_us": 25 * SECOND},
    {"expires_in": MINUTE},
    {"in": -HOUR, "expires_in": -SECOND},
)
LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"max_attempts": 1},
    {"max_attempts": 2, "max_crashes": 1},
    {"max_crashes": 2, "timeout": 2.5},
    {"priority": 5},
    {"priority": -5, "max_attempts": 5},
)
LOOKS: tuple[dict[str, Any], ...] = (
    {},
    {"is_large": True},
    {"tags": ("x", "y"), "name": "one"},
    {"description": "words ü", "trace": "00-1-2-01", "tags": ("y",)},
)
UNIQUE: tuple[dict[str, Any], ...] = (
    *({} for _ in range(36)),
    *(
        {"unique_key": key, "unique_scope": scope, "unique_us": window, "on_conflict": on_conflict}
        for key in ("report", "bill")
        for scope in ("live", "queued")
        for window in (None, 15 * SECOND)
        for on_conflict in ("keep", "replace", "reschedule")
    ),
)


class Wish(NamedTuple):
    """A job to enqueue, before its parents and its time are known."""

    queue: str
    task: str
    options: dict[str, Any]
    outside: list[int]  # parents among existing jobs, newest first; 31 means a job that does not exist
    inside: list[int]  # parents in the same batch
    on_parent_failure: str


def options(*parts: Sequence[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def merge(chosen: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        return {name: value for part in chosen for name, value in part.items()}

    return st.tuples(*(st.sampled_from(part) for part in parts)).map(merge)


def rarely() -> st.SearchStrategy[bool]:
    return st.sampled_from((False, False, False, False, False, True))


some = st.integers(0, 31)  # an index into what exists, newest first
policies = st.sampled_from(("cancel", "run", "hold"))
queues = st.sampled_from(QUEUES)
limits = st.sampled_from((1, 2, 3, 1000))
single = st.builds(
    Wish,
    queues,
    st.sampled_from(TASKS),
    options(TIMES, LIMITS, LOOKS, UNIQUE),
    st.just([]),
    st.just([]),
    policies,
)
wishes = st.builds(
    Wish,
    queues,
    st.sampled_from(TASKS),
    options(TIMES, LIMITS, UNIQUE),
    st.lists(some, max_size=2),
    st.lists(st.integers(0, 3), max_size=2),
    policies,
)
demands = st.builds(
    Demand,
    st.sampled_from((QUEUES, QUEUES[::-1], QUEUES[:1], (*QUEUES[1:], "unused"), ())),
    st.sampled_from((TASKS, TASKS, TASKS[:1], TASKS[:2], ())),
    st.integers(0, 4),
    st.sampled_from((0, 0, 1, 3)),
)
EVERYTHING = Demand(QUEUES, TASKS, 2)
moments = st.tuples(st.sampled_from((0, 1, 2 * SECOND)), st.sampled_from((0, 3, SECOND)))  # body's end, its length

Ending = Callable[[Claim, int, int], Settlement]
ENDINGS: dict[str, Ending] = {
    "completed": lambda c, s, f: model.completed(c, s, f, '{"n": 1}'),
    "completed large": lambda c, s, f: model.completed(c, s, f, f'"{LARGE}"'),
    "completed, args dropped": lambda c, s, f: model.completed(c, s, f, keep_args=False),
    "failed": lambda c, s, f: model.failed(c, s, f, Reason.ARGUMENTS, "TypeError", "no such argument", "trace"),
    "error": lambda c, s, f: model.errored(c, s, f, Outcome.ERROR, 0, "ValueError", "no", "trace"),
    "error, later": lambda c, s, f: model.errored(c, s, f, Outcome.ERROR, 3 * SECOND, "ValueError", "no", None),
    "timeout": lambda c, s, f: model.errored(c, s, f, Outcome.TIMEOUT, 0, "Timeout", "2.5 s are over", None),
    "retry": lambda c, s, f: model.errored(c, s, f, Outcome.RETRY, 9 * SECOND, "Retry", "", None),
    "cancelled": lambda c, s, f: model.cancelled(c, s, f, "not needed"),
    "snoozed": lambda c, s, f: model.snoozed(c, s, f, 7 * SECOND),
    "snoozed for nothing": lambda c, s, f: model.snoozed(c, s, f, 0),
    "released": lambda c, _, f: model.released(c, f),
    "released as held": lambda c, _, f: model.released(Held(c.id, c.claim, cancel_requested=False), f),
    # The tables refuse a failure without a reason; the outcome written instead contains the database's own message.
    "refused": lambda c, s, f: model.failed(c, s, f, Reason.ERROR, "E", "m", None)._replace(reason=None),
}
endings = st.lists(st.tuples(some, st.sampled_from(tuple(ENDINGS)), moments), min_size=1, max_size=4)

RETENTIONS = (
    Retention(0, 0, 0),
    Retention(10 * SECOND, 10 * SECOND, HOUR),
    Retention(MINUTE, MINUTE, None),
    Retention(None, 0, 0),
    Retention(0, MINUTE, 0),
    Retention(),
)


@dataclass
class Raised:
    """A result that was an error: its type is compared, its text is each database's own."""

    kind: str
    words: str = field(compare=False)


@dataclass
class Chance:
    """Returns the same for every job, because the order of the jobs is open."""

    value: float

    def random(self) -> float:
        return self.value


@dataclass
class Sides:
    """The two databases, with the test's own connection to each, and the model."""

    clock: ManualClock
    sqlite: Backend
    sqlite_user: sqlite3.Connection
    postgres: Backend
    postgres_user: psycopg.Connection[Any]
    schema: str

    def empty(self) -> None:
        """Resets all tables and the clock."""
        tables = [f"dray_{name}" for name in (*_TABLES, "outcomes")]
        for table in reversed(tables):
            self.sqlite_user.execute(f"DELETE FROM {table}")
        self.sqlite_user.execute("COMMIT")
        names = ", ".join(f'"{self.schema}".{table}' for table in tables)
        self.postgres_user.execute(f"TRUNCATE {names}".encode())
        self.postgres_user.commit()
        for backend in (self.sqlite, self.postgres):
            backend.jobs._known_queues.clear()
        vars(self.clock).update(vars(ManualClock()))

    def on_sqlite(self) -> dict[str, Any]:
        user = self.sqlite_user
        return _stored(
            self.sqlite, lambda table, columns: user.execute(f"SELECT {columns} FROM dray_{table}").fetchall()
        )

    def on_postgres(self) -> dict[str, Any]:
        cursor = self.postgres_user.cursor(binary=True)

        def select(table: str, columns: str) -> list[tuple[Any, ...]]:
            return cursor.execute(f'SELECT {columns} FROM "{self.schema}".dray_{table}'.encode()).fetchall()

        stored = _stored(self.postgres, select)
        self.postgres_user.commit()
        return stored


_TABLES = ("jobs", "attempts", "edges", "workflows", "queues", "workers", "leases", "schedules", "logs")


@pytest.fixture
def sides(postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Generator[Sides]:
    for module in (jobs, work, workers):
        monkeypatch.setattr(module, "ATTEMPTS_KEPT", ATTEMPTS_KEPT)
    monkeypatch.setattr(work, "LOG_LINES", LOG_LINES)
    monkeypatch.setattr(rows, "MANY", MANY)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="dray-machine-", dir=memory) as folder:
        file = Path(folder) / "jobs.db"
        sqlite, postgres = open_backend(f"sqlite:///{file}", clock=clock), open_backend(postgres_url, clock=clock)
        sqlite.migrate()
        postgres.migrate()
        server, _, schema = postgres_url.rpartition("&schema=")
        with sqlite3.connect(file) as sqlite_user, psycopg.connect(server) as postgres_user:
            sqlite_user.execute("PRAGMA foreign_keys = ON")
            adapt(postgres_user)
            yield Sides(clock, sqlite, sqlite_user, postgres, postgres_user, schema)
        sqlite_user.close()
        sqlite.close()
        postgres.close()


def _nothing(_: object) -> FanOut:
    """Replaces the fan-out that a dead process does not reach."""
    return FanOut(0, left=False)


class Machine(RuleBasedStateMachine):
    """Calls every verb, with arguments that are right, stale, wrong or repeated."""

    sides: Sides  # set by the test that runs this
    calls: ClassVar[Counter[str]] = Counter()
    changed: ClassVar[int] = 0
    disagreements: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.sides.empty()
        self.clock = self.sides.clock
        self.reference = Reference(self.clock, attempts_kept=ATTEMPTS_KEPT, log_lines=LOG_LINES)
        self.before = self.reference.tables()
        self.numbers = self.turns = 0
        self.enqueues: list[tuple[list[NewJob], Workflow | None]] = []
        self.workers = [self.new_id()]  # the first is never registered
        self.claims: list[tuple[str, Claim]] = []
        self.verdicts: list[DeathVerdict] = []
        self.schedules: list[Schedule] = []
        self.terms: list[tuple[str, str, int]] = []

    # All three together

    def ask(self, verb: str, *given: Any, order: Callable[[Any], Any] | None = None, **named: Any) -> Any:
        """Returns the result of all three, which must be equal."""
        self.calls[verb] += 1
        answers = [
            _answer(side, verb, given, named, order)
            for side in (self.reference, self.sides.sqlite, self.sides.postgres)
        ]
        self.compare(verb, *answers)
        return answers[0]

    def compare(self, what: str, reference: Any, sqlite: Any, postgres: Any) -> None:
        differing = [
            f"{side}: {answer}\n{' ' * len(side)}not {expected}"
            for side, theirs in (("SQLite", sqlite), ("PostgreSQL", postgres))
            for answer, expected in _differences(theirs, reference)
        ]
        if differing:
            self.disagreements.append(f"{what}\n" + "\n".join(differing))
            raise AssertionError(self.disagreements[-1])

    @invariant()
    def all_tables_are_the_same(self) -> None:
        now = self.reference.tables()
        type(self).changed += now != self.before
        self.before = now
        sqlite, postgres = self.sides.on_sqlite(), self.sides.on_postgres()
        for name, table in now.items():
            expected = {key: _wordless(row) for key, row in table.items()}
            self.compare(name, expected, sqlite[name], postgres[name])

    @contextmanager
    def cut_off(self, dies: bool) -> Generator[None]:
        """All three end a job and, if they die, do not reach its fan-out."""
        self.reference.is_cut_off = dies
        with (
            patch.object(GraphStore, "_fan_out_turn", _nothing)
            if dies
            else patch.object(GraphStore, "_", 0, create=True)
        ):
            yield
        self.reference.is_cut_off = False

    # What the arguments mean

    def new_id(self) -> str:
        self.numbers += 1
        return f"01900000-0000-7000-8000-{self.numbers:012x}"

    def job_ids(self, chosen: Iterable[int]) -> list[str]:
        there = sorted(self.reference.jobs, reverse=True)
        return [there[n % len(there)] if there and n < 31 else self.new_id() for n in chosen]

    def worker(self, n: int) -> str:
        """Returns mostly a live worker; from 26 on any, including one that never existed."""
        live = [worker for worker in self.workers if self.reference.is_live(worker)]
        among = live if live and n < 26 else self.workers
        return among[-1 - n % len(among)]

    def running(self) -> set[tuple[str, int]]:
        jobs = self.reference.jobs.values()
        return {(job.id, job.claim) for job in jobs if job.state == State.RUNNING}

    def ended(self) -> list[str]:
        return sorted(job.id for job in self.reference.jobs.values() if job.state not in LIVE)

    def held(self, n: int, is_stale: bool) -> tuple[str, Claim] | None:
        """Returns a claim that is held, or any past claim."""
        running = self.running()
        among = [(worker, claim) for worker, claim in self.claims if is_stale or (claim.id, claim.claim) in running]
        return among[-1 - n % len(among)] if among else None

    def settlements(
        self, chosen: list[tuple[int, str, tuple[int, int]]], is_stale: bool
    ) -> tuple[str, list[Settlement]]:
        """Returns outcomes for some claims, and the worker that reports them: that of the first claim."""
        given: dict[str, Settlement] = {}  # one per job: the result names jobs, not claims
        worker = self.worker(0)
        for n, ending, (ago, lasted) in chosen:
            held = self.held(n, is_stale)
            if held is None:
                continue
            worker = held[0] if not given else worker
            finished = self.clock.steady() - ago
            given[held[1].id] = ENDINGS[ending](held[1], finished - lasted, finished)
        return worker, list(given.values())

    def build(self, wishes: Sequence[Wish], backwards: bool = False, **also: Any) -> list[NewJob]:
        ids = [self.new_id() for _ in wishes]
        ids = ids[::-1] if backwards else ids
        now = self.clock.now()
        made: list[NewJob] = []
        for job_id, wish in zip(ids, wishes, strict=True):
            options = dict(wish.options)
            if options.pop("is_large", False):
                options["args"] = f'"{LARGE}"'
            if "in" in options:
                options["run_at"] = now + options.pop("in")
            if "expires_in" in options:
                options["expires_at"] = now + options.pop("expires_in")
            inside = [ids[n] for n in wish.inside if n < len(ids)]
            parents = tuple(dict.fromkeys([*self.job_ids(wish.outside), *inside]))
            made.append(
                NewJob(
                    id=job_id,
                    task=wish.task,
                    queue=wish.queue,
                    parents=parents,
                    on_parent_failure=wish.on_parent_failure,
                    **{**options, **also},
                )
            )
        return made

    def enqueue(self, new: list[NewJob], workflow: Workflow | None = None) -> None:
        self.enqueues.append((new, workflow))
        self.ask("jobs.enqueue", new, workflow=workflow)

    # Enqueue

    @initialize(wishes=st.lists(single, min_size=3, max_size=5))
    def start(self, wishes: list[Wish]) -> None:
        self.register_worker(LEASE_US)
        self.enqueue(self.build(wishes))
        for _ in range(4):
            self.carry_on()

    @rule(wishes=st.lists(single, min_size=1, max_size=3), backwards=rarely())
    def enqueue_jobs(self, wishes: list[Wish], backwards: bool) -> None:
        self.enqueue(self.build(wishes, backwards))

    @rule(wishes=st.lists(wishes, min_size=1, max_size=4))
    def enqueue_children(self, wishes: list[Wish]) -> None:
        self.enqueue(self.build(wishes))

    @rule(
        wishes=st.lists(wishes, min_size=1, max_size=4), steps=st.lists(st.sampled_from("abcd"), max_size=4), n=some
    )
    def enqueue_workflow(self, wishes: list[Wish], steps: list[str], n: int) -> None:
        there = sorted(self.reference.workflows, reverse=True)
        workflow = Workflow(there[n] if n < len(there) else self.new_id(), "etl", 0)
        for wish in wishes:
            wish.options.pop("unique_key", None)
        new = self.build(wishes, workflow_id=workflow.id)
        new = [replace(job, step=step) for job, step in zip(new, [*steps, *[None] * 4], strict=False)]
        self.enqueue(new, workflow)

    @rule(wishes=st.lists(wishes, min_size=1, max_size=2), commits=st.booleans())
    def enqueue_in_the_users_transaction(self, wishes: list[Wish], commits: bool) -> None:
        self.calls["jobs.enqueue"] += 1
        new = self.build(wishes)
        sides, users = [self.sides.sqlite, self.sides.postgres], [self.sides.sqlite_user, self.sides.postgres_user]
        answers: list[Any] = []
        with self.reference.transaction(commits=commits):
            answers.append(_answer(self.reference, "jobs.enqueue", (new,), {"connection": "theirs"}, None))
        for side, user in zip(sides, users, strict=True):
            answers.append(_answer(side, "jobs.enqueue", (new,), {"connection": user}, None))
            user.commit() if commits else user.rollback()
        self.compare("jobs.enqueue", *answers)

    @rule(n=some)
    def enqueue_again(self, n: int) -> None:
        if not self.enqueues:
            return
        new, workflow = self.enqueues[-1 - n % len(self.enqueues)]
        self.ask("jobs.enqueue", new, workflow=workflow)

    # Work

    @rule()
    def carry_on(self) -> None:
        """The ordinary life of a queue between unusual steps: jobs end, in each way in turn, are claimed or come."""
        if len(self.running()) > 3:
            self.turns += 1
            self.settle([(self.turns, tuple(ENDINGS)[self.turns % len(ENDINGS)], (0, SECOND))], dies=False)
            return
        worker = self.worker(0)
        if not self.reference.is_live(worker):
            self.register_worker(LEASE_US)
        elif paused := [queue.name for queue in self.reference.queues_all() if queue.paused_at is not None]:
            self.ask("queues.resume", paused[0])
        elif self.reference.verbs_probe(EVERYTHING):
            self.take(worker, self.ask("verbs.claim", worker, EVERYTHING))
        else:
            policy = ("cancel", "run", "hold")[self.numbers % 3]
            parent, child = Wish("mail", "send", {}, [], [], "cancel"), Wish("bulk", "scan", {}, [], [0], policy)
            self.enqueue(self.build([parent, child]))

    @rule(n=some, demand=demands)
    def claim(self, n: int, demand: Demand) -> None:
        self.take(self.worker(n), self.ask("verbs.claim", self.worker(n), demand))

    @precondition(lambda self: self.reference.verbs_probe(EVERYTHING))
    @rule(n=st.integers(0, 1), limit=st.integers(1, 4))
    def claim_anything(self, n: int, limit: int) -> None:
        self.take(self.worker(n), self.ask("verbs.claim", self.worker(n), Demand(QUEUES, TASKS, limit)))

    def take(self, worker: str, claims: list[Claim]) -> None:
        self.claims += [(worker, claim) for claim in claims]

    @precondition(lambda self: self.running())
    @rule(chosen=endings, dies=rarely())
    def settle(self, chosen: list[tuple[int, str, tuple[int, int]]], dies: bool) -> None:
        worker, settlements = self.settlements(chosen, is_stale=False)
        with self.cut_off(dies):
            self.ask("verbs.settle", worker, settlements, order=_settled)

    @precondition(lambda self: self.claims)
    @rule(chosen=endings, is_stale=rarely())
    def leave(self, chosen: list[tuple[int, str, tuple[int, int]]], is_stale: bool) -> None:
        """The worker may still settle differently: the outcome it left counts only if the job is rescued."""
        worker, settlements = self.settlements(chosen, is_stale)
        self.ask("outcomes.leave", worker, [(each, ()) for each in settlements])

    @precondition(lambda self: self.claims)
    @rule(n=some, wishes=st.lists(wishes, max_size=3), step=st.sampled_from("abcd"), is_stale=rarely(), dies=rarely())
    def grow(self, n: int, wishes: list[Wish], step: str, is_stale: bool, dies: bool) -> None:
        """A step completes and adds others, sometimes after itself, sometimes the same ones again."""
        held = self.held(n, is_stale)
        if held is None:
            return
        worker, claim = held
        new = self.build(wishes, workflow_id=claim.workflow_id)
        first = {"step": step} if claim.workflow_id else {}
        new = [replace(job, **first, parents=(claim.id, *job.parents)) for job in new[:1]] + new[1:]
        finished = self.clock.steady()
        ended = model.completed(claim, finished - SECOND, finished, '"grown"')
        with self.cut_off(dies):
            self.ask("work.grow", worker, ended, new, order=_settled)
        if n % 3 == 0:
            self.ask("work.grow", worker, ended, new, order=_settled)

    @precondition(lambda self: self.claims)
    @rule(chosen=endings, n=some, is_other=rarely())
    def settle_what_was_lost(self, chosen: list[tuple[int, str, tuple[int, int]]], n: int, is_other: bool) -> None:
        worker, settlements = self.settlements(chosen, is_stale=True)
        self.ask("verbs.settle", self.worker(n) if is_other else worker, settlements, order=_settled)

    @rule(chosen=endings, demand=demands, is_stale=rarely(), durable=st.booleans(), dies=rarely())
    def exchange(
        self,
        chosen: list[tuple[int, str, tuple[int, int]]],
        demand: Demand,
        is_stale: bool,
        durable: bool,
        dies: bool,
    ) -> None:
        worker, settlements = self.settlements(chosen, is_stale)
        # Existing outcomes are judged after the exchange, which may have claimed the job again: not compared.
        settlements = [each for each in settlements if not self.reference.stands(worker, each)]
        with self.cut_off(dies):
            answer = self.ask("work.exchange", worker, settlements, demand, durable=durable, order=_exchanged)
        self.take(worker, answer[2])

    @precondition(lambda self: self.running())
    @rule(
        chosen=st.lists(st.tuples(some, rarely()), min_size=1, max_size=3),
        percent=st.sampled_from((None, 0.0, 12.5, 100.0)),
        n=some,
        is_other=rarely(),
    )
    def report_progress(self, chosen: list[tuple[int, bool]], percent: float | None, n: int, is_other: bool) -> None:
        held = [each for each in (self.held(*one) for one in chosen) if each is not None]
        worker = self.worker(n) if is_other or not held else held[0][0]
        reports = [(claim.id, claim.claim, percent, "so far") for _, claim in held]
        self.ask("verbs.progress", worker, reports)

    @precondition(lambda self: self.running())
    @rule(chosen=st.lists(st.tuples(some, rarely()), min_size=1, max_size=6), n=some, is_other=rarely())
    def write_logs(self, chosen: list[tuple[int, bool]], n: int, is_other: bool) -> None:
        held = [each for each in (self.held(*one) for one in chosen) if each is not None]
        worker = self.worker(n) if is_other or not held else held[0][0]
        at = self.clock.steady()
        lines = [
            LogLine(claim.id, claim.claim, at - place, "INFO", "body", f"line {place}")
            for place, (_, claim) in enumerate(held)
        ]
        self.ask("verbs.write_logs", worker, lines)

    # Operators

    @rule(chosen=st.lists(some, min_size=1, max_size=3), dies=rarely())
    def cancel(self, chosen: list[int], dies: bool) -> None:
        with self.cut_off(dies):
            self.ask("jobs.cancel", self.job_ids(chosen))

    @precondition(lambda self: self.running())
    @rule(n=some)
    def cancel_what_runs(self, n: int) -> None:
        held = self.held(n, is_stale=False)
        if held is not None:
            self.ask("jobs.cancel", [held[1].id])

    @rule(chosen=st.lists(some, min_size=1, max_size=4))
    def retry(self, chosen: list[int]) -> None:
        self.retry_all(self.job_ids(chosen))

    @precondition(lambda self: self.ended())
    @rule(chosen=st.lists(some, min_size=1, max_size=3))
    def retry_what_ended(self, chosen: list[int]) -> None:
        ended = self.ended()
        self.retry_all(ended[-1 - n % len(ended)] for n in chosen)

    @precondition(lambda self: -1 in self.reference.edges.values())
    @rule(n=some)
    def retry_a_lost_parent(self, n: int) -> None:
        lost = sorted(parent for (parent, _), satisfied in self.reference.edges.items() if satisfied == -1)
        self.retry_all([lost[-1 - n % len(lost)]])

    def retry_all(self, ids: Iterable[str]) -> None:
        # DEFECT has_args: SQLite retries a job whose arguments were dropped, if they or its result were large.
        dropped = {job.id for job in self.reference.jobs.values() if job.args is None}
        self.ask("jobs.retry", [job_id for job_id in ids if job_id not in dropped], order=sorted)

    @rule(chosen=st.lists(some, min_size=1, max_size=3))
    def delete(self, chosen: list[int]) -> None:
        self.ask("jobs.delete", self.job_ids(chosen), order=sorted)

    @rule(
        verb=st.sampled_from(("queues.upsert", "queues.pause", "queues.resume")),
        name=st.sampled_from(("unused", "unused", *QUEUES)),
        priority=st.sampled_from((0, 7, -7)),
    )
    def change_queue(self, verb: str, name: str, priority: int) -> None:
        self.ask(verb, name, *([priority] if verb == "queues.upsert" else []))

    # Duties

    @rule(us=st.sampled_from((1, SECOND, 3 * SECOND, 6 * SECOND, 16 * SECOND, 2 * HOUR)))
    def time_passes(self, us: int) -> None:
        self.clock.advance(us)

    @rule(us=st.sampled_from((-HOUR, -SECOND, SECOND, HOUR)))
    def the_clock_is_set(self, us: int) -> None:
        self.clock.step(us)

    @rule(limit=limits, dies=rarely())
    def promote_and_expire(self, limit: int, dies: bool) -> None:
        jobs = self.reference.jobs.values()
        due = [job.run_at for job in jobs if job.state == State.SCHEDULED]
        self.ask("jobs.promote", _fair(limit, due), order=sorted)
        over = [job.expires_at for job in jobs if job.state in LIVE and job.expires_at is not None]
        with self.cut_off(dies):
            self.ask("jobs.expire", _fair(limit, over), order=sorted)

    @precondition(lambda self: self.ended())
    @rule(retention=st.sampled_from(RETENTIONS))
    def prune(self, retention: Retention) -> None:
        self.clock.advance(1)
        self.ask("verbs.prune", retention)

    @rule(limit=limits)
    def fan_out(self, limit: int) -> None:
        self.ask("graph.fan_out", limit)
        self.ask("graph.reconcile")

    @precondition(lambda self: self.running())
    @rule(n=some, chance=st.sampled_from((0.0, 0.9)))
    def lose_a_worker(self, n: int, chance: float) -> None:
        """A worker's lease expires while the others renew theirs; it is declared dead and its jobs are rescued."""
        held = self.held(n, is_stale=False)
        lost = self.worker(n) if held is None else held[0]
        self.clock.advance(LEASE_US + 1)
        for worker in self.workers:
            if worker != lost and self.reference.is_live(worker):
                self.ask("workers.beat", worker, LEASE_US)
        self.judge()
        verdicts = [verdict for verdict in self.verdicts if verdict.worker_id == lost]
        self.ask("workers.rescue", verdicts, rng=Chance(chance), order=sorted)

    @rule(lease_us=st.sampled_from((LEASE_US, 5 * SECOND)))
    def register_worker(self, lease_us: int) -> None:
        self.workers.append(self.new_id())
        worker = NewWorker(
            id=self.workers[-1],
            name="w",
            host="here",
            pid=7,
            boot=self.clock.boot,
            queues=QUEUES,
            tasks=TASKS,
            concurrency=4,
        )
        self.ask("workers.register", worker, lease_us)

    @rule(n=some, lease_us=st.sampled_from((LEASE_US, 5 * SECOND)), state=st.sampled_from(("active", "draining")))
    def beat(self, n: int, lease_us: int, state: str) -> None:
        self.ask("workers.beat", self.worker(n), lease_us, state)

    @rule(n=some)
    def deregister_worker(self, n: int) -> None:
        self.ask("workers.deregister", self.worker(n))

    @precondition(lambda self: any(worker.stopped_at for worker in self.reference.workers.values()))
    @rule(ago_us=st.sampled_from((0, -SECOND, MINUTE)))
    def prune_workers(self, ago_us: int) -> None:
        self.ask("workers.prune", self.clock.now() - ago_us)

    def judge(self) -> None:
        self.verdicts += self.ask("verbs.overdue", order=sorted)

    @rule(
        chosen=st.lists(some, max_size=3),
        chance=st.sampled_from((0.0, 0.3, 0.9)),
        limit=limits,
        dies=rarely(),
    )
    def rescue(self, chosen: list[int], chance: float, limit: int, dies: bool) -> None:
        """Rescues with current or old verdicts. None has a lease that still holds: only SQLite has such verdicts."""
        self.judge()
        verdicts = list(dict.fromkeys(self.verdicts[-1 - n % len(self.verdicts)] for n in chosen if self.verdicts))
        with self.cut_off(dies):
            # Which jobs come first is undefined. Compared are their number, and the rows after all are rescued.
            self.ask("workers.rescue", verdicts, rng=Chance(chance), limit=limit, order=len)
            self.ask("workers.rescue", [], rng=Chance(chance), order=len)

    @rule(duty=st.sampled_from(DUTIES), n=some, resigns=st.booleans())
    def take_lease(self, duty: str, n: int, resigns: bool) -> None:
        """Takes a duty, and checks one that was taken before."""
        term = self.ask("leases.take", duty, self.worker(n))
        if term is not None:
            self.terms.append((duty, self.worker(n), term))
        held = self.terms[-1 - n % len(self.terms)]
        self.ask("verbs.is_held", *held)
        if resigns:
            self.ask("leases.resign", *held)

    # Schedules

    @rule(
        name=st.sampled_from(SCHEDULES),
        every_us=st.sampled_from((10 * SECOND, MINUTE)),
        overlap=st.sampled_from(("allow", "skip", "queue")),
        next_us=st.sampled_from((None, -SECOND, 0, 10 * SECOND)),
    )
    def set_schedule(self, name: str, every_us: int, overlap: str, next_us: int | None) -> None:
        now = self.clock.now()
        schedule = Schedule(
            name=name,
            task="sync",
            queue=None,
            args="{}",
            cron=None,
            every_us=every_us,
            tz="UTC",
            misfire="last",
            misfire_limit=10,
            overlap=overlap,
            priority=None,
            next_at=None if next_us is None else now + next_us,
            last_at=None,
            created_at=now,
            updated_at=now,
            paused_at=None,
        )
        self.ask("schedules.upsert", schedule)

    @rule(
        n=st.integers(0, 5),
        wishes=st.lists(single, max_size=2),
        next_us=st.sampled_from((None, 10 * SECOND)),
        is_last=st.booleans(),
    )
    def fire(self, n: int, wishes: list[Wish], next_us: int | None, is_last: bool) -> None:
        """Fires a schedule as it is, or as it was when it was read."""
        if not self.reference.schedules:
            self.set_schedule("beat", MINUTE, "queue", next_us=0)
        known = [*self.schedules, *self.reference.schedules_all()]
        schedule, now = known[-1 - n % len(known)], self.clock.now()
        new = self.build(wishes, schedule=schedule.name, slot=schedule.next_at)
        next_at, last_at = None if next_us is None else now + next_us, now if is_last else None
        self.ask("schedules.fire", schedule, next_at=next_at, last_at=last_at, new=new)
        self.schedules.append(self.ask("schedules.get", schedule.name) or schedule)

    @rule(n=st.integers(0, 5), every_us=st.sampled_from((10 * SECOND, HOUR)), next_us=st.sampled_from((None, SECOND)))
    def reschedule(self, n: int, every_us: int, next_us: int | None) -> None:
        """Changes a schedule as it is, or as it was before it fired."""
        known = [*self.schedules, *self.reference.schedules_all()]
        if known:
            stored = known[-1 - n % len(known)]
            next_at = None if next_us is None else self.clock.now() + next_us
            self.ask("schedules.change", stored, replace(stored, every_us=every_us, next_at=next_at))

    @rule(
        verb=st.sampled_from(("schedules.pause", "schedules.resume", "schedules.delete")),
        name=st.sampled_from((*SCHEDULES, "unknown")),
        next_us=st.sampled_from((None, 0, SECOND)),
    )
    def change_schedule(self, verb: str, name: str, next_us: int | None) -> None:
        next_at = None if next_us is None else self.clock.now() + next_us
        self.ask(verb, name, *([next_at] if verb == "schedules.resume" else []))

    # Reads

    @rule(chosen=st.lists(some, min_size=1, max_size=3))
    def look_at_jobs(self, chosen: list[int]) -> None:
        ids = self.job_ids(chosen)
        self.ask("verbs.probe", EVERYTHING)
        self.ask("jobs.get", ids, order=_wordless)
        self.ask("history.attempts", ids[0], order=_wordless)
        self.ask("graph.edges", ids[0])
        self.ask("history.log_lines", ids[0], order=lambda lines: [line for _, line in lines])

    @rule(window_us=st.sampled_from((0, MINUTE, DAY)), limit=limits)
    def look_around(self, window_us: int, limit: int) -> None:
        self.ask("history.stats", window_us, order=astuple)
        self.ask("verbs.next_due")
        self.ask("queues.all")
        self.ask("workers.all", limit)
        self.ask("leases.all")
        self.ask("schedules.all")
        self.ask("schedules.due", order=_by_name)
        self.ask("schedules.upcoming")

    @rule(
        named=st.sampled_from(
            (
                {},
                {"queue": "mail"},
                {"task": "scan", "states": frozenset({State.QUEUED, State.FAILED})},
                {"tag": "y"},
                {"reason": "user"},
                {"schedule": "beat"},
                {"states": frozenset[State]()},
            )
        ),
        n=some,
        limit=limits,
        since_us=st.sampled_from((None, 0, MINUTE)),
    )
    def look_for_jobs(self, named: dict[str, Any], n: int, limit: int, since_us: int | None) -> None:
        fit = Filter(**named, since=None if since_us is None else self.clock.now() - since_us)
        before = self.job_ids([n])[0] if n % 2 else None
        self.ask("jobs.newest", fit, limit=limit, before=before, order=_wordless)

    @rule(n=some, limit=limits)
    def look_at_workflows(self, n: int, limit: int) -> None:
        there = sorted(self.reference.workflows, reverse=True)
        chosen = there[n % len(there)] if there and n < 31 else self.new_id()
        self.ask("workflows.get", chosen)
        self.ask("workflows.jobs", chosen, frozenset({State.COMPLETED, State.QUEUED, State.WAITING}))
        self.ask("workflows.newest", limit=limit)
        self.ask("workflows.newest", before=chosen)
        self.ask("jobs.newest", Filter(workflow_id=chosen), order=_wordless)
        self.ask("workflows.tallies", [*there[:limit], chosen])
        self.ask("workflows.step", chosen, "abcd"[n % 4])
        self.ask("workflows.drawing", chosen)
        self.ask("workflows.moved_by", chosen, limit)


def _answer(
    side: Backend | Reference,
    verb: str,
    given: tuple[Any, ...],
    named: dict[str, Any],
    order: Callable[[Any], Any] | None,
) -> Any:
    try:
        answer = _verb(side, verb)(*given, **named)
    except DrayError as error:
        return Raised(type(error).__name__, str(error))
    return order(answer) if order is not None else answer


def _verb(side: Backend | Reference, verb: str) -> Callable[..., Any]:
    noun, _, name = verb.partition(".")
    if isinstance(side, Reference):
        return getattr(side, f"{noun}_{name}")
    return partial(getattr(verbs, name), side) if noun == "verbs" else attrgetter(verb)(side)


def _differences(theirs: Any, ours: Any) -> list[tuple[Any, Any]]:
    """Returns the differences, as small as possible: rows by key, columns by name."""
    if theirs == ours:
        return []
    if is_dataclass(theirs) and type(theirs) is type(ours):
        theirs, ours = vars_of(theirs), vars_of(ours)
        keys = [name for name in ours if theirs[name] != ours[name]]
        return [({name: theirs[name] for name in keys}, {name: ours[name] for name in keys})]
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted({*theirs, *ours}, key=str)
        return [((key, left), right) for key in keys for left, right in _differences(theirs.get(key), ours.get(key))]
    return [(theirs, ours)]


def vars_of(row: Any) -> dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in fields(row)}


def _settled(answer: Any) -> tuple[list[str], ...]:
    return tuple(sorted(ids) for ids in answer)


def _exchanged(answer: Any) -> tuple[Any, ...]:
    return _settled(answer.settled), sorted(answer.promoted), answer.claims


def _by_name(schedules: list[Schedule]) -> list[Schedule]:
    return sorted(schedules, key=lambda schedule: schedule.name)


def _wordless(row: Any) -> Any:
    """Removes the database's own message about a refused outcome: it is not compared."""
    if isinstance(row, list):
        return [_wordless(each) for each in cast("list[Any]", row)]
    if isinstance(row, Attempt) and row.error_type == "Unstorable":
        return replace(row, error_message="")
    if isinstance(row, Job) and (row.error or "").startswith("Unstorable"):
        return replace(row, error="Unstorable")
    return row


def _fair(limit: int, keys: Iterable[int]) -> int:
    """Returns a limit that does not fall between equal rows: their order is undefined."""
    ordered = sorted(keys)
    while limit < len(ordered) and ordered[limit - 1] == ordered[limit]:
        limit += 1
    return limit


def _stored(backend: Backend, select: Callable[[str, str], list[tuple[Any, ...]]]) -> dict[str, Any]:
    """Returns all tables in the form of the model."""

    def table(name: str, row: Any) -> list[Any]:
        return [row(*each) for each in select(name, ", ".join(column.name for column in fields(row)))]

    logs: dict[str, tuple[LogLine, ...]] = {}
    for line in table("logs ORDER BY seq", LogLine):
        logs[line.job_id] = (*logs.get(line.job_id, ()), line)
    worker_columns = ", ".join(column.name for column in fields(Worker))
    return {
        "jobs": {job.id: _wordless(job) for job in backend.jobs.newest(limit=10_000)},
        "attempts": {(each.job_id, each.claim): _wordless(each) for each in table("attempts", Attempt)},
        "edges": {(row[0], row[1]): row[2] for row in select("edges", "parent_id, child_id, satisfied")},
        "workflows": {workflow.id: workflow for workflow in table("workflows", Workflow)},
        "queues": {queue.name: queue for queue in table("queues", Queue)},
        "workers": {row[0]: rows.worker(row) for row in select("workers", worker_columns)},
        "leases": {lease.duty: lease for lease in table("leases", Lease)},
        "schedules": {schedule.name: schedule for schedule in table("schedules", Schedule)},
        "logs": logs,
    }


# Not about rows, or a variant of another verb: each has its own tests.
ASIDE = {
    *("transaction", "atransaction", "jobs.enqueue_async", "work.complete", "work.complete_async"),
    *(
        "work.look",
        "jobs.ended",
        "jobs.find",
        "jobs.upcoming",
        "work.completed_by",
        "leases.held",
    ),  # other ways to read the same rows
    *("why.circumstances", "history.prunable", "history.prune_steps", "verbs.prune_some", "workflows.find"),
    *("live.changes", "live.newest_times", "live.last_line", "live.panels", "live.numbers"),
    *("examine", "audit.part", "audit.whole", "audit.orphans"),
    *("workers.judge", "workers.gone"),
    *("stacks.ask", "stacks.read", "stacks.answer", "stacks.drop", "stacks.prune"),
    *("graph.fan_out_all", "outcomes.find", "outcomes.write"),  # parts of other verbs
}


def _verbs() -> Generator[str]:
    small = [verb for verb in vars(verbs).values() if isfunction(verb) and verb.__module__ == verbs.__name__]
    yield from (f"verbs.{verb.__name__}" for verb in small if not verb.__name__.startswith("_"))
    for name, value in vars(Backend).items():
        if name == "transfer":  # its verbs move whole tables
            continue
        if isinstance(value, cached_property):
            noun = type(value.func(SimpleNamespace(db=None)))
            yield from (f"{name}.{verb}" for verb in vars(noun) if not verb.startswith("_"))
        elif not name.startswith("_"):
            yield name


VERBS = sorted({*_verbs()} - ASIDE)


def test_both_databases_do_what_the_model_does(sides: Sides, capsys: pytest.CaptureFixture[str]) -> None:
    Machine.sides, Machine.calls, Machine.changed, Machine.disagreements = sides, Counter(), 0, []
    chosen, began, rounds = random.getrandbits(32), time.monotonic(), 0
    long = settings(
        max_examples=10,
        stateful_step_count=100,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )

    def is_enough() -> bool:
        return Machine.changed >= STEPS and all(Machine.calls[verb] >= CALLS for verb in VERBS)

    while not is_enough() and time.monotonic() - began < PATIENCE_S:
        try:
            run_state_machine_as_test(seed(chosen + rounds)(Machine), settings=long)
        except BaseException as error:
            # Hypothesis does not show failures that it cannot repeat, and these are the most valuable.
            error.add_note(
                f"seed {chosen + rounds}, at first: {next(iter(Machine.disagreements), 'no disagreement')}"
            )
            raise
        rounds += 1
    with capsys.disabled():
        took = time.monotonic() - began
        counted = ", ".join(f"{verb} {Machine.calls[verb]}" for verb in VERBS)
        print(f"\n{Machine.changed} steps changed a row ({rounds} rounds from seed {chosen}, {took:.0f} s)")
        print(f"calls: {counted}")
    assert is_enough()
