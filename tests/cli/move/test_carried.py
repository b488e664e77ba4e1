"""``dray db move``: everything is in the other database, once, and as it was."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing

import pytest

import dray
from dray.backends import open_backend
from dray.backends.store.transfer import Census, Transfer
from dray.errors import DatabaseClosed
from dray.model.job import Demand
from dray.ops import move, move_plan
from tests import verbs
from tests.backends import beside
from tests.backends.processes import register
from tests.backends.whole import everything, path_of, sql
from tests.cli.move.contents import fill
from tests.cli.move.moves import half_fill, is_closed, moved, sides, states
from tests.cli.shell import Shell, plain, until


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


def test_the_target_says_who_moved_it_and_from_where(shell: Shell, postgres_url: str) -> None:
    shell("enqueue", "tasks.add", "a=1", "b=2")
    assert moved(shell, shell.url, postgres_url).code == 0

    newest, before = json.loads(shell("actions", "--json", DRAY_URL=postgres_url).out)

    assert (newest["verb"], newest["kind"], newest["done"]) == ("move", "database", 1)
    assert newest["note"] == f"from {shell.url}"
    assert (before["verb"], before["kind"]) == ("enqueue", "job")
    assert json.loads(shell("actions", "--json").out) == [before]


def test_a_worker_on_the_target_goes_on_where_the_source_was(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    assert moved(shell, shell.url, postgres_url).code == 0
    on_target = {"DRAY_URL": postgres_url}

    assert shell.try_("audit", **on_target).code == 0
    shell("worker", "--burst", **on_target)

    assert shell.try_("audit", **on_target).code == 0
    found = states(postgres_url)
    assert found == {"completed": 49, "failed": 1, "cancelled": 1, "scheduled": 2, "queued": 1}  # of the paused queue
    # Numbers of log lines go on, and the unique key is still held or free as it was.
    talked = shell("enqueue", "tasks.talk", **on_target).value
    shell("worker", "--burst", **on_target)
    assert len(shell("job", "logs", talked, **on_target).rows) == 2


def test_limits_and_keys_hold_in_the_target_and_code_that_does_not_know_them_is_refused(
    shell: Shell, source: str, target: str
) -> None:
    fill(source)
    with dray.App(target, migrate=True) as app:
        app.queue("default", limit=0)  # a program that was started there too early

    assert moved(shell, source, target).code == 0

    assert dict(sql(target, "SELECT name, value FROM dray_meta"))["oldest_code"] == "7"
    with closing(open_backend(target)) as backend:
        worker = register(backend)
        claims = verbs.claim(backend, worker, Demand(("default",), ("tasks.add",), 1_000))
        keys = Counter(claim.key for claim in claims if claim.key is not None)
        assert keys == {"acct:7": 1, "ü": 1}
        assert not verbs.probe(backend, Demand(("default",), ("tasks.add",), 1))


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
    with closing(sqlite3.connect(path_of(shell.url))) as connection, connection:
        connection.execute("UPDATE dray_jobs SET name = 'a' || char(0) WHERE name = 'large'")
    connection.close()
    done = moved(shell, shell.url, postgres_url)
    assert (done.code, "a row of dray_jobs up to" in done.err) == (1, True)


def test_a_row_that_was_changed_behind_its_back_is_found_and_mended(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    half_fill(shell.url, postgres_url, steps=12)
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
