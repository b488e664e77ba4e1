"""``dray worker``: how it starts, what it says, how it ends. What it does to jobs is in tests/processes."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from dray.backends.sqlite import trust
from tests.cli.shell import Shell, until


def works(shell: Shell) -> Callable[[], bool]:
    return lambda: len(shell.try_("workers").rows) > 0


def test_burst_works_off_what_is_due_and_stops(shell: Shell) -> None:
    now = [shell("enqueue", "tasks.add", "a=1", "b=2").value for _ in range(3)]
    later = shell("enqueue", "tasks.add", "a=1", "b=2", "--delay", "1h").value

    shell("worker", "--burst")

    states = {job["id"]: job["state"] for job in shell("jobs", "--json").json}
    assert states == {**dict.fromkeys(now, "completed"), later: "scheduled"}


def test_it_says_at_the_start_where_it_works_on_what(shell: Shell) -> None:
    said = shell("worker", "--burst", "-q", "mail:4,default", "--log-level", "error").err

    assert re.search(
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info    dray: worker \d+ on (sqlite|postgresql)://", said
    )
    assert "queues: mail:4,default; tasks: tasks.add, " in said


def test_it_warns_once_for_each_file_of_a_sqlite_that_can_damage_it(shell: Shell, url: str) -> None:
    silent = shell("worker", "--burst", "--log-level", "error").err
    first, second = shell("worker", "--burst").err, shell("worker", "--burst").err

    is_unsafe = url.startswith("sqlite") and sqlite3.sqlite_version_info < trust.SAFE
    warning = f"warning dray: SQLite {sqlite3.sqlite_version} has a rare bug, fixed in 3.51.3: two connections"
    assert (warning in first) is is_unsafe
    assert "before 3.51.3" not in silent + second


@pytest.mark.parametrize(("found", "is_unsafe"), [((3, 51, 2), True), ((3, 51, 3), False), ((3, 53, 0), False)])
def test_which_sqlite_can_damage_files(found: tuple[int, ...], is_unsafe: bool) -> None:
    assert (trust.caution(found) is not None) is is_unsafe


def test_lines_of_bodies_name_the_job_and_cannot_steer_a_terminal(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.talk").value

    said = shell("worker", "--burst").err

    assert f" info    {job_id[-8:]} dray.task.tasks.talk: first \\x1b[31mline\n" in said
    assert f" warning {job_id[-8:]} shop: second line\n" in said


def test_a_higher_level_is_quiet_on_stderr_and_kept_with_the_job(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.talk").value

    said = shell("worker", "--burst", "--log-level", "error").err

    assert len(said.splitlines()) == 1
    assert len(shell("job", "logs", job_id).rows) == 2


def test_logging_that_the_app_has_set_up_is_left_alone(local: Shell) -> None:
    setup = "import logging; logging.basicConfig(level='INFO', format='mine: %(message)s')\n"
    local.write("tasks.py", setup + (local.folder / "tasks.py").read_text())
    local("enqueue", "tasks.talk")

    said = local("worker", "--burst").err

    assert "mine: second line" in said
    assert said.count("second line") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("words", [[], ["--burst"]], ids=["worker", "burst"])
def test_a_signal_ends_it_in_good_order_and_the_job_goes_back(
    shell: Shell, words: list[str], number: signal.Signals
) -> None:
    job_id = shell("enqueue", "tasks.sleep", "seconds=3600").value
    with shell.background("worker", "--grace", "0.2", *words) as process:
        until((shell.folder / "sleeping").exists)
        process.send_signal(number)
        said = process.communicate(timeout=30)[1]
        assert process.returncode == 0

    assert "is stopping: 1 job may take 0.2 s to end; a second signal ends it at once" in said
    assert "has stopped; it ran 0 jobs and handed 1 job back" in said
    found = shell("job", "show", job_id, "--json").json
    assert (found["state"], found["attempt"]) == ("queued", 0)
    assert [row[2] for row in shell("workers", "--all").rows] == ["stopped"]


def test_a_second_signal_ends_it_at_once(shell: Shell) -> None:
    shell("enqueue", "tasks.sleep", "seconds=3600")
    with shell.background("worker", "--grace", "1h") as process:
        until((shell.folder / "sleeping").exists)
        process.terminate()
        until(lambda: "draining" in shell("workers").out)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM


@pytest.mark.parametrize("words", [[], ["--burst"]], ids=["worker", "burst"])
def test_a_damaged_file_ends_it(local: Shell, words: list[str]) -> None:
    """No waiting repairs it, and who waits for the end of a burst would wait for ever."""
    local("enqueue", "tasks.add", "a=1", "b=2")
    path = local.folder / "damaged.db"
    local("db", "backup", str(path))
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'dray_jobs_ready'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    done = local.fresh("worker", "--url", str(path), "--grace", "1", *words)

    assert done.code == 6
    assert "is damaged" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


def test_once_ends_after_a_job(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.add", "a=1", "b=2").value

    shell("worker", "--once")

    assert shell("job", "show", job_id, "--json").json["state"] == "completed"


def test_several_processes_work_beside_each_other_and_end_together(shell: Shell) -> None:
    with shell.background("worker", "--processes", "2", "--log-level", "error") as process:
        until(works(shell))
        pids = until(lambda: found if len(found := {row[4] for row in shell("workers").rows}) == 2 else None)
        assert str(process.pid) not in pids
        job_id = shell("enqueue", "tasks.add", "a=1", "b=2", "--wait").value
        assert job_id == "3"
        process.terminate()
        assert process.wait(30) == 0

    assert {row[2] for row in shell("workers", "--all").rows} == {"stopped"}


def test_processes_of_a_burst_end_by_themselves(local: Shell) -> None:
    local("enqueue", "tasks.add", "a=1", "b=2")

    assert local.fresh("worker", "--burst", "--processes", "2").code == 0

    assert local("jobs").rows[0][3] == "completed"


def test_a_mistake_is_not_repeated_for_ever_by_several_processes(local: Shell) -> None:
    assert local.fresh("worker", "nosuch:app", "--processes", "2").code == 2


STUCK = """
import pathlib, time
import dray

