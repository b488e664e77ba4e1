"""Mistakes: one sentence on stderr, nothing on stdout, the right exit code, and never a traceback."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from dray.model.search import TERMS, TEXT_CHARS
from tests.backends.test_files import PRIVATE
from tests.cli.shell import Shell

ID = "01a1e083-5ed4-704a-ae25-a11872c7f5d4"

WRONG_USAGE = {
    "an unknown subcommand": ["job", "shwo", ID],
    "a misspelled command": ["jbos"],
    "an unknown option": ["jobs", "--colour"],
    "no id": ["job", "show"],
    "an unknown state": ["jobs", "--state", "done"],
    "a limit of nothing": ["jobs", "--limit", "0"],
    "a limit that is no number": ["jobs", "--limit", "many"],
    "a limit too large": ["jobs", "--limit", "1000000"],
    "a time that is none": ["jobs", "--since", "yesterday"],
    "a queue that cannot be": ["jobs", "--queue", "a,b"],
    "a task that cannot be": ["jobs", "--task", "\x1b[31m"],
    "an argument without a value": ["enqueue", "tasks.add", "a"],
    "an argument without a name": ["enqueue", "tasks.add", "=1"],
    "an argument twice": ["enqueue", "tasks.add", "a=1", "a=2", "b=1"],
    "an argument that is missing": ["enqueue", "tasks.add", "a=1"],
    "an argument too many": ["enqueue", "tasks.add", "a=1", "b=2", "c=3"],
    "an argument of the wrong kind": ["enqueue", "tasks.add", "a=x", "b=2"],
    "a value that is not JSON": ["enqueue", "tasks.add", "a:=x", "b=2"],
    "arguments that are not JSON": ["enqueue", "tasks.add", "--args", "{"],
    "arguments that are no object": ["enqueue", "tasks.add", "--args", "[1, 2]"],
    "arguments nested too deep": ["enqueue", "tasks.add", "--args", "[" * 100_000],
    "arguments too large": [
        "enqueue",
        "tasks.call",
        "number=" + "x" * 100_000,
        "--args",
        '{"y": "' + "z" * 30_000 + '"}',
    ],
    "a delay that is none": ["enqueue", "tasks.add", "a=1", "b=2", "--delay", "soon"],
    "a delay below nothing": ["enqueue", "tasks.add", "a=1", "b=2", "--delay", "-5"],
    "a moment that is none": ["enqueue", "tasks.add", "a=1", "b=2", "--at", "2026-13-01"],
    "a moment beyond all calendars": ["enqueue", "tasks.add", "a=1", "b=2", "--at", "9999-12-31T23:59:59-12:00"],
    "two ways to say when": ["enqueue", "tasks.add", "a=1", "b=2", "--at", "08:00", "--delay", "5"],
    "two unique keys": ["enqueue", "tasks.add", "a=1", "b=2", "--unique", "x", "--unique-args"],
    "no attempts": ["enqueue", "tasks.add", "a=1", "b=2", "--max-attempts", "0"],
    "a priority beyond all": ["enqueue", "tasks.add", "a=1", "b=2", "--priority", "99999999999"],
    "a timeout without a wait": ["enqueue", "tasks.add", "a=1", "b=2", "--timeout", "5"],
    "a task name that cannot be": ["enqueue", "no such task ", "--unchecked"],
    "ids and all": ["job", "cancel", ID, "--all"],
    "neither ids nor all": ["job", "retry"],
    "a filter that is none": ["jobs", "stat:failed"],
    "a search that is too long": ["jobs", "x" * (TEXT_CHARS + 1)],
    "a search of too many terms": ["jobs", "x " * (TERMS + 1)],
    "a quote that is not closed": ["job", "delete", "--all", 'error:"x', "--yes"],
    "a filter that is none, in a workflow": ["jobs", "stat:failed", "--workflow", "etl"],
    "a filter that is none, of a schedule": ["job", "retry", "--all", "stat:failed", "--schedule", "nightly"],
    "filters without all": ["job", "delete", ID, "--state", "failed"],
    "a queue to pause that cannot be": ["queues", "pause", "a,b"],
    "nothing to set": ["queues", "set", "mail"],
    "no bodies at all": ["worker", "--concurrency", "0"],
    "queues that cannot be": ["worker", "-q", "a\u202eb"],
    "once and for all": ["worker", "--once", "--burst"],
    "a grace that is none": ["worker", "--grace", "never"],
    "a module without a name": ["worker", "-i", ""],
    "a module without a name, for development": ["dev", "-i", ""],
    "a module without its package": ["worker", "-i", "tasks", "-i", ".jobs"],
    "an address that is empty": ["jobs", "--url", ""],
    "an address that is blank": ["db", "init", "--url", "  "],
    "an unknown kind of database": ["jobs", "--url", "mysql://host/db"],
    "an address that cannot be read": ["jobs", "--url", "postgresql://host:99999/db"],
    "a variable that is wrong": ["worker", "--burst"],
}


@pytest.mark.parametrize("mistake", WRONG_USAGE)
def test_wrong_usage_is_one_sentence_and_exit_code_2(local: Shell, mistake: str) -> None:
    done = local.try_(*WRONG_USAGE[mistake], DRAY_WORKER_CONCURRENCY="many" if "variable" in mistake else None)

    assert done.code == 2, done.err
    assert_one_sentence(done.err)
    assert done.out == ""
    assert {path.name for path in local.folder.iterdir()} <= {"tasks.py", "__pycache__"}, "nothing was created"


@pytest.mark.parametrize("words", [[], ["job"], ["db"]], ids=" ".join)
def test_a_group_without_a_command_shows_its_help(local: Shell, words: list[str]) -> None:
    done = local.try_(*words)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(" ".join(["Usage: dray", *words]))


def assert_one_sentence(said: str) -> None:
    assert said.startswith("dray: ")
    assert said.count("\n") == 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", said)


READS = [
    *(["jobs"], ["queues"], ["workers"], ["stats"], ["db", "status"], ["job", "show", ID], ["job", "logs", ID]),
    *(
        ["job", "wait", ID],
        ["job", "retry", ID],
        ["job", "cancel", ID],
        ["job", "delete", ID],
        ["queues", "pause", "q"],
    ),
    *(["queues", "resume", "q"], ["queues", "set", "q", "--priority", "1"], ["job", "cancel", "--all", "--yes"]),
    *(["db", "migrate"],),
]


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_nothing_but_enqueue_init_and_worker_makes_a_file(local: Shell, words: list[str]) -> None:
    done = local.try_(*words)

    assert done.code == 6
    assert_one_sentence(done.err)
    assert [file.name for file in local.folder.iterdir() if file.name != "__pycache__"] == ["tasks.py"]


@pytest.mark.parametrize("job_id", [ID, "ffffffff", "zz", "", "\x1b[31m", "%"])
def test_an_unknown_job_is_not_found(shell: Shell, job_id: str) -> None:
    for words in READS:
        if ID in words:
            done = shell.try_(*[job_id if word == ID else word for word in words])
            assert (words, done.code) == (words, 5)
            assert_one_sentence(done.err)


UNREACHABLE = {
    "a server that is not there": "postgresql://user:canary@127.0.0.1:1/db?connect_timeout=2",
    "a host that is not there": "postgresql://user:canary@nosuch.invalid/db?connect_timeout=2",
    "a directory that is not there": "sqlite:////nosuch/place/dray.db",
    "a directory": "sqlite:////tmp",
    "a file that is no database": "text.db",
    "tables of the future": "future.db",
}


@pytest.mark.parametrize("place", UNREACHABLE)
@pytest.mark.parametrize(
    "words", [["jobs"], ["enqueue", "tasks.add", "a=1", "b=2"], ["worker"], ["db", "init"]], ids=" ".join
)
def test_a_database_out_of_reach_is_exit_code_6(local: Shell, place: str, words: list[str]) -> None:
    local.write("text.db", "this is no database\n" * 100)
    if "future" in place:
        local("db", "init", "--url", "future.db")
        with closing(sqlite3.connect(local.folder / "future.db")) as connection, connection:
            connection.execute("UPDATE dray_meta SET value = '999'")
        connection.close()

    done = local.try_(*words, DRAY_URL=UNREACHABLE[place])

    assert done.code == 6, done.err
    assert "canary" not in done.err
    assert_one_sentence("".join(line for line in done.err.splitlines(keepends=True) if line.startswith("dray: ")))


@pytest.mark.parametrize("words", [["jobs"], ["jobs", "--json"], ["stats"], ["--help"]], ids=" ".join)
def test_closed_stdout_is_silent(local: Shell, words: list[str]) -> None:
    for _ in range(3):
        local("enqueue", "tasks.add", "a=1", "b=2")
    read, write = os.pipe()
    os.close(read)

    assert _run_into(local, words, write) == (0, "")
    os.close(write)


ON_A_FULL_DISK = """
mount -t tmpfs -o size=64k tmpfs disk || exit 99
head -c 65536 /dev/zero > disk/filler
exec "$@"
"""


def test_a_full_disk_under_the_database_is_a_failure_and_not_a_missing_database(local: Shell) -> None:
    """A mistyped path must not create a new database."""
    (local.folder / "disk").mkdir()
    enqueue = local.command("enqueue", "tasks.add", "a=1", "b=2", "--url", "disk/jobs.db")

    done = subprocess.run(
        [*PRIVATE, "sh", "-c", ON_A_FULL_DISK, "sh", *enqueue],
        cwd=local.folder,
        env=local.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    if done.returncode == 99 or done.stderr.startswith("unshare"):
        pytest.skip("this machine does not let us mount a small disk")
    assert (done.returncode, "the disk is full" in done.stderr) == (1, True), done.stderr
    assert done.stderr.count("\n") == 1


def test_a_full_disk_under_stdout_is_a_sentence(local: Shell) -> None:
    local("db", "init")
    with Path("/dev/full").open("wb") as full:
        code, said = _run_into(local, ["stats"], full.fileno())

    assert code == 1
    assert_one_sentence(said)


def _run_into(shell: Shell, words: list[str], stdout: int) -> tuple[int, str]:
    done = subprocess.run(
        shell.command(*words),
        cwd=shell.folder,
        env=shell.environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("locale", [{"LANG": "C", "LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}])
def test_names_beyond_ascii_come_out_in_any_locale(local: Shell, locale: dict[str, str]) -> None:
    job_id = local.fresh("enqueue", "tasks.call", "number=\u0416\u00e4", "--name", "\u0416", **locale).value

    assert local.fresh("jobs", "--json", **locale).json[0]["name"] == "\u0416"
    assert "args.number\t" in local.fresh("job", "show", job_id, **locale).out


def test_control_characters_in_arguments_and_errors_come_out_escaped(shell: Shell) -> None:
    nasty = "a\x1b[2Jb\tc\nd\u202ee\x9b"
    job_id = shell("enqueue", "tasks.fail", f"word={nasty}").value
    shell("worker", "--burst")

    for words in (["jobs"], ["job", "show", job_id], ["job", "show", job_id, "--json"], ["jobs", "--json"]):
        said = shell(*words).out
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)
    assert shell("job", "show", job_id, "--json").json["args"]["word"] == nasty


def test_a_password_never_shows_and_one_that_is_typed_is_warned_about(shell: Shell) -> None:
    url = "postgresql://user:canary@127.0.0.1:1/db?connect_timeout=1"

    typed = shell.try_("jobs", "--url", url)
    known = shell.try_("jobs", DRAY_URL=url)

    assert "canary" not in typed.err + known.err
    assert typed.err.count("password on the command line") == 1
    assert "password" not in known.err


@pytest.mark.parametrize("url", ["postgresql://", "postgresql://user@", "postgresql://nosuch.invalid"])
def test_an_address_without_a_password_is_shown_as_it_is(local: Shell, url: str) -> None:
    done = local.try_("jobs", "--url", url, PGHOST="/nosuch")

    assert done.code == 6
    assert done.err.startswith(f"dray: {url}: cannot be reached"), done.err


@pytest.mark.parametrize("words", [["jobs", "--url"], ["db", "move", "jobs.db"]], ids=" ".join)
def test_an_empty_password_is_not_warned_about(local: Shell, words: list[str]) -> None:
    done = local.try_(*words, "postgresql://user:@127.0.0.1:1/db?connect_timeout=1")

    assert done.code == 6
    assert_one_sentence(done.err)
    assert "command line" not in done.err


@pytest.mark.parametrize("filter_", ["--queue", "--task", "--tag"])
@pytest.mark.parametrize("words", [["job", "cancel", "--all", "--yes"], ["jobs"]], ids=["cancel", "list"])
def test_a_filter_that_is_empty_is_refused(shell: Shell, words: list[str], filter_: str) -> None:
    """As in ``--queue "$UNSET"``: it cancelled the jobs of all queues."""
    job_id = shell("enqueue", "tasks.add", "a=1", "b=2").value

    done = shell.try_(*words, filter_, "")

    assert (done.code, done.out) == (2, "")
    assert "name '' cannot be used" in done.err
    assert shell("job", "show", job_id, "--json").json["state"] == "queued"
