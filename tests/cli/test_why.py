"""``dray why``: every job explained, as people and programs see it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dray.app import App
from tests.cli.shell import Shell, plain, until
from tests.forks import Forked
from tests.standstill import bring_to_a_stand


@contextmanager
def producer(shell: Shell) -> Generator[App]:
    """Enqueues by name, without the project's code."""
    with App(shell.url) as app:
        yield app


def enqueue(shell: Shell, task: str = "tasks.add", args: dict[str, Any] | None = None, **options: Any) -> str:
    with producer(shell) as app:
        return app.enqueue(task, {"a": 1, "b": 2} if args is None else args, **options).id


def why(shell: Shell, job_id: str) -> dict[str, Any]:
    return shell("why", job_id, "--json").json


def kinds(shell: Shell, job_id: str) -> list[str]:
    return [cause["kind"] for cause in why(shell, job_id)["causes"]]


@contextmanager
def worker(shell: Shell, *words: str) -> Generator[Forked]:
    """A worker that has registered."""
    with producer(shell) as app:
        before = {each.id for each in app.workers()}
        with shell.background("worker", *words) as process:
            until(lambda: any(each.id not in before for each in app.workers()))
            yield process


# What it says


def test_a_job_in_a_paused_queue_without_a_worker_has_two_causes(shell: Shell) -> None:
    job_id = enqueue(shell)
    assert kinds(shell, job_id) == ["no_worker"]

    shell("queues", "pause", "default")
    found = why(shell, job_id)

    assert [cause["kind"] for cause in found["causes"]] == ["paused", "no_worker"]
    paused = found["causes"][0]
    since = datetime.fromisoformat(paused["paused_at"])
    assert timedelta(0) <= datetime.now(UTC) - since < timedelta(minutes=10)
    assert "dray queues resume default" in paused["text"]


def test_a_job_for_later_says_when(shell: Shell) -> None:
    job_id = enqueue(shell, delay=3600, expires_in=7200)

    scheduled, no_worker, expires = why(shell, job_id)["causes"]

    assert scheduled["kind"] == "scheduled"
    assert "in 59m" in scheduled["text"] or "in 1h00m" in scheduled["text"]
    shown = shell("job", "show", job_id, "--json").json
    assert (scheduled["run_at"], expires["expires_at"]) == (shown["run_at"], shown["expires_at"])
    assert (no_worker["kind"], expires["kind"]) == ("no_worker", "expires")


def test_a_job_that_waits_names_its_parents_and_what_holds_it(shell: Shell) -> None:
    running = enqueue(shell, delay=3600)
    failing = enqueue(shell, "tasks.fail", {"word": "no"}, max_attempts=1)
    held = enqueue(shell, after=[running, failing], on_parent_failure="hold")
    lost = enqueue(shell, after=[failing], on_parent_failure="cancel")
    (parents, *_) = why(shell, held)["causes"]
    assert (parents["kind"], parents["waiting_on"]) == ("parents", 2)
    assert {parent["id"]: parent["state"] for parent in parents["parents"]} == {
        running: "scheduled",
        failing: "queued",
    }

    shell("worker", "--burst")

    (first, second, *_) = why(shell, held)["causes"]
    assert (first["kind"], first["on_parent_failure"]) == ("held", "hold")
    assert (first["parent"]["id"], first["parent"]["reason"]) == (failing, "error")
    assert f"dray job retry {failing}" in first["text"]
    assert (second["kind"], [parent["id"] for parent in second["parents"]]) == ("parents", [running])
    (only,) = why(shell, lost)["causes"]
    assert (only["kind"], [parent["id"] for parent in only["parents"]]) == ("parent", [failing])


def test_a_retry_says_what_happened_and_when_it_comes(shell: Shell) -> None:
    job_id = enqueue(shell, "tasks.fail", {"word": "no way"}, max_attempts=3)
    shell("worker", "--burst")

    (retry, *_) = why(shell, job_id)["causes"]

    assert (retry["kind"], retry["attempt"], retry["max_attempts"]) == ("retry", 1, 3)
    assert "ValueError: no way" in retry["text"]
    assert retry["run_at"] == shell("job", "show", job_id, "--json").json["run_at"]


