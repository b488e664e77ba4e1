"""What goes wrong, in every command there is: one sentence on stderr, the right code, soon, never a traceback."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest

from dray.address import SqliteAddress, parse_address
from dray.backends import open_backend
from dray.cli.parsing import duration, instant, job_state, since
from dray.model.new_job import NewJob
from tests.cli import walk
from tests.cli.restricted import powerless, run_all, show_all
from tests.cli.shell import PATIENCE, TASKS, Done, Shell, copied, project
from tests.server import GUARDED

ENDING = sorted(path for path in walk.COMMANDS if path not in walk.ENDLESS)
NEEDY = [path for path in ENDING if path not in walk.WITHOUT_DATABASE]
PROBES = {("health",)}  # their code is 0 or 1, whatever it is
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def sentences(done: Done) -> list[str]:
    """What was said, without the log of a worker."""
    return [line for line in done.err.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]


def assert_refused(path: walk.Path, done: Done, *codes: int) -> None:
    assert "Traceback" not in done.err + done.out, (path, done.err)
    assert (path, done.code in codes) == (path, True), (done.code, done.err)
    if path[:1] in PROBES and done.out:
        return  # it was asked whether, and says no
    said = sentences(done)
    assert (path, len(said)) == (path, 1), done.err
    assert said[0].startswith("dray: ")
    assert not STEERING.search(done.err)


# Databases that are not there, or not what they should be


def place_of(kind: str, local: Shell, folder: Path) -> str:
    """The address of something that is no database of ours."""
    if kind == "a port without a listener":
        return "postgresql://user:secret@127.0.0.1:1/db?connect_timeout=3"
    if kind == "a host that is not there":
        return "postgresql://user:secret@nosuch.invalid/db?connect_timeout=3"
    file = folder / PLACES[kind]
    if kind == "a file that is no database":
        file.write_text("this is no database\n" * 100)
    elif kind == "an empty file":
        file.touch()
    elif kind == "a database without tables":
        with closing(sqlite3.connect(file)) as theirs:
            theirs.execute("CREATE TABLE shop (id INTEGER PRIMARY KEY)")
    elif kind in TABLES:
        local("db", "init", "--url", str(file))
        with closing(sqlite3.connect(file)) as tables:
            tables.executemany("UPDATE dray_meta SET value = ? WHERE name = ?", TABLES[kind])
            tables.commit()
    return f"sqlite:///{file}"


# Where the first command creates the tables.
MAKERS = {("enqueue",), ("worker",), ("db", "init")}
MADE_IN = {"a missing file", "a database without tables", "an empty file", "tables of the past"}
PLACES = {
    "a missing file": "missing.db",
    "a missing folder": "nosuch/jobs.db",
    "a directory": "",
    "the root": "/",
    "a file that is no database": "text.db",
    "a database without tables": "theirs.db",
    "an empty file": "empty.db",
    "tables of the future": "new.db",
    "tables of the past": "old.db",
    "a port without a listener": "",
    "a host that is not there": "",
}
TABLES = {
    "tables of the future": [("999", "version"), ("999", "oldest_code")],
    "tables of the past": [("1", "version")],
}


@pytest.mark.parametrize("place", PLACES)
def test_a_database_that_is_not_there_is_said_in_a_sentence(local: Shell, tmp_path: Path, place: str) -> None:
    paths = [path for path in NEEDY if path[:2] != ("db", "move")]
    if place in MADE_IN:
        paths = [path for path in paths if path not in MAKERS | {("db", "migrate")}]

    for path, done in zip(paths, _run(local, paths, DRAY_URL=place_of(place, local, tmp_path)), strict=True):
        if path == ("db", "status") and place in TABLES:
            assert (done.code, len(sentences(done))) == (6, 1)  # it shows which version they have
        elif path == ("doctor",):
            assert (done.code, done.out != "", "Traceback" in done.err) == (6, True, False)
        else:
            assert_refused(path, done, 1 if path in PROBES else 6)
        assert "secret" not in done.out + done.err


@pytest.fixture
def guarded(postgres_server: str) -> Iterator[str]:
    """The address of a user of the server who has to give a password."""
    role = f"guarded_{os.getpid()}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right' IN ROLE {GUARDED}".encode())
        yield re.sub(r"//[^@]*@", f"//{role}:CANARYwrong@", postgres_server)
        connection.execute(f"DROP ROLE {role}".encode())


def test_a_wrong_password_is_said_in_a_sentence(local: Shell, guarded: str) -> None:
    paths = [path for path in NEEDY if path[:2] != ("db", "move") and path != ("doctor",)]

    for path, done in zip(paths, _run(local, paths, DRAY_URL=guarded), strict=True):
        assert_refused(path, done, 1 if path in PROBES else 6)
        assert "CANARY" not in done.out + done.err
        assert "password authentication failed" in done.out + done.err, path


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:CANARY@host/db",
        "postgresql://user:CANARY@host:port/db",
        "sqlite://",
        "  ",
        "postgresql://[::1/db",
    ],
)
def test_an_address_that_is_none_is_wrong_usage(local: Shell, url: str) -> None:
    (local.folder / "tasks.py").unlink()
    needs_app = {("worker",), ("run",), ("tasks",)}
    paths = [path for path in ENDING if path[:2] != ("db", "move") and path not in needs_app]

    for path, done in zip(paths, _run(local, paths, DRAY_URL=url), strict=True):
        assert "Traceback" not in done.err, (path, done.err)
        assert "CANARY" not in done.out + done.err, path
        if path not in walk.WITHOUT_DATABASE:
            assert_refused(path, done, 2)


def _run(shell: Shell, paths: list[walk.Path], **environment: str) -> list[Done]:
    return run_all(shell, [], [walk.words(path) for path in paths], **environment)


# Words that are wrong


@pytest.fixture
def made(local: Shell) -> Shell:
    local("db", "init")
    return local


def test_an_unknown_option_or_argument_is_wrong_usage(made: Shell) -> None:
    for more in (["--nosuch"], ["--nosuch=1"]):
        lines = [[*walk.words(path), *more] for path in ENDING]
        for path, done in zip(ENDING, run_all(made, [], lines), strict=True):
            assert_refused(path, done, 2)


def takes(kind: str) -> list[walk.Path]:
    """Commands that want ids of jobs, or parts of them."""
    words = {"ids", "ids_or_search", "job_id"} if kind == "job" else {"part", "parts"}
    return [
        path
        for path, command in walk.COMMANDS.items()
        if any(isinstance(each, click.Argument) and each.name in words for each in command.params)
    ]


def test_an_unknown_id_is_not_found(made: Shell) -> None:
    paths = takes("job") + takes("workflow")
    assert {("job", "show"), ("job", "cancel"), ("workflows", "show")} <= set(paths)
    parts = [walk.ID, "ffffffff", "zz", "\x1b[31mred", "%", "_", "' OR 1=1 --", "\u202e", "a" * 5000]
    asked = [(path, dict.fromkeys(("ids", "job_id", "part", "parts"), part)) for path in paths for part in parts]

    lines = [walk.words(path, **given) for path, given in asked]
    for (path, _), done in zip(asked, run_all(made, [], lines), strict=True):
        assert_refused(path, done, 5)
        assert done.out == ""


def test_an_ambiguous_part_of_an_id_is_wrong_usage_and_names_those_that_have_it(shell: Shell) -> None:
    backend = open_backend(shell.url)
    backend.migrate()
    ids = [f"01a1e083-5ed4-704a-ae25-0000{n:08x}" for n in range(8)]
    backend.jobs.enqueue([NewJob(id=job_id, task="t") for job_id in ids])
    backend.close()

    paths = takes("job")
    lines = [walk.words(path, ids="ae25-0000", job_id="ae25-0000") for path in paths]
    for path, done in zip(paths, run_all(shell, [], lines), strict=True):
        assert_refused(path, done, 2)
        assert ids[-1] in done.err
        assert "and more" in done.err


def wrong(option: click.Option) -> str | None:
    """Something that an option cannot be; None: it can be anything."""
    kind: Any = option.type
    if isinstance(kind, click.IntRange | click.FloatRange) or kind in {click.INT, click.FLOAT}:
        return "many"
    reads = getattr(kind, "func", None)
    if reads in {duration, instant, since}:
        return "soonish"
    if isinstance(kind, click.Choice) or reads is job_state:
        return "nosuch"
    return None


OPTIONS = [
    (path, option)
    for path, command in sorted(walk.COMMANDS.items())
    for option in command.params
    if isinstance(option, click.Option) and option.name not in {"help", "version"}
]


def test_a_value_that_an_option_cannot_have_is_wrong_usage_typed_or_in_its_variable(made: Shell) -> None:
    cases = [(path, option, value) for path, option in OPTIONS if (value := wrong(option)) is not None]
    assert len(cases) > 40
    lines = [[*walk.words(path), max(option.opts, key=len), value] for path, option, value in cases]

    for (path, option, _), done in zip(cases, run_all(made, [], lines), strict=True):
        assert_refused((*path, str(option.name)), done, 2)


@pytest.mark.parametrize(
    ("path", "name"),
    [(("jobs",), "limit"), (("worker",), "concurrency"), (("stats",), "window"), (("job", "cancel"), "state")],
)
def test_a_variable_counts_as_much_as_an_option(made: Shell, path: walk.Path, name: str) -> None:
    (option,) = [option for other, option in OPTIONS if (other, option.name) == (path, name)]

    (done,) = run_all(made, [], [walk.words(path)], **{variable(path, option): str(wrong(option))})

    assert_refused(path, done, 2)


def variable(path: walk.Path, option: click.Option) -> str:
    given = option.envvar
    return given if isinstance(given, str) else "_".join(["DRAY", *path, str(option.name)]).upper().replace("-", "_")


def test_every_option_has_a_variable_and_says_so(local: Shell) -> None:
    """But `--help` and `--version`."""
    helps = dict(zip(walk.COMMANDS, run_all(local, [], [[*path, "--help"] for path in walk.COMMANDS]), strict=True))

    for path, option in OPTIONS:
        if option.hidden:
            continue
        said = re.sub(r"\s+", "", helps[path].out)
        assert variable(path, option) in said, (path, option.opts)


WRONG_WORDS: list[tuple[list[str], int]] = [
    (["enqueue", "tasks.nosuch"], 5),
    (["enqueue", "tasks.add", "a"], 2),
    (["enqueue", "tasks.add", "a:={", "b=1"], 2),
    (["enqueue", "tasks.add", "--args", "{"], 2),
    (["enqueue", "tasks.add", "--args", "-"], 2),
    (["schedules", "add", "n", "tasks.nosuch", "--every", "5"], 5),
    (["schedules", "add", "n", "tasks.add", "a=1", "b:=[", "--every", "5"], 2),
    (["schedules", "add", "n", "tasks.add", "a=1", "b=1", "--cron", "no cron"], 2),
    (["schedules", "add", "n", "tasks.add", "a=1", "b=1", "--cron", "* * * * *", "--tz", "Nowhere/At_all"], 2),
    (["schedules", "run", "nosuch"], 5),
    (["run", "tasks.nosuch"], 5),
    (["run", "tasks.add", "a"], 2),
    (["run", "tasks.add", "--args", "[1]"], 2),
    (["tasks", "tasks.nosuch"], 5),
    (["jobs", "--after", "zz"], 5),
    (["jobs", "--app", "nosuch:app"], 2),
    (["completion", "nosuch"], 2),
    (["tail", "--job", "zz", "--until-idle"], 5),
    (["health", "--worker", "nosuch"], 1),
    (["db", "backup", "/nosuch/folder/copy.db"], 1),
    (["db", "move", "sqlite:///nosuch.db", "sqlite:///other.db"], 6),
    (["db", "move", "sqlite:///dray.db", "sqlite:///dray.db"], 2),
]


def test_a_wrong_word_is_one_sentence(made: Shell) -> None:
    before = {file.name for file in made.folder.iterdir()}

    done = run_all(made, [], [words for words, _ in WRONG_WORDS])

    for (words, code), each in zip(WRONG_WORDS, done, strict=True):
        assert_refused(tuple(words), each, code)
    assert {file.name for file in made.folder.iterdir()} - {"__pycache__"} == before - {"__pycache__"}


# Surroundings


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    made = project(tmp_path_factory.mktemp("worked"))
    for _ in range(3):
        made("enqueue", "tasks.add", "a=1", "b=2")
    made("enqueue", "tasks.fail", "word=bad")
    made("worker", "--burst")
    return made


@pytest.fixture
def used(worked: Shell, tmp_path: Path) -> Shell:
    return copied(worked, tmp_path)


LOOKS = [path for path in walk.READS if path != ("job", "wait")]


def looks(used: Shell, *paths: walk.Path) -> list[list[str]]:
    job_id = used("jobs", "--state", "failed").rows[0][0]
    return [walk.words(path, ids=job_id, job_id=job_id) for path in paths or LOOKS]


def test_closed_streams_are_no_reason_to_fail(used: Shell) -> None:
    for words in looks(used, ("jobs",), ("job", "show")):
        for redirection in ("| head -1", ">&-", "<&-", "2>&-", ">&- 2>&- <&-"):
            done = subprocess.run(
                ["bash", "-c", f'set -o pipefail; "$@" {redirection}', "bash", *used.command(*words)],
                cwd=used.folder,
                env=used.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )

            assert (redirection, done.returncode, done.stderr) == (redirection, 0, "")
            assert (done.stdout == "") is (">&-" in redirection.split())


def test_looks_need_no_unicode_no_home_and_no_right_to_write_here(used: Shell) -> None:
    commands = looks(used, *(path for path in LOOKS if path != ("tasks",)))
    expected = [done.code for done in run_all(used, [], commands)]
    (folder := used.folder / "locked").mkdir()
    folder.chmod(0o555)
    there = Shell(folder, f"sqlite:///{used.folder / 'dray.db'}")

    for done in (
        run_all(used, ["env", "LANG=C", "LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0"], commands),
        run_all(there, [*powerless(), "env", "-u", "HOME"], commands),
    ):
        assert [each.code for each in done] == expected, [each.err for each in done]
        assert not [each.err for each in done if "Traceback" in each.err]
    folder.chmod(0o755)


@pytest.mark.parametrize("columns", [20, 1])
def test_looks_work_on_the_narrowest_terminal(used: Shell, columns: int) -> None:
    commands = looks(used)

    for words, done in zip(commands, show_all(used, commands, columns), strict=True):
        assert "dray/cli" not in done.out, done.out  # a traceback of ours
        assert (words, done.code in {0, 1, 5}) == (words, True), done.out


# What comes out of the database cannot steer a terminal

NASTY = "a\x1b[2J\x1b]52;c;aGk=\x07\x9b31m\u202eb\u2066c\x00d\r\ne\x7f\u2028"

STEERING_TASKS = (
    TASKS
    + """
