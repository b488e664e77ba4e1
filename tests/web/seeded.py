"""A database as a shop has it on a bad morning, for the browser tests and for the pictures in the documentation.

Six queues, one of them paused with a note; failures in groups; workflows, schedules, logs and progress; two workers
that live in this process and one that died; what people did. `size` multiplies the jobs: 1 is what a test needs, 100
what a picture needs. A SQLite file: what is known of the last hours is written into its tables.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from dray import App, Context, Task
from dray.app_interface import core_of
from dray.clock import Ids, SystemClock
from dray.instants import HOUR, MINUTE, SECOND
from dray.model.action import By
from dray.model.rollup import Part, Tally
from dray.ops import acting
from dray.web import pages

PATIENCE = 30.0
_FAILURES = (
    (
        "webhook.deliver",
        "HTTPStatusError",
        "503 Service Unavailable for url https://hooks.example.com/v1/hooks/{n}",
        23.1,
    ),
    ("mail.send", "TimeoutError", "no answer from smtp{n} within 30 s", 0.5),
    ("push.notify", "DeviceGone", "token {n} is no longer registered", 0.2),
    ("sync.contacts", "JSONDecodeError", "Expecting value: line {n} column 1", 0.1),
)
_BACKLOG = (("webhooks", "webhook.deliver", 319), ("mail", "mail.send", 121), ("default", "push.notify", 89),
            ("billing", "billing.charge", 12), ("reports", "report.build", 1))  # fmt: skip
_QUEUE_OF = {"webhook": "webhooks", "mail": "mail", "report": "reports", "etl": "etl", "billing": "billing"}


@dataclass
class Seeded:
    app: App
    path: Path
    jobs: dict[str, str] = field(default_factory=dict[str, str])  # one of each state
    workflows: list[str] = field(default_factory=list[str])
    held: threading.Event = field(default_factory=threading.Event)  # set: bodies that wait go on
    tasks: dict[str, Task[..., Any]] = field(default_factory=dict[str, Task[..., Any]])
    errors: dict[str, type[Exception]] = field(default_factory=dict[str, type[Exception]])

    def paths(self) -> list[str]:
        """Every page of the dashboard; those about one thing for one or two things that are not alike."""
        ones = {
            "jobs": [self.jobs[state] for state in ("running", "failed")],
            "failures": [key for (key,) in self.sql("SELECT max(error_key) FROM dray_jobs WHERE state = 'failed'")],
            "queues": ["billing"],
            "workflows": self.workflows[1:],
            "schedules": ["nightly"],
            "tasks": ["etl.load"],
            "workers": [worker.id for worker in self.app.workers()][:1],
            "actions": [action for (action,) in self.sql("SELECT max(id) FROM dray_actions")],
        }
        return filled({noun: [one for one in found if one] for noun, found in ones.items()})

    def sql(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=30)) as connection:
            return connection.execute(statement, values).fetchall()


def filled(ones: dict[str, list[str]]) -> list[str]:
    """The paths of all pages. `{id}`, `{name}` … stand for these things, by the page's first word."""
    found = list[str]()
    for page in pages.PAGES:
        start, brace, rest = page.path.partition("{")
        if not brace:
            found.append(page.path)
            continue
        found += [f"{start}{one}{rest.partition('}')[2]}" for one in ones.get(page.path.split("/")[1], [])]
    return list(dict.fromkeys(found))


@contextmanager
def seeded(path: Path, size: int = 1) -> Generator[Seeded]:
    with App(f"sqlite:///{path}") as app:
        app.init()
        seed = Seeded(app, path)
        _define(seed)
        _run_what_ends(seed, size)
        with ExitStack() as stack:
            _hold_what_runs(seed, stack)
            _leave_what_waits(seed, size)
            _write_history(seed, size)
            yield seed


