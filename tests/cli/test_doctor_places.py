"""What the doctor finds where a file, a server or a machine is not well."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.backends.sqlite import inotify, trust
from dray.clock import SystemClock
from dray.instants import SECOND
from dray.model.new_job import NewJob
from dray.ops.doctor import CHECKS, Result, database, examine
from dray.ops.doctor.check import Subject
from tests.backends.processes import NOBODY, raw_sql
from tests.cli.examined import examined, found, subject_of
from tests.cli.shell import Shell
from tests.manual_clock import ManualClock
from tests.processes.bouncer import bouncer
from tests.server import Server

MIB = 1024**2
PRIVATE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database in a folder of its own."""
    folder = tmp_path / "place"
    folder.mkdir()
    path = folder / "jobs.db"
    made(str(path))
    return path


def made(url: str) -> str:
    with App(url) as app:
        core_of(app).backend.migrate()
    return url


@pytest.fixture
def own(postgres_url: str) -> str:
    """A schema of its own, which may be harmed."""
    return made(postgres_url)


def names_beside(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def code_of(url: str, tmp_path: Path) -> int:
    return Shell(tmp_path, url).try_("doctor").code


# The machine


@pytest.mark.parametrize(
    ("facts", "name", "verdict", "said"),
    [
        ({"python": (3, 10, 4)}, "python", "failed", "Python 3.10.4 is too old"),
        ({"python": (3, 14, 0)}, "python", "ok", "Python 3.14.0"),
        ({"python": (3, 15, 0)}, "python", "note", "newer than those that Dray is tested on (3.11 to 3.14)"),
        ({"sqlite": (3, 36, 0)}, "sqlite", "failed", "SQLite 3.36.0 is too old: Dray needs 3.37"),
        ({"sqlite": (3, 51, 2)}, "sqlite", "warning", "fixed in 3.51.3: two connections"),
        ({"sqlite": (3, 51, 3)}, "sqlite", "ok", "SQLite 3.51.3"),
    ],
)
def test_versions(file: Path, facts: dict[str, Any], name: str, verdict: str, said: str) -> None:
    answer, text = found(str(file), name, **facts)

    assert answer == verdict
    assert said in text


def test_no_inotify_to_be_had(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: inotify.Inotify) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(inotify.Inotify, "__init__", refuse)

    assert found(str(file), "inotify")[0] == "warning"


def test_a_file_that_could_not_be_copied_beside_itself(file: Path) -> None:
    # A hole: it takes no room. Twice the free space, because other processes free some of theirs meanwhile.
    os.truncate(file, 2 * shutil.disk_usage(file.parent).free)

    verdict, text = found(str(file), "disk")

    assert verdict == "warning"
    assert text.startswith("no room for a copy: ")


DISKS = {
    "all but full": ("-t tmpfs -o size=32m tmpfs", "disk", "failed", "the disk is all but full: "),
    "filling up": ("-t tmpfs -o size=256m tmpfs", "disk", "warning", "the disk is filling up: "),
    "in memory": ("-t tmpfs tmpfs", "file-system", "warning", "the file lies in memory (tmpfs)"),
    "a container's": (
        "-t overlay -o lowerdir={0}/low,upperdir={0}/up,workdir={0}/work overlay",
        "file-system",
        "warning",
        "the file lies in a container's own layer (overlay)",
    ),
}


@pytest.mark.parametrize("disk", DISKS)
def test_disks(tmp_path: Path, disk: str) -> None:
    options, name, verdict, said = DISKS[disk]
    for folder in ("low", "up", "work"):
        (tmp_path / folder).mkdir()
    mount = f"mount {options.format(tmp_path)} /mnt"
    if shutil.which("unshare") is None or subprocess.run([*PRIVATE, "sh", "-c", mount], check=False).returncode:
        pytest.skip("this machine does not let us mount such a disk")
    dray = f"{sys.executable} -m dray"

    done = subprocess.run(
        [*PRIVATE, "sh", "-c", f"{mount} && {dray} db init --url /mnt/a.db && {dray} doctor --json --url /mnt/a.db"],
        capture_output=True,
        text=True,
        check=False,
    )

    results = {each["name"]: each for each in json.loads(done.stdout.splitlines()[-1])}
    assert results[name]["verdict"] == verdict
    assert results[name]["text"].startswith(said)
    assert done.returncode == (1 if verdict == "failed" else 0)


# The file


def test_a_network_file_system(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def network(_: Path) -> str:
        return "nfs4"

    monkeypatch.setattr(trust, "kind_of", network)

    verdict, text = found(str(file), "file-system")

    assert verdict == "warning"
    assert text.startswith("the file lies on nfs4, which other machines can reach too")


@pytest.mark.parametrize(
    ("kind", "verdict", "said"),
    [
        ("virtiofs", "warning", "the file lies on virtiofs, a folder of this virtual machine's host"),
        ("fuse.newfs", "warning", "the file lies on fuse.newfs, which is not known here"),
        ("fuse.fuse-overlayfs", "warning", "the file lies in a container's own layer"),
        ("tmpfs", "warning", "the file lies in memory"),
        ("fuseblk", "ok", "on fuseblk"),
        (None, "note", "what file system it lies on is not known here"),
    ],
)
def test_other_file_systems(
    file: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, verdict: str, said: str
) -> None:
    def system(_: Path) -> str | None:
        return kind

    monkeypatch.setattr(trust, "kind_of", system)

    seen, text = found(str(file), "file-system")

    assert seen == verdict
    assert text.startswith(said)


def test_modes_that_let_others_in(file: Path) -> None:
    assert found(str(file), "permissions") == ("ok", "mode 600, this user can write")
    file.chmod(0o644)
    assert found(str(file), "permissions")[1].startswith("every user of this machine can read the jobs")
    file.chmod(0o666)
    assert found(str(file), "permissions")[1].startswith("every user of this machine can change the jobs")
    file.parent.chmod(0o777)
    assert found(str(file), "permissions")[1].startswith("every user can replace the file: its folder has mode 777")
    assert found(str(file), "permissions")[0] == "warning"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user_beside_it(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("SELECT 1 FROM dray_jobs").fetchall()
        wal = file.with_name("jobs.db-wal")
        os.chown(wal, NOBODY, NOBODY)

        result = examined(str(file))["permissions"]

    assert result.verdict == "warning"
    assert result.text.startswith("jobs.db-wal belongs to another user than the file")
    assert result.fix == f"chown 0 {wal}"


def test_a_file_that_may_only_be_read() -> None:
    with tempfile.TemporaryDirectory(prefix="dray-doctor-") as folder:
        path = Path(folder) / "jobs.db"
        made(str(path))
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        path.chmod(0o400)
        path.parent.chmod(0o555)
        examined(str(path))  # loads what may be in a folder of root's
        with as_a_user_whom_modes_bind():
            results = examined(str(path))
        path.parent.chmod(0o700)

        assert names_beside(path) == ["jobs.db"]
    assert results["schema"].verdict == results["integrity"].verdict == "ok"
    assert [name for name, result in results.items() if result.verdict == "failed"] == []
    assert results["permissions"].text == "this user may only read it; a worker here would be refused"


def test_a_file_that_may_not_be_read() -> None:
    with tempfile.TemporaryDirectory(prefix="dray-doctor-") as folder:
        path = Path(folder) / "jobs.db"
        made(str(path))
        path.parent.chmod(0o755)
        examined(str(path))
        path.chmod(0o000)
        with as_a_user_whom_modes_bind():
            results = examined(str(path))

    assert [name for name, result in results.items() if result.verdict == "failed"] == ["database", "permissions"]
    assert results["database"].text.startswith(f"{path}: may not be read by user ")
    owner = os.geteuid()
    assert results["permissions"].text == f"this user may not read it: it belongs to user {owner} and has mode 000"
    assert {"disk", "file-system"} <= results.keys()
    assert not {"journal", "wal", "schema"} & results.keys()


def test_a_file_in_a_folder_that_may_not_be_entered() -> None:
    with tempfile.TemporaryDirectory(prefix="dray-doctor-") as folder:
        path = Path(folder) / "jobs.db"
        made(str(path))
        examined(str(path))
        path.parent.chmod(0o000)
        with as_a_user_whom_modes_bind():
            results = examined(str(path))
        path.parent.chmod(0o700)

    assert_of_no_file(results, f"{path}: cannot be reached by user ")


def test_a_directory(tmp_path: Path) -> None:
    assert_of_no_file(examined(str(tmp_path)), f"{tmp_path}: is a directory")


def assert_of_no_file(results: dict[str, Result], said: str) -> None:
    assert [name for name, result in results.items() if result.verdict == "failed"] == ["database"]
    assert results["database"].text.startswith(said)
    assert not {"disk", "inotify", "file-system", "permissions", "journal", "wal", "write-lock"} & results.keys()


@contextmanager
def as_a_user_whom_modes_bind() -> Generator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_that_is_not_in_wal_mode(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")

    assert found(str(file), "journal")[0] == "warning"
    assert found(str(file), "schema")[0] == "ok"
    assert names_beside(file) == ["jobs.db"]


def test_a_log_that_has_grown(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("SELECT 1 FROM dray_jobs").fetchall()
        assert found(str(file), "wal")[0] == "ok"
        os.truncate(file.with_name("jobs.db-wal"), 65 * MIB)

        verdict, text = found(str(file), "wal")

    assert verdict == "warning"
    assert text.startswith("the -wal has grown to 65.0 MiB")


def test_a_log_that_was_copied_here_without_its_index(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "jobs.db"
    copy.parent.mkdir()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE mine (a)")
        for suffix in ("", "-wal"):
            shutil.copy(f"{file}{suffix}", f"{copy}{suffix}")

    verdict, text = found(str(copy), "database")

    assert verdict == "failed"
    assert "its -wal" in text
    assert names_beside(copy) == ["jobs.db", "jobs.db-wal"]


@pytest.mark.parametrize(("size", "expected"), [(1, "note"), (65 * MIB, "warning")], ids=["little", "much"])
def test_pages_that_stay_in_a_file_that_dray_has_not_made(tmp_path: Path, size: int, expected: str) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE orders (id)")
        connection.execute("INSERT INTO orders VALUES (zeroblob(?))", [size])
        made(str(path))
        connection.execute("DROP TABLE orders")

    assert found(str(path), "pages")[0] == expected


def test_a_process_that_keeps_the_write_lock(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        verdict, text = found(str(file), "write-lock")
        connection.execute("ROLLBACK")
        assert found(str(file), "write-lock") == ("ok", "no program keeps the write lock")

    assert verdict == "warning"
    assert text.startswith(f"process {os.getpid()} (")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("this is no database\n" * 100)

    results = examined(str(path))

    assert results["database"].verdict == "failed"
    assert "is not a SQLite database" in results["database"].text
    assert {"file-system", "permissions", "python"} <= results.keys()
    assert not {"schema", "integrity", "workers"} & results.keys()
    assert code_of(str(path), tmp_path) == 6


def test_a_file_that_a_process_has_locked(file: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")

        assert "kept the write lock" in found(str(file), "database")[1]
        assert code_of(str(file), tmp_path) == 6


def test_a_damaged_file(file: Path, tmp_path: Path) -> None:
    pages = file.stat().st_size // 4096
    with file.open("r+b") as opened:
        opened.seek(4096 * (pages // 2))
        opened.write(b"\xa5" * 4096 * 3)

    verdict, text = found(str(file), "integrity")

    assert verdict == "failed"
    assert "is damaged" in text
    assert code_of(str(file), tmp_path) == 1


def test_a_truncated_copy(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)

    results = examined(str(file))

    assert "failed" in {results[name].verdict for name in ("database", "integrity") if name in results}


def test_a_file_too_large_to_be_checked_in_time(file: Path) -> None:
    subject = subject_of(str(file), seconds=0.0)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.executescript("CREATE TABLE mine (a); CREATE INDEX mine_a ON mine (a)")
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
            "INSERT INTO mine SELECT i FROM n"
        )

    finding = checked("integrity", subject)

    assert finding.text == "no damage found in the first second; the file is too large to check whole"
    subject.backend.close()


def checked(name: str, subject: Subject) -> Result:
    """One check alone."""
    (result,) = examine(subject, checks=[check for check in CHECKS if check.name == name])
    return result


# Tables, on both


def command_for(url: str, verb: str) -> str:
    if url.startswith("sqlite"):
        return f"dray db {verb} --url {url}"
    return f"dray db {verb} with DRAY_URL set to this address and its password"


def test_tables_that_are_not_there(empty_url: str, tmp_path: Path) -> None:
    if empty_url.startswith("sqlite"):
        assert found(empty_url, "database")[1].endswith("there is no such file")
        with closing(sqlite3.connect(empty_url.removeprefix("sqlite:///"))) as connection:
            connection.execute("CREATE TABLE mine (a)")

    result = examined(empty_url)["schema"]

    assert (result.verdict, result.text) == ("failed", "Dray's tables are not there")
    assert result.fix == command_for(empty_url, "init")
    assert code_of(empty_url, tmp_path) == 6


@pytest.mark.parametrize(
    ("change", "expected", "fix"),
    [
        ("UPDATE dray_meta SET value = '0' WHERE name = 'version'", "failed", None),
        ("UPDATE dray_meta SET value = '999'", "failed", "pip install -U dray"),
        ("UPDATE dray_meta SET value = '999' WHERE name = 'version'", "note", "pip install -U dray"),
    ],
    ids=["behind", "too new", "newer"],
)
def test_tables_of_another_version(empty_url: str, change: str, expected: str, fix: str | None) -> None:
    raw_sql(made(empty_url), change)

    results = examined(empty_url)

    fix = fix or command_for(empty_url, "migrate")
    assert (results["schema"].verdict, results["schema"].fix) == (expected, fix)
    assert ("workers" in results) is (expected == "note")


@pytest.mark.parametrize(("seconds", "expected"), [(1, "ok"), (30, "warning"), (7200, "failed")])
def test_a_clock_that_is_behind(url: str, seconds: int, expected: str) -> None:
    made(url)
    with App(url) as app:
        app.enqueue("add", {})
    behind = ManualClock(SystemClock().now() - seconds * SECOND)

    assert found(url, "clock", clock=behind)[0] == expected


# The server


@pytest.mark.parametrize("host", ["/nosuch/place", "%2Fnosuch%2Fplace"])
def test_a_server_is_named_alike_by_every_check(host: str) -> None:
    results = examined(f"postgresql:///db?host={host}")

    place = "postgresql:///db?host=/nosuch/place"
    assert results["configuration"].text.startswith(f"{place}, ")
    assert results["database"].text.startswith(f"{place}: cannot be reached")


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    url = "postgresql://user:canary@127.0.0.1:1/db?connect_timeout=2"

    results = examined(url)

    assert results["database"].verdict == "failed"
    assert {"python", "driver", "configuration"} <= results.keys()
    assert not any("canary" in result.text + (result.fix or "") for result in results.values())
    assert code_of(url, tmp_path) == 6


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"version_number": 120_022, "version": "12.22"}, "PostgreSQL 12.22 is too old"),
        ({"is_standby": True}, "is a standby here"),
    ],
    ids=["old", "standby"],
)
def test_a_server_that_cannot_be_used(own: str, facts: dict[str, Any], said: str) -> None:
    subject = subject_of(own)
    assert subject.server is not None
    subject.server = subject.server._replace(**facts)

    finding = checked("server", subject)

    assert finding.verdict == "failed"
    assert said in finding.text
    subject.backend.close()


def test_commits_that_a_power_loss_forgets(own: str) -> None:
    assert found(own, "commits") == ("ok", "fsync on, synchronous_commit on")

    assert found(f"{own}&options=-csynchronous_commit%3Doff", "commits")[0] == "warning"


def test_a_pooler_that_does_not_deliver(own: str, postgres_server: str) -> None:
    schema = own.rpartition("schema=")[2]
    assert found(own, "listen", skip=()) == ("ok", "LISTEN delivers")

    with bouncer(postgres_server) as pooled:
        verdict, text = found(f"{pooled}?schema={schema}", "listen", skip=())

    assert verdict == "warning"
    assert text.startswith("LISTEN does not deliver")


@pytest.fixture
def small_server() -> Generator[str]:
    """A server of its own: this one is filled."""
    own = Server("max_connections=60")
    yield own.url
    own.remove()


def test_connections_that_are_all_but_used_up(small_server: str) -> None:
    own = made(small_server)
    subject = subject_of(own)
    assert subject.server is not None
    free = subject.server.connections_max - subject.server.connections
    subject.backend.close()
    with ExitStack() as stack:
        for _ in range(free - 10):
            stack.enter_context(closing(psycopg.connect(own)))
        crowded = found(own, "connections")
        for _ in range(8):
            stack.enter_context(closing(psycopg.connect(own)))
        full = found(own, "connections")

    assert (crowded[0], full[0]) == ("warning", "failed")
    assert "room for 2 more workers (4 each)" in crowded[1]
    assert full[1].endswith("another worker could not start")


def test_dead_rows_that_are_not_vacuumed(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_DEAD_ROWS", 50)
    assert found(own, "vacuum")[0] == "ok"
    with App(own) as app:
        core_of(app).backend.jobs.enqueue([NewJob(id=core_of(app).ids.new(), task="add") for _ in range(100)])
    raw_sql(own, "ALTER TABLE dray_jobs SET (autovacuum_enabled = FALSE)")  # the server's own may come by
    raw_sql(own, "DELETE FROM dray_jobs; SELECT pg_stat_force_next_flush()")

    verdict, text = found(own, "vacuum")

    assert verdict == "warning"
    assert text.startswith("100 dead rows beside 0 live ones in dray_jobs")


def test_a_transaction_that_has_been_open_for_long(
    own: str, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LONG_US", 0)
    with psycopg.connect(postgres_server, application_name="forgetful") as connection:
        connection.execute("SELECT 1")
        pid = connection.info.backend_pid
        verdict, text = found(own, "transactions")

    assert verdict == "warning"
    assert f"(process {pid}, forgetful), idle in transaction" in text


def test_an_index_whose_making_was_cut_off(own: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        raw_sql(own, f"INSERT INTO dray_queues (name, created_at) VALUES ('{name}', now())")
    schema = own.rpartition("schema=")[2]
    with (
        psycopg.connect(own.partition("&schema=")[0], autocommit=True) as connection,
        pytest.raises(psycopg.errors.UniqueViolation),
    ):
        connection.execute(f'CREATE UNIQUE INDEX CONCURRENTLY cut_off ON "{schema}".dray_queues (priority)'.encode())

    result = examined(own)["integrity"]

    assert result.text == "invalid indexes, which nothing uses: cut_off"
    assert result.fix == "REINDEX INDEX cut_off"
    assert code_of(own, tmp_path) == 1


def test_locked_tables_do_not_block_the_doctor(own: str) -> None:
    with psycopg.connect(own.partition("&schema=")[0]) as connection:
        schema = own.rpartition("schema=")[2]
        connection.execute(f'LOCK TABLE "{schema}".dray_schedules IN ACCESS EXCLUSIVE MODE'.encode())
        results = examined(own, seconds=0.1)

    assert results["schedules"].verdict == "note"
    assert results["schedules"].text.startswith("not known: ")
    assert results["paused-queues"].verdict == "ok"
