"""The commands of the reference that serve, draw or take long, played for a moment: as their pages type them, but on
a port that is free and with fewer jobs. `dray mcp` is played where its packages are, in tests_integrations/mcp.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.session import CTRL_C, session
from tests.cli.shell import Shell, plain, project
from tests.cli.terminal import terminal
from tests.cli.test_json import theirs
from tests.cli.test_web import Browser
from tests.docs.play import NOT_PLAYED, ROOT

PLAYED = ("web", "top", "dev", "demo", "bench", "import")


@pytest.fixture
def shell(tmp_path: Path, url: str) -> Shell:
    made = project(tmp_path, url)
    made("enqueue", "tasks.add", "a=1", "b=2", "--queue", "mail")
    return made


@pytest.fixture
def local(tmp_path: Path) -> Shell:
    return project(tmp_path)


def example(name: str) -> tuple[str, str]:
    """What a command's page types after ``dray``, and what it shows."""
    text = (ROOT / "docs" / "reference" / "cli" / f"{name}.md").read_text()
    (found,) = re.findall(rf"^\$ dray ({name}\b.*)\n((?:.+\n)+?)```$", text, re.M)
    return found


def typed(name: str) -> list[str]:
    return shlex.split(example(name)[0])


def lacking(name: str, printed: str) -> list[str]:
    """Lines that the page shows and the command did not print, in this order; numbers and paths may differ."""
    said = iter([_alike(line) for line in plain(printed).splitlines()])
    shown = [line for line in example(name)[1].splitlines() if line != "…"]
    assert shown
    return [line for line in shown if _alike(line) not in said]


def _alike(line: str) -> str:
    line = re.sub(r"sqlite:///\S+|(?<=\s)/\S+", "PATH", re.sub(r"code=\S+", "code=C", line))
    line = re.sub(r"\b[0-9a-f]{8}\b", "1", line)  # an id, which may have digits only
    return " ".join(re.sub(r"<?\d[\d.,:]*(?:ms|µs|s|m)?\b", "N", line).split())


def test_what_is_not_played_on_the_pages_is_played_here() -> None:
    assert set(NOT_PLAYED) == {*PLAYED, "mcp"}


def test_web_serves_the_jobs_to_look_at(shell: Shell) -> None:
    with session(shell, *typed("web"), "--port", "0") as running:
        running.sees("Ctrl-C ends this")
        (link,) = re.findall(r"http://\S+", running.text)
        page = Browser.by(link).page("/queues")
        running.press(CTRL_C)
        assert running.ended() == 0
        assert lacking("web", running.text) == []

    assert "mail" in page
    assert "/queues/mail/pause" not in page


def test_top_shows_the_queues_until_q(shell: Shell) -> None:
    with terminal(shell, *typed("top")) as screen:
        screen.until(lambda text: "dray top" in text and "mail" in text)
        if shell.url.startswith("sqlite"):
            assert lacking("top", screen.text) == []
        screen.press("q")
        assert screen.process is not None
        assert screen.process.wait(60) == 0


def test_dev_runs_what_waits(shell: Shell) -> None:
    with session(shell, *typed("dev")) as running:
        running.sees("tasks.add: completed in ")
        running.sees("http://")
        running.press(CTRL_C)
        assert running.ended() == 0
        if shell.url.startswith("sqlite"):
            assert lacking("dev", running.text) == []


def test_demo_says_where_it_keeps_its_files(local: Shell) -> None:
    done = local.on_terminal(*typed("demo"), "--jobs", "300", "--concurrency", "2", TMPDIR=str(local.folder))

    assert done.code == 0, done.out
    (kept,) = local.folder.glob("dray-demo-*")
    assert str(kept) in plain(done.out)
    assert lacking("demo", done.out) == []


def test_bench_shows_rates(shell: Shell) -> None:
    done = shell.on_terminal(*typed("bench"), "--seconds", "1", "--jobs", "10")

    assert done.code == 0, done.out
    assert "run, one worker process" in plain(done.out)
    if shell.url.startswith("sqlite"):
        assert lacking("bench", done.out) == []


def test_import_says_what_would_be_carried(shell: Shell) -> None:
    words = typed("import")
    theirs(shell.folder / words[2], shell.folder / "lilota.db")
    with closing(sqlite3.connect(shell.folder / words[2])) as file:
        file.execute("DELETE FROM jobs WHERE params = '{'")
        file.commit()
    before = len(shell("jobs").rows)

    done = shell.on_terminal(*words)

    assert done.code == 0, done.out
    assert "1 job" in plain(done.out)
    assert lacking("import", done.out) == []
    assert len(shell("jobs").rows) == before
