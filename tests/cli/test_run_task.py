"""``dray run``: a task's function, called here and now."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.cli.session import CTRL_C, fresh_session
from tests.cli.shell import PATIENCE, Done, Shell, plain, until

CODE = """
import asyncio, pathlib, sys, time
from dataclasses import dataclass
from datetime import date
import dray

app = dray.App()

@dataclass
class Order:
    number: int
    day: date

@app.task
def add(a: int, b: int = 2) -> int:
    print("adding")
    return a + b

@app.task
def order(order: Order) -> str:
    assert isinstance(order, Order) and isinstance(order.day, date)
    return f"{order.number} {order.day:%d.%m.}"

@app.task
def call(number: str) -> str:
    return number

@app.task
async def wait(seconds: float) -> str:
    pathlib.Path("waiting").touch()
    await asyncio.sleep(seconds)
    return "waited"

@app.task
def sleep(seconds: float) -> None:
    pathlib.Path("waiting").touch()
    time.sleep(seconds)

@app.task
def stubborn() -> None:
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass

@app.task
def context(ctx: dray.Context) -> dict:
    ctx.log.info("a line")
    for n in range(5):
        ctx.progress(25 * n, f"step {n}")
    return {"attempt": ctx.attempt, "job": len(ctx.job_id), "parents": dict(ctx.parent_results)}

@app.task
def transaction(ctx: dray.Context) -> None:
    with ctx.transaction():
        pass

def deep(word):
    raise ValueError(word)

@app.task
def fail(word: str) -> None:
    try:
        deep(word)
    except ValueError as error:
        raise LookupError("postgresql://user:canary@host/db") from error

@app.task
async def afail() -> None:
    await asyncio.sleep(0)
    deep("later")

@app.task
def leave() -> None:
    sys.exit(0)

@app.task
def steer(how: str) -> None:
    raise {
        "retry": dray.Retry(delay=30, message="busy"),
        "policy": dray.Retry(),
        "snooze": dray.Snooze(90),
        "fail": dray.Fail("no such user"),
        "cancel": dray.Cancel("not needed"),
    }[how]

@app.task
def unstorable() -> object:
    return object()
"""

WRAPPED = """
@app.middleware
def around(ctx, call):
    print(f"around {ctx.task} {dict(ctx.args)}")
    return [call()]

@app.middleware
async def around_coroutines(ctx, call):
    print(f"coroutine {ctx.task}")
    return [await call()]
