"""``dray db move``: everything is in the other database, once, and no worker runs half of it."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

import dray
from dray.backends import open_backend
from dray.backends.store.transfer import Census, Transfer
from dray.backends.tables import Portion
from dray.clock import Ids, SystemClock
from dray.errors import DatabaseClosed
from dray.model import settlement as model
from dray.model.job import Demand, LogLine, Outcome, Reason
from dray.model.new_job import NewJob
from dray.model.schedule import Schedule
from dray.model.worker import NewWorker
from dray.model.workflow import Workflow
from dray.ops import move, move_plan
from dray.settings import Settings
from tests import verbs
from tests.backends import beside
from tests.backends.whole import everything, path_of, sql
from tests.cli.shell import TASKS, Done, Shell, plain, until
from tests.forks import Forked
from tests.manual_clock import ManualClock

LEASE_US = 15_000_000


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A project whose queue is in a SQLite file."""
    folder = tmp_path / "project"
    folder.mkdir()
    made = Shell(folder, f"sqlite:///{folder / 'dray.db'}")
    made.write("tasks.py", TASKS)
    return made


@pytest.fixture(params=["sqlite-postgres", "postgres-sqlite"])
def direction(request: pytest.FixtureRequest) -> list[str]:
    return request.param.split("-")


@pytest.fixture
def source(direction: list[str], request: pytest.FixtureRequest, shell: Shell) -> str:
    return shell.url if direction[0] == "sqlite" else request.getfixturevalue("url_of_postgres")


@pytest.fixture
def url_of_postgres(schemas: Any, postgres_server: str) -> Generator[str]:
    """A schema whose tables are made."""
    schema = schemas.take()
    yield f"{postgres_server}&schema={schema}"
    schemas.give_back(schema)


