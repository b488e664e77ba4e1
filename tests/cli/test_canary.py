"""A password in a database's address never shows: in no answer, message, log, traceback or list of processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.cli import walk
from tests.cli.restricted import run_all, show_all
from tests.cli.shell import PATIENCE, TASKS, Shell, until
from tests.server import GUARDED

CANARY = "CANARYtwitter5"
ENDING = sorted(path for path in walk.COMMANDS if path not in walk.ENDLESS)


@pytest.fixture
def guarded(postgres_server: str, tmp_path: Path) -> Iterator[Shell]:
    """A project on tables of a user who has to give the canary as the password."""
    role = schema = f"canary_{os.getpid()}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{CANARY}' IN ROLE {GUARDED}".encode())
        connection.execute(f"GRANT CREATE ON DATABASE {connection.info.dbname} TO {role}".encode())
        address = re.sub(r"//[^@]*@", f"//{role}:{CANARY}@", postgres_server)
        shell = Shell(tmp_path, f"{address}&schema={schema}")
        shell.write("tasks.py", TASKS)
        yield shell
        connection.execute(f"DROP OWNED BY {role} CASCADE".encode())
        connection.execute(f"DROP ROLE {role}".encode())


def assert_silent(*texts: str) -> None:
    for text in texts:
        assert CANARY not in text, text
        assert CANARY[:8] not in text, "not even the beginning"


def test_no_command_shows_it_where_it_is_right(guarded: Shell) -> None:
    guarded("db", "migrate")
    job_id = guarded("enqueue", "tasks.fail", "word=bad").value
    guarded("worker", "--burst")
    looks, acts = (
        [walk.words(path, ids=job_id, job_id=job_id) for path in ENDING if (path in walk.READS) is is_look]
        for is_look in (True, False)
    )
    lines = [*looks, *acts]

    for done in run_all(guarded, [], [*looks, *([*words, "--json"] for words in looks), *acts]):
        assert_silent(done.out, done.err)
    for done in show_all(
        guarded, [words for words in lines if tuple(words[:1]) in {("config",), ("doctor",), ("stats",)}], 200
    ):
        assert_silent(done.out)


MISTYPED = {
    "libpq's other form": "host=127.0.0.1 port=1 password={canary}",
    "one slash": "postgresql:/user:{canary}@127.0.0.1/db",
    "no slash": "postgres:user:{canary}@127.0.0.1/db",
    "no colon": "postgresql//user:{canary}@127.0.0.1/db",
}
WRONG = {
    "a wrong password": "postgresql://nobody:{canary}x@127.0.0.1:1/db?connect_timeout=2",
    "a port without a listener": "postgresql://user:{canary}@127.0.0.1:1/db?connect_timeout=2",
    "a host that is not there": "postgresql://user:{canary}@nosuch.invalid/db?connect_timeout=2",
    "no @": "postgresql://user:{canary}/db",
    "a bare @ in it": "postgresql://user:{canary}@x@host/db",
    "a bare % in it": "postgresql://user:{canary}%zz@host/db",
    "a bare # in it": "postgresql://user:{canary}#x@host/db",
    "a bare / in it": "postgresql://user:{canary}/x@host/db",
    "a bare space in it": "postgresql://user:{canary} x@host/db",
    "a setting": "postgresql://host:1/db?user=u&password={canary}&connect_timeout=2",
    "another kind of database": "mysql://user:{canary}@host/db",
    "a port that is none": "postgresql://user:{canary}@host:port/db",
    "a schema that cannot be": "postgresql://user:{canary}@host/db?schema=No%20Such",
    "a newline in it": "postgresql://user:{canary}\n@host/db",
    **MISTYPED,
}
SOME = [("jobs",), ("enqueue",), ("worker",), ("db", "init"), ("doctor",), ("config",)]


@pytest.mark.parametrize("mistake", WRONG)
def test_no_command_shows_it_where_the_address_is_wrong(local: Shell, mistake: str) -> None:
    url = WRONG[mistake].format(canary=CANARY)
    lines = [walk.words(path) for path in SOME]

    by_variable = run_all(local, [], lines, DRAY_URL=url)
    typed = run_all(local, [], [[*words, "--url", url] for words in lines])
    (local.folder / "tasks.py").write_text(TASKS.replace("dray.App()", f"dray.App({url!r})"))
    by_code = run_all(local, [], lines)
    local.write("pyproject.toml", f'[tool.dray]\napp = "tasks:app"\nurl = {url!r}\n')
    by_project = run_all(local, [], lines)

    for done in (*by_variable, *typed, *by_code, *by_project):
        assert_silent(done.out, done.err)
        assert "Traceback" not in done.err, done.err


@pytest.mark.parametrize("mistake", MISTYPED)
def test_a_mistyped_address_makes_no_file(local: Shell, mistake: str) -> None:
    url = MISTYPED[mistake].format(canary=CANARY)
    before = sorted(path.name for path in local.folder.iterdir())

    lines = [["db", "init"], ["enqueue", "tasks.add", "a=1", "b=2"], ["jobs"]]
    for done in run_all(local, [], [[*words, "--url", url] for words in lines]):
        assert done.code == 2, done.err
        assert "write postgresql://user:" in done.err
    assert all(done.code for done in run_all(local, [], lines, DRAY_URL=url))
    moved = local.try_("db", "move", "jobs.db", url, "--dry-run")
    assert moved.code == 2, moved.err
    assert_silent(moved.out, moved.err)
    assert [name for name in before if name != "__pycache__"] == sorted(
        path.name for path in local.folder.iterdir() if path.name != "__pycache__"
    )


@pytest.mark.parametrize(
    "mistake", ["a port without a listener", "a bare % in it", "no @", "another kind of database"]
)
def test_no_traceback_of_the_api_shows_it(local: Shell, mistake: str) -> None:
    url = WRONG[mistake].format(canary=CANARY)
    local.write(
        "program.py",
        "import os, dray\napp = dray.App(os.environ['PLACE'])\nprint(app, app.place)\napp.jobs()\n",
    )

    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=local.folder,
        env={**local.environment, "PLACE": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert_silent(done.stdout, done.stderr)


PROCESSES = (
    TASKS
    + """
