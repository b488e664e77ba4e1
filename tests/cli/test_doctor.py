"""``dray doctor``: what it prints, and that it changes nothing.

What it finds is in test_doctor_work.py (queues that do not work) and test_doctor_places.py (files, servers and
machines that are not well).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from dray.ops import doctor
from dray.ops.doctor import Result, examine
from dray.ops.doctor.check import Check, Finding, Subject, Verdict, ok
from tests.cli.shell import Shell, plain, until

# What depends on the machine that the tests run on, and on its SQLite.
MACHINE = {"system", "sqlite", "file-system", "disk", "inotify"}


def looked(shell: Shell, *words: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in shell.try_("doctor", "--json", *words).json}


@contextmanager
def worker(shell: Shell, *words: str) -> Generator[int]:
    """A worker's process, alive and known."""
    with shell.background("worker", "--log-level", "error", *words) as process:
        until(lambda: str(process.pid) in {row[4] for row in shell.try_("workers").rows})
        yield process.pid


@pytest.fixture
def ready(shell: Shell) -> Shell:
    """With its tables."""
    shell("db", "init")
    return shell


# The command


def test_all_is_well_where_a_worker_works_and_at_least_twenty_checks_say_so(ready: Shell) -> None:
    with worker(ready):
        ready("enqueue", "tasks.add", "a=1", "b=2", "--wait")
        done = ready("doctor", "--json")
        skipped = [word for name in MACHINE for word in ("--skip", name)]
        strict = ready.try_("doctor", "--strict", *skipped)

    results = done.json
    assert {frozenset(each) for each in results} == {frozenset({"name", "verdict", "text", "fix"})}
    assert len(results) >= 20
    assert [each for each in results if each["verdict"] != "ok" and each["name"] not in MACHINE] == []
    assert all(each["text"] and each["fix"] is None for each in results if each["verdict"] == "ok")
    assert strict.code == 0, strict.out
    assert not MACHINE & {row[0] for row in strict.rows}


def test_in_a_pipe_it_is_name_verdict_text_and_fix(ready: Shell) -> None:
    ready("queues", "pause", "mail")

    rows = {row[0]: row[1:] for row in ready("doctor").rows}

    assert {len(row) for row in rows.values()} == {3}
    assert rows["paused-queues"][0] == "note"
    assert rows["paused-queues"][2] == "dray queues resume mail"
    assert rows["schema"][0] == "ok"
    assert rows["schema"][2] == ""


def test_an_app_that_was_not_looked_for_is_not_said_to_be_missing(local: Shell) -> None:
    local("db", "init")

    typed = looked(local, "--url", local.url)["app"]
    named = looked(local, "--url", local.url, "--app", "tasks:app")["app"]
    (local.folder / "tasks.py").unlink()
    missing = looked(local)["app"]

    rest = "what needs its tasks is not checked"
    assert (typed["verdict"], typed["text"]) == ("note", f"--url alone looks for no app: {rest}")
    assert named["verdict"] == "ok"
    assert (missing["verdict"], missing["text"]) == ("note", f"no app is named or found here: {rest}")
    assert typed["fix"] == missing["fix"] == "--app module:object"


def test_a_warning_is_an_error_only_where_that_is_asked_for(ready: Shell) -> None:
    ready("queues", "pause", "default")
    ready("enqueue", "tasks.add", "a=1", "b=2")
    others = [word for name in (*MACHINE, "workers") for word in ("--skip", name)]

    assert ready.try_("doctor", *others).code == 0
    assert ready.try_("doctor", "--strict", *others).code == 1
    assert ready.try_("doctor", "--strict", *others, "--skip", "paused-queues").code == 0


def test_a_check_to_skip_has_to_be_one(local: Shell) -> None:
    done = local.try_("doctor", "--skip", "sqlit")

    assert (done.code, done.out) == (2, "")
    assert "no check 'sqlit'; there are app, " in done.err


def test_on_a_terminal_it_is_a_mark_a_check_and_what_to_do_where_there_is_something(local: Shell) -> None:
    local("db", "init")
    local("enqueue", "tasks.add", "a=1", "b=2")

    done = local.on_terminal("doctor", LANG="C.UTF-8", LC_ALL="C.UTF-8", columns=300)

    lines = plain(done.out).splitlines()
    assert done.code == 1
    assert re.search(r"^✓ schema +tables at version \d+$", plain(done.out), re.M)
    broken = next(number for number, line in enumerate(lines) if line.startswith("✗ workers "))
    assert lines[broken].endswith("no worker is alive, and 1 job could run")
    assert lines[broken + 1].strip() == "→ dray worker"
    assert not any(line.startswith("✓") and after.lstrip().startswith("→") for line, after in pairwise(lines))
    assert re.fullmatch(r"\d+ checks: .*\b1 failed\b.*", lines[-1])
    assert "\x1b[31m✗" in done.out


