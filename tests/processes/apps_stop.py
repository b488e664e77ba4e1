"""Bodies that are told to stop, and bodies that harm the process they run in. The database is that of DRAY_URL.

Those that end at once are first: a body that never ends by itself waits with one of the `ways`. `alone` keeps a lock
that the kernel frees when the process that holds it is gone, or has become another program, and not before: a second
attempt that finds it taken runs beside the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dray
from tests.processes import ledger

app = dray.App()

SLEEPERS = 10


# Well-behaved


@app.task
def in_thread(label: str, ctx: dray.Context) -> str:
    with ledger.recorded(label, ctx.attempt):
        return label


@app.task
async def on_loop(label: str, ctx: dray.Context) -> str:
    with ledger.recorded(label, ctx.attempt):
        return label


@app.task(runner="process")
def in_child(label: str, ctx: dray.Context) -> str:
    with ledger.recorded(label, ctx.attempt):
        return label


# Bodies that do not end by themselves; the second attempt does


@contextmanager
def alone(label: str, attempt: int) -> Generator[None]:
    """The body of one attempt, with a word in the ledger if another one of the same job is still alive."""
    lock = os.open(f"{os.environ[ledger.VARIABLE]}-{label}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        ledger.write("overlap", label, attempt)
    try:
        with ledger.recorded(label, attempt):
            yield
    except BaseException as error:
        ledger.write("raised", label, attempt, type(error).__name__)
        raise
    finally:
        os.close(lock)


def _spin() -> None:
    while True:
        pass


def _sleep() -> None:
    time.sleep(60)


def _swallow() -> None:
    """Goes on whatever is raised into it."""
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


def _breed() -> None:
    """Ignores SIGTERM, as do the ten processes that it forks."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(SLEEPERS):
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        ledger.write("sleeper", "", more=pid)
    time.sleep(60)


WAYS: dict[str, Callable[[], None]] = {"spin": _spin, "sleep": _sleep, "swallow": _swallow, "breed": _breed}


@app.task(retry=0)
def hang(label: str, way: str, ctx: dray.Context, attempts: int = 99) -> str:
    """Hangs, for as many attempts."""
    with alone(label, ctx.attempt):
        if ctx.attempt <= attempts:
            WAYS[way]()
        return f"attempt {ctx.attempt}"


@app.task(runner="process", retry=0)
def hang_in_child(label: str, way: str, ctx: dray.Context, attempts: int = 99) -> str:
    with alone(label, ctx.attempt):
        if ctx.attempt <= attempts:
            WAYS[way]()
        return f"attempt {ctx.attempt}"


@app.task(retry=0)
async def hang_on_loop(label: str, way: str, ctx: dray.Context, attempts: int = 99) -> str:
    with alone(label, ctx.attempt):
        if ctx.attempt <= attempts:
            await _hang_async(label, way, ctx.attempt)
        with alone(f"{label} inside", ctx.attempt):
            return f"attempt {ctx.attempt}"


@app.task(runner="process", retry=0)
async def hang_on_loop_in_child(label: str, way: str, ctx: dray.Context, attempts: int = 99) -> str:
    with alone(label, ctx.attempt):
        if ctx.attempt <= attempts:
            await _hang_async(label, way, ctx.attempt)
        with alone(f"{label} inside", ctx.attempt):
            return f"attempt {ctx.attempt}"


async def _hang_async(label: str, way: str, attempt: int) -> None:
    if way == "subtask":
        await asyncio.create_task(_swallow_async(label, attempt))
    elif way == "to_thread":
        await asyncio.to_thread(_sleep_alone, f"{label} inside", attempt)
    elif way == "swallow":
        await _swallow_async(label, attempt)
    elif way == "wait":
        await asyncio.sleep(60)
    else:
        WAYS[way]()  # blocks the loop


async def _swallow_async(label: str, attempt: int) -> None:
    with alone(f"{label} inside", attempt):
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)


def _sleep_alone(label: str, attempt: int) -> None:
    with alone(label, attempt):
        time.sleep(60)


@app.task
def chatter(label: str, about: str, ctx: dray.Context) -> None:
    """Does for ever what takes locks that others need."""
    words = TALKS[about]
    for number in range(10**9):
        words(ctx, number)


@app.task
def heard(label: str) -> str:
    return label


TALKS: dict[str, Callable[[dray.Context, int], object]] = {
    "log": lambda ctx, number: ctx.log.info("line %d", number),
    "progress": lambda ctx, number: ctx.progress(number % 100),
    "enqueue": lambda ctx, number: heard.using(queue="nobody").enqueue(f"{number}"),
    "read": lambda ctx, number: app.stats(),
}


# Bodies that end when a file is there, and can be stopped before


def _exists(path: str) -> bool:
    return Path(path).exists()


@app.task
def wait_in_thread(label: str, path: str, ctx: dray.Context) -> str:
    with alone(label, ctx.attempt):
        while not _exists(path):
            time.sleep(0.01)
        return label


@app.task
async def wait_on_loop(label: str, path: str, ctx: dray.Context) -> str:
    with alone(label, ctx.attempt):
        while not _exists(path):
            await asyncio.sleep(0.01)
        return label


@app.task(runner="process")
def wait_in_child(label: str, path: str, ctx: dray.Context) -> str:
    with alone(label, ctx.attempt):
        while not _exists(path):
            time.sleep(0.01)
        return label


