"""The worker's side of its forker and of one child."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.errors import DrayError
from dray.runtime import outcome
from dray.runtime.children import kernel, wire
from dray.runtime.children.wire import SharedFlags
from dray.runtime.execution import StopCause
from dray.task.task import Task

_START = 60.0  # seconds for a process to be there
_BURIAL = 5.0  # seconds for killed processes to be gone
_PATIENCE = 10.0
_READS = 16  # at a time: a body may write without end


class StartFailed(DrayError):
    """A child process could not be given the job, or could not load the task."""


class NoChild(DrayError):
    """No child process could be started. That says nothing about the job that was to run in it."""


class Died(Exception):
    """The child is gone. The message says how."""


class ForkerHandle:
    """Starts the process that forks children, again when it is gone. Any thread may ask it for a child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._command: socket.socket | None = None

    def fork(self) -> ChildHandle:
        try:
            with contextlib.ExitStack() as if_it_fails:
                child = self._fork(if_it_fails)
                if_it_fails.pop_all()
                return child
        except OSError as error:
            raise NoChild(str(error)) from error

    def _fork(self, if_it_fails: contextlib.ExitStack) -> ChildHandle:
        ours, theirs = socket.socketpair()
        if_it_fails.push(ours)
        with theirs:
            status, told = socket.socketpair()
            if_it_fails.push(status)
            with told:
                flags = SharedFlags.new()
                if_it_fails.callback(flags.close)
                turns = wire.Turns()
                if_it_fails.callback(turns.close)
                its = [theirs.fileno(), told.fileno(), flags.descriptor, turns.childs.fileno()]
                with self._lock:
                    wire.send(self._running(), {"fork": True}, its)
        return ChildHandle(_pid(status), ours, status, flags, turns)

    def close(self) -> None:
        """Ends the forker, once no child is needed any more."""
        with self._lock:
            process, command = self._process, self._command
            self._process = self._command = None
        if process is None or command is None:
            return
        with command:
            with contextlib.suppress(OSError):  # it is gone
                wire.send(command, {"quit": True})
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _running(self) -> socket.socket:
        if self._process is not None and self._process.poll() is None and self._command is not None:
            return self._command
        if self._command is not None:
            self._command.close()
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as if_it_fails:
            if_it_fails.push(ours)
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                [sys.executable, *_flags(), "-P", "-c", _program(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # what a terminal sends is for the worker
            )
            wire.send(ours, _surroundings())
            if_it_fails.pop_all()
        self._command = ours
        return ours


@dataclass(eq=False)
class ChildHandle:
    """One child process. One thread talks with it; any may stop it."""

    pid: int
    _sock: socket.socket
    _status: socket.socket
    _flags: SharedFlags
    _turns: wire.Turns

    def __post_init__(self) -> None:
        self._inbox = wire.MessageReader(self._sock)
        self._bells, self._all = select.poll(), select.poll()
        for end in (self._status, self._turns):
            self._bells.register(end, select.POLLIN)
            self._all.register(end, select.POLLIN)
        self._all.register(self._sock, select.POLLIN)
        self.loaded: set[Task[..., Any]] = set()  # tasks of which it has begun a job
        self.jobs = 0  # numbered from 1
        self.must_end = False  # with the job that it has: that was told to stop
        self._has_shown_stack = False
        self._is_wiped = True
        self._guard = threading.Lock()
        self._is_buried = False  # another process may have its number from here on

    def died_idle(self) -> bool:
        """Whether it has died, or its forker has, before it was given a job. Then only `bury` may follow."""
        found = dict(self._all.poll(0))
        if self._status.fileno() not in found:
            # The kernel closes its socket at once. The forker may take a moment to tell of its death.
            if not found.get(self._sock.fileno(), 0) & select.POLLHUP:
                return False
            self.kill()  # or one that has only closed its socket would be waited for
        self._ended()  # its process id may be another's by now
        return True

    def tell(self, message: wire.Message, lock: int | None = None) -> None:
        """Sends jobs, and the descriptor that the child holds while it has any."""
        try:
            wire.send(self._sock, message, [] if lock is None else [lock])
        except (BrokenPipeError, ConnectionResetError):
            return  # it has died: `hear` says how
        except OSError as error:
            raise StartFailed(f"the job could not be given to a child process: {error}") from error

    def wipe(self) -> None:
        """While it has no job: what was ordered and dumped so far is of no job that comes."""
        if not self._is_wiped or self._flags.has_stack:
            self._flags.wipe()
        self._has_shown_stack, self._is_wiped = False, True

    def grant(self, numbers: Sequence[int]) -> None:
        """Lets it begin these jobs, which it was sent before."""
        self._turns.grant(numbers)

    def recall(self) -> set[int]:
        """Takes back the jobs that it has not begun; from any thread. It can begin no other from here on."""
        return self._turns.recall()

    def begun(self) -> tuple[int, int]:
        """The number of the job whose body it has begun last, and when."""
        return self._flags.begun()

    def hear(self, seconds: float | None, *, is_quiet: bool) -> bool:
        """Waits until it rings or, unless `is_quiet`, says something, and takes in all that it has said.

        Returns whether it did so in time. Raises `Died` when nothing more will come.
        """
        ready = dict((self._bells if is_quiet else self._all).poll(None if seconds is None else seconds * 1_000))
        if self._turns.fileno() in ready:
            self._turns.silence()
        is_heard = False
        for _ in range(_READS):
            if not self._inbox.read(wait=False):
                break
            is_heard = True
        if not is_heard and self._status.fileno() in ready:  # what it said last counts
            raise Died(self._ended())
        if not is_heard and self._sock.fileno() in ready:
            self._all.unregister(self._sock)  # it has closed its end
        return bool(ready)

    def message(self) -> wire.Message | None:
        """The next of those that it has said."""
        return self._inbox.next()

    def stop(self, number: int, stop: StopCause) -> None:
        """Orders a job to stop, once it has begun no other and can begin none; from any thread."""
        with self._guard:
            if not self._is_buried:
                self._is_wiped, self.must_end = False, True
                self._flags.order(number, stop)
                if not self._has_shown_stack:  # first, so that it shows what is being stopped
                    self._has_shown_stack = True
                    kernel.ask_for_stack(self.pid)
                kernel.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kills it and all that it has started; from any thread."""
        with self._guard:
            if not self._is_buried:
                kernel.kill_group(self.pid)

    def stack(self) -> str | None:
        """Where it is at the moment; from any thread."""
        with self._guard:
            if self._is_buried:
                return None
            self._is_wiped = False
            before = self._flags.size
            dump = self._flags.await_stack(before) if kernel.ask_for_stack(self.pid) else ""
        return outcome.shown_dump(dump) or None

    def last_stack(self) -> str | None:
        """What it wrote when it was told to stop, or when it crashed."""
        return outcome.shown_dump(self._flags.stack()) or None

    def quit(self) -> None:
        """Lets a child that has no job end by itself."""
        with contextlib.suppress(OSError):  # it is gone already
            wire.send(self._sock, {"quit": True})
        self._let_go()

    def bury(self) -> None:
        """Kills it and all that it has started, and waits until they are gone."""
        self.kill()
        kernel.await_end_of_group(self.pid, _BURIAL)
        self._let_go()

    def _ended(self) -> str:
        message = wire.MessageReader(self._status).wait()
        if message is None:
            # The forker is gone: it no longer reserves the child's process id, and the kernel has killed the child.
            # Where the kernel does not, the child lives on and `bury` has to kill it: attempts never overlap.
            with self._guard:
                self._is_buried = kernel.HAS_DEATH_SIGNAL
            return "the process that ran it was killed, because the one that had started it ended"
        code = int(message["status"])
        if code < 0:
            return f"the process that ran it died of {_signal_name(-code)}"
        return f"the process that ran it ended with exit status {code} (os._exit?)"

    def _let_go(self) -> None:
        with self._guard:
            self._is_buried = True
            self._sock.close()
            with contextlib.suppress(OSError):  # the forker is gone
                self._status.send(b".")
            self._status.close()
            self._flags.close()
            self._turns.close()


def _pid(status: socket.socket) -> int:
    status.settimeout(_START)
    try:
        message = wire.MessageReader(status).wait()
    except TimeoutError:
        raise NoChild(f"none was there after {_START:g} s") from None
    if message is None:
        raise NoChild("the process that starts children has ended; see what it wrote to standard error")
    if "error" in message:
        raise NoChild(str(message["error"]))
    return int(message["pid"])


def _signal_name(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL (out of memory?)"
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _flags() -> list[str]:
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001


def _program(command: int) -> str:
    """Imports this very Dray, wherever it is. All else comes in a message: every user can read a command line."""
    root = str(Path(__file__).parents[3])
    return (
        f"import sys; sys.path.insert(0, {root!a}); import dray; del sys.path[0]; "
        f"from dray.runtime.children.forker import main; main({command}, {os.getpid()})"
    )


def _surroundings() -> wire.Message:
    """What has to be the same in a child."""
    return {
        "path": [path for path in sys.path if isinstance(path, str)],  # pyright: ignore[reportUnnecessaryIsInstance]
        "argv": getattr(sys, "argv", [""]),
        "modules": [name for name in sys.modules if _is_for_bodies(name)],
    }


def _is_for_bodies(name: str) -> bool:
    """Whether a module that the worker has loaded is of use to bodies. The forker loads what a child itself needs."""
    if name.startswith("dray."):
        return not name.startswith(("dray.cli", "dray.integrations", "dray.maintenance", "dray.runtime"))
    return name == "asyncio"