NASTY = "a\\x1b[2J\\x1b]52;c;aGk=\\x07\\x9b31m\\u202eb\\u2066c\\r\\ne\\x7f\\u2028"

@app.task(max_attempts=1)
def nasty(word: str, ctx: dray.Context) -> str:
    ctx.log.warning(NASTY)
    logging.getLogger(NASTY).warning("from a strange logger")
    ctx.progress(50, NASTY)
    raise ValueError(word + NASTY)
"""
)


def test_nothing_that_was_stored_can_steer_a_terminal(shell: Shell) -> None:
    shell.write("tasks.py", STEERING_TASKS)
    shell("db", "init")
    text = NASTY.replace("\x00", "")
    job_id = shell("enqueue", "tasks.nasty", f"word={text}").value
    shell("worker", "--burst")
    shell("enqueue", "tasks.nasty", f"word={text}", "--delay", "1h")
    stain(shell.url, text)

    commands = [walk.words(path, ids=job_id, job_id=job_id) for path in walk.READS]
    piped = run_all(shell, [], [*commands, *([*words, "--json"] for words in commands)])
    shown = show_all(shell, commands, 300, NO_COLOR="1")

    for words, done in zip([*commands, *commands, *commands], [*piped, *shown], strict=True):
        # A live view moves the cursor, and colours may be.
        said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.out + done.err) if done in shown else done.out + done.err
        assert not STEERING.search(said.replace("\n", "").replace("\r", "")), (words, done.out, done.err)
        assert "a\x1b[2J" not in done.out, words


def stain(url: str, text: str) -> None:
    """Puts it where the API would refuse it: a row may have been written by anybody."""
    statements = (
        "UPDATE dray_jobs SET name = {0}, tags = {1}, description = {0}, unique_key = {0}",
        "UPDATE dray_workers SET name = {0}, host = {0}",
        "INSERT INTO dray_queues (name, priority, created_at) SELECT {0}, 0, max(created_at) FROM dray_jobs",
    )
    values = (text, json.dumps([text]))
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        with closing(sqlite3.connect(address.path)) as file, file:
            for statement in statements:
                file.execute(statement.format(":text", ":tags"), {"text": values[0], "tags": values[1]})
        return
    with psycopg.connect(address.conninfo) as server:
        server.execute(f'SET search_path TO "{address.schema}"'.encode())
        for statement in statements:
            given = {"a": values[0], "b": values[1]}
            server.execute(statement.format("%(a)s", "%(b)s").encode(), given)
