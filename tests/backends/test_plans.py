"""The index of every hot statement with 100,000 rows: what a plan reads must not grow with the table."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dray.backends import open_backend
from dray.backends.database import LAST_ID
from dray.backends.postgres.connect import Connector, OwnConnection
from dray.backends.statements import Catalogue
from dray.clock import Ids, SystemClock
from dray.instants import MINUTE
from dray.model.sought import ANYTHING

ROWS = 100_000
IDS = Ids(SystemClock())
WORKER = IDS.new()
SOME_IDS = json.dumps([IDS.new() for _ in range(100)])
SOME_INSTANTS = json.dumps([n * MINUTE for n in range(60)])
KEY = "0123456789abcdef"
LINE = {"queue": "default", "task": "t"}
KEY_RULES = {"task_key_limit": 1, "queue_key_limit": 1, "task_has_key_rate": True, "queue_has_key_rate": True}

CUTOFFS = {"completed": 1, "failed": 1, "cancelled": 1, "never": 0}
# What a search for everything asks for.
SOUGHT = {name: json.dumps(v) if isinstance(v, list) else v for name, v in ANYTHING.items()}
LIVE = {"waiting": 1, "scheduled": 1, "queued": 1, "running": 1}
BETWEEN_IDS = {**SOUGHT, "before": LAST_ID, "first": WORKER, "limit": 51}
BETWEEN_ENDS = {**SOUGHT, "before_at": 9, "first_at": 1, "before": LAST_ID, "limit": 51}
# statement -> (parameters, the index its plan must use)
HOT: dict[str, tuple[dict[str, Any], str]] = {
    "job_promote": ({"limit": 1000}, "dray_jobs_due"),
    "job_expire": ({"limit": 1000}, "dray_jobs_expiring"),
    "job_upcoming": ({}, "dray_jobs_expiring"),
    "rescue_look": ({}, "dray_jobs_running"),
    "fanout_freed": ({"ids": SOME_IDS}, "PRIMARY"),
    "rescue_pick": ({"limit": 1000}, "dray_jobs_running"),
    "worker_held": ({"id": WORKER}, "dray_jobs_running"),
    "prune_find": (
        {"state": "completed", "before": 1, "after": 0, "limit": 500, "most": 10_000},
        "dray_jobs_finished",
    ),
    "prune_reach": ({"state": "completed", "before": 1, "after": 0, "limit": 10_000}, "dray_jobs_finished"),
    "prune_kept_find": ({"states": '["completed"]', "limit": 500, "most": 10_000}, "dray_jobs_kept"),
    "prune_kept_steps": ({}, "dray_jobs_kept"),
    "prune_pick": ({"ids": SOME_IDS, **CUTOFFS}, "PRIMARY"),
    "prune_logs": ({"id": WORKER, "limit": 1000}, "dray_logs_job"),
    "prune_attempts": ({"id": WORKER, "limit": 1000}, "dray_attempts"),
    "prune_child_edges": ({"id": WORKER, "limit": 1000}, "PRIMARY"),
    "prune_parent_edges": ({"id": WORKER, "limit": 1000}, "dray_edges_child"),
    "workflow_ended": ({"ids": SOME_IDS, **CUTOFFS}, "dray_jobs_step"),
    "workflow_counts": ({"id": WORKER}, "dray_jobs_step"),
    "workflow_tallies": ({"ids": SOME_IDS}, "dray_jobs_step"),
    "list_run": ({"runs": SOME_IDS, "before": WORKER, "states": '["failed"]', "limit": 100}, "dray_jobs_step"),
    "list_runs_named": (
        {"workflow": "etl", "before": WORKER, "states": '["failed"]', "limit": 100},
        "dray_jobs_step",
    ),
    "retry_blocked": ({"ids": SOME_IDS}, "PRIMARY"),
    "parents_lost": ({"ids": SOME_IDS, "limit": 1000}, "PRIMARY"),
    "workflow_prune_find": ({"ids": SOME_IDS, "limit": 500, "most": 10_000}, "dray_jobs_step"),
    "workflow_prune_pick": (
        {"ids": SOME_IDS, **CUTOFFS},
        "dray_jobs_step",
    ),
    "attempt_trim": ({"ids": SOME_IDS, "keep": 100}, "PRIMARY"),
    "job_rows": ({"ids": SOME_IDS, "most": 10_000}, "PRIMARY"),
    "job_delete": ({"ids": SOME_IDS}, "PRIMARY"),
    "workflow_job_delete": ({"ids": SOME_IDS}, "PRIMARY"),
    "unique_find": ({"locks": json.dumps(["key 1", "key 2"])}, "dray_jobs_unique"),
    "unique_expire": ({"locks": json.dumps(["key 1", "key 2"])}, "dray_jobs_unique"),
    "job_find": ({"ids": SOME_IDS}, "PRIMARY"),
    "job_get": ({"ids": SOME_IDS}, "PRIMARY"),
    "job_cancel": ({"ids": SOME_IDS}, "PRIMARY"),
    "settle_found": ({"ids": SOME_IDS}, "PRIMARY"),
    "parent_states": ({"ids": SOME_IDS}, "PRIMARY"),
    "fanout_pick": ({"limit": 1000}, "dray_jobs_fanout"),
    "fanout_left": ({}, "dray_jobs_fanout"),
    "ready_ahead": (
        {"queue": "default", "priority": 1, "run_at": 5, "id": WORKER, "limit": 1000},
        "dray_jobs_ready",
    ),
    "ready_ahead_keyed": (
        {"queue": "default", "priority": 1, "but": "t", "limit": 1000},
        "dray_jobs_turns",
    ),
    "turns_ahead": (
        {"queue": "default", "task": "t", "priority": 1, "key": "k", "run_at": 5, "id": WORKER, "limit": 1000},
        "dray_jobs_turns",
    ),
    "limit_queues": ({"task": "t"}, "dray_jobs_turns"),
    "park_look": ({"limit": 1000}, "dray_jobs_unparked"),
    "park": ({"ids": SOME_IDS}, "PRIMARY"),
    "limit_running": ({"among": 1000}, "dray_jobs_running"),
    "worker_loads": ({}, "dray_jobs_running"),
    "schedule_busy": ({"name": "s", "states": '["queued"]'}, "dray_jobs_live_schedule"),
    "live_running": ({"limit": 1000}, "dray_jobs_running"),
    "live_ended": ({"state": "completed", "after": 1, "after_id": WORKER, "limit": 1000}, "dray_jobs_finished"),
    "live_ended_newest": ({"state": "failed", "since": 1, "limit": 1000}, "dray_jobs_finished"),
    "live_enqueued": ({"after_id": WORKER, "until_id": WORKER, "limit": 1000}, "PRIMARY"),
    "live_enqueued_newest": ({"after_id": WORKER, "until_id": WORKER, "limit": 1000}, "PRIMARY"),
    "live_put_back": ({"since": 1, "limit": 500}, "dray_jobs_due"),
    "live_jobs": ({"ids": SOME_IDS}, "PRIMARY"),
    "live_oldest_running": ({"among": 1000, "limit": 100}, "dray_jobs_running"),
    "live_hands": ({"among": 1000}, "dray_jobs_running"),
    "live_depths": ({"limit": 1000, "queues": 100}, "dray_jobs_ready"),
    "live_depths_named": ({"limit": 1000, "names": '["default"]'}, "dray_jobs_ready"),
    "live_kinds": ({"ids": SOME_IDS}, "PRIMARY"),
    "parents_of": ({"id": WORKER, "limit": 12}, "dray_edges_child"),
    "children_of": ({"id": WORKER, "limit": 12}, "PRIMARY"),
    "live_heads": ({"limit": 100}, "dray_jobs_ready"),
    "live_counts": ({"limit": 1000}, "dray_jobs_waiting"),
    "live_rate": ({"state": "completed", "since": 1, "limit": 1000}, "dray_jobs_finished"),
    "search_newest": ({}, "PRIMARY"),
    "search_enqueued": (BETWEEN_IDS, "PRIMARY"),
    "search_enqueued_end": ({"before": LAST_ID, "window": 20_000}, "PRIMARY"),
    "search_schedule": ({**BETWEEN_IDS, "of": "s"}, "dray_jobs_of_schedule"),
    "search_schedule_end": ({"before": LAST_ID, "window": 20_000, "of": "s"}, "dray_jobs_of_schedule"),
    "search_ended": ({**BETWEEN_ENDS, "of": "failed"}, "dray_jobs_finished"),
    "search_ended_end": ({"before_at": 9, "window": 20_000, "of": "failed"}, "dray_jobs_finished"),
    "search_key": ({**BETWEEN_ENDS, "of": "0011223344556677"}, "dray_jobs_error"),
    "search_key_end": ({"before_at": 9, "window": 20_000, "of": "0011223344556677"}, "dray_jobs_error"),
    "search_live": ({**SOUGHT, **LIVE}, "dray_jobs_waiting"),
    "search_live_count": ({**LIVE, "limit": 10_001}, "dray_jobs_waiting"),
    "search_runs": ({**SOUGHT, "ids": SOME_IDS}, "dray_jobs_step"),
    "search_runs_count": ({"ids": SOME_IDS, "limit": 10_001}, "dray_jobs_step"),
    "search_runs_named": ({"names": '["etl"]', "limit": 201}, "dray_workflows_name"),
    "search_ids": ({**SOUGHT, "ids": SOME_IDS}, "PRIMARY"),
    "search_args": ({"ids": SOME_IDS}, "PRIMARY"),
    "page_tallies": ({"ids": SOME_IDS, "most": 30_000}, "dray_jobs_step"),
    "page_steps": ({"id": WORKER, "most": 10_001}, "dray_jobs_step"),
    "page_edges": ({"id": WORKER, "most": 40_001}, "dray_edges_child"),
    "page_schedule_jobs": ({"name": "s", "limit": 20}, "dray_jobs_of_schedule"),
    "live_rate_enqueued": ({"after_id": WORKER, "limit": 1000}, "PRIMARY"),
    "pulse_jobs": ({"limit": 1000}, "dray_jobs_finished"),
    "pulse_ready": ({"limit": 1000}, "dray_jobs_ready"),
    "pulse_running": ({"limit": 1000}, "dray_jobs_running"),
    "overview_next_job": ({}, "dray_jobs_due"),
    "overview_any_job": ({}, "dray_jobs"),
    "overview_taken_back": ({"id": WORKER, "limit": 1000}, "dray_attempts_crashed"),
    "overview_taken_back_jobs": ({"id": WORKER, "limit": 100}, "dray_attempts_crashed"),
    "overview_runs_of_worker": ({"id": WORKER, "limit": 100}, "dray_jobs_running"),
    "overview_queue_newest": ({"queue": "default", "among": 5000, "limit": 20}, "PRIMARY"),
    "rollup_next": ({"since": 1, "until": 2}, "dray_jobs_finished"),
    "rollup_ended": ({"since": 1, "until": 2}, "dray_jobs_finished"),
    "rollup_newest": ({"state": "completed", "since": 1, "until": 2, "limit": 1000}, "dray_jobs_finished"),
    "rollup_count": ({"state": "completed", "since": 1, "until": 2, "limit": 1000}, "dray_jobs_finished"),
    "rollup_list": ({"span": "minute", "since": 1, "until": 2}, "ROLLUPS"),
    "rollup_one": ({"span": "minute", "ats": SOME_INSTANTS, "queue": "default", "task": ""}, "ROLLUPS"),
    "rollup_queues": ({"span": "minute", "ats": SOME_INSTANTS, "all": "", "limit": 1000}, "ROLLUPS"),
    "rollup_tasks": ({"span": "minute", "ats": SOME_INSTANTS, "all": "", "limit": 1000}, "ROLLUPS"),
    "rollup_oldest": ({"span": "minute"}, "ROLLUPS"),
    "rollup_prune": ({"span": "minute", "until": 2}, "ROLLUPS"),
    "failure_keys": ({"limit": 1000}, "dray_jobs_error"),
    "failure_newest_keys": ({"limit": 1000}, "dray_jobs_finished"),
    "failure_newest": ({"key": KEY}, "dray_jobs_error"),
    "failure_first": ({"key": KEY}, "dray_jobs_error"),
    "failure_counts": ({"key": KEY, "since": 1, "chart": 2, "step": 3, "limit": 1000}, "dray_jobs_error"),
    "failure_unkeyed": ({"since": 1, "until": 2, "limit": 500}, "dray_jobs_finished"),
    "failure_key_clear": ({"since": 1, "until": 2}, "dray_jobs_finished"),
    "line_tasks": ({"queue": "default", "begins": True}, "dray_jobs_turns"),
    "line_plain": ({**LINE, "limit": 100}, "dray_jobs_ready"),
    "turn_level": ({**LINE, "below": 5}, "dray_jobs_turns"),
    "turn_hop": (
        {**LINE, **KEY_RULES, "priority": 1, "after": "key 5", "until": None, "hops": 512, "limit": 100},
        "dray_jobs_turns",
    ),
    "turn_more": ({**LINE, "priority": 1, "key": "key 5", "limit": 100}, "dray_jobs_turns"),
    "key_rooms": ({**LINE, **KEY_RULES, "keys": '["key 5", "key 6"]'}, "dray_jobs_held"),
    "held_counts": ({}, "dray_jobs_held"),
    "starts_began": ({"ids": SOME_IDS}, "PRIMARY"),
}
SQLITE_HOT: dict[str, tuple[dict[str, Any], str]] = {
    **HOT,
    "ready_ids": ({"queue": "default", "task": "t", "limit": 100}, "INDEX dray_jobs_ready (queue=? AND task=?)"),
    "ready_pick": ({"queue": "default", "task": "t", "limit": 100}, "INDEX dray_jobs_ready (queue=? AND task=?)"),
    "ready_tasks": ({"queue": "default"}, "INDEX dray_jobs_ready (queue=? AND task>?)"),
    "job_look": (
        {"queues": '["default"]', "tasks": '["t", "u"]', "limit": 1, "all": True, "id": WORKER},
        "INDEX dray_jobs_ready (queue=? AND task>?)",
    ),
    "claim_few": (
        {"worker_id": WORKER, "queue": "default", "task": "t", "limit": 8},
        "INDEX dray_jobs_ready (queue=? AND task=?)",
    ),
    "job_claim": ({"worker_id": WORKER, "ids": SOME_IDS, "limit": 1}, "PRIMARY"),
    "job_claimed": ({"worker_id": WORKER, "ids": SOME_IDS}, "PRIMARY"),
    "tend_due": ({}, "dray_jobs_expiring"),
    "edges_open": ({}, "dray_edges_open"),
    "fanout_mark": ({"ids": SOME_IDS}, "PRIMARY"),
    "claim_allowed": ({"worker_id": WORKER, "queue": "default"}, "INDEX dray_jobs_turns (queue=?)"),
    "gate_claim": ({"worker_id": WORKER, "ids": SOME_IDS, "held": SOME_IDS, "limit": 100}, "PRIMARY"),
    "gate_claimed": ({"worker_id": WORKER, "ids": SOME_IDS}, "PRIMARY"),
    "job_complete": ({"worker_id": WORKER, "endings": "[]"}, "PRIMARY"),
    "job_replace": ({}, "PRIMARY"),
    "job_reschedule": ({}, "PRIMARY"),
    "job_settle": ({}, "PRIMARY"),
    "attempt_insert": ({}, "PRIMARY"),
    "progress_set": ({}, "PRIMARY"),
}
SETTLED = json.dumps([{"id": IDS.new(), "worker_id": WORKER, "claim": 1, "state": "completed", "final": True}] * 100)
POSTGRES_HOT: dict[str, tuple[dict[str, Any], str]] = {
    **HOT,
    "held_by": ({"scope": "task", "name": "t", "key": "k", "limit": 3}, "dray_jobs_held"),
    "job_claim": (
        {"worker_id": WORKER, "queues": '["default"]', "tasks": '["t", "u"]', "limit": 100, "total": 100},
        "dray_jobs_ready",
    ),
    "work_tend": ({"limit": 1000}, "dray_jobs_due"),
    "job_look": (
        {"queues": '["default"]', "tasks": '["t", "u"]', "limit": 1, "all": True, "id": WORKER},
        "dray_jobs_ready",
    ),
    "job_complete": ({"rows": SETTLED, "worker_id": WORKER}, "PRIMARY"),
    "job_settle": ({"rows": SETTLED}, "PRIMARY"),
    "work_begin": ({"durable": False, "space": 1, "keys": "[1]", "queues": '["default"]'}, "dray_jobs_turns"),
    "gated_queues": ({"worker_id": WORKER, "queues": '["default"]'}, "dray_jobs_turns"),
    "gate_swap": ({**LINE, "worker_id": WORKER, "limit": 8}, "dray_jobs_ready"),
    "limit_mark": ({"scope": "task", "name": "t"}, "dray_jobs_running"),
    "limit_unmarked": ({"scope": "queue", "name": "default"}, "dray_jobs_running"),
    "limit_mark_one": ({"id": WORKER}, "PRIMARY"),
    "line_free": ({**LINE, "limit": 100}, "dray_jobs_ready"),
    "turn_free": ({**LINE, "priority": 1, "keys": '["key 5", "key 6"]', "limit": 2}, "dray_jobs_turns"),
    "gate_claim": (
        {"worker_id": WORKER, "ids": SOME_IDS, "at_once": SOME_IDS, "held": SOME_IDS, "keys": "{}"},
        "PRIMARY",
    ),
}
STATES = ["queued", "scheduled", "running", "completed", "failed", "cancelled", "waiting"]


def rows() -> Generator[dict[str, Any]]:
    """All states in turn; every hundredth job is unique, every tenth expires, every other ready one has a key."""
    for n in range(ROWS):
        state = "parked" if n % (2 * len(STATES)) == 0 else STATES[n % len(STATES)]
        final = state in {"completed", "failed", "cancelled"}
        yield {
            "id": IDS.new(),
            "task": "tu"[n % 2],
            "queue": "default",
            "state": state,
            "reason": "user" if state in {"failed", "cancelled"} else None,
            "priority": n % 3,
            "run_at": n,
            "max_attempts": 3,
            "max_crashes": 3,
            "worker_id": IDS.new() if state == "running" else None,
            "expires_at": n if n % 10 == 0 else None,
            "unique_lock": f"key {n}" if n % 100 == 0 else None,
            "created_at": n,
            "updated_at": n,
            "started_at": n if state == "running" else None,
            "finished_at": n if final else None,
            "key": f"key {n % 10}" if state in {"parked", "running"} else None,
            "held": state == "running" and n % 1000 < 8,
            "error_key": f"{n % 700:016x}" if state == "failed" else None,
        }


COLUMNS = list(next(rows()))


@pytest.fixture(scope="module")
def sqlite_connection(tmp_path_factory: pytest.TempPathFactory) -> Generator[sqlite3.Connection]:
    path: Path = tmp_path_factory.mktemp("plans") / "jobs.db"
    backend = open_backend(f"sqlite:///{path}")
    backend.migrate()
    backend.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    marks = ", ".join(f":{column}" for column in COLUMNS)
    connection.executemany(f"INSERT INTO dray_jobs ({', '.join(COLUMNS)}) VALUES ({marks})", rows())
    connection.execute("COMMIT")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def analyzed_connection(sqlite_connection: sqlite3.Connection) -> Generator[sqlite3.Connection]:
    """The same with statistics; a copy, or the other would have them too."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        sqlite_connection.backup(connection)
        connection.execute("ANALYZE")
        yield connection


