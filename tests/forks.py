"""Processes that are forked from a server which has loaded Dray.

A new Python takes 0.3 s of processor time to load it, and the tests start a thousand. What these processes run is the
same, in a process, a session and an environment of its own. Tests about starting up start Python.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

MARK = "DRAY_TEST_MARK"  # a variable whose value tells whose a process is: /proc shows it
os.environ.setdefault(MARK, "0" * 16)  # in the server of forks too, which is started with it
_libc = ctypes.CDLL(None)
_libc.getenv.restype = ctypes.c_void_p
_mark_at = _libc.getenv(MARK.encode())

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.forks", "tests.forkers", "tests.cli.shell", "tests.preload"])
# The library polls other processes while it starts one, and two threads that poll the same one spoil its exit code.
_lock = threading.Lock()


class Forked:
    """A process that runs a function; used as a `subprocess.Popen` is."""

    def __init__(self, target: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._process = _context.Process(target=target, args=arguments)
        with _lock:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _lock:
            return self._process.exitcode

    def wait(self, timeout: float = 60.0) -> int:
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """Waits for its end; returns what it wrote and was not read yet."""
        assert self.stdout is not None
        assert self.stderr is not None
        with self.stdout, self.stderr, ThreadPoolExecutor(2) as readers:
            out, err = readers.submit(self.stdout.read), readers.submit(self.stderr.read)
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()  # or the readers would wait for as long as it runs
                raise
            return out.result(timeout), err.result(timeout)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def pipe() -> tuple[Connection, Connection]:
    """Two ends of a connection, of which one may be passed to a `Forked` process."""
    return _context.Pipe()


class Passed:
    """A descriptor of this process that is passed to a `Forked` one."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.descriptor),)


def _received(duplicate: Any) -> Passed:
    return Passed(duplicate.detach())


def fork_program(command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> Forked:
    """Runs ``python -W error -m MODULE …`` in a session of its own, its output in a file."""
    return Forked(_run_program, (list(command), dict(environment), folder, log))


def show_mark(mark: str) -> None:
    """Shows a mark in the environment that this process was started with, which its forks have too."""
    assert len(mark) == len(os.environb[MARK.encode()])
    ctypes.memmove(_mark_at, mark.encode(), len(mark))
    assert mark.encode() in Path("/proc/self/environ").read_bytes()


def become(environment: Mapping[str, str], folder: Path, streams: Sequence[int]) -> None:
    """Gives this process an environment, a folder, and files for standard input, output and errors."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, opened in enumerate(streams):
        os.dup2(opened, number)
    time.tzset()
    is_unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    # They leave the descriptors open: those of the next command have the same numbers.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=is_unbuffered)
    warnings.simplefilter("error")


def _run_program(command: list[str], environment: dict[str, str], folder: Path, log: Path) -> None:
    from tests.forkers import fork_starter  # it loads parts of a worker, which other processes do not need

    os.setsid()
    show_mark(environment[MARK])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    become(environment, folder, (os.open(os.devnull, os.O_RDONLY), output, output))
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    sys.warnoptions[:] = ["error"]
    started = fork_starter(command, lambda is_ours: show_mark(environment[MARK] if is_ours else "0" * 16))
    if started is None:
        return
    # As if it had been started by this command: a worker that starts itself again uses it.
    sys.orig_argv[:] = [sys.executable, "-W", "error", *started]
    module = started[started.index("-m") + 1]
    sys.argv[:] = started[started.index("-m") + 1 :]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


__all__ = ["MARK", "Forked", "Passed", "become", "fork_program", "pipe", "show_mark"]
