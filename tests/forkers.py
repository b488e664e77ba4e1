"""Forkers that are forked, for workers that are.

A worker starts its forker as a new Python, which takes 0.2 s of processor time to load Dray, and the tests start
hundreds. A worker of `fork_program` has a process beside it instead, which forks its forkers. That one is forked
before the worker has loaded a task, opened a file or started a thread, so such a forker is what the other would be: a
child of its worker, in a session of its own, with none of its worker's tasks, locks and descriptors. Workers that the
tests start as commands, and those that have renewed themselves, start Python.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from dray.runtime.children import forker, worker_side

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_prctl = ctypes.CDLL(None).prctl


def fork_forkers(show_mark: Callable[[bool], None]) -> bool:
    """From here on this process has its forkers forked. Returns False in a child of such a forker, when it has ended.

    `show_mark` shows whose a process is, or that it is of no test: the process beside the worker ends a moment later.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        show_mark(False)
        worker_pid, command = os.getppid(), _fork_on_request(theirs)
        show_mark(True)
        forker.main(command, worker_pid)
        return False
    theirs.close()
    starter = _Starter(ours)
    # The module as `worker_side` knows it; bodies use the real one.
    worker_side.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": starter.start})  # type: ignore[assignment]
    return True


def _fork_on_request(sock: socket.socket) -> int:
    """Beside the worker. Returns in each forker: the descriptor of the socket to its worker."""
    os.setsid()
    os.closerange(3, sock.fileno())
    os.closerange(sock.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    while descriptors := socket.recv_fds(sock, 1, 1)[1]:
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                sock.close()
                os.setsid()
                return descriptors[0]
            _answer(sock, pid)
            os._exit(0)  # its worker adopts the forker
        os.close(descriptors[0])
        os.waitpid(between, 0)
        _answer(sock, between)
    os._exit(0)  # the worker has ended, or is another program


def _answer(sock: socket.socket, pid: int) -> None:
    try:
        sock.send(b"%d" % pid)
    except OSError:  # killed meanwhile
        os._exit(0)


class _Starter:
    """In the worker: asks the process beside it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def start(self, command: Sequence[str], *, pass_fds: Sequence[int], **options: Any) -> _Forker:
        with self._lock:
            _prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._sock, [b"f"], pass_fds)
                pid, _ = int(self._sock.recv(20)), self._sock.recv(20)  # the second: it is this process's child now
            finally:
                _prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return _Forker(pid)


class _Forker:
    """A forker, used as a `subprocess.Popen` is."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self._code is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if ended else None
            return self._code

    def wait(self, timeout: float = 60.0) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("forker", timeout)
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
