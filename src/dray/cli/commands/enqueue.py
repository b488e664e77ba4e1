"""``dray enqueue`` and ``dray run``: a task's job put into its queue, or its function called here and now."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn

import click

import dray
from dray.app_interface import core_of
from dray.cli import logs, waiting
from dray.cli.apps import app_for_enqueueing, app_with_tasks, known_task, person, task_to_fit
from dray.cli.cells import short
from dray.cli.exits import Code, Failure, say
from dray.cli.logs import users_lines, users_trace
from dray.cli.options import command, option, wants_json
from dray.cli.output import put, put_json, put_line
from dray.cli.parsing import arguments, given, instant, time_option
from dray.cli.processes import handling
from dray.errors import DrayError
from dray.hooks import wrapped
from dray.instants import SECOND
from dray.job_control import Cancel, Fail, Retry, Snooze, Steering
from dray.ops import acting, shapes
from dray.task.task import Task
from dray.wording import span


@command()
@click.argument("task")
@click.argument("words", nargs=-1, metavar="[NAME=VALUE...]")
@option("--args", metavar="JSON", help="Arguments as a JSON object; - reads it from stdin.")
@option("--queue", help="A queue other than the task's.")
@option("--priority", type=int, help="Higher runs first.")
@time_option("--delay", help="Run it after this time: 30, 5m, 1h30m.")
@option("--at", "run_at", type=instant, metavar="TIME", help="Run it at this time: 2026-11-15T08:00, or 08:00.")
@option(
    "--unique", metavar="KEY", help="A unique key: if a live job has it, print that job's id and enqueue nothing."
)
@option("--unique-args", is_flag=True, help="As --unique, with the task and its arguments as the key.")
@option("--key", help="A key: its job takes turns with those of other keys, and limits of keys count it.")
@option("--max-attempts", type=click.IntRange(1), metavar="N", help="Maximum number of attempts.")
@option("--tag", "tags", multiple=True, help="A tag (repeat for several).")
@option("--name", help="A name for people to read.")
@option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header (repeat for several).")
@option("--unchecked", is_flag=True, help="Enqueue it even if no task of this name is known here.")
@option("--wait", is_flag=True, help="Wait for its end and print its result (exit code 3: it failed).")
@time_option("--timeout", help="Wait no longer than this (exit code 4).")
def enqueue(
    task: str,
    words: Sequence[str],
    args: str | None,
    run_at: datetime | None,
    unique: str | None,
    timeout: float | None,
    headers: Sequence[str],
    *,
    unique_args: bool,
    unchecked: bool,
    wait: bool,
    **options: Any,
) -> int:
    """Put a job of TASK into its queue and print its id.

    A VALUE that reads as JSON is JSON, any other is text; for a parameter of type str it is always text. With
    NAME:=VALUE it must be JSON.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    if unique and unique_args:
        raise click.UsageError("--unique and --unique-args are two keys; give only one of them")
    app = app_for_enqueueing()
    known = task_to_fit(app, task, unchecked=unchecked)
    using: dict[str, Any] = {**options, "run_at": run_at, "unique": unique_args or unique}
    using["headers"] = _headers(headers)
    try:
        job = acting.enqueue(core_of(app), task, arguments(words, args, known), given(using), person())
    except TypeError as error:
        raise click.UsageError(str(error)) from None
    if job.duplicate:
        say(f"job {short(job.id)} has this unique key; nothing was enqueued")
    if wait:
        ended = waiting.wait(app, [job.id], timeout)[job.id]
        if wants_json():
            put_json({**shapes.whole_job(job), "duplicate": job.duplicate})
        elif ended.state == "completed":
            put(shapes.result_text(ended.result))
        return waiting.judge([ended])
    put_line(lambda: {**shapes.job(job), "duplicate": job.duplicate}, job.id)
    return Code.DONE


