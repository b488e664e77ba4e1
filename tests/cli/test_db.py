"""``dray db``: the tables printed, checked, copied and cleared."""

from __future__ import annotations

import re
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

import dray
from dray.address import PostgresAddress, parse_address
from dray.backends import Backend, open_backend
from dray.backends.migrate import latest
from dray.clock import Ids, SystemClock
from dray.model.new_job import NewJob
from dray.ops.audit import audit
from tests.backends.processes import raw_sql
from tests.cli.shell import TASKS, Shell, plain
from tests.processes.harness import Fleet


@pytest.fixture(scope="session")
def programs(postgres_server: str) -> Path:
    """Where the server's own pg_dump, pg_restore and psql are."""
    with psycopg.connect(postgres_server) as connection:
        found = connection.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchone()
    assert found is not None
    return Path(found[0])


def ids_in(path: Path) -> set[str]:
    """The jobs in a file, read as if nothing else were there."""
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM dray_jobs")}


def on_screen(text: str) -> str:
    """What a terminal was sent, what it overwrote on a line of its own."""
    return plain(text).replace("\r", "\n")


def database_of(shell: Shell) -> str:
    return urlsplit(shell.url).path.removeprefix("/")


def schema_of(url: str) -> str:
    address = parse_address(url)
    assert isinstance(address, PostgresAddress)
    assert address.schema is not None
    return address.schema


@pytest.fixture
def server(tmp_path: Path, postgres_url: str) -> Shell:
    """A project on a PostgreSQL schema of its own, whose tables are not made yet."""
    folder = tmp_path / "project"
    folder.mkdir()
    return Shell(folder, postgres_url)


@pytest.mark.parametrize("words", [["sql"], ["check"], ["backup"], ["prune"]], ids=" ".join)
def test_every_command_says_what_it_does(local: Shell, words: list[str]) -> None:
    said = local("db", *words, "--help").out

    assert said.startswith(f"Usage: dray db {' '.join(words)}")
    assert "--url" in said
    assert words[0] in local("db", "--help").out


@pytest.mark.parametrize("words", [["check"], ["backup"], ["prune", "--yes"], ["prune", "--dry-run"]], ids=" ".join)
def test_a_database_that_is_not_there_is_not_made(local: Shell, words: list[str]) -> None:
    assert local.try_("db", *words).code == 6
    assert [file.name for file in local.folder.iterdir() if file.name != "__pycache__"] == ["tasks.py"]


# dray db sql


def made_of(path: Path) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]], int, str]:
    """All that a file says of itself."""
    with closing(sqlite3.connect(path)) as connection:
        everything = connection.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
        ).fetchall()
        meta = connection.execute("SELECT name, value FROM dray_meta ORDER BY name").fetchall()
        pragmas = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("auto_vacuum", "journal_mode")]
    return everything, meta, *pragmas


@pytest.mark.parametrize("words", [[], ["--migrations"]], ids=["whole", "one by one"])
def test_what_is_printed_makes_the_tables_that_init_makes(local: Shell, words: list[str]) -> None:
    local("db", "init")

    printed = local("db", "sql", "--kind", "sqlite", *words).out

    by_hand = local.folder / "by hand.db"
    with closing(sqlite3.connect(by_hand)) as connection:
        connection.executescript(printed)
    assert made_of(by_hand) == made_of(local.folder / "dray.db")
    assert local("db", "status", "--url", str(by_hand), "--json").json["version"] == latest("sqlite")


def test_what_is_printed_for_a_version_upgrades_it(local: Shell) -> None:
    local("db", "init")
    each = local("db", "sql", "--migrations", "--json").json
    assert [script["version"] for script in each] == [*range(1, latest("sqlite") + 1)]
    old = local.folder / "old.db"
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript(each[0]["sql"])
        assert connection.execute("SELECT value FROM dray_meta WHERE name = 'version'").fetchone() == ("1",)

        connection.executescript(local("db", "sql", "--from", "1").out)

    assert made_of(old) == made_of(local.folder / "dray.db")
    done = local("db", "sql", "--from", str(latest("sqlite")))
    assert (done.out, done.err) == ("", f"dray: there is nothing after version {latest('sqlite')}\n")


@pytest.mark.parametrize("words", [[], ["--migrations"]], ids=["whole", "one by one"])
def test_what_is_printed_makes_the_tables_that_migrate_makes_on_a_server(
    server: Shell, postgres_server: str, programs: Path, words: list[str]
) -> None:
    schema = schema_of(server.url)
    server("db", "migrate")
    made = dumped(programs, postgres_server, schema)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())

    printed = server("db", "sql", *words).out

    psql = [programs / "psql", "-qv", "ON_ERROR_STOP=1", postgres_server]
    subprocess.run(psql, input=printed, text=True, check=True, stdout=subprocess.DEVNULL)
    assert dumped(programs, postgres_server, schema) == made
    assert server("db", "status", "--json").json["version"] == latest("postgres")


