"""A database that may only be read: every command that looks works, nothing is made, and who writes is refused."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from dray import Access, App, dashboard
from tests.cli import walk
from tests.cli.restricted import is_possible, powerless, read_only_mount, run_all
from tests.cli.shell import TASKS, Done, Shell, copied, project
from tests.web.browsing import Visitor

NEEDS = [path for path in walk.READS if path not in walk.WITHOUT_DATABASE]
FROZEN = "what is shown is frozen"


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A database with a job that completed, one that failed and one that waits; no process has it open."""
    made = project(tmp_path_factory.mktemp("worked"))
    made("enqueue", "tasks.add", "a=1", "b=2")
    made("enqueue", "tasks.fail", "word=bad")
    made("worker", "--burst")
    made("enqueue", "tasks.add", "a=3", "b=4", "--delay", "1h")
    shutil.rmtree(made.folder / "__pycache__", ignore_errors=True)
    return made


@pytest.fixture
def used(worked: Shell, tmp_path: Path) -> Iterator[Shell]:
    made = copied(worked, tmp_path)
    made.environment["PYTHONDONTWRITEBYTECODE"] = "1"
    yield made
    made.folder.chmod(0o755)


def listing(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def lines(used: Shell) -> list[list[str]]:
    job_id = used("jobs", "--state", "failed").rows[0][0]
    return [walk.words(path, ids=job_id, job_id=job_id) for path in NEEDS]


def codes(done: list[Done]) -> dict[str, int]:
    return {walk.named(path): each.code for path, each in zip(NEEDS, done, strict=True)}


def assert_same(normally: list[Done], restricted: list[Done]) -> None:
    assert codes(restricted) == codes(normally), [done.err for done in restricted]
    for path, before, after in zip(NEEDS, normally, restricted, strict=True):
        assert "Traceback" not in after.err, after.err
        # Ages go on; how much is said does not change.
        if path not in {("doctor",), ("health",)}:
            assert len(after.out.splitlines()) == len(before.out.splitlines()), (path, after.out, after.err)


@pytest.mark.parametrize("kind", ["a read-only file system", "a file and a folder without the right to write"])
def test_every_look_works_and_leaves_nothing_behind(used: Shell, kind: str) -> None:
    asked = lines(used)
    normally = run_all(used, [], asked)
    if kind == "a read-only file system":
        under = read_only_mount(used.folder)
    else:
        under = powerless()
        (used.folder / "dray.db").chmod(0o444)
        used.folder.chmod(0o555)
    if not is_possible(under):
        pytest.skip("this machine does not let us restrict a process so")
    before = listing(used.folder)

    restricted = run_all(used, under, asked)

    assert listing(used.folder) == before
    assert_same(normally, restricted)
    told = [walk.named(path) for path, done in zip(NEEDS, restricted, strict=True) if FROZEN in done.err]
    assert {"jobs", "stats", "job-show", "queues", "workers", "db-status"} <= set(told)
    assert all(done.err.count(FROZEN) <= 1 for done in restricted)


def test_a_file_that_another_process_writes_is_seen_as_it_is_now(used: Shell) -> None:
    """With a -wal beside it, the newest commits are in there."""
    if not is_possible(powerless()):
        pytest.skip("this machine does not let us restrict a process so")
    asked = lines(used)
    normally = run_all(used, [], asked)
    with closing(sqlite3.connect(used.folder / "dray.db")) as writer:
        writer.execute("UPDATE dray_jobs SET priority = 77 WHERE state = 'failed'")
        writer.commit()
        assert (used.folder / "dray.db-wal").stat().st_size > 0
        for name in ("dray.db", "dray.db-wal", "dray.db-shm"):
            (used.folder / name).chmod(0o444)
        used.folder.chmod(0o555)
        before = listing(used.folder)

        restricted = run_all(used, powerless(), [*asked, ["jobs", "--state", "failed", "--json"]])

        assert listing(used.folder) == before
    *restricted, newest = restricted
    assert_same(normally, restricted)
    assert [job["priority"] for job in newest.json] == [77]
    assert not [done.err for done in restricted if FROZEN in done.err]


def test_a_log_without_its_index_is_a_sentence_and_no_half_truth(used: Shell) -> None:
    """A copy of the file and its -wal alone, where no -shm can be made."""
    if not is_possible(powerless()):
        pytest.skip("this machine does not let us restrict a process so")
    copy = used.folder / "copy"
    copy.mkdir()
    with closing(sqlite3.connect(used.folder / "dray.db")) as writer:
        writer.execute("UPDATE dray_jobs SET priority = 77")
        writer.commit()
        for name in ("dray.db", "dray.db-wal"):
            shutil.copy(used.folder / name, copy / name)
            (copy / name).chmod(0o444)
        copy.chmod(0o555)
    before = listing(copy)

    (done,) = run_all(used, powerless(), [["jobs"]], DRAY_URL=f"sqlite:///{copy}/dray.db")

    copy.chmod(0o755)
    assert (done.code, done.out, done.err.count("\n")) == (6, "", 1)
    assert "-wal" in done.err
    assert listing(copy) == before


def test_who_writes_is_refused_in_a_sentence_and_nothing_is_lost(used: Shell) -> None:
    under = read_only_mount(used.folder)
    if not is_possible(under):
        pytest.skip("this machine does not let us restrict a process so")
    job_id = used("jobs", "--state", "failed").rows[0][0]
    before = listing(used.folder)

    asked = {path: walk.words(path, ids=job_id, names="default") for path in walk.WRITES}
    done = dict(zip(asked, run_all(used, under, list(asked.values())), strict=True))

    assert listing(used.folder) == before
    assert done.pop(("db", "prune")).code == 0  # nothing is old enough, so there is nothing to write
    for path, each in done.items():
        assert "Traceback" not in each.err, each.err
        said = [line for line in each.err.splitlines() if line.startswith("dray: ") and FROZEN not in line]
        assert (path, each.code in {1, 5, 6}, len(said)) == (path, True, 1), each.err
    for path in (("enqueue",), ("job", "retry"), ("queues", "pause"), ("worker",)):
        assert (path, done[path].code) == (path, 6)


@pytest.mark.parametrize("path", NEEDS, ids=walk.named)
def test_a_look_at_a_missing_database_makes_no_file(local: Shell, path: walk.Path) -> None:
    done = local.try_(*walk.words(path))

    assert done.code == (1 if path == ("health",) else 6), done.err  # a probe knows only yes and no
    assert {file.name for file in local.folder.iterdir()} <= {"tasks.py", "__pycache__"}


@pytest.fixture
def reader(postgres_server: str, tmp_path: Path) -> Iterator[Shell]:
    """A project on PostgreSQL tables that this user may only read."""
    schema, role = f"test_reader_{os.getpid()}", f"reader_{os.getpid()}"
    folder = tmp_path / "project"
    folder.mkdir()
    owner = Shell(folder, f"{postgres_server}&schema={schema}")
    owner.write("tasks.py", TASKS)
    owner("db", "migrate")
    owner("enqueue", "tasks.fail", "word=bad")
    owner("worker", "--burst")
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}".encode())
        yield Shell(folder, owner.url.replace("postgres:@", f"{role}:@").replace("//postgres@", f"//{role}@"))
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())
        connection.execute(f"DROP OWNED BY {role}".encode())
        connection.execute(f"DROP ROLE {role}".encode())


