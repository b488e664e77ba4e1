"""Forkers that are forked, for workers that are; and workers, for supervisors, demos and benches that are.

A worker starts its forker as a new Python, and a supervisor its workers. Each takes 0.2 s of processor time to load
Dray, and the tests start hundreds. A process of `fork_program`, and a command of `tests.cli.shell`, has one beside it
instead, which forks what it starts. That one is forked before any task is loaded, file opened or thread started. So
what it forks is what a new Python would be: a child of its worker or supervisor, with none of its tasks, locks and
descriptors. Programs that the tests start from scratch, and workers that have renewed themselves, start Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from dray.cli import processes
from dray.runtime import supervisor
from dray.runtime.children import forker, kernel, worker_side

_LONGEST_REQUEST = 1 << 17
_WITH_AN_APP = ("dray.cli.measuring", "dray.cli.demo.tasks")
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_prctl = ctypes.CDLL(None).prctl


def fork_starter(command: Sequence[str], show_mark: Callable[[bool], None]) -> Sequence[str] | None:
    """From here on what this process starts is forked.

    Returns the command to run here: the given one, or in a worker of a supervisor its own. None in a child of a
    forker, when it has ended. `show_mark` shows whose a process is, or that it is of no test: the process beside this
    one ends a moment later.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        show_mark(False)
        starter_pid, (request, descriptors) = os.getppid(), _fork_on_request(theirs)
        show_mark(True)
        if descriptors:
            os.setsid()
            forker.main(descriptors[0], starter_pid)
            return None
        return fork_starter(_become_worker(request, starter_pid), show_mark)
    theirs.close()
    starter = _Starter(ours)
    # The modules as these know them; bodies use the real one.
    starts = {worker_side: starter.start_forker, supervisor: starter.start_worker, processes: starter.start_apart}
    for module, start in starts.items():
        module.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": start})  # type: ignore[assignment]
    return command


def _fork_on_request(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Beside the process. Returns in each that it forks: what was asked for."""
    os.setsid()
    os.closerange(3, sock.fileno())
    os.closerange(sock.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    while True:
        request, descriptors, _, _ = socket.recv_fds(sock, _LONGEST_REQUEST, 1)
        if not request:
            os._exit(0)  # the process has ended, or is another program
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                sock.close()
                return request, descriptors
            _answer(sock, pid)
            os._exit(0)  # the process that asked adopts it
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(between, 0)
        _answer(sock, between)


def _become_worker(request: bytes, supervisor_pid: int) -> list[str]:
    """What a supervisor, a demo or a bench has a worker do before it is executed; returns its command."""
    asked = json.loads(request)
    os.environ.clear()
    os.environ.update(asked["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if asked["log"] is None:
        os.setpgid(0, 0)
    else:
        os.setsid()
        for module in _WITH_AN_APP:  # loaded again, with the address of this process
            sys.modules.pop(module, None)
        log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND)
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
    between = os.getppid()
    while os.getppid() == between != supervisor_pid:  # the kernel would tell of the end of this one
        time.sleep(0.001)
    kernel.ask_for_death_signal(asked["death_signal"])
    if os.getppid() != supervisor_pid:
        os._exit(1)
    return asked["command"]


def _answer(sock: socket.socket, pid: int) -> None:
    try:
        sock.send(b"%d" % pid)
    except OSError:  # killed meanwhile
        os._exit(0)


class _Starter:
    """Asks the process beside this one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def start_forker(self, command: Sequence[str], *, pass_fds: Sequence[int], **options: Any) -> _Child:
        return self._start(b"forker", pass_fds)

    def start_worker(self, command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> _Child:
        """A worker of a supervisor, in a process group of its own."""
        return self._start_command(command, env, None, signal.SIGTERM)

    def start_apart(self, command: Sequence[str], *, env: Mapping[str, str], stdout: Any, **options: Any) -> _Child:
        """A worker of a demo or a bench, in a session of its own, its output in a file."""
        return self._start_command(command, env, stdout.name, signal.SIGKILL)

    def _start_command(
        self, command: Sequence[str], env: Mapping[str, str], log: Any, death_signal: signal.Signals
    ) -> _Child:
        # Without the interpreter and its options, which this one has too.
        asked = {
            "command": [*command[command.index("-m") :]],
            "environment": dict(env),
            "log": None if log is None else str(log),
            "death_signal": death_signal,
        }
        return self._start(json.dumps(asked).encode(), ())

    def _start(self, request: bytes, descriptors: Sequence[int]) -> _Child:
        with self._lock:
            _prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._sock, [request], descriptors)
                pid, _ = int(self._sock.recv(20)), self._sock.recv(20)  # the second: it is this process's child now
            finally:
                _prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return _Child(pid)


class _Child:
    """What was forked, used as a `subprocess.Popen` is."""

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
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.002)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    @property
    def returncode(self) -> int | None:
        return self._code