app = dray.App()

@app.task(timeout=0.2, max_attempts=1)
def stuck() -> None:
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass

@app.task
def fine(n: int) -> int:
    return n
"""


def test_a_body_that_nothing_stops_costs_the_process_which_is_renewed(local: Shell) -> None:
    local.write("tasks.py", STUCK)
    stuck = local("enqueue", "tasks.stuck").value
    with local.background("worker", "--grace", "0.1") as process:
        until(lambda: local("job", "show", stuck, "--json").json["state"] == "failed")
        assert local("enqueue", "tasks.fine", "n=7", "--wait").out == "7\n"
        before, now = until(lambda: rows if len(rows := local("workers", "--all").rows) == 2 else None)
        process.terminate()
        assert process.wait(30) == 0

    assert before[4] == now[4] == str(process.pid)
    assert local("job", "show", stuck, "--json").json["reason"] == "timeout"


def test_options_may_be_set_by_variables(local: Shell) -> None:
    local("worker", DRAY_WORKER_BURST="1", DRAY_WORKER_CONCURRENCY="3", DRAY_WORKER_NAME="x")

    (worker,) = local("workers", "--all", "--json").json
    assert (worker["name"], worker["concurrency"]) == ("x", 3)


def test_what_is_typed_counts_more_than_a_variable(local: Shell) -> None:
    local("worker", "--burst", "-c", "2", DRAY_WORKER_CONCURRENCY="3")

    assert local("workers", "--all", "--json").json[0]["concurrency"] == 2


def test_its_threads_take_turns_more_often_than_python_lets_them(local: Shell) -> None:
    local.write(
        "tasks.py",
        "import sys, dray\napp = dray.App()\n\n@app.task\ndef turns() -> float: return sys.getswitchinterval()\n",
    )
    job_id = local("enqueue", "tasks.turns").value

    local("worker", "--burst")

    assert local("job", "show", job_id, "--json").json["result"] == pytest.approx(0.0005)


# What it logs of jobs


def ends_of(said: str) -> list[str]:
    return [line for line in said.splitlines() if " dray: job " in line]


def test_a_line_says_how_each_job_ended(shell: Shell) -> None:
    good, bad = shell("enqueue", "tasks.add", "a=1", "b=2").value, shell("enqueue", "tasks.fail", "word=bad").value

    said = shell("worker", "--burst").err

    words = {good: "(tasks.add) completed in ", bad: "(tasks.fail) failed after "}
    for line in ends_of(said):
        job_id = next(each for each in words if each[-8:] in line)
        assert f"{job_id[-8:]} {words.pop(job_id)}" in line
        assert ", attempt 1 of " in line
    assert words == {}
    assert "\n    Traceback (most recent call last):\n" in said
    assert "/dray/runtime/" not in said
    assert not any(job_id in said for job_id in (good, bad)), "ids have one form"


def test_a_higher_level_says_nothing_of_jobs_that_complete(local: Shell) -> None:
    local("enqueue", "tasks.add", "a=1", "b=2")
    assert ends_of(local("worker", "--burst", "--log-level", "warning").err) == []


def test_json_lines_hold_all_of_it(shell: Shell) -> None:
    good, bad = shell("enqueue", "tasks.add", "a=1", "b=2").value, shell("enqueue", "tasks.fail", "word=bad").value
    talk = shell("enqueue", "tasks.talk").value

    said = [json.loads(line) for line in shell("worker", "--burst", "--log-format", "json").err.splitlines()]

    assert all({"at", "level", "logger", "message"} <= line.keys() for line in said)
    ends = {line["job"]: line for line in said if "event" in line}
    assert (ends[good]["event"], ends[good]["task"], ends[good]["queue"]) == ("completed", "tasks.add", "default")
    assert ends[good]["seconds"] >= 0
    assert (ends[bad]["event"], ends[bad]["reason"], ends[bad]["level"]) == ("failed", "error", "warning")
    assert ends[bad]["traceback"].startswith("Traceback (most recent call last):\n")
    assert [line["message"] for line in said if line["logger"] == "shop"] == ["second line"]
    assert [line["job"] for line in said if line["logger"] == "shop"] == [talk]


def test_json_where_the_app_has_its_own_logging_is_not_ignored_in_silence(local: Shell) -> None:
    setup = "import logging; logging.basicConfig(level='INFO', format='mine: %(message)s')\n"
    local.write("tasks.py", setup + (local.folder / "tasks.py").read_text())

    said = local("worker", "--burst", DRAY_WORKER_LOG_FORMAT="json").err

    assert "dray: the app has set up logging by itself, so --log-format counts for nothing" in said