@app.task(runner="process")
def far(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()
"""
)


@pytest.mark.parametrize("is_typed", [False, True], ids=["in a variable", "typed"])
def test_no_process_that_dray_starts_has_it_in_its_command_line(guarded: Shell, *, is_typed: bool) -> None:
    """A supervisor, its workers, the processes that run bodies."""
    typed = ["--url", guarded.url] if is_typed else []
    guarded.write("tasks.py", PROCESSES)
    guarded("db", "migrate")
    for _ in range(2):
        guarded("enqueue", "tasks.far", "seconds=60")

    words = ("worker", "--processes", "2", "-c", "1", "--grace", "0")
    with guarded.background(*typed, *words, starts_python=True) as supervisor:
        until(lambda: len(guarded("jobs", "--state", "running").rows) == 2)
        family = until(lambda: found if len(found := _family(supervisor.pid)) >= 5 else None)
        # A typed password is public already; no other one may be shown.
        lines = [_command_line(pid) for pid in family if not (is_typed and pid == supervisor.pid)]
        supervisor.terminate()
        _, said = supervisor.communicate(timeout=PATIENCE)

    assert all("python" in line for line in lines if line), lines
    assert_silent(said, *lines)


def test_a_worker_that_loses_its_database_does_not_log_it(guarded: Shell, postgres_server: str) -> None:
    guarded("db", "migrate")
    role = re.findall(r"//(\w+):", guarded.url)[0]
    with guarded.background("worker", "--log-level", "debug") as worker:
        until(lambda: guarded("workers").rows)
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"ALTER ROLE {role} NOLOGIN".encode())
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [role])
            time.sleep(1.0)  # it tries again meanwhile
            connection.execute(f"ALTER ROLE {role} LOGIN".encode())
        worker.terminate()
        _, said = worker.communicate(timeout=PATIENCE)

    assert "warning" in said
    assert_silent(said)


def test_an_error_that_quotes_an_address_does_not_show_it(local: Shell) -> None:
    local.write("tasks.py", f'import dray\nraise dray.DrayError("cannot use postgresql://u:{CANARY}@h/db")\n')

    done = local.try_("tasks")

    assert done.code != 0
    assert "postgresql://u:***@h/db" in done.err
    assert_silent(done.out, done.err)


LEAKS = f"""
@app.task
def leak() -> None:
    try:
        raise ValueError("raised postgresql://u:{CANARY}@h/db and \\x1b]52;c;aGk=\\x07 beside it")
    except ValueError:
        logging.getLogger("shop").exception("said postgresql://u:{CANARY}@h/db")
"""


def test_what_a_body_logs_shows_no_password_and_steers_no_terminal(local: Shell) -> None:
    local.write("tasks.py", TASKS + LEAKS)
    local("enqueue", "tasks.leak")

    with local.background("worker", "--burst") as worker:
        _, said = worker.communicate(timeout=PATIENCE)

    assert "Traceback" in said
    assert "said postgresql://u:***@h/db" in said
    assert "ValueError: raised postgresql://u:***@h/db and \\x1b]52;c;aGk=\\x07 beside it" in said
    assert_silent(said)


SURROUNDINGS = f"""
def _names() -> list[str]:
    return sorted(name for name, value in os.environ.items() if {CANARY!r} in value)

@app.task
def near() -> list[str]:
    return _names()

@app.task(runner="process")
def far() -> list[str]:
    return _names()
"""


def test_a_typed_one_is_not_in_the_environment_of_bodies(guarded: Shell) -> None:
    """They may start programs, which would inherit it."""
    guarded.write("tasks.py", TASKS + SURROUNDINGS)
    guarded("db", "migrate")
    jobs = [guarded("enqueue", task).value for task in ("tasks.near", "tasks.far")]

    words = ("--url", guarded.url, "worker", "--processes", "2", "--burst")
    with guarded.background(*words, starts_python=True, DRAY_URL=None) as supervisor:
        supervisor.communicate(timeout=PATIENCE)

    assert [guarded("job", "show", job, "--json").json["result"] for job in jobs] == [[], []]


def _family(pid: int) -> list[int]:
    """A process and all that came from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, left = [pid], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_arguments_are_hidden_where_no_code_says_which_of_them_are_secret(shell: Shell) -> None:
    shell("db", "init")
    job_id = shell("enqueue", "tasks.mail", "to=ann", f"token={CANARY}").value
    shell("schedules", "add", "s", "tasks.mail", "to=ann", f"token={CANARY}", "--every", "1h")
    known = {"to": "ann", "token": "***"}
    hidden = {"to": "***", "token": "***"}

    def args(*more: str) -> object:
        return shell("job", "show", job_id, "--json", *more).json["args"]

    assert args() == args("--app", "tasks:app", "--url", shell.url) == args("--show-args") == known
    assert args("--url", shell.url) == hidden
    assert args("--url", shell.url, "--show-args") == {"to": "ann", "token": CANARY}
    assert shell("schedules", "--json").json[0]["args"] == known
    assert shell("schedules", "--json", "--url", shell.url).json[0]["args"] == hidden