def dumped(programs: Path, server: str, schema: str) -> list[str]:
    """All that makes a schema and what it notes of itself, as pg_dump tells it."""
    table = f'"{schema}".dray_meta'
    said = [
        subprocess.run([programs / "pg_dump", *words, server], capture_output=True, text=True, check=True).stdout
        for words in (["-s", "-n", schema], ["-a", "--inserts", "-t", table])
    ]
    # pg_dump marks each output with a word of its own.
    return sorted(line for text in said for line in text.splitlines() if "restrict" not in line)


def test_printing_needs_no_database(local: Shell) -> None:
    nowhere = {"DRAY_URL": "postgresql://user@127.0.0.1:1/db?schema=shop"}

    printed = local("db", "sql", **nowhere).out

    assert 'CREATE SCHEMA IF NOT EXISTS "shop"' in printed
    assert "STRICT" in local("db", "sql", "--kind", "sqlite", **nowhere).out
    assert "STRICT" in local("db", "sql").out
    assert not list(local.folder.glob("*.db*"))


# What the storage warns of

LOGGING = "import logging\nlogging.basicConfig(format='mine: %(message)s')\n"


def a_file_of_others(local: Shell) -> None:
    """The project's database has a table already, and no write-ahead log: the first writer says so."""
    with closing(sqlite3.connect(local.folder / "dray.db")) as connection:
        connection.execute("CREATE TABLE theirs (number INTEGER)")


@pytest.mark.parametrize(
    "words",
    [["enqueue", "tasks.add", "a=1", "b=2"], ["db", "init"], ["db", "move", "other.db", "dray.db"]],
    ids=" ".join,
)
def test_what_the_storage_warns_of_is_a_sentence_of_the_command(local: Shell, words: list[str]) -> None:
    local("db", "init", "--url", "other.db")
    a_file_of_others(local)

    said = local(*words).err.splitlines()

    assert sum("switched to write-ahead logging" in line for line in said) == 1
    assert all(line.startswith("dray: ") for line in said), said


@pytest.mark.parametrize("words", [["enqueue", "more.other", "a=1"], ["worker", "--burst"]], ids=" ".join)
def test_an_app_that_has_set_up_logging_is_warned_its_own_way_alone(local: Shell, words: list[str]) -> None:
    local.write("tasks.py", TASKS.replace("dray.App()", "dray.App(imports=['more'])"))
    local.write("more.py", f"{LOGGING}from tasks import app\n@app.task\ndef other(a: int) -> None: ...\n")
    a_file_of_others(local)

    warned = [line for line in local(*words).err.splitlines() if "switched to" in line]

    assert warned == [f"mine: {local.folder / 'dray.db'}: switched to write-ahead logging (journal_mode=WAL), once"]


def test_a_worker_logs_what_the_storage_warns_of_once(local: Shell) -> None:
    a_file_of_others(local)

    (line,) = (line for line in local("worker", "--burst").err.splitlines() if "switched to" in line)

    assert re.match(r"\d{4}-\d\d-\d\d \S+ warning dray: ", line)


# dray db check


def test_a_database_that_is_whole_is_called_so(shell: Shell) -> None:
    shell("enqueue", "tasks.add", "a=1", "b=2")

    lines = dict(shell("db", "check").rows)
    assert lines["database"] == lines["audit.database"]
    assert (lines["holds"], lines["audit.holds"], lines["audit.jobs"]) == ("true", "true", "1")
    found = shell("db", "check", "--full", "--json").json
    assert (found["holds"], found["damage"], found["audit"]["holds"], found["audit"]["jobs"]) == (True, [], True, 1)


