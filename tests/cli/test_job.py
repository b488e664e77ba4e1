"""``dray job``: show, logs, wait, retry, cancel, delete."""

from __future__ import annotations

from tests.cli.shell import Shell, plain


def test_a_job_is_shown_with_its_attempts(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.fail", "word=no\nway").value
    shell("worker", "--burst")

    found = shell("job", "show", job_id, "--json").json
    (attempt,) = found["attempts"]
    assert (found["state"], found["reason"]) == ("failed", "error")
    assert (attempt["number"], attempt["outcome"]) == (1, "error")
    assert (attempt["error"]["type"], attempt["error"]["message"]) == ("ValueError", "no\nway")
    assert "raise ValueError" in attempt["error"]["traceback"]
    assert attempt["started_at"].endswith("Z")


def test_in_a_pipe_a_job_is_lines_of_names_and_values(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.fail", "word=no\nway").value
    shell("worker", "--burst")

    values = dict(shell("job", "show", job_id).rows)

    assert (values["id"], values["state"], values["args.word"]) == (job_id, "failed", "no\\nway")
    assert values["attempts.0.outcome"] == "error"


def test_several_jobs_are_an_array(shell: Shell) -> None:
    ids = [shell("enqueue", "tasks.add", f"a={number}", "b=2").value for number in (1, 2)]

    assert [each["id"] for each in shell("job", "show", *ids, "--json").json] == ids


def test_an_id_may_be_shortened_to_any_part_that_is_unique(shell: Shell) -> None:
    first = shell("enqueue", "tasks.add", "a=1", "b=2").value
    second = shell("enqueue", "tasks.add", "a=1", "b=2").value

    assert shell("job", "show", first[-8:], "--json").json["id"] == first
    assert shell("job", "show", first[9:].upper(), "--json").json["id"] == first
    ambiguous = shell.try_("job", "show", first[:6])
    assert ambiguous.code == 2
    assert first in ambiguous.err
    assert second in ambiguous.err


def test_hidden_arguments_are_not_shown(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.mail", "to=ann", "token=canary").value

    found = shell("job", "show", job_id, "--json").json

    assert found["args"] == {"to": "ann", "token": "***"}


def test_what_a_body_said_is_there(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.talk").value
    shell("worker", "--burst")

    lines = shell("job", "logs", job_id, "--json").json
    rest = shell("job", "logs", job_id, "--after", str(lines[0]["seq"])).rows

    assert [(line["level"], line["message"]) for line in lines] == [
        ("INFO", "first \x1b[31mline"),
        ("WARNING", "second line"),
    ]
    assert [row[1:] for row in rest] == [["WARNING", "shop", "second line"]]
    assert shell("job", "show", job_id, "--json").json["progress"] == 50


def test_waiting_for_one_prints_its_result_and_for_several_a_line_each(shell: Shell) -> None:
    good = shell("enqueue", "tasks.add", "a=1", "b=2").value
    bad = shell("enqueue", "tasks.fail", "word=no").value
    shell("worker", "--burst")

    assert shell("job", "wait", good).out == "3\n"
    both = shell.try_("job", "wait", good, bad)
    assert both.code == 3
    assert both.rows == [[good, "completed", "3"], [bad, "failed", "null"]]
    assert bad[-8:] in both.err


def test_waiting_too_long_exits_with_4(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.add", "a=1", "b=2").value

    assert shell.try_("job", "wait", job_id, "--timeout", "0.1").code == 4


def test_a_failed_job_starts_over(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.fail", "word=no").value
    shell("worker", "--burst")

    assert shell("job", "retry", job_id).value == job_id
    assert shell("job", "show", job_id, "--json").json["state"] == "queued"
    again = shell.try_("job", "retry", job_id)
    assert (again.code, again.out) == (1, "")
    assert "not ended" in again.err


def test_attempts_before_and_after_a_retry_can_be_told_apart(shell: Shell) -> None:
    shell.write(
        "tasks.py",
        "import dray\napp = dray.App()\n\n@app.task(max_attempts=1)\n"
        "def talk(ctx: dray.Context) -> None:\n    ctx.log.info('hello')\n    raise ValueError('no')\n",
    )
    job_id = shell("enqueue", "tasks.talk").value
    shell("worker", "--burst")
    shown = plain(shell.on_terminal("job", "show", job_id, columns=150).out)
    assert "  attempt 1 error in" in shown
    assert "start" not in shown.replace("started", "")
    shell("job", "retry", job_id)
    shell("worker", "--burst")

    shown = plain(shell.on_terminal("job", "show", job_id, columns=150).out)

    assert "  start 1, attempt 1 error in" in shown
    assert "  start 2, attempt 1 error in" in shown
    attempts = shell("job", "show", job_id, "--json").json["attempts"]
    assert [(each["start"], each["number"], each["claim"]) for each in attempts] == [(1, 1, 1), (2, 1, 2)]
    logged = plain(shell.on_terminal("job", "logs", job_id, columns=150).out).splitlines()
    assert [logged[0], logged[2]] == ["start 1, attempt 1:", "start 2, attempt 1:"]
    assert [line["claim"] for line in shell("job", "logs", job_id, "--json").json] == [1, 2]
    assert "start 2, attempt 1 of 1 raised" in shell("why", job_id).out


def test_a_retried_job_wakes_an_idle_worker(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.fail", "word=no").value
    with shell.background("worker"):
        assert shell.try_("job", "wait", job_id).code == 3
        shell("job", "retry", job_id)
        assert shell.try_("job", "wait", job_id, "--timeout", "20").code == 3

    assert len(shell("job", "show", job_id, "--json").json["attempts"]) == 2


def test_a_job_is_cancelled_before_it_starts_and_while_it_runs(shell: Shell) -> None:
    with shell.background("worker"):
        later = shell("enqueue", "tasks.add", "a=1", "b=2", "--delay", "1h").value
        running = shell("enqueue", "tasks.sleep", "seconds=3600").value
        while shell("job", "show", running, "--json").json["state"] != "running":
            pass

        assert shell("job", "cancel", later, running, "--json").json == [
            {"id": later, "cancelled": True},
            {"id": running, "cancelled": True},
        ]
        assert shell.try_("job", "wait", later, running, "--timeout", "20").code == 3

    found = shell("job", "show", later, running, "--json").json
    assert [(each["state"], each["reason"]) for each in found] == [("cancelled", "user")] * 2
    assert shell.try_("job", "cancel", later).code == 1


def test_a_deleted_job_is_gone(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.add", "a=1", "b=2").value

    assert shell("job", "delete", job_id).value == job_id
    assert shell.try_("job", "show", job_id).code == 5
    assert shell("jobs").out == ""


def test_all_that_fit_are_counted_first_and_then_acted_on(shell: Shell) -> None:
    kept = shell("enqueue", "tasks.add", "a=1", "b=2").value
    for _ in range(3):
        shell("enqueue", "tasks.add", "a=1", "b=2", "--queue", "slow")

    assert shell("job", "cancel", "--all", "--queue", "slow", "--dry-run").out == "would cancel 3 jobs\n"
    unasked = shell.try_("job", "cancel", "--all", "--queue", "slow")
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    assert len(shell("jobs", "--state", "queued").rows) == 4

    assert shell("job", "cancel", "--all", "--queue", "slow", "--yes").out == "cancelled 3 of 3 jobs\n"
    assert [row[0] for row in shell("jobs", "--state", "queued").rows] == [kept]
    assert shell("job", "retry", "--all", "--yes").out == "retried 0 of 0 jobs\n"
    assert shell("job", "retry", "--all", "--state", "cancelled", "--yes").out == "retried 3 of 3 jobs\n"


def test_all_that_a_search_finds_are_acted_on_and_leave_one_row(shell: Shell) -> None:
    for word in ("one", "two", "three"):
        shell("enqueue", "tasks.fail", f"word={word}")
    shell("worker", "--burst")

    assert shell("job", "retry", "--all", "error:t*", "--dry-run").out == "would retry 0 jobs\n"
    assert shell("job", "retry", "--all", 'args.word:t* task:"tasks.fail"', "--dry-run").out == "would retry 2 jobs\n"
    assert shell("job", "retry", "--all", "args.word:t*", "--yes").out == "retried 2 of 2 jobs\n"
    assert len(shell("jobs", "state:failed").rows) == 1
    deleted = shell("job", "delete", "--all", "task:tasks.*", "--since", "1h", "--yes", "--json").json
    assert [each["deleted"] for each in deleted] == [True]
    rows = [row for row in shell("actions", "--json").json if row["kind"] == "jobs"]
    assert [(row["verb"], row["done"]) for row in rows] == [("delete", 1), ("retry", 2)]
    assert rows[1]["target"] == "args.word:t* state:failed"


def test_jobs_that_cannot_be_retried_are_told_of(shell: Shell) -> None:
    first, second = (shell("enqueue", "tasks.add", "a=1", "b=2").value for _ in range(2))
    shell("job", "cancel", second)
    done = shell("job", "retry", "--all", f"id:{first} id:{second} state:queued state:cancelled", "--yes")
    assert done.out == "retried 1 of 2 jobs\n"
    assert "1 job was not retried; the first is" in done.err
    assert "it has not ended: it is queued" in done.err


def test_a_single_job_that_fits_is_no_jobs(shell: Shell) -> None:
    shell("enqueue", "tasks.add", "a=1", "b=2")

    assert shell("job", "cancel", "--all", "--dry-run").out == "would cancel 1 job\n"
    assert "this would cancel 1 job; give --yes" in shell.try_("job", "cancel", "--all").err
    assert shell("job", "cancel", "--all", "--yes").out == "cancelled 1 of 1 job\n"