"""


@pytest.fixture
def here(local: Shell) -> Shell:
    local.write("tasks.py", CODE)
    local.environment["DRAY_URL"] = "sqlite:////nosuch/place/dray.db"  # it needs none
    return local


def run(shell: Shell, *words: str) -> Done:
    """Tracebacks are what it is to show."""
    done = subprocess.run(
        shell.command("run", *words),
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


CALLS: dict[tuple[str, ...], str] = {
    ("tasks.add", "a=1"): "3",
    ("tasks.add", "--args", '{"a": 1, "b": 40}'): "41",
    ("tasks.add", "a:=5", "--args", '{"b": 1}'): "6",
    ("tasks.call", "number=0049"): '"0049"',
    ("tasks.order", 'order={"number": 7, "day": "2026-01-31"}'): '"7 31.01."',
    ("tasks.wait", "seconds=0"): '"waited"',
    ("tasks.context",): '{"attempt": 1, "job": 36, "parents": {}}',
}


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_the_result_is_printed_as_json(here: Shell, words: tuple[str, ...]) -> None:
    done = here("run", *words)

    assert done.out == CALLS[words] + "\n"
    assert {path.name for path in here.folder.iterdir()} <= {"tasks.py", "__pycache__", "waiting"}


def test_what_the_body_prints_and_logs_is_no_part_of_it(here: Shell) -> None:
    assert here("run", "tasks.add", "a=1").err == "adding\n"
    assert " info    dray.task.tasks.context: a line\n" in here("run", "tasks.context").err
    assert here("run", "tasks.context", "--log-level", "error").err == ""


def test_middleware_goes_around_the_body(here: Shell) -> None:
    here.write("tasks.py", CODE + WRAPPED)

    for words, said, result in (
        (("tasks.add", "a=1"), "around tasks.add {'a': 1, 'b': 2}\nadding\n", "[3]\n"),
        (("tasks.wait", "seconds=0"), "coroutine tasks.wait\n", '["waited"]\n'),
    ):
        done = here("run", *words)
        assert (done.err, done.out) == (said, result)


def test_an_error_is_shown_with_the_users_own_frames(here: Shell) -> None:
    done = run(here, "tasks.fail", "word=\x1b[2J")

    assert (done.code, done.out) == (3, "")
    files = [line.split('"')[1] for line in done.err.splitlines() if line.startswith("  File")]
    assert set(files) == {str(here.folder / "tasks.py")}
    assert "in deep\n    raise ValueError(word)\nValueError: \\x1b[2J\n" in done.err
    assert done.err.endswith("\nLookupError: postgresql://user:***@host/db\n")
    assert "canary" not in done.err


def test_an_error_of_a_coroutine_too(here: Shell) -> None:
    done = run(here, "tasks.afail")

    assert done.code == 3
    frames = [line.strip() for line in done.err.splitlines() if line.startswith("  File")]
    wanted = [f'File "{here.folder}/tasks.py", line {_line(text)}, in {name}' for name, text in _FRAMES.items()]
    assert frames == wanted


_FRAMES = {"afail": 'deep("later")', "deep": "raise ValueError(word)"}


def _line(text: str) -> int:
    return CODE[: CODE.index(text)].count("\n") + 1


def test_a_body_that_ends_the_process_has_failed(here: Shell) -> None:
    done = run(here, "tasks.leave")

    assert done.code == 3
    assert done.err.endswith("SystemExit: 0\n")


def test_a_transaction_needs_a_job(here: Shell) -> None:
    done = run(here, "tasks.transaction")

    assert done.code == 3
    assert "with ctx.transaction():" in done.err
    assert "enqueue it and run a worker" in done.err
    assert "local.py" not in done.err


STEERED = {
    "retry": "asks to be run again in 30s: busy",
    "policy": "asks to be run again as its retry policy says",
    "snooze": "asks to be run in 1m30s, without counting this attempt",
    "fail": "has failed for good: no such user",
    "cancel": "cancels its job: not needed",
}


@pytest.mark.parametrize("how", STEERED)
def test_what_steers_a_job_is_put_in_words(here: Shell, how: str) -> None:
    done = here.try_("run", "tasks.steer", f"how={how}")

    assert (done.code, done.out, done.err) == (3, "", f"dray: tasks.steer {STEERED[how]}\n")


def test_a_result_that_cannot_be_stored_is_a_failure(here: Shell) -> None:
    done = here.try_("run", "tasks.unstorable")

    assert (done.code, done.out) == (3, "")
    assert "its result cannot be stored: result: object is not JSON" in done.err


WRONG = {
    "missing 'a'": ["tasks.add"],
    "unknown 'c'": ["tasks.add", "a=1", "c=3"],
    "expected int, got str": ["tasks.add", "a=x"],
    "'day' is missing": ["tasks.order", 'order={"number": 7}'],
    "is no argument": ["tasks.add", "a"],
    "a is given twice": ["tasks.add", "a=1", "a=2"],
    "--pdb needs a terminal": ["tasks.add", "a=1", "--pdb"],
}


@pytest.mark.parametrize("problem", WRONG)
def test_arguments_are_checked_before_it_runs(here: Shell, problem: str) -> None:
    done = here.try_("run", *WRONG[problem])

    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert problem in done.err


def test_an_unknown_task_is_not_found_and_those_like_it_are_named(here: Shell) -> None:
    done = here.try_("run", "tasks.ad", "a=1")

    assert done.code == 5
    assert "did you mean tasks.add" in done.err


@pytest.mark.parametrize("task", ["tasks.sleep", "tasks.wait"])
def test_a_timeout_stops_it(here: Shell, task: str) -> None:
    done = here.try_("run", task, "seconds=3600", "--timeout", "200ms")

    assert (done.code, done.err) == (4, f"dray: {task} has not ended within 200ms; give it more time (--timeout)\n")


def test_a_body_that_does_not_stop_ends_with_the_process(here: Shell) -> None:
    began = time.monotonic()
    done = here.try_("run", "tasks.stubborn", "--timeout", "100ms")

    assert done.code == 4
    assert "did not stop when told to" in done.err
    assert time.monotonic() - began < 50


@pytest.mark.parametrize("task", ["tasks.sleep", "tasks.wait"])
def test_ctrl_c_ends_it(here: Shell, task: str) -> None:
    with fresh_session(here.command("run", task, "seconds=3600"), here.folder, here.environment) as terminal:
        until((here.folder / "waiting").exists)
        terminal.press(CTRL_C)
        assert terminal.ended() == 130
        assert "Traceback" not in terminal.text


def test_progress_is_shown_on_a_terminal(here: Shell) -> None:
    said = plain(here.on_terminal("run", "tasks.context").out)

    assert "dray: tasks.context 0% step 0\n" in said
    assert "dray: tasks.context 100% step 4\n" in said
    assert said.splitlines()[-1].startswith("{")


def test_the_debugger_opens_where_it_raised(here: Shell) -> None:
    with fresh_session(here.command("run", "tasks.afail", "--pdb"), here.folder, here.environment) as terminal:
        terminal.sees("(Pdb) ")
        terminal.press("p word * 2\n")
        terminal.sees("'laterlater'")
        terminal.press("q\n")
        assert terminal.ended() == 3