def test_a_check_tells_of_rules_that_are_broken(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.add", "a=1", "b=2").value
    raw_sql(shell.url, "UPDATE dray_jobs SET waiting_on = 1")

    done = shell.try_("db", "check")

    assert (done.code, done.rows[0][:3]) == (1, ["freed", "1", job_id])


def test_an_index_that_is_missing_is_told_of_and_the_rules_are_looked_at(local: Shell) -> None:
    local("enqueue", "tasks.add", "a=1", "b=2")
    raw_sql(local.url, "DROP INDEX dray_jobs_due")

    done = local.try_("db", "check")

    assert (done.code, done.rows) == (1, [["damage", "1", "", "dray_jobs_due is missing"]])
    assert local.try_("db", "check", "--json").json["audit"]["holds"]


@pytest.mark.parametrize("full", [[], ["--full"]], ids=["quick", "full"])
def test_a_damaged_file_is_found_out(local: Shell, full: list[str]) -> None:
    path = local.folder / "dray.db"
    with closing(open_backend(local.url)) as backend:
        fill(backend, 2_000)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xff" * 8192)

    done = local.try_("db", "check", *full)

    assert done.code == 1
    assert {row[0] for row in done.rows} == {"damage"}
    assert re.search(r"^damage: ", on_screen(local.on_terminal("db", "check", *full).out), re.M)


def test_a_full_check_compares_indexes_with_their_tables(local: Shell) -> None:
    with closing(open_backend(local.url)) as backend:
        fill(backend, 10)
    with closing(sqlite3.connect(local.folder / "dray.db")) as connection, connection:
        # The rows of the index are those of another table: each by itself is whole.
        connection.execute("CREATE INDEX elsewhere ON dray_queues (created_at)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'elsewhere') "
            "WHERE name = 'dray_jobs_due'"
        )

    done = local.try_("db", "check", "--full")

    assert done.code == 1
    assert any("dray_jobs_due" in row[3] or "elsewhere" in row[3] for row in done.rows), done.out


def test_an_index_that_was_never_finished_is_found_out(server: Shell) -> None:
    server("db", "migrate")
    schema = schema_of(server.url)
    raw_sql(
        server.url, f"UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = '{schema}.dray_jobs_due'::regclass"
    )
    raw_sql(server.url, "ALTER TABLE dray_jobs DROP CONSTRAINT job_counts")
    raw_sql(server.url, "ALTER TABLE dray_jobs ADD CONSTRAINT job_counts CHECK (attempt >= 0) NOT VALID")

    done = server.try_("db", "check", "--full")

    assert done.code == 1
    assert [row[3] for row in done.rows] == [
        "index dray_jobs_due was never finished and is not used; REINDEX it",
        "constraint job_counts of dray_jobs was never validated",
    ]


def fill(backend: Backend, count: int) -> None:
    ids = Ids(SystemClock())
    backend.jobs.enqueue([NewJob(id=ids.new(), task="tasks.add", args='{"a": 1, "b": 2}') for _ in range(count)])


# dray db backup


@pytest.fixture
def filled(local: Shell) -> Shell:
    local("enqueue", "tasks.add", "a=1", "b=2")
    local("enqueue", "tasks.add", "a=1", "b=2", "--delay", "1h")
    return local


def test_a_copy_is_a_database_like_any_other(filled: Shell) -> None:
    (filled.folder / "dray.db").chmod(0o640)

    made = filled("db", "backup", "copy.db", "--json").json

    path = filled.folder / "copy.db"
    assert made["backup"] == str(path)
    assert made["bytes"] == path.stat().st_size
    assert made["jobs"] == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert ids_in(path) == ids_in(filled.folder / "dray.db") != set()
    assert sorted(file.name for file in filled.folder.glob("*copy*")) == ["copy.db"], "nothing is beside it"
    assert filled("jobs", "--url", "copy.db").rows == filled("jobs").rows
    assert filled("worker", "--burst", "--url", "copy.db").code == 0


def test_a_copy_without_a_name_is_named_after_the_database_and_the_time(filled: Shell) -> None:
    (filled.folder / "copies").mkdir()

    for words, folder in ([], filled.folder), (["copies"], filled.folder / "copies"):
        path = Path(dict(filled("db", "backup", *words).rows)["backup"])
        assert path.parent == folder
        assert re.fullmatch(r"dray-[0-9]{8}T[0-9]{6}Z\.db", path.name)
        assert len(ids_in(path)) == 2


def test_what_is_there_is_replaced_only_by_force(filled: Shell) -> None:
    filled.write("copy.db", "mine")

    refused = filled.try_("db", "backup", "copy.db")

    assert refused.code == 1
    assert "is there already" in refused.err
    assert (filled.folder / "copy.db").read_text() == "mine"
    filled("db", "backup", "copy.db", "--force")
    assert len(ids_in(filled.folder / "copy.db")) == 2


@pytest.mark.parametrize("target", ["dray.db", "busy.db"])
def test_a_database_in_use_is_not_replaced_even_by_force(filled: Shell, target: str) -> None:
    with closing(sqlite3.connect(filled.folder / target)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE IF NOT EXISTS theirs (x)")
        connection.commit()

        done = filled.try_("db", "backup", target, "--force")

        assert (done.code, "may be a database in use" in done.err) == (6, True)


def test_a_database_is_not_replaced_by_its_own_copy(filled: Shell) -> None:
    done = filled.try_("db", "backup", "./dray.db", "--force")

    assert done.code == 6
    assert "is the database itself" in done.err or "may be a database in use" in done.err
    assert len(ids_in(filled.folder / "dray.db")) == 2


BAD_TARGETS = {"nosuch/copy.db": "No such file or directory", "tasks.py/copy.db": "Not a directory"}


@pytest.mark.parametrize("target", BAD_TARGETS)
def test_a_place_that_cannot_be_written_to_is_a_sentence(filled: Shell, target: str) -> None:
    done = filled.try_("db", "backup", target)

    assert done.code == 1
    assert done.err.endswith(f": {BAD_TARGETS[target]}\n")
    assert done.err.count("\n") == 1


def test_a_full_disk_leaves_nothing_half_made(filled: Shell) -> None:
    copies = filled.folder / "copies"
    copies.mkdir()
    with closing(open_backend(filled.url)) as backend:
        fill(backend, 3_000)

    done = subprocess.run(
        filled.command("db", "backup", "copies/copy.db"),
        cwd=filled.folder,
        env=filled.environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode in {1, 6}
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(copies) in done.stderr
    assert list(copies.iterdir()) == []


def test_a_damaged_database_gives_no_copy(local: Shell) -> None:
    path = local.folder / "dray.db"
    with closing(open_backend(local.url)) as backend:
        fill(backend, 2_000)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 8192)

    done = local.try_("db", "backup", "copy.db")

    assert done.code != 0
    assert "the copy is not whole" in done.err or "damaged" in done.err
    assert list(local.folder.glob("*copy*")) == []


def test_a_terminal_shows_how_far_it_is_and_what_was_made(filled: Shell) -> None:
    shown = on_screen(filled.on_terminal("db", "backup", "copy.db", columns=200).out)

    assert "copying" in shown
    assert re.search(r"^backup +/.*copy\.db$", shown, re.M)
    assert re.search(r"^jobs +2$", shown, re.M)


@pytest.fixture
def busy(tmp_path: Path) -> Generator[Fleet]:
    fleet = Fleet(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "fleet")
    yield fleet
    fleet.close()


def test_a_copy_made_under_load_holds_all_that_was_there_before_and_holds_together(
    busy: Fleet, tmp_path: Path
) -> None:
    for _ in range(2):
        busy.start(concurrency=4)
    made: list[str] = []
    is_over = threading.Event()

    def enqueue() -> None:
        while not is_over.is_set():
            made.extend(job.id for job in busy.enqueue_many("moment", [{}] * 20))

    producer = threading.Thread(target=enqueue)
    producer.start()
    try:
        busy.until(lambda: busy.states().get("completed", 0) > 100, "the load")
        for number in range(3):
            before = list(made)
            target = tmp_path / f"copy {number}.db"
            command = [sys.executable, "-m", "dray", "db", "backup", str(target), "--url", busy.url]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=busy.environment, timeout=60)
            assert len(made) > len(before), "others went on"
            assert set(before) <= ids_in(target)
            copy = open_backend(f"sqlite:///{target}", create=False)
            assert audit(copy).broken == ()
            copy.close()
    finally:
        is_over.set()
        producer.join()


def test_a_copy_of_a_servers_tables_can_be_restored(server: Shell, postgres_server: str, programs: Path) -> None:
    schema = schema_of(server.url)
    server("db", "migrate")
    server.write("tasks.py", "import dray\napp = dray.App()\n@app.task\ndef add(a: int) -> int:\n    return a\n")
    ids = [server("enqueue", "tasks.add", f"a={n}").value for n in range(3)]
    raw_sql(server.url, "CREATE TABLE users (id integer)")

    made = server("db", "backup", "--json", PATH=str(programs)).json

    path = Path(made["backup"])
    assert re.fullmatch(rf"{database_of(server)}-[0-9]{{8}}T[0-9]{{6}}Z\.dump", path.name)
    assert (made["jobs"], made["bytes"], stat.S_IMODE(path.stat().st_mode)) == (None, path.stat().st_size, 0o600)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())
        connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
    subprocess.run([programs / "pg_restore", "--exit-on-error", "-d", postgres_server, path], check=True)
    assert sorted(row[0] for row in server("jobs").rows) == sorted(ids)
    assert server("db", "check").code == 0
    assert raw_sql(server.url, f"SELECT 1 FROM pg_tables WHERE schemaname = '{schema}' AND tablename = 'users'") == []


