"""``dray actions``: every command that changes something leaves a row that says who did what, and it is listed."""

from __future__ import annotations

import getpass
import os
from typing import Any

import pytest

from dray.backends import migrate, open_backend
from dray.backends.statements import Dialect
from dray.cli import apps
from tests.cli.shell import Shell, plain


def told(shell: Shell, *words: str) -> list[tuple[Any, ...]]:
    """Returns what was done, oldest first."""
    found = shell("actions", "--json", *words).json[::-1]
    return [tuple(row[name] for name in ("verb", "kind", "target", "note", "done", "refused")) for row in found]


def test_what_was_done_to_jobs_is_listed(shell: Shell) -> None:
    first = shell("enqueue", "tasks.add", "a=1", "b=2").value
    second = shell("enqueue", "tasks.add", "a=1", "b=2", "--unique", "k").value
    shell("enqueue", "tasks.add", "a=1", "b=2", "--unique", "k")
    shell("job", "cancel", first)
    shell.try_("job", "cancel", first)
    shell("job", "retry", first)
    shell("job", "cancel", "--all", "--yes", "--queue", "default")
    shell("job", "delete", first, second)

    assert told(shell) == [
        ("enqueue", "job", first, "tasks.add", 1, 0),
        ("enqueue", "job", second, "tasks.add", 1, 0),
        ("enqueue", "job", second, "tasks.add", 0, 1),
        ("cancel", "job", first, None, 1, 0),
        ("cancel", "job", first, None, 0, 1),
        ("retry", "job", first, None, 1, 0),
        ("cancel", "jobs", "queue:default state:waiting state:scheduled state:queued state:running", None, 2, 0),
        ("delete", "jobs", f"{first} {second}", None, 2, 0),
    ]


def test_what_was_done_to_queues_schedules_and_the_database_is_listed(shell: Shell) -> None:
    shell("queues", "pause", "mail", "default")
    shell("queues", "pause", "mail")
    shell("queues", "resume", "mail")
    shell("schedules", "add", "nightly", "tasks.add", "a=1", "b=2", "--every", "1h")
    shell("schedules", "pause", "nightly")
    shell("schedules", "resume", "nightly")
    job_id = shell("schedules", "run", "nightly").value
    shell("schedules", "remove", "nightly")
    shell("job", "cancel", job_id)
    shell("db", "prune", "--yes", "--older-than", "1ms", "--state", "cancelled")
    shell("db", "prune", "--yes")  # nothing is left to remove: no action

    *rows, pruned = told(shell)

    assert rows == [
        ("pause", "queue", "mail", None, 1, 0),
        ("pause", "queue", "default", None, 1, 0),
        ("pause", "queue", "mail", None, 0, 1),
        ("resume", "queue", "mail", None, 1, 0),
        ("pause", "schedule", "nightly", None, 1, 0),
        ("resume", "schedule", "nightly", None, 1, 0),
        ("run", "schedule", "nightly", f"job {job_id}", 1, 0),
        ("remove", "schedule", "nightly", None, 1, 0),
        ("cancel", "job", job_id, None, 1, 0),
    ]
    assert (*pruned[:2], *pruned[3:]) == ("prune", "database", "cancelled jobs older than 1ms", 1, 0)


def test_a_dry_run_or_a_mistake_leaves_no_row(shell: Shell) -> None:
    shell("enqueue", "tasks.add", "a=1", "b=2")
    shell("job", "cancel", "--all", "--dry-run")
    shell("db", "prune", "--dry-run")
    for wrong in (
        ["job", "retry", "ffffffff"],
        ["enqueue", "tasks.add", "c=3"],
        ["schedules", "pause", "nightly"],
        ["queues", "pause", "no,such"],
        ["job", "cancel", "--all"],  # no terminal to ask on
    ):
        assert shell.try_(*wrong).code != 0

    assert [row[0] for row in told(shell)] == ["enqueue"]


def test_in_a_pipe_there_is_a_line_for_each_newest_first(local: Shell) -> None:
    local("db", "init")
    assert local("actions").out == ""
    for name in ("one", "two", "three"):
        local("queues", "pause", name)

    rows = local("actions").rows
    rest = local("actions", "--limit", "1", "--after", rows[0][0]).rows

    assert [row[6] for row in rows] == ["three", "two", "one"]
    assert [row[2:6] + row[7:] for row in rows] == [[getpass.getuser(), "cli", "pause", "queue", "1", "0", ""]] * 3
    assert rest == rows[1:2]
    refused = local.try_("actions", "--after", "zz")
    assert (refused.code, "'zz' is no action's id" in refused.err) == (2, True)


def test_a_terminal_shows_who_did_what_to_which_job(local: Shell) -> None:
    job_id = local("enqueue", "tasks.add", "a=1", "b=2").value
    local("job", "cancel", job_id, SUDO_USER="ann\x1b[31m")

    shown = plain(local.on_terminal("actions", "--limit", "2", columns=120).out).splitlines()
    head, cancelled, enqueued, *more = (line.strip() for line in shown)

    assert head.split() == ["when", "who", "via", "what", "done", "refused", "note"]
    assert cancelled.split()[-6:] == ["cli", "cancel", "job", job_id[-8:], "1", "0"]
    assert "ann\\x1b[31m" in cancelled
    assert enqueued.split()[-6:] == ["enqueue", "job", job_id[-8:], "1", "0", "tasks.add"]
    assert more == [f"there may be more: --limit 20, or --after {local('actions').rows[-1][0]}"]


def test_tables_of_the_release_before_are_to_be_upgraded_first(
    local: Shell, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrate.migrations

    def older(dialect: Dialect) -> dict[int, str]:
        return {number: text for number, text in known(dialect).items() if number < 5}

    with monkeypatch.context() as before:
        before.setattr(migrate, "migrations", older)
        backend = open_backend(empty_url)
        backend.migrate()
        backend.close()

    said = [local.try_(*words, DRAY_URL=empty_url) for words in (["jobs"], ["actions"], ["queues", "pause", "mail"])]

    assert [done.code for done in said] == [6, 6, 6]
    assert len({done.err for done in said}) == 1
    assert f"its tables are at version 4, this Dray needs {max(known('sqlite'))}" in said[0].err


def test_below_sudo_it_is_the_user_who_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "dray")
    assert apps.person().who == "dray"

    monkeypatch.setenv("SUDO_USER", "ann")
    assert apps.person().who == "ann"


@pytest.mark.parametrize("error", [OSError, KeyError])
def test_a_user_without_a_name_has_a_number(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise error("uid not found")

    monkeypatch.setattr(getpass, "getuser", nameless)

    assert apps.person().who == f"uid {os.getuid()}"