def test_workers_of_other_queues_and_unknown_tasks_are_named(shell: Shell) -> None:
    with worker(shell, "-q", "mail"):
        elsewhere = enqueue(shell)
        mistyped = enqueue(shell, "tasks.mial", {}, queue="mail")

        (no_worker,) = why(shell, elsewhere)["causes"]
        (unknown,) = why(shell, mistyped)["causes"]

    assert (no_worker["kind"], no_worker["other_queues"], no_worker["alive"]) == ("no_worker", ["mail"], 1)
    assert "(1 worker serves other queues (mail))" in no_worker["text"]
    assert "dray worker -q default" in no_worker["text"]
    assert unknown["text"].startswith(
        "The live worker of queue mail does not know the task tasks.mial; it is spelled"
    )
    assert (unknown["kind"], unknown["near"][0], unknown["workers"]) == ("unknown_task", "tasks.mail", 1)


def test_arguments_that_do_not_fit_are_said_by_the_code_here_and_by_the_worker_that_tried(shell: Shell) -> None:
    job_id = enqueue(shell, args={"a": 1})

    (here, *_) = why(shell, job_id)["causes"]
    assert (here["kind"], here["is_here"]) == ("arguments", True)
    assert "missing 'b'" in here["text"]
    bare = shell("why", job_id, "--url", shell.url, "--json").json  # no code of ours is loaded
    assert [cause["kind"] for cause in bare["causes"]] == ["no_worker"]

    shell("worker", "--burst")

    (there, snoozed, *_) = why(shell, job_id)["causes"]
    assert (there["kind"], there["is_here"]) == ("arguments", False)
    assert "missing 'b'" in there["text"]
    assert snoozed["kind"] == "snoozed"


def test_jobs_behind_others_and_full_workers_are_counted(shell: Shell) -> None:
    with worker(shell, "-c", "1"):
        busy = enqueue(shell, "tasks.sleep", {"seconds": 3600})
        until(lambda: why(shell, busy)["state"] == "running")
        first, second = enqueue(shell), enqueue(shell, priority=-1)

        assert kinds(shell, first) == ["slots"]
        slots, behind = why(shell, second)["causes"]

    assert (slots["kind"], slots["running"], slots["concurrency"]) == ("slots", 1, 1)
    assert (behind["kind"], behind["ahead"], behind["is_more"]) == ("behind", 1, False)


def test_what_ended_a_job_is_said(shell: Shell) -> None:
    good = enqueue(shell)
    bad = enqueue(shell, "tasks.fail", {"word": "n\to\nway"}, max_attempts=1)
    shell("worker", "--burst")
    unwanted = enqueue(shell)
    shell("job", "cancel", unwanted)

    completed, error, cancelled = (why(shell, job_id)["causes"][0] for job_id in (good, bad, unwanted))

    assert (completed["kind"], completed["has_result"], completed["attempt"]) == ("completed", True, 1)
    assert (error["kind"], error["error_type"], error["error"]) == ("error", "ValueError", "n\to\nway")
    assert (cancelled["kind"], "before it started" in cancelled["text"]) == ("cancelled", True)


# Running jobs


def test_a_running_job_shows_where_its_body_is_on_a_terminal(shell: Shell) -> None:
    with worker(shell):
        job_id = enqueue(shell, "tasks.sleep", {"seconds": 3600})
        until((shell.folder / "sleeping").exists)

        lines = plain(shell.on_terminal("why", job_id[-8:], columns=300).out).splitlines()
        quiet = plain(shell.on_terminal("why", "--no-stack", job_id, columns=300).out).splitlines()
        piped = shell("why", job_id).rows

    assert lines[0].startswith("It runs on worker ")
    assert ", in sleep" in lines[1]
    assert lines[1].startswith('      File "')
    assert "        await asyncio.sleep(seconds)" in lines
    assert len(quiet) == 1
    assert [row[0] for row in piped] == ["running", "stack"]
    assert "await asyncio.sleep(seconds)" in piped[1][1]