def with_password(url: str) -> str:
    return url.replace("postgres:@", "postgres:canary@")


def test_a_password_goes_to_pg_dump_by_the_environment(server: Shell, tmp_path: Path) -> None:
    server("db", "migrate")
    fake = tmp_path / "pg_dump"
    fake.write_text(
        f'#!/bin/sh\necho "$0 $*" > {tmp_path}/words\nenv > {tmp_path}/environment\necho wrong >&2\nexit 1\n'
    )
    fake.chmod(0o755)

    done = server.try_("db", "backup", "copy", DRAY_URL=with_password(server.url), PATH=f"{tmp_path}:/usr/bin:/bin")

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "pg_dump could not copy it: wrong" in done.err
    assert "canary" not in (tmp_path / "words").read_text() + done.err
    assert "PGPASSWORD=canary" in (tmp_path / "environment").read_text().splitlines()
    assert not (server.folder / "copy").exists()
    assert [file.name for file in server.folder.iterdir()] == []


def test_without_pg_dump_the_command_to_run_is_told(server: Shell, tmp_path: Path, programs: Path) -> None:
    server("db", "migrate")

    done = server.try_("db", "backup", DRAY_URL=with_password(server.url), PATH=str(tmp_path))

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "canary" not in done.err
    command = re.search(r"run where it is: (.*)", done.err)
    assert command is not None
    there = {"PATH": f"{programs}:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", command[1]], cwd=tmp_path, env=there, check=True)
    assert (tmp_path / f"{database_of(server)}.dump").read_bytes().startswith(b"PGDMP")
    assert [file.name for file in server.folder.iterdir()] == []