def _define(seed: Seeded) -> None:
    app = seed.app

    for _, error, _, _ in _FAILURES:
        seed.errors[error] = type(error, (Exception,), {})

    def fail(task: str, n: int) -> None:
        error, message = next((error, text) for name, error, text, _ in _FAILURES if name == task)
        raise seed.errors[error](message.format(n=n))

    def quick(name: str) -> None:
        @app.task(name=name, queue=_QUEUE_OF.get(name.partition(".")[0], "default"), max_attempts=1)
        def body(ctx: Context, n: int = 0, to: str = "ann@example.com", *, strict: bool = False) -> dict[str, Any]:
            ctx.log.info("%s for %s", name, to)
            if strict:
                ctx.log.error("giving up after attempt %d", ctx.attempt)
                fail(name, n)
            return {"n": n, "sent_to": to, "parts": [1, 2.5, None, True]}

        seed.tasks[name] = body

    for name in ("webhook.deliver", "mail.send", "push.notify", "sync.contacts", "billing.charge", "etl.extract"):
        quick(name)

    def slow(name: str, percent: float | None, message: str) -> None:
        @app.task(name=name, queue=_QUEUE_OF.get(name.partition(".")[0], "default"), timeout=3600)
        def body(ctx: Context, source: str = "", *, verify: bool = False) -> str:
            ctx.log.info("reading %s", source or "nothing")
            if verify:
                ctx.log.warning("column discount is empty in 12 rows")
                ctx.progress(percent, message)
                seed.held.wait()
            return f"read {source}"

        seed.tasks[name] = body

    slow("etl.load", 31, "row 1,240,000 of 4,000,000")
    slow("report.build", 64, "chart 16 of 25: revenue by region")
    slow("img.resize", 88, "273 of 310")


def _run_what_ends(seed: Seeded, size: int) -> None:
    app = seed.app
    for task, _, _, share in _FAILURES:
        seed.tasks[task].enqueue_many({"n": 1000 + n, "strict": True} for n in range(max(3, round(share * size))))
    seed.tasks["mail.send"].enqueue_many({"n": n, "to": f"customer-{n}@example.com"} for n in range(12 * size))
    _workflow(seed, "nightly-etl", strict=False)
    _workflow(seed, "import", strict=True)
    app.worker(name="app-0", concurrency=4).run_until_idle()
    seed.tasks["push.notify"].enqueue(1).cancel()


def _workflow(seed: Seeded, name: str, *, strict: bool = False, verify: bool = False) -> None:
    app = seed.app
    flow = app.workflow(name)
    extract = flow.add(seed.tasks["etl.extract"], 1, step="extract")
    parts = [
        flow.add(seed.tasks["sync.contacts"], n, strict=strict and n == 2, after=extract, step=f"part-{n}")
        for n in range(3)
    ]
    load = flow.add(seed.tasks["etl.load"], "orders.parquet", verify=verify, after=parts, step="load")
    flow.add(seed.tasks["report.build"], "orders", after=load, step="report")
    seed.workflows.append(flow.enqueue().id)


def _hold_what_runs(seed: Seeded, stack: ExitStack) -> None:
    """Two workers: one with all its slots taken, so that what waits keeps waiting."""
    app = seed.app
    held = [
        seed.tasks["report.build"].using(priority=9).enqueue(f"quarterly, team {n}", verify=True) for n in range(3)
    ]
    held += [seed.tasks["img.resize"].using(priority=9).enqueue("catalogue (310 files)", verify=True)]
    _workflow(seed, "hourly-etl", verify=True)
    held += [
        seed.tasks["etl.load"]
        .using(name="orders/2026-11-15.parquet", tags=["orders", "large"])
        .enqueue("orders", verify=True)
    ]
    stack.enter_context(app.worker(name="app-2", concurrency=4, queues=["etl"]))
    stack.enter_context(
        app.worker(name="app-1", concurrency=4, queues=["default", "reports", "webhooks", "mail", "billing"])
    )
    stack.callback(seed.held.set)  # before the workers stop, which waits for bodies
    ends = time.monotonic() + PATIENCE
    while seed.sql("SELECT count(*) FROM dray_jobs WHERE state = 'running' AND progress IS NOT NULL")[0][0] < len(
        held
    ):
        assert time.monotonic() < ends, "the bodies that stay have not begun"
        time.sleep(0.02)
    seed.jobs["running"] = held[-1].id