@pytest.fixture(scope="module")
def postgres_connection(postgres_server: str) -> Generator[psycopg.Connection]:
    url = f"{postgres_server}&schema=test_plans"
    backend = open_backend(url)
    backend.migrate()
    backend.close()
    instants = {"run_at", "expires_at", "created_at", "updated_at", "started_at", "finished_at"}
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("SET search_path TO test_plans")
        with connection.cursor().copy(f"COPY dray_jobs ({', '.join(COLUMNS)}) FROM STDIN".encode()) as copy:
            for row in rows():
                copy.write_row([_instant(v) if c in instants and v is not None else v for c, v in row.items()])
        connection.execute("ANALYZE dray_jobs")
        yield connection
        connection.execute("DROP SCHEMA test_plans CASCADE")


def _instant(seconds: int) -> str:
    return f"2026-01-01 00:{seconds // 60 % 60:02}:{seconds % 60:02}+00"


@pytest.mark.parametrize("name", SQLITE_HOT)
@pytest.mark.parametrize("analyzed", [False, True], ids=["as made", "analyzed"])
def test_sqlite_plan(
    name: str, analyzed: bool, sqlite_connection: sqlite3.Connection, analyzed_connection: sqlite3.Connection
) -> None:
    connection = analyzed_connection if analyzed else sqlite_connection
    params, index = SQLITE_HOT[name]
    statement = Catalogue("sqlite")[name]
    values = statement.bind({parameter: params.get(parameter) for parameter in statement.parameters})
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", values)]

    wanted = {"PRIMARY": "sqlite_autoindex_dray_jobs_1", "ROLLUPS": "dray_rollups USING PRIMARY KEY"}.get(
        index, index
    )
    assert any(wanted in step for step in plan), plan
    whole = [step for step in plan if step.startswith(("SCAN dray_jobs", "SCAN dray_edges")) and "INDEX" not in step]
    assert not whole, plan
    assert not [step for step in plan if step.startswith("SCAN j") and "INDEX" not in step], plan


