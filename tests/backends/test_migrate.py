"""Tables of another version: too new, newer, half created, and next to the user's own tables."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dray.address import SqliteAddress, parse_address
from dray.backends import Backend, migrate, open_backend
from dray.backends.statements import Dialect
from dray.errors import DrayError, SchemaMissing, SchemaTooNew, StorageLocked
from dray.model.job import Demand
from dray.model.limit import Source, bounds_of
from dray.model.new_job import NewJob
from tests import verbs
from tests.backends.processes import (
    Process,
    enqueue,
    integrity,
    job_ids,
    migrate_and_hang,
    raw_sql,
    register,
)

USES: dict[str, Callable[[Backend], Any]] = {
    "enqueue": enqueue,
    "list": lambda backend: backend.jobs.newest(),
    "claim": lambda backend: verbs.claim(backend, register(backend), Demand(("default",), ("task",), 1)),
    "probe": lambda backend: verbs.probe(backend, Demand(("default",), ("task",), 1)),
    "pause": lambda backend: backend.queues.pause("default"),
    "migrate": lambda backend: backend.migrate(),
}


def tables(url: str) -> list[str]:
    """Returns the names of all tables in the file or schema, including the user's."""
    if isinstance(parse_address(url), SqliteAddress):
        found = raw_sql(url, "SELECT name FROM sqlite_master WHERE type = 'table'")
    else:
        found = raw_sql(url, "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    return sorted(row[0] for row in found)


def contents(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Returns every row of every table."""
    return {table: sorted(raw_sql(url, f"SELECT * FROM {table}"), key=repr) for table in tables(url)}


@pytest.fixture
def migrated(url: str) -> str:
    """Tables with a job in them that no process has open."""
    backend = open_backend(url)
    backend.migrate()
    enqueue(backend)
    backend.close()
    return url


def set_version(url: str, version: int, oldest_code: int) -> None:
    raw_sql(url, f"UPDATE dray_meta SET value = '{version}' WHERE name = 'version'")
    raw_sql(url, f"UPDATE dray_meta SET value = '{oldest_code}' WHERE name = 'oldest_code'")


@pytest.mark.parametrize("use", USES)
def test_tables_that_need_newer_code_are_refused_and_stay_as_they_are(migrated: str, use: str) -> None:
    set_version(migrated, 99, 99)
    before = contents(migrated)
    backend = open_backend(migrated, create=True)

    for _ in range(2):
        with pytest.raises(SchemaTooNew, match="99") as caught:
            USES[use](backend)
        assert "\n" not in str(caught.value)
        assert "upgrade Dray" in str(caught.value)

    backend.close()
    assert contents(migrated) == before


def test_a_file_that_needs_newer_code_keeps_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = open_backend(str(path))
    enqueue(backend)
    backend.close()
    set_version(str(path), 99, 99)
    before = path.read_bytes()

    for use in USES.values():
        refused = open_backend(str(path))
        with pytest.raises(SchemaTooNew):
            use(refused)
        refused.close()

    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["jobs.db"]


def test_tables_that_are_merely_newer_are_used_with_one_warning(
    migrated: str, caplog: pytest.LogCaptureFixture
) -> None:
    set_version(migrated, 99, 1)
    caplog.set_level(logging.INFO, logger="dray")
    backend = open_backend(migrated, create=True)

    enqueue(backend)
    enqueue(backend)
    assert len(backend.jobs.newest()) == 3

    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "version 99" in warning.getMessage()
    assert backend.schema_version() == 99
    backend.close()
    assert dict(raw_sql(migrated, "SELECT name, value FROM dray_meta")) == {"version": "99", "oldest_code": "1"}


def test_a_migration_does_not_take_newer_tables_back(migrated: str) -> None:
    set_version(migrated, 99, 1)
    before = contents(migrated)
    backend = open_backend(migrated)

    assert backend.migrate() == 99

    backend.close()
    assert contents(migrated) == before


def test_migrating_twice_changes_nothing(migrated: str) -> None:
    before = contents(migrated)
    backend = open_backend(migrated)

    assert backend.migrate() == 7
    assert backend.migrate() == 7

    backend.close()
    assert contents(migrated) == before
    again = open_backend(migrated)
    assert again.migrate() == again.schema_version() == 7
    again.close()
    assert contents(migrated) == before


def test_migrating_an_up_to_date_file_does_not_write_to_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = open_backend(str(path))
    backend.migrate()
    backend.close()
    before = path.read_bytes()

    backend.migrate()
    backend.close()

    assert path.read_bytes() == before


def test_a_migration_killed_half_way_leaves_nothing_and_the_next_one_does_it_all(empty_url: str) -> None:
    with Process(migrate_and_hang, empty_url) as process:
        assert process.hear() == "half-way"
        process.kill()

    assert tables(empty_url) == []
    backend = open_backend(empty_url)
    assert backend.schema_version() is None
    assert backend.migrate() == 7
    made = enqueue(backend)
    backend.close()
    assert job_ids(empty_url) == [made]


def test_the_next_opener_migrates_a_file_whose_migration_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Process(migrate_and_hang, str(path)) as process:
        assert process.hear() == "half-way"
        process.kill()

    backend = open_backend(str(path))
    made = enqueue(backend)

    backend.close()
    assert job_ids(str(path)) == [made]
    assert raw_sql(str(path), "PRAGMA auto_vacuum") == [(2,)]
    assert integrity(path) == "ok"


@pytest.fixture
def newer_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this code the next release: one with an eighth migration."""

    def release(eighth: str) -> None:
        known = migrate.migrations

        def migrations(dialect: Dialect) -> dict[int, str]:
            return {**known(dialect), 8: eighth}

        monkeypatch.setattr(migrate, "migrations", migrations)

    return release


def test_only_the_migrations_that_are_missing_are_applied(migrated: str, newer_code: Callable[[str], None]) -> None:
    old = open_backend(migrated)
    made = [job.id for job in old.jobs.newest()]
    newer_code("CREATE TABLE dray_eighth (x integer);\n")
    new = open_backend(migrated)

    assert new.migrate() == 8

    made += [enqueue(new), enqueue(old)]  # the previous release keeps running next to it
    new.close()
    old.close()
    assert "dray_eighth" in tables(migrated)
    assert job_ids(migrated) == sorted(made)
    assert dict(raw_sql(migrated, "SELECT name, value FROM dray_meta")) == {"version": "8", "oldest_code": "1"}


# A job as the release before writes it, here with plain SQL: the code at hand writes columns that it did not have.
OLD_JOB = """
INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, max_attempts, max_crashes, args, name, trace,
    created_at, updated_at)
VALUES ('{id}', 'task', 'default', 'queued', 0, {at}, 3, 3, '{{"a":1}}', 'old', NULL, {at}, {at})
"""


def write_as_before(url: str, job_id: str) -> None:
    raw_sql(url, OLD_JOB.format(id=job_id, at=moment(url)))


def moment(url: str) -> str:
    return "1" if isinstance(parse_address(url), SqliteAddress) else "now()"


@pytest.fixture
def older_release(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Callable[[], None]]:
    """Makes this code know only the migrations up to a number, until the returned function is called."""
    known = migrate.migrations

    def release(newest: int) -> Callable[[], None]:
        def migrations(dialect: Dialect) -> dict[int, str]:
            return {number: text for number, text in known(dialect).items() if number <= newest}

        monkeypatch.setattr(migrate, "migrations", migrations)
        return lambda: monkeypatch.setattr(migrate, "migrations", known)

    return release


JOB_ID = "01a1dfc6-4022-7618-8766-b3f147912651"


def test_tables_of_the_first_release_are_upgraded_with_all_that_is_in_them(
    empty_url: str, older_release: Callable[[int], Callable[[], None]]
) -> None:
    upgrade = older_release(1)
    old = open_backend(empty_url)
    assert old.migrate() == 1
    old.close()
    write_as_before(empty_url, JOB_ID)
    at = moment(empty_url)
    raw_sql(
        empty_url,
        "INSERT INTO dray_schedules (name, task, args, cron, tz, misfire, misfire_limit, overlap, created_at,"
        f" updated_at) VALUES ('nightly', 'task', '{{}}', '@daily', 'UTC', 'last', 1, 'skip', {at}, {at})",
    )
    before = contents(empty_url)
    upgrade()

    new = open_backend(empty_url)
    assert new.migrate() == 7

    new.close()
    after = contents(empty_url)
    assert after.pop("dray_stacks") == []
    assert after.pop("dray_outcomes") == []
    assert after.pop("dray_actions") == []
    assert after.pop("dray_rollups") == []
    assert after.pop("dray_limits") == after.pop("dray_starts") == []
    assert [row[-1] for row in after["dray_schedules"]] == [None]
    after["dray_schedules"] = [row[:-1] for row in after["dray_schedules"]]
    # headers, retry, keep_us, error_key, key and held
    assert [row[-6:] for row in after["dray_jobs"]] == [(*(None,) * 5, False)]
    after["dray_jobs"] = [row[:-6] for row in after["dray_jobs"]]
    assert dict(after.pop("dray_meta")) == {"version": "7", "oldest_code": "1"}
    before.pop("dray_meta")
    assert [row[-1] for row in after["dray_attempts"]] == [None] * len(before["dray_attempts"])  # error_class
    after["dray_attempts"] = [row[:-1] for row in after["dray_attempts"]]
    assert after == before
    assert job_ids(empty_url) == [JOB_ID]


def test_jobs_of_a_version_3_database_run_after_the_migration_and_old_producers_go_on(
    empty_url: str, older_release: Callable[[int], Callable[[], None]]
) -> None:
    upgrade = older_release(3)
    old = open_backend(empty_url)
    assert old.migrate() == 3
    old.close()
    write_as_before(empty_url, JOB_ID)
    upgrade()
    backend = open_backend(empty_url)
    backend.migrate()

    write_as_before(empty_url, JOB_ID.replace("2651", "2652"))  # a producer that has not been upgraded yet

    claims = verbs.claim(backend, register(backend), Demand(("default",), ("task",), 5))
    backend.close()
    assert [(claim.id, claim.args, claim.headers, claim.retry) for claim in claims] == [
        (JOB_ID, '{"a":1}', None, None),
        (JOB_ID.replace("2651", "2652"), '{"a":1}', None, None),
    ]


def test_code_that_does_not_know_limits_refuses_a_database_that_has_had_one_and_no_other(
    empty_url: str, older_release: Callable[[int], Callable[[], None]]
) -> None:
    backend = open_backend(empty_url)
    backend.migrate()
    older_release(6)
    old = open_backend(empty_url)
    assert old.jobs.newest() == []
    old.close()

    backend.limits.say("task", "task", Source.DECLARED, bounds_of("task", {"limit": 1}))
    backend.limits.say("task", "task", Source.DECLARED, {})  # keys may be left, and starts of rates

    backend.close()
    for use in USES.values():
        old = open_backend(empty_url, create=True)
        with pytest.raises(SchemaTooNew, match="upgrade Dray"):
            use(old)
        old.close()


def test_a_migration_that_fails_leaves_the_tables_at_the_version_before(
    migrated: str, newer_code: Callable[[str], None]
) -> None:
    before = contents(migrated)
    newer_code("CREATE TABLE dray_eighth (x integer);\nINSERT INTO dray_nowhere VALUES (1);\n")
    backend = open_backend(migrated)

    with pytest.raises(DrayError):
        backend.migrate()

    backend.close()
    assert contents(migrated) == before


# A file that belongs to another program


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    """A user's database in rollback mode, with its own table, version numbers and file mode."""
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE users (name TEXT PRIMARY KEY)")
    connection.execute("CREATE INDEX by_name ON users (name)")
    connection.execute("INSERT INTO users VALUES ('ada'), ('grace')")
    connection.execute("PRAGMA user_version = 42")
    connection.execute("PRAGMA application_id = 4711")
    connection.commit()
    connection.close()
    path.chmod(0o644)
    return path


def test_a_users_tables_and_numbers_in_the_same_file_stay_untouched(users_file: Path) -> None:
    backend = open_backend(str(users_file))

    made = enqueue(backend)

    backend.close()
    url = str(users_file)
    assert raw_sql(url, "SELECT name FROM users ORDER BY name") == [("ada",), ("grace",)]
    assert raw_sql(url, "PRAGMA user_version") == [(42,)]
    assert raw_sql(url, "PRAGMA application_id") == [(4711,)]
    theirs = "SELECT name FROM sqlite_master WHERE name NOT LIKE '%dray%' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    assert raw_sql(url, theirs) == [("by_name",), ("users",)]
    assert job_ids(url) == [made]


def test_a_users_file_is_switched_to_wal_with_one_line_and_keeps_its_other_modes(
    users_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="dray")
    for _ in range(2):
        backend = open_backend(str(users_file))
        enqueue(backend)
        assert len(backend.jobs.newest()) > 0
        backend.close()

    (line,) = caplog.records
    assert "WAL" in line.getMessage()
    assert str(users_file) in line.getMessage()
    assert raw_sql(str(users_file), "PRAGMA journal_mode") == [("wal",)]
    assert raw_sql(str(users_file), "PRAGMA auto_vacuum") == [(0,)]
    assert users_file.stat().st_mode & 0o7777 == 0o644


def test_a_new_file_is_put_into_wal_mode_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="dray")
    backend = open_backend(str(tmp_path / "jobs.db"))

    enqueue(backend)

    backend.close()
    assert caplog.records == []


def test_a_users_file_that_somebody_reads_is_switched_once_the_reader_is_done(users_file: Path) -> None:
    reader = sqlite3.connect(users_file, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM users").fetchall()
    backend = open_backend(str(users_file), busy_timeout=0.2)

    with pytest.raises(StorageLocked, match=r"app\.db"):
        enqueue(backend)
    reader.execute("COMMIT")
    reader.close()

    made = enqueue(backend)
    backend.close()
    assert job_ids(str(users_file)) == [made]


def test_users_tables_in_the_same_schema_stay_untouched(postgres_url: str) -> None:
    schema = postgres_url.rpartition("schema=")[2]
    raw_sql(postgres_url, f"CREATE SCHEMA {schema}")
    raw_sql(postgres_url, "CREATE TABLE users AS SELECT 'ada' AS name")
    backend = open_backend(postgres_url)

    backend.migrate()
    enqueue(backend)

    backend.close()
    assert raw_sql(postgres_url, "SELECT name FROM users") == [("ada",)]
    assert {table for table in tables(postgres_url) if not table.startswith("dray_")} == {"users"}


def test_two_schemas_of_one_database_know_nothing_of_each_other(postgres_url: str) -> None:
    first = open_backend(postgres_url)
    second = open_backend(f"{postgres_url}_b")
    try:
        assert first.migrate() == second.migrate() == 7

        made = enqueue(first), enqueue(second)

        assert (job_ids(postgres_url), job_ids(f"{postgres_url}_b")) == ([made[0]], [made[1]])
    finally:
        first.close()
        second.close()
        raw_sql(postgres_url, f"DROP SCHEMA {postgres_url.rpartition('schema=')[2]}_b CASCADE")


def test_a_users_transaction_that_has_read_old_tables_is_told_so_at_once(
    postgres_url: str, older_release: Callable[[int], Callable[[], None]]
) -> None:
    upgrade = older_release(3)
    old = open_backend(postgres_url)
    old.migrate()
    old.close()
    upgrade()
    schema = postgres_url.rpartition("schema=")[2]
    with (
        closing(open_backend(postgres_url, create=True)) as backend,
        psycopg.connect(postgres_url.rpartition("&")[0]) as connection,
    ):
        connection.execute(f"SELECT * FROM {schema}.dray_jobs".encode())
        began = time.monotonic()

        with pytest.raises(SchemaMissing, match=r"cannot be made or upgraded now.*app\.init\(\)"):
            backend.jobs.enqueue([NewJob(id=JOB_ID, task="task", args="{}")], connection=connection)

        assert time.monotonic() - began < 10  # it waits 1 s, not 30
        assert connection.info.transaction_status.name == "INTRANS"
        connection.rollback()
        backend.jobs.enqueue([NewJob(id=JOB_ID, task="task", args="{}")], connection=connection)
