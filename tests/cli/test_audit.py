"""``dray audit``: what it says, and that it says nothing of a database where all is well."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from dray.app_interface import core_of
from dray.ops.audit import RULES, audit
from tests.backends.processes import raw_sql
from tests.cli.shell import Shell, plain
from tests.processes.harness import Fleet

BREAK = "UPDATE dray_jobs SET waiting_on = 1 WHERE id = '{id}'"
SAYS = RULES["freed"]


def broken(shell: Shell, count: int = 1) -> list[str]:
    ids = [shell("enqueue", "tasks.add", "a=1", "b=2").value for _ in range(count)]
    for job_id in ids:
        raw_sql(shell.url, BREAK.format(id=job_id))
    return ids


def test_where_all_holds_it_says_nothing_in_a_pipe_and_ends_well(shell: Shell) -> None:
    shell("enqueue", "tasks.add", "a=1", "b=2")
    shell("worker", "--burst")

    done = shell("audit")

    assert (done.out, done.err) == ("", "")
    found = shell("audit", "--json").json
    assert found.pop("seconds") >= 0
    assert found == {"database": found["database"], "holds": True, "jobs": 1, "rules": len(RULES), "broken": []}


def test_what_is_broken_is_a_line_a_rule_and_exit_code_1(shell: Shell) -> None:
    ids = broken(shell, 2)

    done = shell.try_("audit")

    assert done.code == 1
    assert done.rows == [["freed", "2", ",".join(ids), SAYS]]
    assert done.err.startswith("dray: 1 of ")
    assert len(done.err.splitlines()) == 1
    answered = shell.try_("audit", "--json")
    assert answered.code == 1
    assert not answered.json["holds"]
    assert answered.json["broken"] == [{"rule": "freed", "says": SAYS, "count": 2, "ids": ids}]


@pytest.mark.parametrize("columns", [20, 120])
def test_on_a_terminal_it_is_told_in_words_with_short_ids(local: Shell, columns: int) -> None:
    local("db", "init")
    assert plain(local.on_terminal("audit", columns=columns).out).splitlines()[-1].startswith("all holds: ")
    (job_id,) = broken(local)

    done = local.on_terminal("audit", columns=columns, NO_COLOR="1")

    assert done.code == 1
    assert f"freed: broken 1 time: {SAYS} ({job_id[-8:]})" in plain(done.out)


def test_names_out_of_the_database_cannot_steer_a_terminal(local: Shell) -> None:
    local("db", "init")
    with closing(sqlite3.connect(local.folder / "dray.db")) as connection, connection:
        connection.execute("INSERT INTO dray_leases (duty, term, taken_at) VALUES ('\x1b[2Jprune\n', 0, 1)")

    done = local.try_("audit")

    assert (done.code, done.rows[0][:3]) == (1, ["duty", "1", "\\x1b[2Jprune\\n"])
    assert "\\x1b[2Jprune\\n" in local.on_terminal("audit").out


def test_it_makes_no_file(local: Shell) -> None:
    assert local.try_("audit").code == 6
    assert [file.name for file in local.folder.iterdir() if file.name != "__pycache__"] == ["tasks.py"]


# A database that is alive


@pytest.fixture
def churning(url: str, tmp_path: Path) -> Generator[Fleet]:
    fleet = Fleet(url, tmp_path / "fleet")
    yield fleet
    fleet.close()


def test_nothing_is_reported_of_a_database_that_is_worked_on_whatever_happens(churning: Fleet) -> None:
    fleet, looks = churning, 0
    workers = [fleet.launch("tests.cli.churn", lease=2, concurrency=4) for _ in range(2)]
    churner = fleet.fork(["-m", "tests.cli.churn", "200"])
    while churner.is_alive or looks < 3:
        found = audit(core_of(fleet.app).backend, chunk=random.choice([50, 1000]))
        assert found.holds, (found, fleet.describe())
        looks += 1
        time.sleep(random.uniform(0, 0.05))
        if looks == 3:
            workers.pop().kill()
            workers.append(fleet.launch("tests.cli.churn", lease=2, concurrency=4))

    assert churner.wait() == 0, churner.said
    fleet.until(lambda: fleet.states().get("completed"), "a job to complete")
    fleet.until(lambda: all(map(fleet.worker_of, workers)), "the last worker to have started")
    assert [worker.end() for worker in workers] == [0, 0]
    fleet.audit()