@pytest.fixture
def target(direction: list[str], request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address where nothing is yet."""
    return (
        f"sqlite:///{tmp_path / 'target.db'}" if direction[1] == "sqlite" else request.getfixturevalue("postgres_url")
    )


def fill(url: str, jobs: int = 40) -> None:
    """Something of everything: each state, attempts, logs, a workflow, unique keys, schedules, a paused queue."""
    with dray.App(url, migrate=True) as app:
        app.queue("mail", priority=7)
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
        app.pause("held")
        now = SystemClock().now()
        rules: tuple[tuple[Any, ...], ...] = (("nightly", "0 3 * * *", None), ("beat", None, 3_600_000_000))
        for name, cron, every_us in rules:
            args = '{"a":1,"b":2}'
            rule = (args, cron, every_us, "Europe/Berlin", "last", 10, "skip", 4, now + 10**9, now, now, now, None)
            app.backend.schedules.upsert(Schedule(name, "tasks.add", None, *rule))
        app.backend.schedules.pause("beat")


def _workflow(app: dray.App) -> None:
    ids = [app.new_id() for _ in range(4)]
    args = '{"a":1,"b":2}'
    jobs = [NewJob(id=ids[n], task="tasks.add", args=args, workflow_id=ids[3], step=f"step-{n}") for n in range(3)]
    last = replace(jobs[2], parents=(ids[0], ids[1]))
    app.backend.jobs.enqueue([*jobs[:2], last], workflow=Workflow(ids[3], "etl", 0))


def _work(app: dray.App, count: int) -> None:
    """A worker that completes some, fails one and fails another for a while."""
    backend, clock = app.backend, SystemClock()
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
    backend.workers.deregister(worker)


def moved(shell: Shell, source: str, target: str, *words: str) -> Done:
    return shell.try_("db", "move", *words, DRAY_DB_MOVE_SOURCE=source, DRAY_DB_MOVE_TARGET=target)


def states(url: str) -> dict[str, int]:
    return dict(sql(url, "SELECT state, count(*) FROM dray_jobs GROUP BY state"))  # pyright: ignore[reportArgumentType]


def is_closed(url: str) -> bool:
    return bool(sql(url, "SELECT value FROM dray_meta WHERE name = 'closed'"))


@contextmanager
def sides(source: str, target: str) -> Generator[tuple[move.Side, move.Side]]:
    """Both databases, as the command opens them."""
    opened = [open_backend(url, create=False) for url in (source, target)]
    here, there = (
        move.Side(side, Settings.of(url).place) for side, url in zip(opened, (source, target), strict=True)
    )
    try:
        yield here, there
    finally:
        for backend in opened:
            backend.close()


class Cut(Exception):
    """The power is off."""


def half_fill(source: str, target: str, *, steps: int = 6) -> None:
    """A move that is cut off after a few portions."""
    count = 0

    def tell(_: move.Progress) -> None:
        nonlocal count
        count += 1
        if count == steps:
            raise Cut

    with sides(source, target) as (here, there), pytest.raises(Cut):
        move.carry(move_plan.plan(here, there), portion=Portion(10), tell=tell)


def close_both(source: str, target: str) -> None:
    """A move that is cut off when the source is closed and the target not yet open."""

    def tell(step: move.Progress) -> None:
        if step.is_left:
            raise Cut

    with sides(source, target) as (here, there), pytest.raises(Cut):
        move.carry(move_plan.plan(here, there), tell=tell)
    assert is_closed(source)
    assert is_closed(target)


# Everything is carried


@pytest.mark.parametrize(
    "direction", ["sqlite-postgres", "postgres-sqlite", "sqlite-sqlite", "postgres-postgres"], indirect=True
)
def test_everything_is_in_the_target_as_it_was(shell: Shell, source: str, target: str) -> None:
    fill(source)
    leave = "INSERT INTO dray_outcomes (job_id, claim, worker_id, left_at, outcome)"
    sql(source, f"{leave} SELECT id, claim, id, created_at, 'how it ended' FROM dray_jobs")
    before = everything(source)

    done = moved(shell, source, target, "--chunk", "7")

    assert done.code == 0, done.err
    assert all(before.values()), "there is something in every table"
    assert everything(target) == before
    assert done.rows == [[name, str(len(rows)), done.rows[n][2]] for n, (name, rows) in enumerate(before.items())]
    assert all(len(checksum) == 16 for *_, checksum in done.rows)


def test_a_worker_on_the_target_goes_on_where_the_source_was(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    assert moved(shell, shell.url, postgres_url).code == 0
    on_target = {"DRAY_URL": postgres_url}

    assert shell.try_("audit", **on_target).code == 0
    shell("worker", "--burst", **on_target)

    assert shell.try_("audit", **on_target).code == 0
    found = states(postgres_url)
    assert found == {"completed": 46, "failed": 1, "cancelled": 1, "scheduled": 2, "queued": 1}  # of the paused queue
    # Numbers of log lines go on, and the unique key is still held or free as it was.
    talked = shell("enqueue", "tasks.talk", **on_target).value
    shell("worker", "--burst", **on_target)
    assert len(shell("job", "logs", talked, **on_target).rows) == 2


def test_what_comes_later_is_numbered_after_what_was_carried(shell: Shell, source: str, target: str) -> None:
    fill(source)
    assert moved(shell, source, target).code == 0
    last = max(row["seq"] for row in everything(target)["logs"])

    talked = shell("enqueue", "tasks.talk", DRAY_URL=target).value
    shell("worker", "--burst", "-q", "default", DRAY_URL=target)

    assert min(row["seq"] for row in everything(target)["logs"] if row["job_id"] == talked) > last


def test_json_tells_what_was_carried(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    found = moved(shell, shell.url, postgres_url, "--json").json
    assert list(found) == ["source", "target", "done", "tables", "states", "taken_back", "seconds"]
    assert (found["source"], found["done"]) == (shell.url, True)
    assert {each["table"]: each["rows"] for each in found["tables"]} == {
        name: len(rows) for name, rows in everything(shell.url).items()
    }
    assert found["states"] == states(postgres_url)


def test_a_dry_run_counts_and_writes_nothing(shell: Shell, source: str, target: str) -> None:
    fill(source)
    before = everything(source)

    done = moved(shell, source, target, "--dry-run")

    assert done.code == 0
    assert {name: int(rows) for name, rows, _ in done.rows} == {name: len(rows) for name, rows in before.items()}
    assert not is_closed(source)
    assert shell.try_("db", "status", DRAY_URL=target).code == 6
    if target.startswith("sqlite"):
        assert not path_of(target).exists()


def test_a_second_time_there_is_nothing_left_to_do(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    assert moved(shell, shell.url, postgres_url).code == 0
    shell("worker", "--burst", DRAY_URL=postgres_url)  # the target lives on
    after = everything(postgres_url)

    again = moved(shell, shell.url, postgres_url)

    assert (again.code, "nothing left to do" in again.err) == (0, True)
    assert everything(postgres_url) == after


def test_a_bar_shows_on_a_terminal_how_far_it_is(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    done = shell.on_terminal("db", "move", shell.url, postgres_url, "--chunk", "5", columns=120)
    shown = plain(done.out)
    assert done.code == 0
    assert "rows moved (" in shown
    assert "both have the same rows" in shown.replace("\n", " ")


def test_no_password_is_ever_shown(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    secret = postgres_url.replace("postgres:@", "postgres:kanarie@")
    assert secret != postgres_url
    done = shell.try_("db", "move", shell.url, secret)
    late = shell.try_("enqueue", "tasks.add", "a=1", "b=2")
    again = moved(shell, shell.url, secret, "--json")
    assert (done.code, late.code, again.code) == (0, 6, 0)
    assert "set DRAY_DB_MOVE_TARGET instead" in done.err
    for said in (done, late, again):
        assert "kanarie" not in said.out + said.err
    assert "kanarie" not in repr(sql(shell.url, "SELECT * FROM dray_meta"))
    assert "kanarie" not in repr(sql(postgres_url, "SELECT * FROM dray_meta"))


# Cut off, and begun again


def test_killed_at_any_moment_it_goes_on(shell: Shell, source: str, target: str) -> None:
    fill(source, jobs=400)
    before = everything(source)
    words = ["db", "move", source, target, "--chunk", "5"]
    reached, kills = "", 0

    for _ in range(4):
        with shell.background(*words) as process:
            reached = _further(process, target, than=reached)
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    with shell.background(*words) as process:  # once more, when the source is closed and the target not yet open
        until(lambda: is_closed(source) or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    done = moved(shell, source, target, "--chunk", "5")

    assert kills >= 2
    assert done.code == 0, done.err
    assert everything(target) == before
    assert not is_closed(target)


def _further(process: Forked, url: str, *, than: str) -> str:
    """Waits until a move has got further, or is over; how far."""
    while process.poll() is None:
        try:
            found = sql(url, "SELECT value FROM dray_meta WHERE name = 'move'")
        except (sqlite3.Error, psycopg.Error):  # there are no tables yet
            continue
        reached = json.dumps(json.loads(found[0][0])["reached"]) if found else ""
        if reached not in {than, "{}", ""}:
            return reached
    return than


def test_what_has_changed_between_two_runs_is_carried(shell: Shell, source: str, target: str) -> None:
    fill(source)
    half_fill(source, target, steps=9)
    with dray.App(source, migrate=False) as app:
        first, second, *_ = app.jobs(state="queued", limit=100)
        app.cancel(first.id)
        second.delete()
        for job in app.jobs(state="completed", limit=100)[:5]:
            job.retry()
        app.enqueue("tasks.add", {"a": 1, "b": 1}, after=[app.jobs(state="completed")[0]])
        app.prune(older_than=0)
        app.resume("held")

    done = moved(shell, source, target, "--chunk", "3")

    assert done.code == 0, done.err
    assert "going on with an interrupted move" in done.err
    assert everything(target) == everything(source)


def test_a_key_that_has_changed_hands_is_carried(shell: Shell, postgres_url: str) -> None:
    with dray.App(shell.url) as app:
        held = app.enqueue("tasks.add", {"a": 1, "b": 1}, unique="one")
        for number in range(30):
            app.enqueue("tasks.add", {"a": number, "b": 1})
        half_fill(shell.url, postgres_url, steps=4)
        app.cancel(held.id)
        app.enqueue("tasks.add", {"a": 1, "b": 1}, unique="one")

    assert moved(shell, shell.url, postgres_url).code == 0
    assert everything(postgres_url) == everything(shell.url)


def test_so_is_one_that_went_to_a_job_made_by_a_clock_that_is_behind(shell: Shell, source: str, target: str) -> None:
    """The new holder comes first, while the row of the old one still has the key in the target."""
    late = ManualClock(SystemClock().now() - 3_600_000_000)
    with dray.App(source, migrate=True) as app, dray.App(source, clock=late) as behind:
        for number in range(30):
            app.enqueue("tasks.add", {"a": number, "b": 1})
        held = app.enqueue("tasks.add", {"a": 1, "b": 1}, unique="one")
        half_fill(source, target, steps=9)
        assert sql(target, "SELECT count(*) FROM dray_jobs WHERE unique_lock IS NOT NULL") == [(1,)]
        app.cancel(held.id)
        assert behind.enqueue("tasks.add", {"a": 1, "b": 1}, unique="one").id < held.id

    done = moved(shell, source, target, "--chunk", "5")

    assert done.code == 0, done.err
    assert everything(target) == everything(source)


def test_no_worker_runs_half_of_it(shell: Shell, source: str, target: str) -> None:
    fill(source)
    half_fill(source, target)
    before = everything(target)
    on_target = {"DRAY_URL": target}

    worker = shell.try_("worker", "--burst", **on_target)
    enqueue = shell.try_("enqueue", "tasks.add", "a=1", "b=2", **on_target)

    for said in (worker, enqueue):
        assert said.code == 6
        assert "is being filled by `dray db move` from" in said.err
        assert f"{target.removeprefix('sqlite:///').rpartition('&')[2]}: is being filled" in said.err
    assert everything(target) == before
    shell("enqueue", "tasks.add", "a=1", "b=2", DRAY_URL=source)  # which goes on meanwhile


def test_an_unfinished_move_is_taken_back(shell: Shell, source: str, target: str) -> None:
    fill(source)
    before = everything(source)
    half_fill(source, target)

    done = moved(shell, source, target, "--abandon")

    assert done.code == 0, done.err
    assert everything(source) == before
    assert not any(everything(target).values())
    for url in (source, target):
        shell("enqueue", "tasks.add", "a=1", "b=2", DRAY_URL=url)


def test_a_source_that_is_closed_comes_back_until_the_target_is_open(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    close_both(shell.url, postgres_url)

    assert moved(shell, shell.url, postgres_url, "--abandon").code == 0
    shell("enqueue", "tasks.add", "a=1", "b=2")
    assert moved(shell, shell.url, postgres_url).code == 0
    late = moved(shell, shell.url, postgres_url, "--abandon")

    assert (late.code, "cannot be taken back" in late.err) == (1, True)
    assert is_closed(shell.url)
    assert everything(postgres_url) == everything(shell.url)


# Two moves of one source


@pytest.fixture(params=["sqlite", "postgres"])
def two_targets(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Addresses where nothing is yet: the first in either database, the second a file."""
    file = f"sqlite:///{tmp_path / 'first.db'}"
    first = file if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return first, f"sqlite:///{tmp_path / 'second.db'}"


def test_taking_back_a_stale_move_leaves_a_source_closed_that_has_moved_elsewhere(
    shell: Shell, two_targets: tuple[str, str]
) -> None:
    for won, stale in (two_targets, two_targets[::-1]):
        fill(shell.url)
        half_fill(shell.url, won)
        half_fill(shell.url, stale)
        assert moved(shell, shell.url, won).code == 0

        done = moved(shell, shell.url, stale, "--abandon")

        assert done.code == 0, done.err
        assert "stays closed" in done.err
        assert "goes on as before" not in done.err
        assert not any(everything(stale).values())
        assert not is_closed(stale)
        late = shell.try_("enqueue", "tasks.add", "a=1", "b=2")
        assert (late.code, "this queue has moved to" in late.err) == (6, True)
        assert moved(shell, shell.url, stale, "--abandon").code == 1
        assert is_closed(shell.url)
        assert everything(won) == everything(shell.url)
        path_of(shell.url).unlink()
        for url in (won, stale):
            if url.startswith("sqlite"):
                path_of(url).unlink()
            else:
                sql(url, f"DROP SCHEMA {url.rpartition('=')[2]} CASCADE")


def test_of_two_moves_of_one_source_one_wins_and_the_other_can_be_taken_back(
    shell: Shell, two_targets: tuple[str, str]
) -> None:
    fill(shell.url)
    won, lost = two_targets

    def tell(_: move.Progress) -> None:
        if not is_closed(shell.url):
            assert moved(shell, shell.url, won).code == 0

    with sides(shell.url, lost) as (here, there), pytest.raises(dray.MoveError) as refused:
        move.carry(move_plan.plan(here, there), tell=tell)
    again = moved(shell, shell.url, lost)

    for said in (str(refused.value), again.err):
        assert "has moved to" in said
        assert "--abandon" in said
        assert len(said.splitlines()) == 1
    assert again.code == 1
    assert is_closed(lost)
    assert moved(shell, shell.url, lost, "--abandon").code == 0
    assert (is_closed(shell.url), is_closed(won), is_closed(lost)) == (True, False, False)
    assert everything(won) == everything(shell.url)


def test_who_comes_second_to_an_empty_target_is_told_so(shell: Shell, two_targets: tuple[str, str]) -> None:
    fill(shell.url)
    target = two_targets[0]
    with sides(shell.url, target) as (here, there):
        plan = move_plan.plan(here, there)  # before the other has begun
        half_fill(shell.url, target)
        with pytest.raises(dray.MoveError, match="another `dray db move` has begun to fill") as refused:
            move.carry(plan)
    assert len(str(refused.value).splitlines()) == 1
    assert moved(shell, shell.url, target).code == 0
    assert everything(target) == everything(shell.url)


def test_a_taking_back_that_was_cut_off_is_ended(shell: Shell, two_targets: tuple[str, str]) -> None:
    fill(shell.url)
    target = two_targets[0]
    close_both(shell.url, target)
    cut = patch.object(Transfer, "come_back", side_effect=Cut)
    with sides(shell.url, target) as (here, there), cut, pytest.raises(Cut):
        move.abandon(here, there)
    assert (is_closed(shell.url), is_closed(target)) == (True, False)

    assert moved(shell, shell.url, target, "--abandon").code == 0
    assert not is_closed(shell.url)


def test_a_source_is_opened_without_proof_by_force_alone(shell: Shell, two_targets: tuple[str, str]) -> None:
    """The target may have been emptied and filled from elsewhere, or lost; it may also be another database of the
    same address."""
    fill(shell.url)
    target, elsewhere = two_targets
    assert moved(shell, shell.url, target).code == 0
    if target.startswith("sqlite"):
        path_of(target).unlink()
    else:
        sql(target, f"DROP SCHEMA {target.rpartition('=')[2]} CASCADE")

    for words in ([], ["--force"]):
        assert moved(shell, shell.url, elsewhere, "--abandon", *words).code == 1
    refused = moved(shell, shell.url, target, "--abandon")
    assert (refused.code, "--force" in refused.err, is_closed(shell.url)) == (1, True, True)

    assert moved(shell, shell.url, target, "--abandon", "--force").code == 0
    assert not is_closed(shell.url)


# Enqueues go on


_PRODUCER = """
import sys
import dray

app = dray.App(sys.argv[1], migrate=False)
with open(sys.argv[2], "w", buffering=1) as log:
    while True:
        try:
            log.write(app.enqueue("tasks.add", {"a": 1, "b": 2}).id + "\\n")
        except Exception as error:
            log.write(f"{type(error).__name__} {error}\\n")
            break
"""


def test_every_enqueue_that_returned_is_in_the_target_once(shell: Shell, source: str, target: str) -> None:
    fill(source, jobs=200)
    script = shell.write("producer.py", _PRODUCER)
    logs = [shell.folder / f"enqueued-{number}" for number in range(2)]
    producers = [subprocess.Popen([sys.executable, script, source, log], cwd=shell.folder) for log in logs]
    try:
        until(lambda: all(log.exists() and len(log.read_text().splitlines()) > 20 for log in logs))
        done = moved(shell, source, target, "--chunk", "50")
        assert done.code == 0, done.err
        assert all(producer.wait(60) == 0 for producer in producers)
    finally:
        for producer in producers:
            producer.kill()
            producer.wait()

    there = [row["id"] for row in everything(target)["jobs"]]
    for log in logs:
        *returned, last = log.read_text().splitlines()
        assert last.startswith("DatabaseClosed ")
        assert "this queue has moved to" in last
        assert set(returned) <= set(there)
    assert len(there) == len(set(there))
    assert everything(target) == everything(source)


def test_late_programs_are_told_where_the_queue_is(shell: Shell, postgres_url: str) -> None:
    with dray.App(shell.url) as app:  # connected long before
        app.enqueue("tasks.add", {"a": 1, "b": 2})
        assert moved(shell, shell.url, postgres_url).code == 0
        with pytest.raises(DatabaseClosed, match=r"this queue has moved to postgresql://.*use that address"):
            app.enqueue("tasks.add", {"a": 1, "b": 2})
        assert len(app.jobs()) == 1  # looking is allowed
    worker = shell.try_("worker", "--burst")
    assert (worker.code, "this queue has moved to postgresql://" in worker.err) == (6, True)


# Workers


def test_a_live_worker_stands_in_the_way(shell: Shell, source: str, target: str) -> None:
    fill(source)
    with shell.background("worker", "-q", "nothing", DRAY_URL=source):
        until(lambda: shell.try_("workers", DRAY_URL=source).rows)
        for words in ([], ["--force"]):
            done = moved(shell, source, target, *words)
            assert (done.code, "1 worker is still at work" in done.err) == (1, True), done.err
        look = moved(shell, source, target, "--dry-run")
        assert (look.code, "stop all workers first" in look.err) == (0, True), look.err
        assert {name: int(rows) for name, rows, _ in look.rows} == {n: len(r) for n, r in everything(source).items()}
    assert not is_closed(source)


def test_a_worker_that_starts_meanwhile_stands_in_the_way(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    backend, clock = open_backend(shell.url), SystemClock()
    new = NewWorker(id=Ids(clock).new(), name="w", host="here", pid=1, boot=clock.boot)
    count = 0

    def tell(_: move.Progress) -> None:
        nonlocal count
        count += 1
        if count == 2:
            backend.workers.register(new, LEASE_US)

    with sides(shell.url, postgres_url) as (here, there):
        with pytest.raises(dray.MoveError, match="1 worker is still at work"):
            move.carry(move_plan.plan(here, there), tell=tell)
        assert not is_closed(shell.url)
        backend.workers.deregister(new.id)
        move.carry(move_plan.plan(here, there))
    backend.close()
    assert everything(postgres_url) == everything(shell.url)


def test_a_worker_of_another_boot_stands_in_the_way(shell: Shell, postgres_url: str) -> None:
    """A file does not show whether a worker on another machine uses it; a server does."""
    fill(shell.url)
    backend = open_backend(shell.url)
    new = NewWorker(id=Ids(SystemClock()).new(), name="w", host="elsewhere", pid=1, boot="of another machine")
    backend.workers.register(new, LEASE_US)

    for words in ([], ["--force"]):
        done = moved(shell, shell.url, postgres_url, *words)
        assert (done.code, "1 worker is of another boot, and may be at work" in done.err) == (1, True), done.err
    assert not is_closed(shell.url)
    backend.workers.deregister(new.id)
    backend.close()

    assert moved(shell, shell.url, postgres_url).code == 0


def test_a_worker_that_starts_on_the_target_meanwhile_stands_in_the_way(
    shell: Shell, source: str, target: str
) -> None:
    fill(source)
    backend, clock = open_backend(target), SystemClock()
    backend.migrate()
    new = NewWorker(id=Ids(clock).new(), name="w", host="here", pid=1, boot=clock.boot)

    with sides(source, target) as (here, there):
        planned = move_plan.plan(here, there)
        backend.workers.register(new, LEASE_US)
        with pytest.raises(dray.MoveError, match="has workers at work"):
            move.carry(planned)
        assert not is_closed(target)
        assert not any(everything(target).values())
        backend.workers.deregister(new.id)
        move.carry(planned)
    backend.close()
    assert everything(target) == everything(source)


_ONCE = """
import pathlib, time

@app.task
def once() -> str:
    flag = pathlib.Path("once")
    if flag.exists():
        return "again"
    flag.touch()
    time.sleep(3600)
"""


def test_a_dead_worker_s_job_is_carried_by_force_and_taken_back_in_the_target(
    shell: Shell, postgres_url: str
) -> None:
    shell.write("tasks.py", TASKS + _ONCE)
    job = shell("enqueue", "tasks.once").value
    with shell.background("worker") as process:
        until((shell.folder / "once").exists)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    (worker, claim) = sql(shell.url, "SELECT worker_id, claim FROM dray_jobs WHERE state = 'running'")[0]

    refused = moved(shell, shell.url, postgres_url)
    assert (refused.code, "1 job is running" in refused.err, "--force" in refused.err) == (1, True, True)
    done = moved(shell, shell.url, postgres_url, "--force", "--json").json
    assert (done["states"], done["taken_back"]) == ({"running": 1}, 1)
    assert states(postgres_url) == {"scheduled": 1}
    assert shell.try_("audit", DRAY_URL=postgres_url).code == 0

    # The old worker comes too late: its outcome changes nothing, here or there.
    late = open_backend(shell.url)
    with pytest.raises(DatabaseClosed):
        verbs.write_logs(late, worker, [LogLine(job, claim, 0, "INFO", "shop", "late")])
    late.close()
    with shell.background("worker", DRAY_URL=postgres_url):
        until(lambda: states(postgres_url) == {"completed": 1})
    found = shell("job", "show", job, "--json", DRAY_URL=postgres_url).json
    assert (found["result"], found["crashes"], found["attempt"]) == ("again", 1, 2)
    assert found["attempts"][0]["outcome"] == "crashed"


# Differences


_SPOIL = """
CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN IF NEW.name = ''large'' THEN NEW.name := ''Large''; END IF; RETURN NEW; END';
CREATE TRIGGER spoil BEFORE INSERT OR UPDATE ON dray_jobs FOR EACH ROW EXECUTE FUNCTION spoil();
"""


def test_a_row_that_is_not_stored_as_it_was_fails_the_move(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    shell("db", "migrate", DRAY_URL=postgres_url)
    sql(postgres_url, _SPOIL)

    done = moved(shell, shell.url, postgres_url)

    assert done.code == 1
    assert "1 row of dray_jobs is not stored as it is" in done.err
    assert is_closed(postgres_url)
    assert not is_closed(shell.url)
    sql(postgres_url, "DROP TRIGGER spoil ON dray_jobs")
    assert moved(shell, shell.url, postgres_url).code == 0
    assert everything(postgres_url) == everything(shell.url)


def test_text_that_the_target_cannot_store_is_named(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    with sqlite3.connect(path_of(shell.url)) as connection:
        connection.execute("UPDATE dray_jobs SET name = 'a' || char(0) WHERE name = 'large'")
    connection.close()
    done = moved(shell, shell.url, postgres_url)
    assert (done.code, "a row of dray_jobs up to" in done.err) == (1, True)


def test_a_row_that_was_changed_behind_its_back_is_found_and_mended(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    half_fill(shell.url, postgres_url, steps=8)
    sql(postgres_url, "ALTER TABLE dray_jobs DISABLE TRIGGER ALL")
    sql(postgres_url, "UPDATE dray_jobs SET created_at = created_at + interval '1 microsecond' WHERE name = 'large'")
    sql(postgres_url, "ALTER TABLE dray_jobs ENABLE TRIGGER ALL")
    assert everything(postgres_url)["jobs"]

    assert moved(shell, shell.url, postgres_url).code == 0
    assert everything(postgres_url) == everything(shell.url)


def test_a_row_that_is_gone_when_both_are_counted_keeps_the_target_closed(
    shell: Shell, source: str, target: str
) -> None:
    fill(source)
    lost: list[str] = []

    def tell(step: move.Progress) -> None:
        if step.is_left and not lost:  # compared before, and not looked at again
            lost.append("a line")
            with beside.connect(target) as connection:
                beside.execute(connection, "INSERT INTO dray_meta (name, value) VALUES ('pass', '')")
                beside.execute(connection, "DELETE FROM dray_logs WHERE seq = (SELECT max(seq) FROM dray_logs)")
                beside.execute(connection, "DELETE FROM dray_meta WHERE name = 'pass'")
                connection.commit()

    with sides(source, target) as (here, there):
        with pytest.raises(dray.MoveError, match="do not have the same numbers of rows"):
            move.carry(move_plan.plan(here, there), tell=tell)
        assert lost
        assert is_closed(target)
        move.carry(move_plan.plan(here, there))

    assert not is_closed(target)
    assert everything(target) == everything(source)


def test_a_target_is_not_opened_beside_a_source_that_is_open_again(
    shell: Shell, source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source)
    count = Transfer.census

    with sides(source, target) as (here, there):

        def counted(self: Transfer) -> Census:
            found = count(self)
            if self._db is there.backend.db and is_closed(source):  # both are the same: all that is left is to open
                ((note,),) = sql(source, "SELECT value FROM dray_meta WHERE name = 'move'")
                here.backend.transfer.come_back(note)
            return found

        monkeypatch.setattr(Transfer, "census", counted)
        with pytest.raises(dray.MoveError, match="is not closed for this move any more"):
            move.carry(move_plan.plan(here, there))

    assert not is_closed(source)
    assert is_closed(target)


# Refusals


def test_a_target_that_is_in_use_is_refused(shell: Shell, source: str, target: str) -> None:
    fill(source)
    shell("db", "init", DRAY_URL=target)
    shell("enqueue", "tasks.add", "a=1", "b=2", DRAY_URL=target)
    before = everything(target)

    done = moved(shell, source, target)

    assert (done.code, "is not empty (1 job)" in done.err) == (1, True)
    assert everything(target) == before
    assert not is_closed(target)


@pytest.mark.parametrize("table", ["schedules", "workflows"])
def test_so_is_one_that_has_no_job_but_something_else(shell: Shell, source: str, target: str, table: str) -> None:
    fill(source)
    with dray.App(target, migrate=True) as app:
        if table == "schedules":
            app.schedule("beat", "tasks.add", every=3_600, args={"a": 1, "b": 2})
        else:
            only = NewJob(id=app.new_id(), task="tasks.add", workflow_id=app.new_id())
            app.backend.jobs.enqueue([only], workflow=Workflow(str(only.workflow_id), "etl", 0))
            app.backend.jobs.delete([only.id])
    before = everything(target)
    assert {name for name, rows in before.items() if rows} - {"queues"} == {table}

    done = moved(shell, source, target)

    assert (done.code, f"is not empty (1 {table.removesuffix('s')})" in done.err) == (1, True), done.err
    assert everything(target) == before
    assert not is_closed(target)


def test_a_target_with_workers_is_refused(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    shell("db", "migrate", DRAY_URL=postgres_url)
    with shell.background("worker", DRAY_URL=postgres_url):
        until(lambda: shell.try_("workers", DRAY_URL=postgres_url).rows)
        done = moved(shell, shell.url, postgres_url)
    assert (done.code, "has workers at work" in done.err) == (1, True)
    assert not is_closed(postgres_url)


def test_a_target_that_only_knows_queues_is_empty(shell: Shell, source: str, target: str) -> None:
    fill(source)
    shell("db", "init", DRAY_URL=target)
    shell("queues", "set", "mail", "--priority", "1", DRAY_URL=target)
    shell("queues", "set", "other", "--priority", "1", DRAY_URL=target)
    assert moved(shell, source, target).code == 0
    assert everything(target) == everything(source)


def test_another_source_is_refused(shell: Shell, source: str, target: str, tmp_path: Path) -> None:
    fill(source)
    half_fill(source, target)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    fill(other)
    done = moved(shell, other, target)
    assert (done.code, "is being filled from" in done.err) == (1, True)
    assert moved(shell, other, target, "--abandon").code == 1
    assert moved(shell, source, target).code == 0


def test_what_has_moved_cannot_be_moved_elsewhere_nor_into(shell: Shell, postgres_url: str, tmp_path: Path) -> None:
    fill(shell.url)
    assert moved(shell, shell.url, postgres_url).code == 0
    third = f"sqlite:///{tmp_path / 'third.db'}"
    away = moved(shell, shell.url, third)
    assert (away.code, "has moved to postgresql://" in away.err) == (1, True)
    fill(third)
    into = moved(shell, third, shell.url)
    assert (into.code, "has moved to postgresql://" in into.err) == (1, True)
    half_fill(third, f"sqlite:///{tmp_path / 'fourth.db'}")
    half = moved(shell, f"sqlite:///{tmp_path / 'fourth.db'}", f"sqlite:///{tmp_path / 'fifth.db'}")
    assert (half.code, "is itself being filled" in half.err) == (1, True)


def test_the_same_database_twice_is_refused(shell: Shell, source: str) -> None:
    fill(source)
    link = shell.folder / "link.db"
    again = source
    if source.startswith("sqlite"):
        link.hardlink_to(path_of(source))
        again = f"sqlite:///{link}"
    else:
        again = source.replace("postgresql://", "postgres://")
    done = moved(shell, source, again)
    assert (done.code, "are the same database" in done.err) == (2, True)
    assert not is_closed(source)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(("version", "advice"), [("1", "run `dray db migrate`"), ("99", "upgrade Dray here")])
def test_other_versions_of_the_tables_are_refused(
    shell: Shell, postgres_url: str, side: str, version: str, advice: str
) -> None:
    fill(shell.url)
    shell("db", "migrate", DRAY_URL=postgres_url)
    changed = {"source": shell.url, "target": postgres_url}[side]
    sql(changed, f"UPDATE dray_meta SET value = '{version}' WHERE name = 'version'")
    done = moved(shell, shell.url, postgres_url)
    assert (done.code, advice in done.err, len(done.err.splitlines())) == (6, True, 1), done.err


MISTAKES = {
    "a missing file": (["sqlite:////nowhere/jobs.db", "TARGET"], 6, "no such file"),
    "a file of something else": (["tasks.py", "TARGET"], 6, "is not a SQLite database"),
    "a server out of reach": (["SOURCE", "postgresql://nobody@127.0.0.1:1/none"], 6, "cannot be reached"),
    "an address of nothing": (["SOURCE", "mysql://here/db"], 2, "is no database address"),
    "one address": (["SOURCE"], 2, "Missing argument"),
    "three": (["SOURCE", "TARGET", "x"], 2, "unexpected extra argument"),
    "no rows at a time": (["SOURCE", "TARGET", "--chunk", "0"], 2, "--chunk"),
    "nothing to take back": (["SOURCE", "TARGET", "--abandon"], 1, "there is no move from"),
}


@pytest.mark.parametrize(("words", "code", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence(shell: Shell, tmp_path: Path, words: list[str], code: int, said: str) -> None:
    shell("db", "init")
    places = {"SOURCE": shell.url, "TARGET": f"sqlite:///{tmp_path / 'target.db'}"}
    done = shell.try_("db", "move", *(places.get(word, word) for word in words))
    assert (done.code, said in done.err, len(done.err.splitlines()), done.out) == (code, True, 1, ""), done.err
    assert not (tmp_path / "target.db").exists()


def test_a_source_without_tables_is_refused(shell: Shell, postgres_url: str) -> None:
    with sqlite3.connect(shell.folder / "plain.db") as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    done = moved(shell, "plain.db", postgres_url)
    assert (done.code, "no tables" in done.err) == (6, True), done.err