@pytest.mark.parametrize("name", ["ready_ids", "ready_pick", "claim_few"])
def test_sqlite_reads_ready_jobs_in_order_without_sorting(name: str, sqlite_connection: sqlite3.Connection) -> None:
    statement = Catalogue("sqlite")[name]
    values = statement.bind({"worker_id": WORKER, "now": 0, "queue": "default", "task": "t", "limit": 10})
    plan = sqlite_connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", values).fetchall()
    assert not [row for row in plan if "TEMP B-TREE" in row[3]]


@pytest.mark.parametrize("name", POSTGRES_HOT)
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_postgres_plan(name: str, mode: str, postgres_connection: psycopg.Connection) -> None:
    params, index = POSTGRES_HOT[name]
    statement = Catalogue("postgres")[name]
    values = {p: params.get(p) for p in statement.parameters}
    postgres_connection.execute(f"SET plan_cache_mode TO {mode}".encode())
    cursor = postgres_connection.execute(f"EXPLAIN {statement.text}".encode(), values, prepare=True)
    plan = [str(row[0]) for row in cursor]

    wanted = {"PRIMARY": "dray_jobs_pkey", "ROLLUPS": "dray_rollups_pkey"}.get(index, index)
    assert any(wanted in step for step in plan), "\n".join(plan)
    assert not [step for step in plan if "Seq Scan on dray_jobs" in step], "\n".join(plan)


