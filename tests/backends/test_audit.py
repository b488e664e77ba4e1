"""The audit: each rule is broken by plain SQL; exactly that rule is reported, with the rows that break it.

The tables' own CHECKs, foreign keys and unique indexes prevent many of these states. Such constraints are listed in
`drops` (or are foreign keys) and are removed first: the rules catch what could happen without them.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dray.address import SqliteAddress, parse_address
from dray.backends import Backend, open_backend
from dray.backends.statements import Catalogue, blocks
from dray.clock import Ids
from dray.instants import MINUTE, SECOND, to_datetime
from dray.model.action import NewAction
from dray.model.job import LogLine
from dray.model.limit import Source, bounds_of
from dray.model.rollup import floor
from dray.model.schedule import Schedule
from dray.model.workflow import Workflow
from dray.ops.audit import RULES, audit
from tests import verbs
from tests.backends.world import World
from tests.manual_clock import ManualClock

Made = dict[str, str]

# Building the data


def queued(world: World) -> Made:
    return {"id": world.enqueue()}


def two(world: World) -> Made:
    return {"id": world.enqueue(), "other": world.enqueue()}


def running(world: World) -> Made:
    job, worker = world.enqueue(), world.worker()
    world.claim_one(worker)
    return {"id": job, "worker": worker}


def completed(world: World) -> Made:
    job, worker = world.enqueue(), world.worker()
    world.complete(worker, world.claim_one(worker))
    return {"id": job, "worker": worker}


def failed(world: World) -> Made:
    job, worker = world.enqueue(max_attempts=1), world.worker()
    world.fail(worker, world.claim_one(worker))
    return {"id": job}


def tried(world: World) -> Made:
    job, worker = world.enqueue(), world.worker()
    world.fail(worker, world.claim_one(worker))
    return {"id": job, "worker": worker}


def cancelled(world: World) -> Made:
    job = world.enqueue()
    world.backend.jobs.cancel([job])
    return {"id": job}


def logged(world: World) -> Made:
    job, worker = world.enqueue(), world.worker()
    claim = world.claim_one(worker)
    line = LogLine(job, claim.claim, world.clock.steady(), "INFO", "shop", "hello")
    assert verbs.write_logs(world.backend, worker, [line]) == [True]
    return {"id": job}


def unique(world: World) -> Made:
    return {"id": world.enqueue(unique_key="report"), "other": world.enqueue()}


def unique_completed(world: World) -> Made:
    job, worker = world.enqueue(unique_key="report", unique_us=SECOND), world.worker()
    world.complete(worker, world.claim_one(worker))
    return {"id": job}


def unique_running(world: World) -> Made:
    job, worker = world.enqueue(unique_key="report", unique_scope="queued"), world.worker()
    world.claim_one(worker)
    return {"id": job}


def waiting(world: World) -> Made:
    parent = world.enqueue()
    return {"parent": parent, "id": world.enqueue(parents=(parent,))}


def waiting_on_a_running_one(world: World) -> Made:
    made = waiting(world)
    world.claim_one(world.worker())
    return made


def held(world: World) -> Made:
    worker, parent = world.worker(), world.enqueue(max_attempts=1)
    child = world.enqueue(parents=(parent,), on_parent_failure="hold")
    world.fail(worker, world.claim_one(worker))
    return {"parent": parent, "id": child}


def chain(world: World) -> Made:
    first = world.enqueue()
    second = world.enqueue(parents=(first,))
    return {"first": first, "second": second, "id": world.enqueue(parents=(second,))}


def steps(world: World) -> Made:
    workflow = Workflow(world.ids.new(), "etl", world.clock.now())
    new = [world.new(workflow_id=workflow.id, step=step) for step in ("load", "clean")]
    jobs = world.backend.jobs.enqueue(new, workflow=workflow)
    return {"id": jobs[0].id, "other": jobs[1].id, "workflow": workflow.id}


def scheduled(world: World) -> Made:
    now = world.clock.now()
    row: dict[str, Any] = {field.name: None for field in fields(Schedule)}
    row |= {"name": "nightly", "task": "task", "args": "{}", "every_us": 60 * SECOND, "tz": "UTC", "misfire": "last"}
    row |= {
        "misfire_limit": 1,
        "overlap": "allow",
        "next_at": now + 60 * SECOND,
        "created_at": now,
        "updated_at": now,
    }
    world.backend.schedules.upsert(Schedule(**row))
    return {"id": "nightly"}


def dutiful(world: World) -> Made:
    assert world.backend.leases.take("prune", world.worker()) == 1
    return {"id": "prune"}


def acted(world: World) -> Made:
    made = NewAction(world.ids.new(), "ann", "cli", "pause", "queue", "mail")
    world.backend.queues.pause("mail", action=made)
    return {"id": made.id}


def rolled_up(world: World) -> Made:
    completed(world)
    minute = floor(world.clock.now(), MINUTE)
    world.backend.rollups.write({minute: world.backend.rollups.ended(minute, minute + MINUTE).tallies}, [], 0)
    return {"id": f"minute {to_datetime(minute)}"}


def keyed(world: World) -> Made:
    return {"id": world.enqueue(key="acct")}


def keyed_running(world: World) -> Made:
    made = keyed(world)
    world.claim_one(world.worker())
    return made


def limited_running(world: World) -> Made:
    world.backend.limits.say("queue", "default", Source.DECLARED, bounds_of("queue", {"rate": "5/s"}))
    return running(world)


def limited(world: World, **bounds: Any) -> Made:
    """Two running jobs of one key; the first started before the limit was set, the second after."""
    worker = world.worker()
    for _ in range(2):
        world.enqueue(key="acct")
        world.claim_one(worker)
        if not world.backend.limits.all():
            world.clock.advance(SECOND)
            world.backend.limits.say("task", "task", Source.DECLARED, bounds_of("task", bounds))
            world.clock.advance(SECOND)
    (kind,) = bounds
    return {"id": f"{kind} of task task"}


def paced(world: World, **bounds: Any) -> Made:
    """Two starts of one key within a rate of 2/min, a while after it was set."""
    world.backend.limits.say("task", "task", Source.DECLARED, bounds_of("task", bounds))
    world.clock.advance(SECOND)
    worker = world.worker()
    for _ in range(2):
        world.enqueue(key="acct")
        world.claim_one(worker)
        world.clock.advance(30 * SECOND)
    (kind,) = bounds
    return {"id": f"{kind} of task task"}


def idle_worker(world: World) -> Made:
    return {"id": world.worker()}


# Breaking the rules


@dataclass(frozen=True)
class Break:
    rule: str
    make: Callable[[World], Made]
    sql: str
    drops: tuple[str, ...] = ()  # constraints (SQLite ignores them all) and indexes to remove first


JOB, FOR = "UPDATE dray_jobs SET", "WHERE id = '{id}'"
_MANY = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many})"

BREAKS = {
    "a state that nobody knows": Break("state", queued, f"{JOB} state = 'asleep' {FOR}", ("job_state",)),
    "no reason": Break("reason", failed, f"{JOB} reason = NULL {FOR}", ("job_reason",)),
    "a reason of another state": Break("reason", failed, f"{JOB} reason = 'user' {FOR}"),
    "a reason that nobody knows": Break("reason", cancelled, f"{JOB} reason = 'whim' {FOR}"),
    "a reason for nothing": Break("reason", completed, f"{JOB} reason = 'error' {FOR}", ("job_reason",)),
    "no end": Break("finished", completed, f"{JOB} finished_at = NULL {FOR}", ("job_finished",)),
    "an end before the end": Break("finished", queued, f"{JOB} finished_at = created_at {FOR}", ("job_finished",)),
    "nobody who runs it": Break("running", running, f"{JOB} worker_id = NULL {FOR}", ("job_running",)),
    "no start": Break("running", running, f"{JOB} started_at = NULL {FOR}", ("job_running",)),
    "a worker that is not there": Break("running", running, "DELETE FROM dray_workers"),
    "a worker that has ended": Break(
        "orphan", running, "UPDATE dray_workers SET state = 'dead', stopped_at = started_at"
    ),
    "a worker too early": Break("unstarted", two, f"{JOB} worker_id = '{{other}}' {FOR}", ("job_unstarted",)),
    "a start too early": Break("unstarted", queued, f"{JOB} started_at = created_at {FOR}"),
    "a request to stop that is over": Break("unstarted", tried, f"{JOB} cancel_requested_at = created_at {FOR}"),
    "too many attempts": Break("attempts", running, f"{JOB} attempt = 4, claim = 4 {FOR}"),
    "no attempt left": Break("attempts", queued, f"{JOB} attempt = 3, claim = 3 {FOR}"),
    "too many crashes": Break(
        "crashes",
        failed,
        f"{JOB} crashes = 4, attempt = 5, max_attempts = 5, claim = 5 {FOR}; UPDATE dray_attempts SET claim = 5",
    ),
    "no crash left": Break("crashes", queued, f"{JOB} crashes = 3, attempt = 3, max_attempts = 5, claim = 3 {FOR}"),
    "more crashes than attempts": Break("crashes", completed, f"{JOB} crashes = 2 {FOR}"),
    "fewer claims than attempts": Break("claim", completed, f"{JOB} claim = 0 {FOR}"),
    "run without an attempt": Break("claim", running, f"{JOB} attempt = 0 {FOR}"),
    "no record of a failure": Break("recorded", failed, "DELETE FROM dray_attempts"),
    "no arguments": Break("arguments", queued, f"{JOB} args = NULL {FOR}"),
    "queued too early": Break("due", queued, f"{JOB} run_at = {{later}} {FOR}"),
    "a key and no turn": Break("turn", keyed, f"{JOB} state = 'queued' {FOR}"),
    "a turn of no key": Break("turn", queued, f"{JOB} state = 'parked' {FOR}"),
    "counted before it runs": Break("counted", queued, f"{JOB} held = TRUE {FOR}"),
    "counted after it ran": Break("counted", completed, f"{JOB} held = TRUE {FOR}"),
    "a key that does not count": Break("counted", keyed_running, f"{JOB} held = FALSE {FOR}"),
    "a limit that does not count": Break("counted", limited_running, f"{JOB} held = FALSE {FOR}"),
    "more than a limit": Break("limit", partial(limited, limit=2), "UPDATE dray_limits SET most = 1"),
    "more than the limit of a key": Break("limit", partial(limited, key_limit=2), "UPDATE dray_limits SET most = 1"),
    "more starts than a rate allows": Break("rate", partial(paced, rate="2/min"), "UPDATE dray_limits SET most = 1"),
    "more starts of a key": Break("rate", partial(paced, key_rate="2/min"), "UPDATE dray_starts SET n = 2"),
    "ended before it started": Break("times", completed, f"{JOB} finished_at = {{earlier}} {FOR}"),
    "a parent that is not there": Break("edge", waiting, "DELETE FROM dray_jobs WHERE id = '{parent}'"),
    "a child that is not there": Break("edge", waiting, f"DELETE FROM dray_jobs {FOR}"),
    "waiting for too many": Break("waiting-on", waiting, f"{JOB} waiting_on = 2 {FOR}"),
    "waiting for nobody": Break("waiting-on", waiting, "DELETE FROM dray_edges"),
    "counting nobody": Break("waiting-on", waiting, f"{JOB} waiting_on = 0 {FOR}"),
    "queued and counting": Break("freed", queued, f"{JOB} waiting_on = 1 {FOR}"),
    "queued before its parent ended": Break("freed", waiting, f"{JOB} state = 'queued', waiting_on = 0 {FOR}"),
    "a parent that ended in silence": Break(
        "told",
        waiting_on_a_running_one,
        f"{JOB} state = 'completed', finished_at = started_at WHERE id = '{{parent}}'",
    ),
    "children of a live one told": Break("fan-out", queued, f"{JOB} fanout_pending = TRUE {FOR}"),
    "held for nothing": Break("held", held, f"{JOB} on_parent_failure = 'cancel' {FOR}"),
    "held by one that is live": Break(
        "held", waiting, f"UPDATE dray_edges SET satisfied = -1; {JOB} on_parent_failure = 'hold' {FOR}"
    ),
    "a circle": Break(
        "circle",
        chain,
        "INSERT INTO dray_edges (parent_id, child_id) VALUES ('{id}', '{second}'); "
        f"{JOB} waiting_on = 2 WHERE id = '{{second}}'",
    ),
    "no workflow": Break(
        "workflow",
        steps,
        f"DELETE FROM dray_workflows; {JOB} workflow_id = NULL, step = NULL WHERE id = '{{other}}'",
    ),
    "a step twice": Break("step", steps, f"{JOB} step = 'load' WHERE id = '{{other}}'", ("dray_jobs_step",)),
    "another's lock": Break("unique-lock", unique, f"{JOB} unique_lock = 'other' {FOR}"),
    "a lock without a key": Break("unique-lock", queued, f"{JOB} unique_lock = 'other' {FOR}"),
    "a lock that was to go with the end": Break(
        "unique-lock", unique_completed, f"{JOB} unique_lock = unique_key, unique_until = NULL {FOR}"
    ),
    "a lock that was over before the end": Break(
        "unique-lock", unique_completed, f"{JOB} unique_lock = unique_key, unique_until = finished_at {FOR}"
    ),
    "a lock that was to go with the start": Break(
        "unique-lock", unique_running, f"{JOB} unique_lock = unique_key {FOR}"
    ),
    "a lock twice": Break(
        "unique-holder",
        unique,
        f"{JOB} unique_key = 'report', unique_lock = 'report' WHERE id = '{{other}}'",
        ("dray_jobs_unique",),
    ),
    "a slot of nothing": Break("slot", queued, f"{JOB} slot = run_at {FOR}"),
    "a slot twice": Break(
        "slot-once", two, f"{JOB} schedule = 'nightly', slot = (SELECT max(run_at) FROM dray_jobs)"
    ),
    "a schedule without a slot": Break("schedule", scheduled, "UPDATE dray_schedules SET next_at = NULL"),
    "a schedule that fires a slot again": Break("schedule", scheduled, "UPDATE dray_schedules SET last_at = next_at"),
    "an attempt of nobody": Break("attempt", tried, "DELETE FROM dray_jobs"),
    "an attempt of the future": Break("attempt-claim", tried, "UPDATE dray_attempts SET claim = 2"),
    "an attempt that goes on": Break(
        "attempt-claim",
        tried,
        f"{JOB} state = 'running', worker_id = '{{worker}}', started_at = created_at {FOR}",
    ),
    "an attempt that was none": Break("attempt-claim", tried, "UPDATE dray_attempts SET attempt = 0"),
    "an attempt that ended before it started": Break(
        "attempt-times", tried, "UPDATE dray_attempts SET finished_at = {earlier}"
    ),
    "more attempts than are kept": Break(
        "attempts-kept",
        tried,
        f"{JOB} claim = 101 {FOR}; {_MANY.format(many=101)} "
        "INSERT INTO dray_attempts (job_id, claim, attempt, outcome) SELECT '{id}', i, 1, 'error' FROM n WHERE i > 1",
    ),
    "a line of nobody": Break("log", logged, "DELETE FROM dray_jobs"),
    "more lines than are kept": Break(
        "logs-kept",
        logged,
        f"{_MANY.format(many=1000)} INSERT INTO dray_logs (job_id, claim, at, level, logger, message) "
        "SELECT l.job_id, l.claim, l.at, l.level, l.logger, l.message FROM n CROSS JOIN dray_logs AS l",
    ),
    "a key of another kind": Break("error-key", failed, f"{JOB} error_key = 'ValueError' {FOR}"),
    "a key of one that completed": Break("error-key", completed, f"{JOB} error_key = '0123456789abcdef' {FOR}"),
    "a sum of more than its parts": Break(
        "rollup", rolled_up, "UPDATE dray_rollups SET jobs = 2 WHERE queue = '' AND task = ''"
    ),
    "a queue less than its parts": Break(
        "rollup", rolled_up, "DELETE FROM dray_rollups WHERE queue <> '' AND task = ''"
    ),
    "a worker in a state that nobody knows": Break("worker", idle_worker, "UPDATE dray_workers SET state = 'asleep'"),
    "a worker that ended without an end": Break(
        "worker", idle_worker, "UPDATE dray_workers SET state = 'dead'", ("worker_stopped",)
    ),
    "an action of nobody": Break("action", acted, "UPDATE dray_actions SET who = ''"),
    "an action that nobody knows": Break("action", acted, "UPDATE dray_actions SET verb = 'bless'"),
    "an action on what nobody knows": Break("action", acted, "UPDATE dray_actions SET kind = 'moon'"),
    "an action in a way that nobody knows": Break("action", acted, "UPDATE dray_actions SET via = 'owl'"),
    "an action that counts twice": Break("action-count", acted, "UPDATE dray_actions SET done = 2"),
    "an action that counts nothing": Break("action-count", acted, "UPDATE dray_actions SET done = 0"),
    "an action that counts down": Break(
        "action-count", acted, "UPDATE dray_actions SET refused = -1", ("action_counts",)
    ),
    "a term before the first": Break("duty", dutiful, "UPDATE dray_leases SET term = 0"),
}

# Payloads in their own table: SQLite only.
LARGE_BREAKS = {
    "arguments in two places": Break(
        "payload", queued, "INSERT INTO dray_payloads (job_id, args) VALUES ('{id}', '{{}}')"
    ),
    "a result of nothing": Break(
        "payload", queued, "INSERT INTO dray_payloads (job_id, result) VALUES ('{id}', '1')"
    ),
    "a result of nobody": Break(
        "payload", completed, "INSERT INTO dray_payloads (job_id, result) VALUES ('{id}', '1'); DELETE FROM dray_jobs"
    ),
}


def lawless(url: str, script: str, drops: tuple[str, ...]) -> None:
    """Runs statements without constraints."""
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        with closing(sqlite3.connect(address.path)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for index in drops:
                connection.execute(f"DROP INDEX IF EXISTS {index}")
            connection.executescript(script)
        return
    with psycopg.connect(address.conninfo, autocommit=True) as server:
        server.execute(f'SET search_path TO "{address.schema}"'.encode())
        server.execute("SET session_replication_role TO replica")  # no foreign keys
        for name in drops:
            table = {"worker": "dray_workers", "action": "dray_actions"}.get(name.partition("_")[0], "dray_jobs")
            drop = f"DROP INDEX {name}" if name.startswith("dray") else f"ALTER TABLE {table} DROP CONSTRAINT {name}"
            server.execute(drop.encode())
            # A schema with a changed meta table is not given to another test.
            server.execute("INSERT INTO dray_meta VALUES ('constraints', 'dropped') ON CONFLICT DO NOTHING")
        server.execute(script.encode())


def spelled(url: str, script: str, made: Made) -> str:
    if url.startswith("sqlite"):
        words = {"later": "updated_at + 864000000000", "earlier": "started_at - 1"}
    else:
        words = {"later": "updated_at + interval '10 days'", "earlier": "started_at - interval '1 second'"}
    return script.format(**made, **words)


def broken(backend: Backend) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(each.rule, each.count, each.ids) for each in audit(backend, patience=0).broken]


def broken_rates(backend: Backend) -> list[tuple[Any, ...]]:
    """That part of an audit alone, for tests that look at hundreds of moments: all of it takes ten times as long."""
    return backend.audit._read("audit_rates", limit=1)


@pytest.mark.parametrize("case", BREAKS)
def test_a_broken_rule_is_the_one_that_is_reported(world: World, url: str, case: str) -> None:
    break_and_see(world, url, BREAKS[case])


@pytest.mark.parametrize("case", LARGE_BREAKS)
def test_a_value_beside_its_row_that_should_not_be_there_is_reported(
    tmp_path: Path, clock: ManualClock, ids: Ids, case: str
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with closing(open_backend(url, clock=clock)) as backend:
        break_and_see(World(backend, clock, ids), url, LARGE_BREAKS[case])


def break_and_see(world: World, url: str, given: Break) -> None:
    made = given.make(world)
    assert broken(world.backend) == []

    lawless(url, spelled(url, given.sql, made), given.drops)

    assert broken(world.backend) == [(given.rule, 1, (made["id"],))]


def test_every_rule_has_a_sentence_and_a_way_to_break_it() -> None:
    assert {given.rule for given in (BREAKS | LARGE_BREAKS).values()} == set(RULES)
    for dialect in ("sqlite", "postgres"):
        texts = [Catalogue(dialect)[name].text for name in blocks(dialect) if name.startswith("audit_")]
        assert {rule for text in texts for rule in re.findall(r"SELECT '([a-z-]+)',", text)} <= set(RULES)


def test_all_that_breaks_a_rule_is_counted_and_the_first_of_it_named_however_it_is_read(
    world: World, url: str
) -> None:
    jobs = [world.enqueue() for _ in range(50)]
    odd = jobs[3:40]
    listed = ", ".join(f"'{job_id}'" for job_id in odd)
    lawless(url, f"UPDATE dray_jobs SET waiting_on = 1 WHERE id IN ({listed})", ())
    seen: list[int] = []

    for chunk in (1, 7, 50, 1000):
        found = audit(world.backend, chunk=chunk, progress=seen.append)
        assert [(each.rule, each.count, each.ids) for each in found.broken] == [("freed", 37, tuple(odd[:20]))]
        assert found.jobs == 50
        assert seen[-1] == 50
    assert seen[0] == 1


def test_a_repeated_thing_is_counted_once_each(world: World, url: str) -> None:
    jobs = [world.enqueue() for _ in range(90)]
    for number in range(30):
        three = ", ".join(f"'{job_id}'" for job_id in jobs[number::30])
        lawless(
            url,
            f"UPDATE dray_jobs SET schedule = 's{number}', slot = (SELECT min(run_at) FROM dray_jobs) "
            f"WHERE id IN ({three})",
            (),
        )

    assert broken(world.backend) == [("slot-once", 30, tuple(jobs[:20]))]


def test_a_job_whose_request_was_replaced_may_have_more_attempts_than_the_new_one_allows(world: World) -> None:
    worker = world.worker()
    world.enqueue(unique_key="report", max_attempts=5)
    for _ in range(3):
        world.fail(worker, world.claim_one(worker))
    world.enqueue(unique_key="report", max_attempts=1, max_crashes=1, on_conflict="replace")

    assert broken(world.backend) == []


def test_a_limit_that_was_lowered_is_not_broken_by_what_ran_before_nor_by_what_other_keys_start(
    world: World,
) -> None:
    worker = world.worker()
    for key in "aab":
        world.enqueue(key=key)
    assert len(world.claim(worker, 3)) == 3
    world.clock.advance(SECOND)

    world.backend.limits.say("task", "task", Source.DECLARED, bounds_of("task", {"key_limit": 1}))
    world.clock.advance(SECOND)
    world.enqueue(key="c")
    assert [claim.key for claim in world.claim(worker, 3)] == ["c"]

    assert broken(world.backend) == []


@pytest.mark.parametrize("kind", ["rate", "key_rate"])
def test_a_rate_that_was_lowered_is_not_broken_by_what_started_before_nor_by_the_next_start(
    world: World, kind: str
) -> None:
    worker = world.worker()
    for _ in range(9):
        world.enqueue(key="a")
    alarms: list[Any] = []
    for rate in ("3/s", "1/s", "2/s", "5/s"):
        world.backend.limits.say("task", "task", Source.DECLARED, bounds_of("task", {kind: rate}))
        for _ in range(130):
            world.claim(worker, 5)
            alarms += broken_rates(world.backend)
            world.clock.advance(SECOND // 100)
        alarms += broken(world.backend)

    assert alarms == []
    assert world.claim(worker, 5) == []  # 3, 1, 2 and the rest


def test_starts_that_lie_ahead_of_a_clock_that_was_set_back_do_not_break_a_rate(world: World) -> None:
    world.backend.limits.say("task", "task", Source.DECLARED, bounds_of("task", {"rate": "2/s"}))
    worker = world.worker()
    for _ in range(99):
        world.enqueue()
    alarms: list[Any] = []
    for step in range(400):
        world.claim(worker, 5)
        alarms += broken_rates(world.backend)
        world.clock.advance(SECOND // 100)
        if step in {60, 180}:
            alarms += broken(world.backend)
            world.clock.step(-SECOND if step == 60 else -3 * SECOND // 2)

    assert [*alarms, *broken(world.backend)] == []


def test_a_job_that_is_about_to_be_taken_back_is_given_time(world: World, url: str) -> None:
    made = running(world)
    lawless(url, "UPDATE dray_workers SET state = 'dead', stopped_at = started_at", ())
    looks: list[int] = []
    look = world.backend.audit.orphans

    def look_and_rescue() -> set[tuple[str, int]]:
        looks.append(1)
        if len(looks) == 2:
            world.backend.workers.rescue([], rng=world.rng)
        return look()

    world.backend.audit.orphans = look_and_rescue  # another rescuer, at a moment that the test chooses

    assert audit(world.backend, patience=60).holds
    assert len(looks) == 2
    assert world.job(made["id"]).crashes == 1


def test_an_audit_waits_for_nobody_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(open_backend(f"sqlite:///{path}", busy_timeout=0.5)) as backend:
        backend.migrate()
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")

            assert audit(backend).holds
