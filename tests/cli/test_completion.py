"""``dray completion``: what a real shell offers for Tab."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from dray.cli.source import read_source
from tests.cli.session import Session
from tests.cli.shell import PATIENCE, TASKS, Shell, until

BIN = str(Path(sys.prefix) / "bin")
ASK = """
eval "$SCRIPT"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_dray_completion dray
printf '%s\\n' "${COMPREPLY[@]}"
"""


@cache
def bash_script() -> str:
    """What is the same each time: a start of Python takes most of a test's time."""
    return subprocess.run([f"{BIN}/dray", "completion", "bash"], capture_output=True, text=True, check=True).stdout


def offered(shell: Shell, *words: str, **environment: str | None) -> list[str]:
    """What bash offers for the last word."""
    ours = {"PATH": f"{BIN}:{shell.environment['PATH']}", "SCRIPT": bash_script()}
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


def await_offer(shell: Shell, *words: str) -> list[str]:
    """The same, on a machine that may be too busy to answer within a second."""
    return until(lambda: offered(shell, *words))


@pytest.fixture
def used(shell: Shell) -> Shell:
    shell("enqueue", "tasks.add", "a=1", "b=2", "--queue", "slow")
    shell("schedules", "add", "nightly", "tasks.add", "--cron", "0 3 * * *", "--args", '{"a": 1, "b": 2}')
    return shell


def test_commands_options_and_choices_are_offered(local: Shell) -> None:
    assert offered(local, "wor") == ["worker", "workers", "workflows"]
    assert offered(local, "job", "re") == ["retry"]
    assert offered(local, "jobs", "--st") == ["--state"]
    assert offered(local, "worker", "--log-level", "w") == ["warning"]
    assert offered(local, "completion", "") == ["bash", "zsh", "fish"]
    assert offered(local, "jobs", "--state", "f") == ["failed"]


def test_values_come_from_the_database(used: Shell) -> None:
    job_id = used("jobs").rows[0][0]

    assert await_offer(used, "jobs", "--queue", "sl") == ["slow"]
    assert await_offer(used, "queues", "pause", "") == ["slow"]
    assert await_offer(used, "worker", "-q", "s") == ["slow"]
    assert await_offer(used, "job", "show", "") == [job_id[-8:]]
    assert await_offer(used, "job", "cancel", job_id[-8:-4]) == [job_id[-8:]]
    assert await_offer(used, "job", "show", job_id[:20]) == [job_id]
    assert await_offer(used, "schedules", "pause", "n") == ["nightly"]


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
    local.write(
        "fill.py",
        "from tasks import add\nadd.enqueue_many([(n, n) for n in range(200)])\n",
    )
    subprocess.run([sys.executable, "fill.py"], cwd=local.folder, env=local.environment, check=True)

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


def test_a_tab_on_a_terminal_completes_the_word(used: Shell) -> None:
    environment = {**used.environment, "PATH": f"{BIN}:{used.environment['PATH']}", "PS1": "$ "}
    with Session(["bash", "--norc", "-i"], used.folder, environment) as terminal:
        terminal.press("eval \"$(dray completion bash)\"; echo rea''dy\n")
        terminal.sees("ready")
        terminal.press("dray completi\tfi\t > script; dray jobs --state sched\t; echo do''ne\n")
        terminal.sees("done")
        assert (used.folder / "script").read_text().startswith("function _dray_completion")
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