# dray db prune


@pytest.fixture
def used(shell: Shell) -> Shell:
    """Two completed, one failed, one cancelled, one that waits for its time, and a workflow that has ended."""
    with dray.App(shell.url) as app:

        @app.task(name="add", max_attempts=1)
        def add(a: int) -> int:
            return 1 // a

        for number in (1, 1, 0):
            add.enqueue(number)
        flow = app.workflow("w")
        flow.add(add, 1, after=[flow.add(add, 1)])
        flow.enqueue()
        app.worker().run_until_idle()
        add.enqueue(1).cancel()
        add.using(delay=3600).enqueue(1)
    return shell


def states(shell: Shell) -> list[str]:
    return sorted(row[3] for row in shell("jobs").rows)


def test_what_would_go_is_counted_and_then_goes(used: Shell) -> None:
    before = states(used)

    found = used("db", "prune", "--older-than", "0", "--dry-run", "--json").json

    assert (found["found"], found["removed"]) == ({"completed": 4, "cancelled": 1, "failed": 1}, 0)
    assert states(used) == before
    removed = used("db", "prune", "--older-than", "0", "--yes", "--vacuum", "--json").json
    assert (removed["found"], removed["removed"]) == (found["found"], 6)
    assert states(used) == ["scheduled"]


def test_only_some_states_and_only_what_is_old_enough_goes(used: Shell) -> None:
    assert used("db", "prune", "--yes", "--json").json["removed"] == 0, "all of it is kept for days"

    removed = used("db", "prune", "--older-than", "0", "--state", "failed", "--state", "cancelled", "--yes").rows

    assert ["removed", "2"] in removed
    assert states(used) == ["completed"] * 4 + ["scheduled"]


def test_without_a_terminal_to_ask_on_nothing_is_removed(used: Shell) -> None:
    done = used.try_("db", "prune", "--older-than", "0")

    assert (done.code, "would remove 6 jobs" in done.err) == (2, True)
    assert len(states(used)) == 7
    assert used("db", "prune").code == 0, "there is nothing to be asked about"


def test_on_a_terminal_it_asks(local: Shell) -> None:
    local("enqueue", "tasks.add", "a=1", "b=2")
    local("worker", "--burst")

    no = local.on_terminal("db", "prune", "--older-than", "0", keys="n\n")
    assert (no.code, "Remove 1 job?" in no.out, "nothing was removed" in no.out) == (1, True, True)
    assert "would remove 1 job: 1 completed" in local.on_terminal("db", "prune", "--older-than", "0", "--dry-run").out
    yes = local.on_terminal("db", "prune", "--older-than", "0", keys="y\n")
    assert (yes.code, "removed 1 job" in yes.out) == (0, True)


@pytest.mark.parametrize(
    "words", [["--state", "queued"], ["--state", "timeout"], ["--older-than", "soon"]], ids=" ".join
)
def test_what_cannot_be_pruned_is_wrong_usage(local: Shell, words: list[str]) -> None:
    local("db", "init")

    done = local.try_("db", "prune", "--yes", *words)

    assert (done.code, done.err.count("\n")) == (2, 1)
