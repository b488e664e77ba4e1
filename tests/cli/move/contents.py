"""What is in a database before it is moved."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import dray
from dray.app_interface import core_of
from dray.clock import Ids, SystemClock
from dray.instants import MINUTE
from dray.model import settlement as model
from dray.model.action import By
from dray.model.job import Demand, LogLine, Outcome, Reason
from dray.model.limit import Bound, Kind, Source
from dray.model.new_job import NewJob
from dray.model.schedule import Schedule
from dray.model.worker import NewWorker
from dray.model.workflow import Workflow
from dray.ops import acting
from tests import verbs

LEASE_US = 15_000_000


def fill(url: str, jobs: int = 40) -> None:
    """Something of everything: each state, attempts, logs, a workflow, unique keys, schedules, a paused queue, limits
    and keys."""
    with dray.App(url, migrate=True) as app:
        app.queue("mail", priority=7)
        app.queue("default", rate=["10000/hour", "100000/day"], key_limit=1)
        core_of(app).backend.limits.say("queue", "default", Source.OVERRIDE, {Kind.LIMIT: (Bound(1_000),)})
        for key in ("acct:7", "acct:7", "ü"):
            app.enqueue("tasks.add", {"a": 8, "b": 8}, priority=-1, key=key)
        app.enqueue("tasks.add", {"a": 1, "b": 2}, queue="mail", unique="one", unique_for=3600, tags=["x", "y"])
        app.enqueue("tasks.call", {"number": "\\u0000" + "ü" * 3_000}, name="large", timeout=0.1)
        app.enqueue("tasks.add", {"a": 3, "b": 4}, delay=3600, expires_in=7200, priority=-5)
        for number in range(jobs):
            app.enqueue("tasks.add", {"a": number, "b": 1})
        _work(app, jobs // 2)
        first = app.enqueue("tasks.add", {"a": 5, "b": 5})
        second = app.enqueue("tasks.add", {"a": 6, "b": 6}, after=[first])
        app.enqueue("tasks.add", {"a": 7, "b": 7}, after=[first, second], on_parent_failure="run")
        app.cancel(app.enqueue("tasks.add", {"a": 0, "b": 0}).id)
        _workflow(app)
        app.enqueue("tasks.call", {"number": "paused"}, queue="held")
        acting.pause_queue(core_of(app), "held", By("ann", "web"), note="the printer burns")
        now = SystemClock().now()
        rules: tuple[tuple[Any, ...], ...] = (("nightly", "0 3 * * *", None), ("beat", None, 3_600_000_000))
        for name, cron, every_us in rules:
            args = '{"a":1,"b":2}'
            rule = (args, cron, every_us, "Europe/Berlin", "last", 10, "skip", 4, now + 10**9, now, now, now, None)
            core_of(app).backend.schedules.upsert(Schedule(name, "tasks.add", None, *rule))
        core_of(app).backend.schedules.pause("beat")


def _workflow(app: dray.App) -> None:
    ids = [core_of(app).new_id() for _ in range(4)]
    args = '{"a":1,"b":2}'
    jobs = [NewJob(id=ids[n], task="tasks.add", args=args, workflow_id=ids[3], step=f"step-{n}") for n in range(3)]
    last = replace(jobs[2], parents=(ids[0], ids[1]))
    core_of(app).backend.jobs.enqueue([*jobs[:2], last], workflow=Workflow(ids[3], "etl", 0))


def _work(app: dray.App, count: int) -> None:
    """A worker that completes some, fails one and fails another for a while."""
    backend, clock = core_of(app).backend, SystemClock()
    worker = Ids(clock).new()
    backend.workers.register(NewWorker(id=worker, name="w", host="here", pid=1, boot=clock.boot), LEASE_US)
    claims = verbs.claim(backend, worker, Demand(("default",), ("tasks.add",), count))
    assert len(claims) == count
    lines = [
        LogLine(claim.id, claim.claim, clock.steady(), "INFO", "shop", f"line {n} ü")
        for claim in claims
        for n in (1, 2)
    ]
    verbs.write_logs(backend, worker, lines)
    now = clock.steady()
    failed, later, *good = claims
    verbs.settle(
        backend,
        worker,
        [
            model.failed(failed, now, now, Reason.ERROR, "ValueError", "no\\u0000", "trace"),
            model.errored(later, now, now, Outcome.ERROR, 5_000_000, "ValueError", "not yet", "trace"),
            *(model.completed(claim, now, now, json.dumps({"n": "\0", "text": "y" * 1_500})) for claim in good),
        ],
    )
    minute = clock.now() // MINUTE * MINUTE
    backend.rollups.write({minute: backend.rollups.ended(minute - MINUTE, minute + MINUTE).tallies}, [], minute)
    backend.workers.deregister(worker)
