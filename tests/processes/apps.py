"""The tasks that worker processes of these tests run; each keeps the ledger. The database is that of DRAY_URL.

Tests enqueue them by name: `fleet.app.enqueue("tests.processes.apps.nap", {"label": "a"})`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import re
import signal
import threading
import time
from pathlib import Path

import dray
from tests.processes import ledger

app = dray.App(listen_url=os.environ.get("DRAY_TEST_LISTEN_URL"))


@app.task
def quick(label: str, ctx: dray.Context) -> str:
    """Done at once."""
    with ledger.recorded(label, ctx.attempt):
        return label


@app.task(max_attempts=1_000, max_crashes=1_000)
def sturdy(label: str, ctx: dray.Context) -> str:
    """The same, however often its worker is killed."""
    return quick(label, ctx)


@app.task
def moment() -> int:
    """When the body started, by a clock that all processes of a machine share."""
    return time.monotonic_ns()


@app.task
def nap(label: str, seconds: float, ctx: dray.Context) -> str:
    """Sleeps in small steps: it can be stopped."""
    with ledger.recorded(label, ctx.attempt):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.01)
        return label


@app.task
def until_there(label: str, path: str, ctx: dray.Context) -> str:
    """Runs until a file is there; each attempt waits for one of its own: `path`.1, `path`.2 …"""
    with ledger.recorded(label, ctx.attempt):
        while not Path(f"{path}.{ctx.attempt}").exists():
            time.sleep(0.01)
        return f"attempt {ctx.attempt}"


@app.task(runner="process", retry=0.1)
def until_there_in_process(label: str, path: str, ctx: dray.Context) -> str:
    with ledger.recorded(label, ctx.attempt):
        while not Path(f"{path}.{ctx.attempt}").exists():
            time.sleep(0.01)
        return f"attempt {ctx.attempt}"


@app.task(runner="process")
def leave_a_daemon(label: str, ctx: dray.Context) -> str:
    """The first attempt starts a program that outlives everybody, and waits to be killed."""
    with ledger.recorded(label, ctx.attempt):
        if ctx.attempt == 1:
            pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exec setsid sleep 600"], os.environ)
            ledger.write("daemon", label, 1, pid)
            threading.Event().wait()
        return f"attempt {ctx.attempt}"


@app.task
async def until_there_async(label: str, path: str, ctx: dray.Context) -> str:
    with ledger.recorded(label, ctx.attempt):
        while not Path(f"{path}.{ctx.attempt}").exists():
            await asyncio.sleep(0.01)
        return f"attempt {ctx.attempt}"


@app.task(runner="process")
def deaf_in_process(label: str, ctx: dray.Context) -> str:
    """The first attempt does not stop for anything less than a kill."""
    with ledger.recorded(label, ctx.attempt):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while ctx.attempt == 1:
            time.sleep(0.01)
        return f"attempt {ctx.attempt}"


@app.task
async def deaf_async(label: str, ctx: dray.Context) -> str:
    """The first attempt swallows whatever it is told."""
    with ledger.recorded(label, ctx.attempt):
        while ctx.attempt == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return f"attempt {ctx.attempt}"


@app.task
def first_until_killed(label: str, ctx: dray.Context) -> str:
    """The first attempt never ends by itself, the next ones do at once."""
    with ledger.recorded(label, ctx.attempt):
        if ctx.attempt == 1:
            threading.Event().wait()
        return f"attempt {ctx.attempt}"


# Bodies that kill their process


@app.task(retry=0.1)
def kill_process(label: str, ctx: dray.Context) -> None:
    ledger.write("start", label, ctx.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(retry=0.1)
def leave_process(label: str, ctx: dray.Context) -> None:
    ledger.write("start", label, ctx.attempt)
    os._exit(7)


# Bodies that let nobody else run: three times a worker's lease in one call of C


def _keep_the_gil(label: str, seconds: float, attempt: int) -> float:
    """A catastrophic match, whose time grows with the square of the letters; returns how long it took."""
    with ledger.recorded(label, attempt):
        letters, took = 1_000, 0.0
        while took < seconds:
            began, before = time.monotonic(), time.thread_time()
            assert re.search("a*b", "a" * letters) is None
            took, work = time.monotonic() - began, time.thread_time() - before
            # From a tenth of a second on it can be told how many letters it takes; clocks may tick in hundredths.
            letters = 2 * letters if work < 0.1 else math.ceil(letters * math.sqrt(1.2 * seconds / work))
        ledger.write("took", label, attempt, took)
        return took


def _sleep_with_the_gil(label: str, seconds: float, attempt: int) -> float:
    """Sleeps in C and lets nobody have the GIL meanwhile: as bad for others, and no work for the machine."""
    with ledger.recorded(label, attempt):
        began = time.monotonic()
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
        took = time.monotonic() - began
        ledger.write("took", label, attempt, took)
        return took


def _block_in_c(label: str, seconds: float, attempt: int) -> float:
    """One call of C that lets others have the GIL; on an event loop it blocks the loop."""
    with ledger.recorded(label, attempt):
        began = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        ledger.write("took", label, attempt, took)
        return took


@app.task
def match_thread(label: str, seconds: float, ctx: dray.Context) -> float:
    return _keep_the_gil(label, seconds, ctx.attempt)


@app.task
async def match_async(label: str, seconds: float, ctx: dray.Context) -> float:
    return _keep_the_gil(label, seconds, ctx.attempt)


@app.task(runner="process")
def match_process(label: str, seconds: float, ctx: dray.Context) -> float:
    return _keep_the_gil(label, seconds, ctx.attempt)


@app.task
def hold_thread(label: str, seconds: float, ctx: dray.Context) -> float:
    """A later attempt takes no time."""
    return _sleep_with_the_gil(label, seconds if ctx.attempt == 1 else 0.0, ctx.attempt)


@app.task
async def hold_async(label: str, seconds: float, ctx: dray.Context) -> float:
    return _sleep_with_the_gil(label, seconds, ctx.attempt)


@app.task(runner="process")
def hold_process(label: str, seconds: float, ctx: dray.Context) -> float:
    return _sleep_with_the_gil(label, seconds, ctx.attempt)


@app.task
def block_thread(label: str, seconds: float, ctx: dray.Context) -> float:
    return _block_in_c(label, seconds, ctx.attempt)


@app.task
async def block_async(label: str, seconds: float, ctx: dray.Context) -> float:
    return _block_in_c(label, seconds, ctx.attempt)


@app.task(runner="process")
def block_process(label: str, seconds: float, ctx: dray.Context) -> float:
    return _block_in_c(label, seconds, ctx.attempt)


@app.task
def crowded(label: str) -> str:
    """As little as possible, told by one line."""
    ledger.write("end", label)
    return label