def _headers(words: Sequence[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--header takes NAME=VALUE, as in --header request_id=42, not {word!r}")
        if name in found:
            raise click.UsageError(f"--header {name} is given twice; give it once")
        found[name] = value
    return found or None


_MERCY = 5.0  # seconds for a body to end after its timeout
_STEP = 0.1  # seconds between two lines of progress


class _TimeOver(BaseException):
    """Not an Exception: a body's ``except Exception`` must not catch it."""


@command()
@click.argument("task")
@click.argument("words", nargs=-1, metavar="[NAME=VALUE...]")
@option("--args", metavar="JSON", help="Arguments as a JSON object; - reads it from stdin.")
@time_option("--timeout", help="Stop it after this time (exit code 4).")
@option("--pdb", is_flag=True, help="Start the debugger if it raises.")
@option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True, help="What to log.")
def run(
    task: str, words: Sequence[str], args: str | None, timeout: float | None, log_level: str, *, pdb: bool
) -> int:
    """Run TASK here and now and print its result as JSON: no job, no worker, no database, one attempt.

    A VALUE that reads as JSON is JSON, any other is text; for a parameter of type str it is always text. With
    NAME:=VALUE it must be JSON. An exception is shown with its traceback (exit code 3).
    """
    if pdb and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("--pdb needs a terminal")
    app = app_with_tasks()
    found = known_task(app, task)
    logs.configure(log_level)
    call = _call(app, found, arguments(words, args, found))
    try:
        value = _called(found, call, timeout)
    except KeyboardInterrupt:
        raise
    except _TimeOver:
        raise Failure(
            f"{found.name} has not ended within {span(timeout or 0)}; give it more time (--timeout)", Code.TIMED_OUT
        ) from None
    except Steering as error:
        say(f"{found.name} {_wish(error)}")
        return Code.JOB_ENDED
    except BaseException as error:  # noqa: BLE001 - a body may raise anything
        return _show(error, debug=pdb)
    try:
        text = found.encode_result(value)
    except Exception as error:  # methods of the value may raise anything
        raise Failure(f"{found.name} returned, but its result cannot be stored: {error}", Code.JOB_ENDED) from error
    put(shapes.result_text(text))
    return Code.DONE


def _call(app: dray.App, task: Task[..., Any], given: dict[str, Any]) -> Callable[[], Any]:
    """Returns the call, with middleware around it; arguments converted to the types of the function's annotations."""
    try:
        fitting = task.signature.fit(given)
    except (TypeError, DrayError) as error:
        raise click.UsageError(str(error)) from None
    except Exception as error:
        # The code of a user's model reads the arguments, and may raise anything.
        raise click.UsageError(f"reading the arguments raised {type(error).__name__}: {error}") from error
    core = core_of(app)
    values: dict[str, Any] = {}
    context = _context(task.name, core.new_id(), values)
    call = task.signature.arrange(fitting, context=context)
    values.update(task.signature.named(*call))
    around = core.hooks.around_async if inspect.iscoroutinefunction(task.function) else core.hooks.around_def
    return wrapped(around, context, task.function, call)


def _context(name: str, job_id: str, args: Mapping[str, Any]) -> dray.Context:
    from dray.runtime.context import LocalContext  # noqa: PLC0415 - 40 ms that `--help` need not take

    class ShownContext(LocalContext):
        """Says on a terminal how far the body is."""

        said_at = 0.0

        def progress(self, percent: float | None, message: str | None = None) -> None:
            now = time.monotonic()
            is_last = percent is not None and float(percent) >= 100
            if sys.stderr.isatty() and (is_last or now - self.said_at >= _STEP):
                self.said_at = now
                words = [] if percent is None else [f"{float(percent):.0f}%"]
                say(" ".join([name, *words, *([] if message is None else [str(message)])]))

    return ShownContext(name, job_id, args)


def _called(task: Task[..., Any], body: Callable[[], Any], timeout: float | None) -> Any:
    with contextlib.ExitStack() as around:
        if not sys.stdout.isatty():
            # Away from the result; a debugger on a terminal needs both.
            around.enter_context(contextlib.redirect_stdout(sys.stderr))
        if timeout is not None:
            # For a body in a call that cannot be interrupted, or that catches the exception.
            timer = threading.Timer(timeout + _MERCY, _end_at_last, [task.name, timeout])
            timer.daemon = True
            timer.start()
            around.callback(timer.cancel)
        if inspect.iscoroutinefunction(task.function):
            return _awaited(body(), timeout)
        if timeout is not None:
            around.enter_context(handling({signal.SIGALRM: _ring}))
            around.callback(signal.setitimer, signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, max(timeout, 0.001))
        return body()


def _awaited(body: Coroutine[Any, Any, Any], timeout: float | None) -> Any:
    import asyncio  # noqa: PLC0415 - 30 ms, only for coroutines

    async def run() -> Any:
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await body
        except TimeoutError:
            if limit.expired():
                raise _TimeOver from None
            raise

    return asyncio.run(run())


def _ring(_: int, __: FrameType | None) -> NoReturn:
    """Raises into the body when its time is over."""
    raise _TimeOver


def _end_at_last(name: str, timeout: float) -> NoReturn:
    say(f"{name} has not ended within {span(timeout)} and did not stop when told to")
    os._exit(Code.TIMED_OUT)


def _wish(error: Steering) -> str:
    if isinstance(error, Retry):
        when = "as its retry policy says" if error.delay_us is None else f"in {span(error.delay_us / SECOND)}"
        return f"asks to be run again {when}" + (f": {error.message}" if error.message else "")
    if isinstance(error, Snooze):
        return f"asks to be run in {span(error.delay_us / SECOND)}, without counting this attempt"
    if isinstance(error, Fail):
        return f"has failed for good: {error.message}"
    assert isinstance(error, Cancel)
    return "cancels its job" + (f": {error.message}" if error.message else "")


def _show(error: BaseException, *, debug: bool) -> int:
    for line in users_lines(error):
        click.echo(line, err=True)
    if debug:
        import pdb  # noqa: PLC0415 - 20 ms, only for --pdb

        pdb.post_mortem(users_trace(error.__traceback__))
    return Code.JOB_ENDED
