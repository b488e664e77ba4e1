"""``dray completion``: what a real shell offers for Tab."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.cli.source import read_source
from tests.cli.session import fresh_session
from tests.cli.shell import PATIENCE, TASKS, Shell, until

BIN = str(Path(sys.prefix) / "bin")
ASK = """
eval "$SCRIPT"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_dray_completion dray
printf '%s\\n' "${COMPREPLY[@]}"
"""


# Bash's `dray`: has the test run the command in a fork, in the environment that bash has given it.
FORKED_DRAY = """#!/bin/sh
cat /proc/self/environ > ../asked
cat ../answered
"""


@cache
def bash_script() -> str:
    """What is the same each time: a start of Python takes most of a test's time."""
    return subprocess.run([f"{BIN}/dray", "completion", "bash"], capture_output=True, text=True, check=True).stdout


def offered_afresh(shell: Shell, *words: str) -> list[str]:
    """What bash offers for the last word."""
    return _asked(shell, BIN, words, {})


def offered(shell: Shell, *words: str, **environment: str | None) -> list[str]:
    """The same, by a command that need not load Dray."""
    outside = shell.folder.parent
    stand_in = outside / "bin" / "dray"
    if not stand_in.exists():
        stand_in.parent.mkdir()
        stand_in.write_text(FORKED_DRAY)
        stand_in.chmod(0o755)
        os.mkfifo(outside / "asked")
        os.mkfifo(outside / "answered")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(_answer, shell)
        try:
            return _asked(shell, str(stand_in.parent), words, environment)
        finally:
            os.close(os.open(outside / "asked", os.O_RDWR))  # or the thread would wait, if bash has not asked
            answer.result()


def _asked(shell: Shell, path: str, words: Sequence[str], environment: Mapping[str, str | None]) -> list[str]:
    ours = {"PATH": f"{path}:{shell.environment['PATH']}", "SCRIPT": bash_script()}
    merged = {**shell.environment, **ours, **environment}
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", "dray", *words],
        cwd=shell.folder,
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def _answer(shell: Shell) -> None:
    """Runs the command that bash asks for."""
    outside = shell.folder.parent
    given = dict(each.split("=", 1) for each in (outside / "asked").read_text().split("\0") if each)
    if not given:
        return
    said = "no answer"
    try:
        alone: dict[str, Any] = {**dict.fromkeys(shell.environment), **given}
        done = shell.try_(**alone)
        said = done.out
        assert done.err == ""
    finally:
        (outside / "answered").write_text(said)


def await_offer(shell: Shell, *words: str) -> list[str]:
    """The same, on a machine that may be too busy to answer within a second."""
    return until(lambda: offered(shell, *words))


@pytest.fixture
def used(shell: Shell) -> Shell:
    shell("enqueue", "tasks.add", "a=1", "b=2", "--queue", "slow")
    shell("schedules", "add", "nightly", "tasks.add", "--cron", "0 3 * * *", "--args", '{"a": 1, "b": 2}')
    return shell


def test_commands_options_and_choices_are_offered(local: Shell) -> None:
    assert offered_afresh(local, "wor") == offered(local, "wor") == ["worker", "workers", "workflows"]
    assert offered(local, "job", "re") == ["retry"]
    assert offered(local, "jobs", "--st") == ["--state"]
    assert offered(local, "worker", "--log-level", "w") == ["warning"]
    assert offered(local, "completion", "") == ["bash", "zsh", "fish"]
    assert offered(local, "jobs", "--state", "f") == ["failed"]


def test_values_come_from_the_database(used: Shell) -> None:
    job_id = used("jobs").rows[0][0]

    assert until(lambda: offered_afresh(used, "jobs", "--queue", "sl")) == ["slow"]
    assert await_offer(used, "queues", "pause", "") == ["slow"]
    assert await_offer(used, "worker", "-q", "s") == ["slow"]
    assert await_offer(used, "job", "show", "") == [job_id[-8:]]
    assert await_offer(used, "job", "cancel", job_id[-8:-4]) == [job_id[-8:]]
    assert await_offer(used, "job", "show", job_id[:20]) == [job_id]
    assert await_offer(used, "limits", "set", "queue", "s") == ["slow"]
    assert await_offer(used, "limits", "reset", "task", "tasks.ad") == ["tasks.add"]
    assert await_offer(used, "schedules", "pause", "n") == ["nightly"]
    assert await_offer(used, "jobs", "--schedule", "n") == ["nightly"]


def test_a_name_that_a_shell_would_read_as_more_than_a_word_is_not_offered(used: Shell) -> None:
    for queue in ("sly $(touch made)", "slö"):
        used("enqueue", "tasks.add", "a=1", "b=2", "--queue", queue)

    assert await_offer(used, "jobs", "--queue", "sl") == ["slow", "slö"]


