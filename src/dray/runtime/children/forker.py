"""The process that forks a worker's children: it has one thread, no connection, and none of the user's modules.

It forks on request, reports each end, and does not reap a child until its slot has buried the process group: until
then no other process can have its number. (Where Python cannot wait for a child without reaping it, as on macOS
before 3.13, it is reaped at once, and another process may have its number a moment later.)
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass
from types import FrameType

from dray.runtime.children import kernel, wire

_LAST_GRACE = 5.0  # seconds for children to end in, once everything else has


ChildEnds = tuple[socket.socket, int, socket.socket]  # of a new child to its worker: messages, flags, turns


@dataclass
class _ForkedChild:
    """A child, as the forker knows it."""

    status: socket.socket
    has_ended: bool = False
    is_reaped: bool = False  # otherwise it keeps its number
    is_let_go: bool = False  # the worker does not ask for it any more


def main(command: int, worker_pid: int) -> None:
    """Runs the forker, and in each process that it forks, the child."""
    gc.disable()  # what is loaded here stays
    kernel.set_name("dray-forker")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, kernel.SIGNALS)  # until a child is ready for them; here for ever
    forker = _Forker(socket.socket(fileno=command), worker_pid)
    forker.move_in()
    from dray.runtime.children import child  # noqa: PLC0415 - with all that it needs, once for all children

    gc.collect()
    gc.freeze()
    gc.enable()
    ends = forker.serve()
    if ends is None:
        os._exit(0)  # there is nothing to tidy up that the kernel does not
    child.main(*ends)


class _Forker:
    def __init__(self, command: socket.socket, worker_pid: int) -> None:
        self._inbox = wire.MessageReader(command)
        self._command = command
        self._worker_pid = worker_pid
        self._children: dict[int, _ForkedChild] = {}
        self._selector = selectors.DefaultSelector()
        self._wakes = socket.socketpair()
        self._is_ending = False

    def move_in(self) -> None:
        """Takes over the worker's sys.path and argv, and loads those modules for bodies that it has loaded."""
        told = self._inbox.wait()
        if told is None:
            os._exit(1)
        sys.path[:], sys.argv[:] = told["path"], told["argv"]
        for name in told["modules"]:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    def serve(self) -> ChildEnds | None:
        """Runs until the worker ends it or dies. Returns a `ChildEnds` in each new child."""
        self._listen_for_signals()
        self._selector.register(self._command, selectors.EVENT_READ)
        ends = self._obey()  # what came with the first message
        while ends is None and not self._is_ending:
            if os.getppid() != self._worker_pid:
                self._kill_all()
                return None
            for key, _ in self._selector.select():
                if key.fileobj is not self._command:
                    self._hear_end(key)
                elif (ends := self._hear()) is not None:
                    return ends
            self._look_after()
        if ends is None:
            self._see_off()
        return ends

    def _listen_for_signals(self) -> None:
        for end in self._wakes:
            end.setblocking(False)  # noqa: FBT003
        self._selector.register(self._wakes[0], selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wakes[1].fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, _wake_only)
        # Sent when the thread that started this ends, but the worker may live on: `serve` checks its parent.
        kernel.ask_for_death_signal(signal.SIGHUP)

    def _hear_end(self, key: selectors.SelectorKey) -> None:
        """A child has ended, or its worker has let it go."""
        if key.fileobj is self._wakes[0]:
            self._wakes[0].recv(4096)
        else:
            self._let_go(key.data)

    def _hear(self) -> ChildEnds | None:
        if not self._inbox.read():  # the worker is gone, or has closed it
            self._kill_all()
            self._is_ending = True
        return self._obey()

    def _obey(self) -> ChildEnds | None:
        while (message := self._inbox.next()) is not None:
            if "quit" in message:
                self._is_ending = True
                return None
            ends = self._fork(*self._inbox.take_descriptors(4))
            if ends is not None:
                return ends
        return None

    def _fork(self, sock: int, status: int, flags: int, turns: int) -> ChildEnds | None:
        child = _ForkedChild(socket.socket(fileno=status))
        forker_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            wire.send(child.status, {"error": f"cannot fork: {error.strerror}"})
            child.status.close()
            pid = -1
        if pid == 0:
            self._children[0] = child
            self._become_child(forker_pid)
            return socket.socket(fileno=sock), flags, socket.socket(fileno=turns)
        for descriptor in (sock, flags, turns):
            os.close(descriptor)
        if pid > 0:
            self._children[pid] = child
            self._selector.register(child.status, selectors.EVENT_READ, pid)
            _tell(child, {"pid": pid})
        return None

    def _become_child(self, forker_pid: int) -> None:
        """In the child: closes what is the forker's."""
        signal.set_wakeup_fd(-1)
        kernel.ask_for_death_signal(signal.SIGKILL)
        if os.getppid() != forker_pid:  # it died in between
            os._exit(1)
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self._selector.close()
        self._inbox.close()
        for end in self._wakes:
            end.close()
        for child in self._children.values():
            child.status.close()

    def _look_after(self) -> None:
        """Reports children that have ended, and reaps those that were let go."""
        for pid, child in list(self._children.items()):
            if not child.has_ended:
                found = kernel.ended(pid)
                if found is None:
                    continue
                code, child.is_reaped = found
                child.has_ended = True
                if not child.is_let_go:
                    _tell(child, {"status": code})
            if child.is_let_go:
                if not child.is_reaped:
                    os.waitpid(pid, 0)
                del self._children[pid]

    def _let_go(self, pid: int) -> None:
        child = self._children[pid]
        if not _says_farewell(child.status) and not child.is_reaped:
            # The worker has died. The child ends by itself; what bodies have started does not.
            kernel.kill_group(pid)
        self._selector.unregister(child.status)
        child.status.close()
        child.is_let_go = True

    def _see_off(self) -> None:
        self._selector.unregister(self._command)
        deadline = time.monotonic() + _LAST_GRACE
        while self._children and (rest := deadline - time.monotonic()) > 0 and os.getppid() == self._worker_pid:
            for key, _ in self._selector.select(rest):
                self._hear_end(key)
            self._look_after()
        self._kill_all()

    def _kill_all(self) -> None:
        for pid in self._children:
            kernel.kill_group(pid)


def _says_farewell(status: socket.socket) -> bool:
    try:
        return bool(status.recv(1))
    except ConnectionResetError:  # closed before the child's end was read: the child is dead, or was killed
        return False


def _wake_only(number: int, frame: FrameType | None) -> None:
    """A handler is needed for the signal to wake the selector."""


def _tell(child: _ForkedChild, message: wire.Message) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the selector will show the same
        wire.send(child.status, message)
