"""``dray jobs``, ``queues``, ``workers``, ``stats``, ``db``: what they answer, in a pipe and as JSON."""

from __future__ import annotations

import pytest

from dray.app import App
from tests.backends.processes import raw_sql
from tests.cli.shell import Shell, until

JOB = {
    *("id", "task", "queue", "state", "reason", "priority", "attempt", "max_attempts", "crashes", "progress"),
    *("progress_message", "error", "name", "tags", "worker", "created_at", "run_at", "started_at", "finished_at"),
    *("workflow", "workflow_name", "step", "schedule", "key"),
}
STATES = ["waiting", "scheduled", "queued", "running", "completed", "failed", "cancelled"]


def add(shell: Shell, *options: str) -> str:
    return shell("enqueue", "tasks.add", "a=1", "b=2", *options).value


def test_jobs_are_listed_newest_first_with_whole_ids(shell: Shell) -> None:
    ids = [add(shell) for _ in range(3)]

    assert [row[0] for row in shell("jobs").rows] == ids[::-1]
    assert [job["id"] for job in shell("jobs", "--json").json] == ids[::-1]
    assert {frozenset(job) for job in shell("jobs", "--json").json} == {frozenset(JOB)}


def test_a_row_has_the_columns_that_the_help_names(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.fail", "word=tab\there").value
    shell("worker", "--burst")

    (row,) = shell("jobs").rows

    assert row[:8] == [job_id, "tasks.fail", "default", "failed", "error", "1", "1", "0"]
    assert all(moment.endswith("Z") for moment in row[8:12])
    assert row[12:] == ["ValueError: tab\\there", "", "", ""]


def test_jobs_are_filtered(shell: Shell) -> None:
    slow = add(shell, "--queue", "slow")
    tagged = add(shell, "--tag", "x")
    later = add(shell, "--delay", "1h")
    called = shell("enqueue", "tasks.call", "number=1").value

    def listed(*filters: str) -> set[str]:
        return {row[0] for row in shell("jobs", *filters).rows}

    assert listed("--queue", "slow") == {slow}
    assert listed("--tag", "x") == {tagged}
    assert listed("--state", "scheduled") == {later}
    assert listed("--state", "scheduled", "--state", "queued") == {slow, tagged, later, called}
    assert listed("--state", "pending") == {slow, tagged, later, called}
    assert listed("--task", "tasks.call") == {called}
    assert listed("--since", "1h") == {slow, tagged, later, called}
    assert listed("--since", "2099-01-01") == set()
    assert listed("--limit", "1") == {called}
    assert listed("--limit", "1", "--after", called[-8:]) == {later}


def test_jobs_are_searched(shell: Shell) -> None:
    slow = add(shell, "--queue", "slow")
    tagged = add(shell, "--tag", "x")
    failed = [shell("enqueue", "tasks.fail", f"word={word}", "--queue", "f").value for word in ("a", "b", "no way")]
    shell("worker", "--burst", "-q", "f", "-c", "1")  # they end one after the other

    def found(*words: str) -> list[str]:
        return [row[0] for row in shell("jobs", *words).rows]

    assert found("task:tasks.add") == [tagged, slow]
    assert found("task:*.add", "--", "-tag:x") == found("task:*.add -tag:x") == [slow]
    assert found("state:failed since:1h") == failed[::-1]
    assert found("state:failed", 'error:"no way"') == found("args.word:no*") == failed[2:]
    assert found("state:failed", "--limit", "1") == failed[2:]
    assert found("state:failed", "--limit", "1", "--after", failed[2][-12:]) == failed[1:2]
    assert found("task:*", "--state", "queued", "--queue", "slow", "--since", "1h") == [slow]
    assert found("task:*", "--since", "2099-01-01") == []
    (job,) = shell("jobs", "tag:x", "--json").json
    assert job["id"] == tagged
    assert "has not ended, so it is not in this list" in shell.try_("jobs", "state:failed", "--after", slow[-12:]).err


def test_a_row_written_by_hand_does_not_keep_the_others_from_being_listed(shell: Shell) -> None:
    odd, other = add(shell, "--tag", "x"), add(shell)
    raw_sql(shell.url, f"UPDATE dray_jobs SET tags = '{{bad' WHERE id = '{odd}'")

    assert [row[0] for row in shell("jobs").rows] == [other, odd]
    assert [each["tags"] for each in shell("jobs", "--json").json] == [[], []]


def test_jobs_that_were_not_started_in_time_are_listed_as_expired(shell: Shell) -> None:
    with App(shell.url) as app:
        expired = app.enqueue("tasks.add", {"a": 1, "b": 2}, expires_in=0.001).id
    cancelled = add(shell, "--delay", "1h")
    shell("job", "cancel", cancelled)
    shell("worker", "--burst")

    (job,) = shell("jobs", "--state", "expired", "--json").json
    assert (job["id"], job["state"], job["reason"]) == (expired, "cancelled", "expired")
    assert {row[0] for row in shell("jobs", "--state", "cancelled").rows} == {expired, cancelled}


def test_the_database_may_be_named_before_or_after_the_command_without_any_code(shell: Shell) -> None:
    job_id = add(shell)
    shell.write("tasks.py", "raise SystemExit('never run this')  # dray")

    for words in (["--url", shell.url, "jobs", "--json"], ["jobs", "--json", "--url", shell.url]):
        assert [job["id"] for job in shell(*words, DRAY_URL="sqlite:///elsewhere.db").json] == [job_id]
    assert not (shell.folder / "elsewhere.db").exists()


def test_json_may_be_asked_for_before_the_command(local: Shell) -> None:
    add(local)

    assert len(local("--json", "jobs").json) == 1


def test_a_queue_is_paused_resumed_and_set(shell: Shell) -> None:
    add(shell)

    (paused,) = shell("queues", "pause", "default", "--json").json
    assert (paused["name"], paused["queued"], paused["paused_at"] is None) == ("default", 1, False)
    assert shell("worker", "--burst").code == 0
    assert shell("jobs").rows[0][3] == "queued"
    again = shell("queues", "pause", "default")
    assert "already" in again.err

    (resumed,) = shell("queues", "resume", "default", "--json").json
    assert resumed["paused_at"] is None
    (changed,) = shell("queues", "set", "default", "--priority", "7", "--json").json
    assert (changed["priority"], list(changed)) == (7, ["name", "priority", "paused_at", *STATES, "limits"])
    assert shell("jobs", "--json").json[0]["priority"] == 0
    add(shell)
    assert shell("jobs", "--json").json[0]["priority"] == 7


def test_queues_in_a_pipe_are_rows(shell: Shell) -> None:
    add(shell)
    add(shell, "--queue", "slow", "--delay", "1h")

    assert shell("queues").rows == [
        ["default", "0", "", "0", "0", "1", "0", "0", "0", "0", ""],
        ["slow", "0", "", "0", "1", "0", "0", "0", "0", "0", ""],
    ]

    shell("limits", "set", "queue", "slow", "--limit", "3")
    assert [row[10] for row in shell("queues").rows] == ["", '{"limit": 3}']


def test_workers_are_listed_while_they_live_and_on_request_afterwards(shell: Shell) -> None:
    with shell.background("worker", "--name", "first", "-q", "mail:4,default", "-c", "3") as process:
        until(lambda: shell.try_("workers").out)
        (worker,) = until(lambda: [each for each in shell("workers", "--json").json if each["duties"]])
        assert (worker["name"], worker["state"], worker["pid"]) == ("first", "active", process.pid)
        assert (worker["queues"], worker["concurrency"]) == (["mail", "default"], 3)
        assert "tasks.add" in worker["tasks"]
        process.terminate()
        assert process.wait(20) == 0

    assert shell("workers").out == ""
    assert [row[1:3] for row in shell("workers", "--all").rows] == [["first", "stopped"]]


def test_a_killed_worker_is_not_listed_as_alive_before_it_is_buried(shell: Shell) -> None:
    with shell.background("worker", "--name", "killed", "--lease", "1") as process:
        until(lambda: shell.try_("workers").out)
        process.kill()
        process.wait(20)

        until(lambda: shell("workers").out == "")
        assert [row[1:3] for row in shell("workers", "--all").rows] == [["killed", "dead"]]
        (task,) = shell("tasks", "tasks.add", "--json").json
        assert task["workers"] == []
        assert raw_sql(shell.url, "SELECT state FROM dray_workers") == [("active",)]


def test_stats_count_jobs_by_state_and_queue(shell: Shell) -> None:
    shell("enqueue", "tasks.fail", "word=no")
    add(shell)
    shell("worker", "--burst")
    add(shell, "--queue", "slow")

    found = shell("stats", "--json").json
    flat = dict(shell("stats").rows)

    assert (found["states"]["completed"], found["states"]["failed"], found["queues"]["slow"]["queued"]) == (1, 1, 1)
    assert found["finished"] == {"completed": 1, "failed": 1, "cancelled": 0}
    assert found["oldest_queued_age"] >= 0
    assert found["p50"] is not None
    assert (flat["states.queued"], flat["queues.slow.queued"], flat["window"]) == ("1", "1", "3600.0")
    assert flat["database"] == found["database"]


def test_stats_and_worker_name_the_file_absolute(local: Shell) -> None:
    add(local, "--url", "jobs.db")

    path = str(local.folder / "jobs.db")
    assert dict(local("stats", "--url", "jobs.db").rows)["database"] == f"sqlite:///{path}"
    assert path in local("worker", "--burst", "--url", "jobs.db").err


def test_tables_are_made_upgraded_and_looked_at(empty_url: str, local: Shell) -> None:
    local.environment["DRAY_URL"] = empty_url
    missing = local.try_("db", "status")
    assert (missing.code, "dray db init" in missing.err) == (6, True)

    made = local("db", "init", "--json").json
    assert made["version"] == made["newest_version"] > 0
    assert local("db", "status", "--json").json == made
    assert local("db", "migrate", "--json").json == made
    assert local("jobs").out == ""


def test_migrate_makes_no_file_for_a_path_that_was_mistyped(local: Shell) -> None:
    assert local.try_("db", "migrate").code == 6
    assert not (local.folder / "dray.db").exists()


@pytest.mark.parametrize("part", ["zzz", "ffff"])
@pytest.mark.parametrize("words", [["job", "show"], ["why"], ["job", "wait"], ["workflows", "show"]], ids=" ".join)
def test_a_missing_database_is_told_apart_from_a_missing_job(local: Shell, words: list[str], part: str) -> None:
    assert local.try_(*words, part).code == 6
    local("db", "init")
    assert local.try_(*words, part).code == 5