def test_a_worker_that_is_stopped_does_not_answer_and_one_that_was_killed_is_gone(shell: Shell) -> None:
    with worker(shell) as process:
        job_id = enqueue(shell, "tasks.sleep", {"seconds": 3600})
        until((shell.folder / "sleeping").exists)

        bring_to_a_stand(shell.url, process.pid)
        stopped = why(shell, job_id)
        process.kill()
        process.wait()

    assert [cause["kind"] for cause in stopped["causes"]] == ["running", "no_answer"]
    assert stopped["stack"] is None
    assert "did not answer within 2 s" in stopped["causes"][1]["text"]
    killed = kinds(shell, job_id)
    if shell.url.startswith("sqlite:"):
        assert killed == ["worker_gone"]
    else:  # nothing is known of it until its lease ends
        assert killed in (["running", "no_answer"], ["worker_silent", "running", "no_answer"])


def test_a_body_that_was_asked_to_stop_and_a_timeout_that_is_over_are_said(shell: Shell) -> None:
    shell.write("tasks.py", (shell.folder / "tasks.py").read_text() + SLOW)
    with worker(shell):
        os.mkfifo(shell.folder / "end")
        job_id = enqueue(shell, "tasks.stubborn", {}, timeout=0.5)
        until((shell.folder / "begun").exists)
        shell("job", "cancel", job_id)

        found = until(lambda: _both(why(shell, job_id)))
        (shell.folder / "end").write_text("")

    assert "  File " in found["stack"]
    assert "in stubborn" in found["stack"]


SLOW = """
@app.task
def stubborn() -> None:
    pathlib.Path("begun").touch()
    pathlib.Path("end").read_text()  # a pipe that nobody writes to: no exception reaches a body in there
"""


def _both(found: dict[str, Any]) -> dict[str, Any] | None:
    said = [cause["kind"] for cause in found["causes"]]
    return found if said[:3] == ["overdue", "cancel_requested", "running"] and found["stack"] else None


# How it says it


def test_json_has_a_shape(shell: Shell) -> None:
    job_id = enqueue(shell)

    found = why(shell, job_id)

    assert list(found) == ["id", "task", "queue", "state", "reason", "causes", "stack"]
    assert (found["id"], found["task"], found["queue"]) == (job_id, "tasks.add", "default")
    assert (found["state"], found["reason"], found["stack"]) == ("queued", None, None)
    assert all(list(cause)[:2] == ["kind", "text"] for cause in found["causes"])


def test_several_jobs_are_told_apart(shell: Shell) -> None:
    ids = [enqueue(shell), enqueue(shell, queue="mail")]

    assert [each["id"] for each in shell("why", *ids, ids[0], "--json").json] == ids
    assert [(row[0], row[2]) for row in shell("why", *ids).rows] == [("no_worker", ids[0]), ("no_worker", ids[1])]
    assert [len(row) for row in shell("why", ids[0]).rows] == [2]
    lines = plain(shell.on_terminal("why", *ids, columns=300).out).splitlines()
    assert [lines[0], lines[2]] == [f"{job_id[-8:]} tasks.add queued" for job_id in ids]


def test_on_a_terminal_ids_are_short_and_nothing_steers_it(shell: Shell) -> None:
    parent = enqueue(shell, "tasks.fail", {"word": "\x1b[31mred"}, max_attempts=1)
    child = enqueue(shell, after=[parent], on_parent_failure="hold")
    shell("worker", "--burst")

    shown = shell.on_terminal("why", parent, child, columns=300, NO_COLOR="1").out

    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown
    assert f"dray job retry {parent[-8:]}`" in shown
    assert parent not in shown


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["01900000-0000-7000-8000-000000000001"], 5),
        (["zzz"], 5),
        ([], 2),
    ],
    ids=["no such id", "no such part", "no id"],
)
def test_bad_input_is_one_sentence(shell: Shell, words: list[str], code: int) -> None:
    enqueue(shell)

    refused = shell.try_("why", *words)

    assert (refused.code, refused.out) == (code, "")
    assert refused.err


def test_no_file_is_made_where_there_is_none(local: Shell) -> None:
    refused = local.try_("why", "0190")

    assert refused.code == 6
    assert not (Path(local.folder) / "dray.db").exists()
