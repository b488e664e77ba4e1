"""``dray enqueue --wait`` and ``dray job wait``: a progress line on a terminal, and the result."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

import dray
from tests.cli.shell import PATIENCE, Shell, plain, until
from tests.cli.terminal import CTRL_C, terminal

TASKS = """
import pathlib, time
import dray

app = dray.App()

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task(max_attempts=1)
def fail(word: str) -> None:
    raise ValueError(word)

@app.task
def slow(ctx: dray.Context) -> int:
    ctx.progress(40, "step \\x1b[2Jtwo")
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
    return 7
"""


@pytest.fixture
def project(shell: Shell) -> Shell:
    shell.write("tasks.py", TASKS)
    return shell


@pytest.fixture
def near(local: Shell) -> Shell:
    """The same where the database makes no difference."""
    local.write("tasks.py", TASKS)
    return local


def test_a_bar_shows_how_far_the_job_is_and_is_gone_in_the_end(project: Shell) -> None:
    with project.background("worker"), terminal(project, "enqueue", "tasks.slow", "--wait", columns=110) as screen:
        shown = screen.until(lambda text: "40%" in text)
        (project.folder / "go").touch()
        assert screen.ends() == 0

    (line,) = [line for line in shown.splitlines() if line]
    assert line.startswith("━━━━━━━━────────────  40%  ")
    assert "tasks.slow running: step \\x1b[2Jtwo, attempt 1 of 3, " in line
    assert [line for line in screen.lines if line] == ["7"]


def test_where_nothing_is_known_of_the_progress_the_state_is_shown(near: Shell) -> None:
    with terminal(near, "enqueue", "tasks.add", "a=1", "b=2", "--wait", LANG="C", columns=40) as screen:
        shown = screen.until(lambda text: "queued" in text)
        with near.background("worker"):
            assert screen.ends() == 0

    assert "tasks.add queued, " in shown
    assert [line for line in screen.lines if line] == ["3"]


def test_plain_characters_where_the_locale_has_no_others(near: Shell) -> None:
    with near.background("worker"), terminal(near, "enqueue", "tasks.slow", "--wait", LANG="C") as screen:
        screen.until(lambda text: "########------------  40%" in text)
        (near.folder / "go").touch()
        assert screen.ends() == 0

    assert screen.sent.isascii()


def test_several_jobs_share_a_bar(project: Shell) -> None:
    with dray.App(project.url) as app:
        fast, slow = app.enqueue("tasks.add", {"a": 1, "b": 2}).id, app.enqueue("tasks.slow").id
    with project.background("worker"), terminal(project, "job", "wait", fast, slow) as screen:
        screen.until(lambda text: " 50%  1 of 2 jobs have ended, " in text)
        (project.folder / "go").touch()
        assert screen.ends() == 0

    assert [line.split() for line in screen.lines if line] == [[fast, "completed", "3"], [slow, "completed", "7"]]


def test_a_failure_is_a_sentence_where_the_bar_was(near: Shell) -> None:
    with near.background("worker"):
        done = near.on_terminal("enqueue", "tasks.fail", "word=bad \x1b[2J", "--wait", columns=200)

    assert done.code == 3
    assert plain(done.out).strip().splitlines()[-1].startswith("dray: job ")
    assert "ValueError: bad \\x1b[2J" in plain(done.out)


def test_too_long_is_a_sentence_where_the_bar_was(near: Shell) -> None:
    done = near.on_terminal("enqueue", "tasks.add", "a=1", "b=2", "--wait", "--timeout", "500ms", columns=200)

    assert done.code == 4
    assert "not ended within 0.5 seconds" in plain(done.out).splitlines()[-1]


def test_without_a_worker_a_line_under_the_progress_says_so_until_there_is_one(near: Shell) -> None:
    with terminal(near, "enqueue", "tasks.slow", "--wait", columns=110) as screen:
        shown = screen.until(lambda text: "No worker" in text)
        with near.background("worker"):
            screen.until(lambda text: "40%" in text and "No worker" not in text)
            (near.folder / "go").touch()
            assert screen.ends() == 0

    progress, hint = [line for line in shown.splitlines() if line]
    assert "tasks.slow queued, 2" in progress
    assert hint.endswith(" does not run. No worker is alive: start one with `dray worker`.")
    assert [line for line in screen.lines if line] == ["7"]


def test_in_a_pipe_it_is_one_line_of_stderr_and_the_last_line_says_it_too(project: Shell) -> None:
    done = project.try_("enqueue", "tasks.add", "a=1", "b=2", "--wait", "--timeout", "2500ms")

    assert done.code == 4
    (row,) = project("jobs").rows
    why = "does not run. No worker is alive: start one with `dray worker`."
    assert done.err.splitlines() == [
        f"dray: job {row[0][-8:]} {why}",
        f"dray: job {row[0][-8:]} has not ended within 2.5 seconds and {why}",
    ]


def test_in_a_pipe_a_job_is_told_of_that_cannot_run_beside_one_that_runs(project: Shell) -> None:
    with project.background("worker", "-q", "default"):
        slow = project("enqueue", "tasks.slow").out.strip()
        other = project("enqueue", "tasks.add", "a=1", "b=2", "--queue", "mail").out.strip()
        done = project.try_("job", "wait", slow, other, "--timeout", "2500ms")
        (project.folder / "go").touch()

    assert done.code == 4
    hint, _ = done.err.splitlines()
    assert hint.startswith(f"dray: job {other[-8:]} does not run. No live worker serves queue mail")


def test_ctrl_c_leaves_the_job_as_it_is_and_says_so(project: Shell) -> None:
    with terminal(project, "enqueue", "tasks.add", "a=1", "b=2", "--wait") as screen:
        screen.until(lambda text: "queued" in text)
        screen.press(CTRL_C)
        assert screen.ends() == 130
    (row,) = project("jobs").rows

    assert row[3] == "queued"
    (said,) = [line for line in screen.lines if line and "^C" not in line]
    assert said == f"dray: job {row[0][-8:]} goes on; wait again with `dray job wait {row[0][-8:]}`"


def test_in_a_pipe_there_is_nothing_but_the_result(near: Shell) -> None:
    (near.folder / "go").touch()
    with near.background("worker"):
        done = near("enqueue", "tasks.slow", "--wait")

    assert (done.out, done.err) == ("7\n", "")


def test_in_a_pipe_an_interrupt_says_that_the_job_goes_on(near: Shell) -> None:
    words = near.command("enqueue", "tasks.add", "a=1", "b=2", "--wait")
    process = subprocess.Popen(
        words, cwd=near.folder, env=near._with({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 1)  # a thread of its own waits
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()

    assert (process.returncode, out) == (130, ""), err
    assert "goes on; wait again with `dray job wait" in err
    assert len(err.splitlines()) == 1
