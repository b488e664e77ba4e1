"""What people see, on a real terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.shell import Shell, copied, plain, project


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Jobs that completed, failed and wait; the tests only look."""
    made = project(tmp_path_factory.mktemp("used"))
    made("enqueue", "tasks.add", "a=1", "b=2")
    made("enqueue", "tasks.fail", "word=too [bold]bad[/bold] \x1b[2J")
    made("worker", "--burst")
    made("enqueue", "tasks.add", "a=1", "b=2", "--queue", "slow", "--delay", "1h")
    return made


def test_jobs_are_a_table_with_short_ids_and_relative_times(used: Shell) -> None:
    whole = [row[0] for row in used("jobs").rows]

    shown = plain(used.on_terminal("jobs", columns=120).out).splitlines()

    assert shown[0].split() == ["id", "task", "queue", "state", "attempt", "enqueued", "took"]
    assert [line.split()[0] for line in shown[1:]] == [job_id[-8:] for job_id in whole]
    assert re.search(r"tasks\.fail +default +failed\(error\) +1/1 +(now|\S+ ago)", shown[2])
    assert "too [bold]bad[/bold] \\x1b[2J" in shown[2]


def test_colours_are_for_terminals_that_want_them(used: Shell) -> None:
    assert "\x1b[31mfailed" in used.on_terminal("jobs").out
    assert "\x1b[31m" not in used.on_terminal("jobs", NO_COLOR="1").out
    assert "\x1b" not in used("jobs").out


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize(
    "words", [["jobs"], ["queues"], ["workers", "--all"], ["stats"], ["db", "status"]], ids=" ".join
)
def test_any_width_will_do(used: Shell, words: list[str], columns: int) -> None:
    done = used.on_terminal(*words, columns=columns, NO_COLOR="1")

    assert done.code == 0
    assert "Traceback" not in done.out
    if words[0] in {"jobs", "workers"}:
        assert all(len(line.rstrip()) <= columns for line in plain(done.out).splitlines() if "there may" not in line)
        assert re.search(r"^[0-9a-f]{8} ", plain(done.out), re.M), "ids are whole even where there is no room"


@pytest.mark.parametrize("command", ["stats", "queues"])
@pytest.mark.parametrize(
    ("columns", "kept"), [(20, ["queue", "queued"]), (30, ["queue", "queued", "running"]), (200, None)]
)
def test_a_narrow_terminal_keeps_the_counts_that_matter_most(
    used: Shell, command: str, columns: int, kept: list[str] | None
) -> None:
    shown = plain(used.on_terminal(command, columns=columns).out).splitlines()

    (heads,) = (line.split() for line in shown if line.startswith("queue "))
    if kept is None:
        assert {"queue", "scheduled", "queued", "running", "completed", "failed"} < set(heads)
    else:
        assert heads == kept


def test_a_job_is_shown_with_its_attempts_and_the_last_traceback(used: Shell) -> None:
    job_id = used("jobs", "--state", "failed").rows[0][0]

    shown = plain(used.on_terminal("job", "show", job_id[-8:], columns=200).out)

    assert re.search(r"^state +failed\(error\)$", shown, re.M)
    assert re.search(r"^  attempt 1 error in \S+ on [0-9a-f]{8}: ValueError: too", shown, re.M)
    assert "    raise ValueError(word)" in shown
    assert "\x1b" not in shown


def test_an_empty_list_says_so(local: Shell) -> None:
    local("db", "init")

    assert local.on_terminal("jobs").out == "no jobs\n"
    assert "dray worker" in local.on_terminal("workers").out


def test_waiting_shows_how_far_the_job_is(local: Shell) -> None:
    local.write(
        "tasks.py",
        "import time, dray\napp = dray.App()\n@app.task\ndef slow(ctx: dray.Context) -> int:\n"
        "    for n in range(4):\n        ctx.progress(25 * n, f'step {n}')\n        time.sleep(0.7)\n    return 7\n",
    )
    with local.background("worker"):
        done = local.on_terminal("enqueue", "tasks.slow", "--wait")

    assert done.code == 0
    assert "tasks.slow running: step 2" in plain(done.out)
    assert plain(done.out).splitlines()[-1].strip() == "7"


def test_many_are_acted_on_after_a_question(used: Shell, tmp_path: Path) -> None:
    used = copied(used, tmp_path)

    done = used.on_terminal("job", "retry", "--all", keys="n\n")
    assert (done.code, used("jobs", "--state", "failed").out == "") == (1, False)
    assert "Retry 1 job? [y/N]" in done.out

    assert used.on_terminal("job", "retry", "--all", keys="y\n").code == 0
    assert used("jobs", "--state", "failed").out == ""


def test_json_on_a_terminal_is_indented(used: Shell) -> None:
    assert used.on_terminal("stats", "--json").out.startswith('{\n  "database"')


def test_what_does_not_fit_is_cut_with_plain_characters_where_the_locale_has_no_others(shell: Shell) -> None:
    shell("enqueue", "tasks.add", "a=1", "b=2", "--queue", "a-queue-with-a-very-long-name-indeed")

    for command in ("queues", "jobs"):
        cut = shell.on_terminal(command, columns=24, LANG="C", LC_ALL="C").out
        assert cut.isascii(), cut
    assert "…" in shell.on_terminal("queues", columns=24, LANG="C.UTF-8", LC_ALL="C.UTF-8").out