def _leave_what_waits(seed: Seeded, size: int) -> None:
    app, core, ann = seed.app, core_of(seed.app), By("ann", "web")
    for queue, task, jobs in _BACKLOG:
        seed.tasks[task].using(queue=queue).enqueue_many([()] * max(1, jobs * size // 10))
    seed.tasks["mail.send"].using(delay=timedelta(minutes=8), name="reminder").enqueue(1)
    app.schedule("nightly", "etl.load", cron="0 3 * * *", tz="Europe/Berlin", queue="etl")
    app.schedule("invoices", "billing.charge", cron="0 * * * *", tz="Europe/Berlin")
    app.schedule("digest", "mail.send", every=3600)
    acting.pause_queue(core, "billing", ann, "double charges, see #412")
    failed = seed.sql("SELECT id FROM dray_jobs WHERE state = 'failed' AND workflow_id IS NULL ORDER BY id LIMIT 2")
    acting.retry(core, [failed[0][0]], By("ben", "cli"))
    acting.run_schedule(core, "digest", ann)
    acting.pause_schedule(core, "invoices", ann)
    acting.cancel(core, [failed[1][0]], ann)  # refused: it has ended
    for state, (job,) in (
        (state, *seed.sql("SELECT id FROM dray_jobs WHERE state = ? ORDER BY id DESC LIMIT 1", state))
        for state in ("failed", "completed", "waiting", "queued", "scheduled", "cancelled")
    ):
        seed.jobs[state] = job


def _write_history(seed: Seeded, size: int) -> None:
    """Spreads what ended over the last hour, adds a worker that died and what was rolled up of the last day."""
    backend, dice = core_of(seed.app).backend, random.Random(1)
    now = backend.now()
    ended = seed.sql("SELECT id, task FROM dray_jobs WHERE finished_at IS NOT NULL")
    with closing(sqlite3.connect(seed.path, isolation_level=None, timeout=30)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for job, task in ended:
            back = dice.randrange(16 * MINUTE if task == "webhook.deliver" else HOUR)
            ran = dice.randrange(20_000, 3 * SECOND)
            started = now - back - ran
            created = started - dice.randrange(SECOND)
            connection.execute(
                "UPDATE dray_jobs SET finished_at = ?, started_at = ?, created_at = ?, run_at = ? WHERE id = ?",
                (now - back, started, created, created, job),
            )
        for task, seconds in (("etl.load", 848), ("report.build", 48), ("img.resize", 41)):
            since = now - seconds * SECOND
            instants = "started_at = ?, run_at = ?, created_at = ?"
            connection.execute(
                f"UPDATE dray_jobs SET {instants} WHERE state = 'running' AND task = ?",
                (since, since - 900_000, since - 900_000, task),
            )
        for queue, seconds in (("webhooks", 252), ("mail", 38), ("default", 11), ("billing", 7_560), ("reports", 2)):
            since = now - seconds * SECOND
            statement = "UPDATE dray_jobs SET run_at = ?, created_at = ? WHERE state = 'queued' AND queue = ?"
            connection.execute(statement, (since, since, queue))
        connection.execute(
            "UPDATE dray_queues SET paused_at = ? WHERE paused_at IS NOT NULL", (now - 7_560 * SECOND,)
        )
        columns = "id, name, host, pid, boot, queues, tasks, concurrency, state"
        times = "started_at, last_seen_at, lease_until, stopped_at"
        values = (Ids(SystemClock()).new(), "app-1", "shop-7", 3512, "boot", '["default"]', "[]", 16, "dead")
        connection.execute(
            f"INSERT INTO dray_workers ({columns}, {times}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, now - 9 * HOUR, now - 3 * MINUTE, 0, now - 3 * MINUTE),
        )
        connection.execute("COMMIT")
    first = now - now % MINUTE
    minutes = {first - ago * MINUTE: _minute(ago, size, dice) for ago in range(1, 91)}
    backend.rollups.write(minutes, [], first)


def _minute(ago: int, size: int, dice: random.Random) -> dict[Part, Tally]:
    """What ended in a minute: more and more webhooks fail in the last quarter of an hour."""
    found: dict[Part, Tally] = {}
    for queue, task, rate in (
        ("webhooks", "webhook.deliver", 9.0),
        ("mail", "mail.send", 8.0),
        ("default", "push.notify", 4.0),
        ("reports", "report.build", 0.4),
        ("etl", "etl.load", 0.1),
    ):
        jobs = round(size * rate * dice.uniform(0.9, 1.1) * (1.15 - abs(45 - ago) / 300)) + dice.randrange(2)
        failed = jobs * max(0, 16 - ago) // 50 if queue == "webhooks" else 0
        for outcome, count in (("completed", jobs - failed), ("failed", failed)):
            if count:
                slow = max(0, 12 - ago) // 2
                found[Part(queue, task, outcome)] = _tally(count, 8 + slow // 2, 15 if queue == "etl" else 9, dice)
    return found


def _tally(jobs: int, waited: int, ran: int, dice: random.Random) -> Tally:
    """Times in three classes: most in the first two."""
    tally = Tally(jobs)
    for counts, middle in ((tally.waited, waited), (tally.ran, ran)):
        for place, share in ((middle - 1, dice.randint(55, 75)), (middle, dice.randint(84, 94)), (middle + 1, 100)):
            counts[str(place)] = jobs * share // 100 - counts.total()
    return tally
