"""Task functions that tests run in child processes. This module does not import the test framework."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import itertools
import logging
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import dray
from dray.app_interface import core_of

app = dray.App("sqlite:///child-bodies.db")
process = app.task(runner="process")
request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")


@process
def add(a: int, b: int) -> int:
    return a + b


@process
def say(text: str) -> None:
    print(text)


@process
def who_am_i() -> dict[str, int]:
    return {"pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "session": os.getsid(0)}


@process
def serve(name: str) -> str:
    """Returns the request that was set before, and sets its own."""
    before = request.get()
    request.set(name)
    return before


@process
def surroundings() -> list[Any]:
    return [sys.path, sys.argv, str(Path.cwd()), repr(Path("/proc/self/cmdline").read_bytes())]


@process
def raise_this(name: str) -> None:
    raise {"ValueError": ValueError, "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[name](name)


@process
def nap(seconds: float) -> None:
    time.sleep(seconds)


@process
def not_json() -> Any:
    return object()


@process
def exit_at_once(status: int) -> None:
    os._exit(status)


@process
def segfault() -> None:
    ctypes.string_at(0)


@process
def kill_myself(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


@process
def talk(until: str, ctx: dray.Context) -> None:
    """Logs a line, and returns once a file exists."""
    ctx.log.info("from its own log")
    logging.getLogger("shop").warning("from %s", "another")
    ctx.progress(50, "half")
    await_file(until)


@process
def talk_a_lot(lines: int, ctx: dray.Context) -> None:
    for number in range(lines):
        ctx.log.info("line %d", number)


@process
def announce_and_wait(begun: str, until: str) -> int:
    Path(begun).touch()
    await_file(until)
    return os.getpid()


@process
def sleep(begun: str, cleaned: str | None = None) -> None:
    try:
        Path(begun).touch()
        time.sleep(60)
    finally:
        if cleaned is not None:
            Path(cleaned).touch()


@process
def spin(begun: str) -> None:
    Path(begun).touch()
    while True:
        pass


@process
async def sleep_in_a_coroutine(begun: str, swallows: bool = False) -> None:
    Path(begun).touch()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if not swallows:
                raise


@process
async def add_in_a_coroutine(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@process
def keep_the_gil(begun: str) -> None:
    """Creates a folder and never returns, in one C call that does not check for signals."""
    deque(itertools.chain(map(os.mkdir, [begun]), itertools.repeat(None)), maxlen=0)


@process
def go_on_regardless(begun: str, until: str) -> str:
    """Is told to stop, and completes anyway."""
    try:
        Path(begun).touch()
        time.sleep(60)
    except BaseException:  # noqa: BLE001
        await_file(until)
    return "done"


@process
def ask_whether_cancelled(begun: str, ctx: dray.Context) -> None:
    before = ctx.cancelled
    try:
        Path(begun).touch()
        time.sleep(60)
    finally:
        ctx.log.info("cancelled: %s, then %s", before, ctx.cancelled)


@process
def fork_sleepers(begun: str, deaf: bool, ends: str) -> None:
    """Starts ten processes that ignore SIGTERM, in this process group."""
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(10):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
            os._exit(0)
    Path(begun).write_text(str(os.getpgrp()))
    if ends == "dies":
        os._exit(3)
    while ends == "never":
        time.sleep(60)


@process
def leave_a_process_behind() -> int:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid


@process
def descriptors() -> dict[str, str]:
    return _descriptors()


@process
def descriptors_of_what_it_starts(how: str) -> Any:
    if how == "exec":
        program = "import os; print(*(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')[:-1]))"
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(_descriptors()))
    child.start()
    return [ours.recv(), child.join(), ours.close()][0]


@process
def log_in_forks(ctx: dray.Context) -> int | None:
    """Starts forks that log, and one that is terminated as multiprocessing does it."""
    fork = multiprocessing.get_context("fork")
    talkers = [fork.Process(target=_log_many, args=(ctx,)) for _ in range(4)]
    sleeper = fork.Process(target=time.sleep, args=(60,))
    for each in [*talkers, sleeper]:
        each.start()
    for number in range(100):
        ctx.log.info("mine %d", number)
    sleeper.terminate()
    for each in [*talkers, sleeper]:
        each.join()
    return sleeper.exitcode


@process
def end_forks_at_once() -> list[int | None]:
    """Starts processes and terminates them before they have begun."""
    fork = multiprocessing.get_context("fork")
    sleepers = [fork.Process(target=time.sleep, args=(60,)) for _ in range(30)]
    for each in sleepers:
        each.start()
        each.terminate()
    for each in sleepers:
        each.join()
    return [each.exitcode for each in sleepers]


@process
def write_nonsense(text: str) -> None:
    """Writes nonsense to the worker's socket."""
    _tell_worker(text)
    time.sleep(60)


@process
def install_a_handler() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return os.getpid()


@process
def do(ctx: dray.Context, what: str = "", path: str = "") -> int:
    """One task for all that the jobs of a child may do, so that one child has loaded it. Returns its process id."""
    if what == "exit":
        os._exit(3)
    if what == "segfault":
        ctypes.string_at(0)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "talk":
        ctx.log.info("%s", path)
        ctx.progress(50, path)
    if what == "nonsense":
        _tell_worker("oops, no message")
    if what in {"unprotected", "spin unprotected"}:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever signal comes now kills
    if what == "spin unprotected":
        until = time.monotonic() + 0.0002
        while time.monotonic() < until:
            pass
    if what in {"wait", "unprotected"}:
        Path(f"{path}.begun").write_text(str(os.getpid()))
        await_file(f"{path}.go")
    return os.getpid()


@process
def complete_with_another_job(ctx: dray.Context) -> str:
    """Enqueues another job and completes this one in one transaction. What it returns afterwards does not count."""
    try:
        with ctx.transaction() as tx:
            add.using(connection=tx.connection).enqueue(1, 2)
            tx.result = os.getpid()
    except dray.StaleClaim:
        return "stale"
    return "too late"


@process
async def complete_with_another_job_in_a_coroutine(ctx: dray.Context) -> None:
    async with ctx.transaction() as tx:
        await add.using(connection=tx.connection).aenqueue(1, 2)
        tx.result = os.getpid()


@process
def complete_on_a_users_connection(ctx: dray.Context) -> str:
    """Does the same as `complete_with_another_job`, in a transaction that the body itself commits."""
    try:
        with core_of(app).backend.transaction() as connection:
            add.using(connection=connection).enqueue(1, 2)
            ctx.complete(connection=connection, result=os.getpid())
    except dray.StaleClaim:
        return "stale"
    return "too late"


@process
def enqueue_another() -> str:
    return add.enqueue(1, 2).id


@process
def sum_of_parents(parent_results: dict[str, int]) -> int:
    return sum(parent_results.values())


def await_file(path: str) -> None:
    deadline = time.monotonic() + 30
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.005)


def _tell_worker(text: str) -> None:
    found = [int(name) for name in os.listdir("/proc/self/fd") if _is_socket(int(name))]  # noqa: PTH208
    os.write(found[0], text.encode("latin-1"))


def _log_many(ctx: dray.Context) -> None:
    for number in range(100):
        ctx.log.info("forked %d", number)


def _descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return found


def _is_socket(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            return sock.family == socket.AF_UNIX
    except OSError:
        return False