def test_plain_characters_and_no_colours_where_these_are_not_wanted(local: Shell) -> None:
    local("db", "init")

    done = local.on_terminal("doctor", LANG="C", LC_ALL="C", NO_COLOR="1", columns=20)

    assert done.code == 0
    assert done.out.isascii()
    assert "\x1b[3" not in done.out
    assert re.search(r"^ok +schema +tables", done.out, re.M)
    assert re.search(r"^note +workers .*\n +fix: dray worker", done.out, re.M)


def test_one_check_that_raises_does_not_stop_the_others() -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("password=canary is wrong")

    def fine(_: Any) -> Finding:
        return ok("fine")

    checks = [Check("one", broken), Check("two", fine), Check("three", broken, after="one")]

    assert list(examine(cast("Subject", None), checks=checks)) == [  # they look at nothing
        Result(
            "one",
            Verdict.FAILED,
            "this could not be checked: RuntimeError: password=*** is wrong",
            "if the database is well otherwise, report this",
        ),
        Result("two", Verdict.OK, "fine", None),
    ]


def test_every_check_has_a_name_of_its_own_and_is_described() -> None:
    names = [check.name for check in doctor.CHECKS]
    described = (Path(__file__).parents[2] / "docs" / "reference" / "cli" / "doctor.md").read_text()

    assert len(set(names)) == len(names)
    assert [name for name in names if f"`{name}`" not in described] == []


def test_it_changes_nothing(local: Shell) -> None:
    def state() -> dict[str, tuple[int, int]]:
        found = [path for path in local.folder.iterdir() if path.suffix != ".py" and path.name != "__pycache__"]
        return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}

    assert local.try_("doctor").code == 6
    assert state() == {}
    local("db", "init")
    before = state()
    local("doctor")
    assert list(before) == ["dray.db"]
    assert state() == before
    with worker(local) as pid:
        os.kill(pid, signal.SIGKILL)
    left = state()
    assert "dray.db-wal" in left
    local("doctor")
    after = state()
    del left["dray.db-shm"], after["dray.db-shm"]  # shared memory, where readers leave their marks
    assert after == left


# What it was told


def test_a_broken_app_is_said_and_the_database_is_looked_at_all_the_same(ready: Shell) -> None:
    ready.write("tasks.py", "import dray\nimport nosuch\n")

    done = ready.try_("doctor", "--json")
    found = {each["name"]: each for each in done.json}

    assert done.code == 1
    assert found["app"]["verdict"] == "failed"
    assert "No module named 'nosuch'" in found["app"]["text"]
    assert found["schema"]["verdict"] == "ok"


def test_modules_with_tasks_are_imported_too(ready: Shell) -> None:
    ready.write("tasks.py", "import dray\napp = dray.App(imports=['more'])\n")
    missing = f"there is no module more (looked in {ready.folder} and on Python's path); check its name"
    assert looked(ready)["app"]["text"].startswith(missing)

    ready.write("more.py", "from tasks import app\n@app.task\ndef one() -> None: ...\n")
    assert looked(ready)["app"]["text"] == "tasks:app, 1 task"


def test_with_an_address_alone_no_code_is_touched(ready: Shell) -> None:
    ready.write("tasks.py", "import dray\nraise SystemExit(7)\n")

    found = looked(ready, "--url", ready.url)

    assert found["app"]["verdict"] == "note"
    assert found["configuration"]["text"].endswith("from --url")


def test_where_the_address_comes_from_and_which_one_does_not_count(local: Shell) -> None:
    def configured() -> tuple[str, str]:
        found = looked(local)["configuration"]
        return found["verdict"], found["text"]

    assert configured() == ("ok", f"sqlite:///{local.folder}/dray.db, from DRAY_URL")
    variable = local.environment.pop("DRAY_URL")
    assert configured() == ("ok", f"sqlite:///{local.folder}/dray.db, from the default")
    local.environment["DRAY_URL"] = variable
    local.write("tasks.py", "import dray\napp = dray.App('own.db')\n")
    assert configured() == (
        "note",
        f"sqlite:///{local.folder}/own.db, from the app's code; DRAY_URL names {variable}, which is not used",
    )


def test_a_password_shows_nowhere(local: Shell) -> None:
    url = "postgresql://user:canary@127.0.0.1:1/db?connect_timeout=2"
    local.write("tasks.py", f"import dray\napp = dray.App({url!r})\n")

    for done in (local.try_("doctor"), local.try_("doctor", "--json"), local.on_terminal("doctor")):
        assert done.code == 6
        assert "canary" not in done.out + done.err
        assert "user:***@127.0.0.1" in done.out
