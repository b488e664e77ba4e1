"""``dray enqueue``: arguments, options, waiting."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell


def args_of(shell: Shell, job_id: str) -> object:
    return shell("job", "show", job_id, "--json", "--show-args").json["args"]


def test_it_prints_the_id_of_a_job_that_a_worker_then_runs(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.add", "a=1", "b=2").value

    shell("worker", "--burst")

    found = shell("job", "show", job_id, "--json").json
    assert (found["state"], found["result"], found["attempt"]) == ("completed", 3, 1)


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (["x=1"], {"x": 1}),
        (["x=text"], {"x": "text"}),
        (["x=a=b"], {"x": "a=b"}),
        (["x="], {"x": ""}),
        (['x={"y": [1, null]}'], {"x": {"y": [1, None]}}),
        (["x=NaN"], {"x": "NaN"}),
        (['x:="text"'], {"x": "text"}),
        (["--args", '{"x": true}'], {"x": True}),
        (["--args", '{"x": true}', "y=2"], {"x": True, "y": 2}),
        (["x=\u00e4\u2028"], {"x": "\u00e4\u2028"}),
    ],
)
def test_values_are_json_where_they_read_as_json_and_text_otherwise(
    local: Shell, words: list[str], args: object
) -> None:
    job_id = local("enqueue", "elsewhere.task", *words, "--unchecked").value

    assert args_of(local, job_id) == args


def test_in_a_folder_without_an_app_nothing_is_enqueued_into_a_new_file(local: Shell) -> None:
    (local.folder / "below").mkdir()
    below = Shell(local.folder / "below", "")

    done = below.try_("enqueue", "tasks.add", "a=1", "b=oops", DRAY_URL=None)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("dray: no app was found here, and no database is named; name it as module:object")
    assert list(below.folder.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("enqueue", "tasks.add"), ("schedules", "add", "often", "tasks.add", "--every", "60")]
)
def test_it_says_so_where_nothing_can_be_checked(shell: Shell, words: tuple[str, ...]) -> None:
    shell("db", "init")
    (shell.folder / "below").mkdir()
    below = Shell(shell.folder / "below", shell.environment["DRAY_URL"])

    assert below(*words, "a=1").err == "dray: no task is known here: neither this one nor its arguments are checked\n"
    assert below(*words, "a=1", "--unchecked").err == ""


def test_what_is_in_the_folder_is_used_though_no_app_is(local: Shell) -> None:
    local("db", "init", "--url", "dray.db")
    (local.folder / "tasks.py").unlink()

    job_id = local("enqueue", "elsewhere.task", DRAY_URL=None).value

    assert [job["id"] for job in local("jobs", "--json", "--url", "dray.db").json] == [job_id]


def test_a_parameter_that_is_a_str_takes_the_words_as_they_are(local: Shell) -> None:
    job_id = local("enqueue", "tasks.call", "number=5551234").value

    assert args_of(local, job_id) == {"number": "5551234"}


def test_arguments_may_come_from_stdin(local: Shell) -> None:
    done = local.try_("enqueue", "tasks.add", "--args", "-", stdin='{"a": 1, "b": 2}')

    assert args_of(local, done.value) == {"a": 1, "b": 2}


def test_options_end_up_on_the_job(shell: Shell) -> None:
    job_id = shell(
        *("enqueue", "tasks.add", "a=1", "b=2", "--queue", "slow", "--priority", "0", "--delay", "1h"),
        *("--max-attempts", "7", "--tag", "x", "--tag", "y", "--name", "the first", "--key", "acct:7"),
    ).value

    found = shell("job", "show", job_id, "--json").json
    assert (found["queue"], found["priority"], found["state"]) == ("slow", 0, "scheduled")
    assert (found["max_attempts"], found["tags"], found["name"]) == (7, ["x", "y"], "the first")
    assert found["key"] == "acct:7"


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb"])
def test_what_is_no_key_enqueues_nothing(local: Shell, key: str) -> None:
    done = local.try_("enqueue", "tasks.add", "a=1", "b=2", "--key", key)

    assert done.code in {1, 2}
    assert "key" in done.err
    assert not (local.folder / "dray.db").exists()


def test_a_time_of_day_and_a_date_say_when(local: Shell) -> None:
    dated = local("enqueue", "tasks.add", "a=1", "b=2", "--at", "2099-01-02T03:04:05Z", "--json").json
    daily = local("enqueue", "tasks.add", "a=1", "b=2", "--at", "23:59:59", "--json").json

    assert dated["run_at"] == "2099-01-02T03:04:05.000000Z"
    assert daily["state"] == "scheduled"


@pytest.mark.parametrize("how", [["--unique", "report:42"], ["--unique-args"]])
def test_the_second_of_a_unique_job_is_the_first(shell: Shell, how: list[str]) -> None:
    first = shell("enqueue", "tasks.add", "a=1", "b=2", *how, "--json").json
    second = shell("enqueue", "tasks.add", "b=2", "a=1", *how, "--json")

    assert (second.json["id"], second.json["duplicate"], first["duplicate"]) == (first["id"], True, False)
    assert first["id"][-8:] in second.err


def test_waiting_prints_the_result(shell: Shell) -> None:
    with shell.background("worker"):
        assert shell("enqueue", "tasks.add", "a=1", "b=2", "--wait").out == "3\n"


def test_waiting_for_a_job_that_fails_says_why_and_exits_with_3(shell: Shell) -> None:
    with shell.background("worker"):
        done = shell.try_("enqueue", "tasks.fail", "word=too \x1b[31mbad", "--wait")

    assert (done.code, done.out) == (3, "")
    assert "ValueError: too \\x1b[31mbad" in done.err
    assert len(done.err.splitlines()) == 1


def test_waiting_too_long_exits_with_4(shell: Shell) -> None:
    done = shell.try_("enqueue", "tasks.add", "a=1", "b=2", "--wait", "--timeout", "100ms")

    assert (done.code, done.out) == (4, "")
    assert shell("jobs", "--state", "queued").rows


def test_an_unknown_task_can_be_enqueued_where_there_is_no_app(shell: Shell) -> None:
    (shell.folder / "tasks.py").unlink()

    job_id = shell("enqueue", "elsewhere.task", "x=1").value

    assert shell("jobs", "--task", "elsewhere.task").rows[0][0] == job_id


def test_a_misspelled_task_is_not_found(local: Shell) -> None:
    done = local.try_("enqueue", "tasks.ad", "a=1", "b=2")

    assert done.code == 5
    assert "tasks.add" in done.err
    assert not (local.folder / "dray.db").exists()


def test_headers_are_stored_with_the_job_and_shown(local: Shell) -> None:
    job_id = local("enqueue", "tasks.add", "a=1", "b=2", "--header", "request_id=42", "--header", "q=a=b").value

    assert local("job", "show", job_id, "--json").json["headers"] == {"request_id": "42", "q": "a=b"}
    assert ["headers.q", "a=b"] in local("job", "show", job_id).rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--header", "request_id"], "--header takes NAME=VALUE, as in --header request_id=42, not 'request_id'"),
        (["--header", "=42"], "--header takes NAME=VALUE"),
        (["--header", "n=1", "--header", "n=2"], "--header n is given twice"),
        (["--header", f"n={'x' * 9_000}"], "over the limit of 8,192"),
    ],
)
def test_what_is_no_header_enqueues_nothing(local: Shell, words: list[str], said: str) -> None:
    done = local.try_("enqueue", "tasks.add", "a=1", "b=2", *words)

    assert done.code in {1, 2}
    assert said in done.err
    assert not (local.folder / "dray.db").exists()