ONE_GROUP = {"key": f"{4:016x}", "since": 0, "chart": 2, "step": 3, "limit": 20}  # of 143 failures


def test_postgres_counts_no_more_failures_than_it_is_asked_for(postgres_connection: psycopg.Connection) -> None:
    statement = Catalogue("postgres")["failure_counts"]
    text = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement.text}".encode()
    (row,) = postgres_connection.execute(text, ONE_GROUP).fetchall()
    node = row[0][0]["Plan"]
    while "Plans" in node:
        (node,) = node["Plans"]

    assert (node["Index Name"], node["Actual Rows"]) == ("dray_jobs_error", 20), row


def test_sqlite_counts_failures_from_the_newest_on_without_sorting_them(
    sqlite_connection: sqlite3.Connection,
) -> None:
    statement = Catalogue("sqlite")["failure_counts"]
    plan = sqlite_connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", statement.bind(ONE_GROUP)).fetchall()

    assert any("USING COVERING INDEX dray_jobs_error" in row[3] for row in plan), plan
    assert not any("FOR ORDER BY" in row[3] for row in plan), plan


COUNTED = ("turn_hop", "key_rooms", "held_counts")


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("analyzed", [False, True], ids=["as made", "analyzed"])
def test_sqlite_counts_what_limits_hold_and_not_all_that_runs(
    name: str, analyzed: bool, sqlite_connection: sqlite3.Connection, analyzed_connection: sqlite3.Connection
) -> None:
    connection = analyzed_connection if analyzed else sqlite_connection
    statement = Catalogue("sqlite")[name]
    values = statement.bind({parameter: HOT[name][0].get(parameter) for parameter in statement.parameters})
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", values)]

    assert [step for step in plan if "dray_jobs_held" in step], plan
    assert not [step for step in plan if "dray_jobs_running" in step], plan


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("tables", ["postgres_connection", "empty_tables"])
def test_postgres_counts_what_limits_hold_and_not_all_that_runs(
    name: str, tables: str, request: pytest.FixtureRequest
) -> None:
    connection: psycopg.Connection[Any] = request.getfixturevalue(tables)
    statement = Catalogue("postgres")[name]
    values = {p: HOT[name][0].get(p) for p in statement.parameters}
    plan = [str(row[0]) for row in connection.execute(f"EXPLAIN {statement.text}".encode(), values, prepare=True)]

    assert [step for step in plan if "dray_jobs_held" in step], "\n".join(plan)
    assert not [step for step in plan if "dray_jobs_running" in step], "\n".join(plan)