@app.task(runner="process")
def wait_with_family(label: str, path: str, ctx: dray.Context) -> str:
    """Leaves its family behind if it is stopped, and takes it along if it ends well."""
    with alone(label, ctx.attempt):
        family: list[int] = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            family.append(pid)
            ledger.write("sleeper", label, more=pid)
        while not _exists(path):
            time.sleep(0.01)
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        return label


@app.task
def ask_until_cancelled(label: str, ctx: dray.Context) -> str:
    """Asks whether it is to stop, takes note, is told so, and returns all the same."""
    with ledger.recorded(label, ctx.attempt):
        with contextlib.suppress(BaseException):
            while True:
                time.sleep(0.01)
        assert ctx.cancelled
        return "completed anyway"


@app.task(retry=0)
def deaf_until(label: str, path: str, ctx: dray.Context, attempts: int = 99) -> str:
    """In one call of C, for as long as nobody opens the other end of a pipe: nothing reaches it."""
    with alone(label, ctx.attempt):
        if ctx.attempt <= attempts:
            os.close(os.open(path, os.O_RDONLY))
        return f"attempt {ctx.attempt}"


# Bodies that raise what nobody expects


class Unspeakable(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def _exit_python() -> Any:
    sys.exit(3)


def _interrupt() -> Any:
    raise KeyboardInterrupt


def _say_nothing() -> Any:
    raise Unspeakable


def _say_much() -> Any:
    # More than a child process may send, as is the result below.
    raise ValueError("x" * 20_000_000)


def _return_no_json() -> Any:
    return object()


def _return_raising_json() -> Any:
    return {"when": Unspeakable()}


def _return_much() -> Any:
    return "x" * 20_000_000


def _leave_process() -> Any:
    os._exit(7)


def _segfault() -> Any:
    ctypes.string_at(0)


def _kill() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


HARMS: dict[str, Callable[[], Any]] = {
    "SystemExit": _exit_python,
    "KeyboardInterrupt": _interrupt,
    "unspeakable": _say_nothing,
    "20 MB": _say_much,
    "no JSON": _return_no_json,
    "no JSON inside": _return_raising_json,
    "large result": _return_much,
    "os._exit": _leave_process,
    "segfault": _segfault,
    "kill": _kill,
}


def _harm(label: str, harm: str, attempt: int) -> Any:
    ledger.write("start", label, attempt)
    return HARMS[harm]()


@app.task(retry=0)
def harm_in_thread(label: str, harm: str, ctx: dray.Context) -> Any:
    return _harm(label, harm, ctx.attempt)


@app.task(retry=0)
async def harm_on_loop(label: str, harm: str, ctx: dray.Context) -> Any:
    return _harm(label, harm, ctx.attempt)


@app.task(runner="process", retry=0)
def harm_in_child(label: str, harm: str, ctx: dray.Context) -> Any:
    return _harm(label, harm, ctx.attempt)


@app.task(runner="process", retry=0)
async def harm_on_loop_in_child(label: str, harm: str, ctx: dray.Context) -> Any:
    return _harm(label, harm, ctx.attempt)


@app.task(runner="process", retry=0)
def break_when_told(label: str, harm: str, ctx: dray.Context) -> Any:
    """Told to stop, it does something worse."""
    ledger.write("start", label, ctx.attempt)
    try:
        time.sleep(60)
    finally:
        HARMS[harm]()


@app.task
async def exit_in_subtask(label: str, harm: str, ctx: dray.Context) -> Any:
    """A task that the body has started raises: asyncio lets SystemExit and KeyboardInterrupt through its loop."""

    async def inner() -> Any:
        return _harm(label, harm, ctx.attempt)

    await asyncio.create_task(inner())


@app.task
async def exit_in_callback(label: str, harm: str, ctx: dray.Context) -> str:
    asyncio.get_running_loop().call_soon(_harm, label, harm, ctx.attempt)
    await asyncio.sleep(0.2)
    return "not reached by it"


@app.task
async def stop_loop(label: str, ctx: dray.Context) -> str:
    ledger.write("start", label, ctx.attempt)
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    return "went on"


@app.task(runner="process")
def close_everything(label: str, ctx: dray.Context) -> None:
    """Closes what it has not opened, its worker's socket among it."""
    ledger.write("start", label, ctx.attempt)
    os.closerange(3, 256)


@app.task(runner="process")
def fork_and_return(label: str, ctx: dray.Context) -> int:
    """Both processes come back from the body."""
    pid = os.fork()
    ledger.write("start" if pid else "forked", label, ctx.attempt)
    return pid


@app.task
def fork_in_thread(label: str, ctx: dray.Context) -> int:
    """Both processes come back, one of them as people end a process; the other jobs are about to start."""
    pid = os.fork()
    ledger.write("start" if pid else "forked", label, ctx.attempt, more=pid)
    if pid == 0:
        sys.exit(0)
    return pid


@app.task
async def fork_on_loop(label: str, ctx: dray.Context) -> int:
    pid = os.fork()
    ledger.write("start" if pid else "forked", label, ctx.attempt, more=pid)
    return pid


@app.task
def leave_a_thread(label: str, ctx: dray.Context) -> None:
    """Starts two that never end: one that is no daemon, and one that concurrent.futures waits for at the end."""
    threading.Thread(target=threading.Event().wait, name="for ever", daemon=False).start()
    ThreadPoolExecutor(1).submit(threading.Event().wait)
    ledger.write("start", label, ctx.attempt)
