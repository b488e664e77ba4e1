"""``dray schedules``: what it prints in a pipe, as JSON and on a terminal, and how it refuses."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell, plain

SCHEDULE = {
    *("name", "task", "queue", "args", "rule", "cron", "every", "tz", "misfire", "misfire_limit", "overlap"),
    *("priority", "next_at", "last_at", "created_at", "paused_at"),
}


@pytest.fixture
def stored(shell: Shell) -> Shell:
    """With a schedule in its database."""
    shell("db", "init")
    shell("schedules", "add", "sums", "tasks.add", "a=1", "b=2", "--cron", "0 3 * * *", "--tz", "Europe/Berlin")
    return shell


def test_a_schedule_is_added_listed_and_changed(stored: Shell) -> None:
    (row,) = stored("schedules").rows
    assert row[:3] == ["sums", "tasks.add", "0 3 * * * Europe/Berlin"]
    assert row[3].endswith("Z")
    assert row[4:] == ["", "", "", "last", "allow", '{"a": 1, "b": 2}']
    assert stored("schedules", "list").rows == [row]

    changed = stored(
        "schedules", "add", "sums", "tasks.add", "a=1", "b=3", "--every", "90", "--overlap", "skip", "--json"
    )

    (shape,) = changed.json
    assert set(shape) == SCHEDULE
    assert (shape["every"], shape["cron"], shape["overlap"], shape["args"]) == (90.0, None, "skip", {"a": 1, "b": 3})
    assert shape["rule"] == "every 1 minute 30 seconds"


def test_its_next_times_are_previewed(stored: Shell) -> None:
    assert len(stored("schedules", "next", "sums").rows) == 5
    times = stored("schedules", "next", "sums", "-n", "3", "--json").json

    assert [when[10:] in {"T01:00:00.000000Z", "T02:00:00.000000Z"} for when in times] == [True] * 3
    shown = plain(stored.on_terminal("schedules", "next", "sums", "-n", "1").out)
    assert ("03:00:00 CE" in shown, "in " in shown) == (True, True)


def test_it_is_paused_and_resumed(stored: Shell) -> None:
    assert stored("schedules", "pause", "sums").rows[0][5].endswith("Z")
    again = stored("schedules", "pause", "sums")
    assert "was paused already" in again.err
    assert "is paused" in stored("schedules", "next", "sums").err
    assert "paused" in plain(stored.on_terminal("schedules").out)

    assert stored("schedules", "resume", "sums").rows[0][5] == ""
    assert "was not paused" in stored("schedules", "resume", "sums").err


def test_its_jobs_may_have_another_priority(stored: Shell) -> None:
    stored("schedules", "add", "urgent", "tasks.add", "a=1", "b=2", "--every", "1h", "--priority", "7")
    job_id = stored("schedules", "run", "urgent").value

    assert stored("job", "show", job_id, "--json").json["priority"] == 7
    assert {each["name"]: each["priority"] for each in stored("schedules", "--json").json}["urgent"] == 7


def test_it_is_run_now_and_the_job_says_which_schedule_made_it(stored: Shell) -> None:
    job_id = stored("schedules", "run", "sums").value
    stored("worker", "--burst")

    shown = stored("job", "show", job_id, "--json").json
    assert (shown["state"], shown["result"], shown["schedule"], shown["slot"]) == ("completed", 3, "sums", None)
    assert stored("schedules", "run", "sums", "--json").json["task"] == "tasks.add"


def test_it_is_found_by_its_last_segment_or_any_part_of_its_name(stored: Shell) -> None:
    for name in ("chores.nightly", "chores.nightly-more", "other.beat"):
        stored("schedules", "add", name, "tasks.add", "a=1", "b=2", "--every", "1")
    assert len(stored("schedules", "next", "nightly").rows) == 5
    assert stored("schedules", "pause", "nightly", "chores.nightly").rows[0][0] == "chores.nightly"
    assert [row[0] for row in stored("schedules", "resume", "bea", "nightly").rows] == [
        "chores.nightly",
        "other.beat",
    ]
    job_id = stored("schedules", "run", "nightly").out.strip()
    assert [row[0] for row in stored("jobs", "--schedule", "nightly").rows] == [job_id]
    assert "schedule     chores.nightly" in plain(stored.on_terminal("job", "show", job_id).out)

    several = stored.try_("schedules", "remove", "chores")
    assert several.code == 2
    assert "part of several schedules' names: chores.nightly, chores.nightly-more; give more of it" in several.err
    close = stored.try_("schedules", "next", "chores.nigthly")
    assert (close.code, "did you mean chores.nightly" in close.err) == (5, True)

    assert stored("schedules", "remove", "nightly").rows == [["chores.nightly"]]
    assert [row[0] for row in stored("jobs", "--schedule", "chores.nightly").rows] == [job_id]
    assert stored("jobs", "--schedule", "gone").rows == []


def test_it_is_removed(stored: Shell) -> None:
    assert stored("schedules", "remove", "sums").value == "sums"

    assert stored("schedules", "--json").json == []
    assert "no schedules" in plain(stored.on_terminal("schedules").out)


def test_what_code_declares_is_stored_by_a_worker_and_not_by_looking(shell: Shell) -> None:
    shell("db", "init")
    tasks = (shell.folder / "tasks.py").read_text()
    shell.write("tasks.py", f'{tasks}\napp.schedule("sums", add, every=3600, args={{"a": 1, "b": 1}})\n')

    assert shell("schedules").rows == []
    shell("worker", "--burst")

    assert [row[0] for row in shell("schedules").rows] == ["sums"]


def test_names_that_are_not_there_are_not_found(stored: Shell) -> None:
    for words in (["next", "no"], ["run", "no"], ["pause", "sums", "no"], ["resume", "no"], ["remove", "sums", "no"]):
        done = stored.try_("schedules", *words)
        assert (done.code, done.out) == (5, ""), words
        assert "no schedule is named 'no'" in done.err
    (row,) = stored("schedules").rows
    assert row[5] == ""  # nothing was done to the others either


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["x", "tasks.add", "a=1", "b=2"], 2, "give cron="),
        (["x", "tasks.add", "a=1", "b=2", "--cron", "0 0 31 2 *"], 2, "cannot be used"),
        (["x", "tasks.add", "a=1", "b=2", "--cron", "@daily", "--tz", "Mars"], 2, "is not known here"),
        (["x", "tasks.add", "a=1", "b=2", "--every", "0"], 2, "every must be between"),
        (["x", "tasks.add", "a=1", "b=2", "--every", "soon"], 2, "is no duration"),
        (["x", "tasks.add", "a=1", "--every", "5"], 2, "missing 'b'"),
        (["x", "tasks.add", "--args", "[1]", "--every", "5"], 2, "must be a JSON object"),
        (["x ", "tasks.add", "a=1", "b=2", "--every", "5"], 2, "schedule name 'x ' cannot be used"),
        (["x", "tasks.ad", "a=1", "b=2", "--every", "5"], 5, "did you mean tasks.add"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_stored(
    local: Shell, words: list[str], code: int, message: str
) -> None:
    local("db", "init")

    done = local.try_("schedules", "add", *words)

    assert (done.code, message in done.err, done.err.count("\n")) == (code, True, 1), done.err
    assert local("schedules").rows == []


def test_a_task_that_is_known_elsewhere_can_be_scheduled_unchecked(local: Shell) -> None:
    local("db", "init")

    assert local("schedules", "add", "x", "billing.run", "--every", "5m", "--unchecked").rows[0][1] == "billing.run"


@pytest.mark.parametrize("words", [[], ["next", "x"], ["add", "x", "tasks.add", "a=1", "b=2", "--every", "5"]])
def test_without_tables_nothing_is_made(local: Shell, words: list[str]) -> None:
    done = local.try_("schedules", *words)

    assert done.code == 6
    assert not (local.folder / "dray.db").exists()