@pytest.fixture(scope="module")
def empty_tables(postgres_server: str) -> Generator[OwnConnection]:
    """One of Dray's own connections, on empty tables without statistics."""
    backend = open_backend(f"{postgres_server}&schema=test_empty_plans")
    backend.migrate()
    backend.close()
    with Connector(postgres_server, "here", 30).connect() as connection:
        connection.execute("SET search_path TO test_empty_plans")
        yield connection
        connection.execute("DROP SCHEMA test_empty_plans CASCADE")


_READS_A_TABLE = re.compile(r"(Seq|Index|Index Only|Bitmap Heap) Scan .*\bon dray_(jobs|edges|logs|attempts)\b")
# Read one row.
_LOOKS_AT_ENDS = {
    *("search_newest", "job_upcoming", "fanout_mark", "fanout_left", "job_look", "failure_keys"),
    *("overview_any_job", "overview_next_job", "limit_queues"),
}
_READS_ALL_RUNNING = {
    "rescue_look",
    "rescue_pick",
    "worker_loads",
    "limit_running",
    "held_by",
    "limit_mark",
    "limit_unmarked",
}


@pytest.mark.parametrize(
    "name", sorted({*POSTGRES_HOT, "fanout_mark", "retry_lock_parents", "retry_own_edges", "progress_set"})
)
def test_a_plan_that_is_made_while_the_tables_are_empty_reads_no_more_when_they_are_large(
    name: str, empty_tables: OwnConnection
) -> None:
    if name.startswith(("live_", "pulse_", "search_live", "overview_queue_newest")) or name in _READS_ALL_RUNNING:
        return  # reads the ends of indexes, bounded by LIMIT, and not once per job
    params, _ = POSTGRES_HOT.get(name, ({}, ""))
    statement = Catalogue("postgres")[name]
    values = {p: params.get(p) for p in statement.parameters}
    plan = [str(row[0]) for row in empty_tables.execute(f"EXPLAIN {statement.text}".encode(), values, prepare=True)]

    assert not [step for step in plan if "Seq Scan on dray_jobs" in step], "\n".join(plan)
    reads = [n for n, step in enumerate(plan) if _READS_A_TABLE.search(step)]
    free = [plan[n] for n in reads if not re.search("(Index|Recheck) Cond", "".join(plan[n + 1 : n + 2]))]
    assert not free or name in _LOOKS_AT_ENDS, "\n".join(plan)