def test_the_dashboard_of_a_user_who_may_only_read_shows_no_action(reader: Shell) -> None:
    access = Access("admin", "ann")
    with App(reader.url) as app:
        visitor = Visitor(dashboard(app, access=lambda _: access), access)

        assert 'method="post"' not in visitor.page("/queues")
        assert "can only be read" in visitor.post("/queues/default/pause", 403).text


def test_a_server_that_only_lets_us_read_is_read(reader: Shell) -> None:
    assert "reader_" in reader.url
    job_id = reader("jobs").rows[0][0]

    for path in NEEDS:
        done = reader.try_(*walk.words(path, ids=job_id, job_id=job_id))
        # No worker is alive, no workflow there is, a failed job is worth a 3.
        assert (path, done.code in {0, 1, 3, 5}) == (path, True), done.err
        assert "permission" not in done.err


def test_a_server_that_only_lets_us_read_refuses_in_a_sentence(reader: Shell) -> None:
    job_id = reader("jobs").rows[0][0]

    for path in (("enqueue",), ("job", "retry"), ("job", "delete"), ("queues", "pause")):
        done = reader.try_(*walk.words(path, ids=job_id))
        assert (path, done.code, done.err.count("\n")) == (path, 6, 1), done.err


def test_a_server_whose_transactions_only_read_is_read_and_refuses_in_a_sentence(
    postgres_url: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, postgres_url)
    shell.write("tasks.py", TASKS)
    shell("db", "migrate")
    shell("enqueue", "tasks.add", "a=1", "b=2")
    read_only = f"{shell.url}&options=-c%20default_transaction_read_only%3Don"

    assert len(shell("jobs", DRAY_URL=read_only).rows) == 1
    done = shell.try_("enqueue", "tasks.add", "a=1", "b=2", DRAY_URL=read_only)

    assert (done.code, done.err.count("\n")) == (6, 1), done.err
    assert len(shell("jobs").rows) == 1