def test_tasks_come_from_the_code_which_is_not_run(local: Shell) -> None:
    local.write("tasks.py", "raise SystemExit('run!')\n" + TASKS + "\n@app.task(name='mail.send')\ndef send(): ...\n")

    assert await_offer(local, "enqueue", "tasks.s") == ["tasks.sleep"]
    assert await_offer(local, "run", "m") == ["mail.send"]
    assert await_offer(local, "jobs", "--task", "tasks.a") == ["tasks.add"]


def test_tasks_of_workers_are_offered_too(used: Shell) -> None:
    used.write("tasks.py", "import dray\napp = dray.App()\n@app.task(name='elsewhere')\ndef x(): ...\n")
    used("worker", "--burst")
    (used.folder / "tasks.py").unlink()

    assert await_offer(used, "enqueue", "e") == ["elsewhere"]


def test_an_address_in_the_code_or_on_the_line_is_understood(local: Shell) -> None:
    local("enqueue", "tasks.add", "a=1", "b=2", "--queue", "typed", "--url", "other.db")

    assert await_offer(local, "jobs", "--url", "other.db", "--queue", "") == ["typed"]
    local.write("tasks.py", TASKS.replace("dray.App()", "dray.App('other.db')"))
    assert await_offer(local, "jobs", "--queue", "") == ["typed"]


def test_at_most_fifty_are_offered(local: Shell) -> None:
    with dray.App(local.url) as app:
        for number in range(200):
            app.enqueue("tasks.add", {"a": number, "b": number})

    assert len(await_offer(local, "job", "show", "")) == 50


@pytest.mark.parametrize(
    "url",
    [
        None,
        "sqlite:////nosuch/place/dray.db",
        "postgresql://user:canary@127.0.0.1:1/db",
        "nonsense://",
        "text.db",
    ],
)
def test_nothing_is_offered_said_or_made_where_there_is_nothing(local: Shell, url: str | None) -> None:
    local.write("text.db", "this is no database\n" * 100)
    before = sorted(path.name for path in local.folder.iterdir())

    for words in (["job", "show", ""], ["schedules", "run", ""]):
        assert offered(local, *words, DRAY_URL=url) == []
    assert sorted(path.name for path in local.folder.iterdir()) == before


def test_a_line_that_is_wrong_already_is_left_alone(local: Shell) -> None:
    assert offered(local, "nosuch", "x", "") == []
    assert offered(local, "jobs", "--url", "postgresql://user:canary@127.0.0.1:1/db", "--queue", "") == []


def test_a_server_that_does_not_answer_is_not_waited_for(local: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        began = time.monotonic()
        url = f"postgresql://user@127.0.0.1:{deaf.getsockname()[1]}/db"
        assert offered(local, "jobs", "--queue", "", DRAY_URL=url) == []
        assert time.monotonic() - began < 10


def test_a_tab_on_a_terminal_completes_the_word(local: Shell) -> None:
    local("db", "init")
    environment = {**local.environment, "PATH": f"{BIN}:{local.environment['PATH']}", "PS1": "$ "}
    with fresh_session(["bash", "--norc", "-i"], local.folder, environment) as terminal:
        terminal.press("eval \"$(dray completion bash)\"; echo rea''dy\n")
        terminal.sees("ready")
        terminal.press("dray completi\tfi\t > script; dray jobs --state sched\t; echo do''ne\n")
        terminal.sees("done")
        assert (local.folder / "script").read_text().startswith("function _dray_completion")
        assert "dray jobs --state scheduled" in terminal.text
        terminal.press("exit\n")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_says_how_to_install_it_and_is_good_for_its_shell(local: Shell, name: str) -> None:
    script = local("completion", name).out

    assert script.splitlines()[-1].startswith("# To install: ")
    assert "_DRAY_COMPLETE" in script
    if shutil.which(name):
        subprocess.run([name, "-n"], input=script, text=True, check=True)


def test_an_unknown_shell_is_wrong_usage(local: Shell) -> None:
    assert local.try_("completion", "tcsh").code == 2


def test_a_shell_that_is_not_named_is_one_sentence_with_the_choice(local: Shell) -> None:
    done = local.try_("completion")

    assert done.code == 2
    assert done.err == "dray: Missing argument SHELL: choose from bash, zsh, fish; see `dray completion --help`\n"


# Reading code


def test_modules_with_tasks_are_read_and_what_is_not_written_out_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("raise SystemExit('run!')")
    (tmp_path / "shop" / "core.py").write_text("app = App(compute(), imports=['shop.jobs', 'nosuch', NAME])\n")
    (tmp_path / "shop" / "jobs.py").write_text(
        "@app.task\ndef a(): ...\n@app.task(name='b.c', queue='x')\nasync def b(): ...\n"
        "@app.task(name=NAME)\ndef c(): ...\n@other\ndef d(): ...\ndef e(): ...\n"
    )
    (tmp_path / "broken.py").write_text("def (")
    monkeypatch.chdir(tmp_path)

    found = read_source("shop.core:app", ("broken",))

    assert found.modules == ("shop.core", "broken", "shop.jobs")
    assert found.tasks == ("b.c", "shop.jobs.a")
    assert (found.has_url, found.url) == (True, None)
