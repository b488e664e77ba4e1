"""The process that forks a worker's children: it has one thread, no connection, and nothing of the user's.

It forks on request, tells of each end, and keeps the dead until their slot has buried their process group: until
then no other process can have their number. (Where the kernel cannot tell of an end alone, as on macOS before Python
3.13, they are reaped at once, and their number may be another's a moment later.)
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
from types import FrameType
from typing import NamedTuple

from dray.runtime.children import kernel, wire

_LAST_GRACE = 5.0  # seconds for children to end in, once everything else has


class Birth(NamedTuple):
    """What a new child has of its worker."""

    sock: socket.socket
    slate: int


class _Charge:
    """A child, as the nursery knows it."""

    def __init__(self, status: socket.socket) -> None:
        self.status = status
        self.has_ended = False
        self.is_reaped = False  # otherwise it keeps its number
        self.is_let_go = False  # nobody asks for it any more


def main(command: int, worker_pid: int) -> None:
    """Runs the nursery, and in each process that it forks, the child."""
    kernel.set_name("dray-nursery")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, kernel.SIGNALS)  # until a child is ready for them; here for ever
    nursery = _Nursery(socket.socket(fileno=command), worker_pid)
    nursery.move_in()
    from dray.runtime.children import child  # noqa: PLC0415 - with all that it needs, once for all children

    gc.collect()
    gc.freeze()
    birth = nursery.serve()
    if birth is None:
        os._exit(0)  # there is nothing to tidy up that the kernel does not
    child.main(birth.sock, birth.slate)


class _Nursery:
    def __init__(self, command: socket.socket, worker_pid: int) -> None:
        self._inbox = wire.Inbox(command)
        self._command = command
        self._worker_pid = worker_pid
        self._charges: dict[int, _Charge] = {}
        self._selector = selectors.DefaultSelector()
        self._wakes = socket.socketpair()
        self._is_ending = False

    def move_in(self) -> None:
        """Gets what the worker has: where modules are found, and those of Dray's that it has loaded."""
        told = self._inbox.wait()
        if told is None:
            os._exit(1)
        sys.path[:], sys.argv[:] = told["path"], told["argv"]
        for name in told["modules"]:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    def serve(self) -> Birth | None:
        """Until the worker says so or dies; returns a `Birth` in each new child."""
        self._listen_for_signals()
        self._selector.register(self._command, selectors.EVENT_READ)
        birth = self._obey()  # what came with the first message
        while birth is None and not self._is_ending:
            if os.getppid() != self._worker_pid:
                self._kill_all()
                return None
            for key, _ in self._selector.select():
                if key.fileobj is self._command:
                    birth = self._hear()
                    if birth is not None:
                        return birth
                elif key.fileobj is self._wakes[0]:
                    self._wakes[0].recv(4096)
                else:
                    self._let_go(key.data)
            self._look_after()
        if birth is None:
            self._see_off()
        return birth

    def _listen_for_signals(self) -> None:
        for end in self._wakes:
            end.setblocking(False)  # noqa: FBT003
        self._selector.register(self._wakes[0], selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wakes[1].fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, _wake_only)
        # When the worker's thread that started this ends, the worker may live on: `serve` looks who is its parent.
        kernel.ask_for_death_signal(signal.SIGHUP)

    def _hear(self) -> Birth | None:
        if not self._inbox.read():  # the worker is gone, or does not want to know
            self._kill_all()
            self._is_ending = True
        return self._obey()

    def _obey(self) -> Birth | None:
        while (message := self._inbox.next()) is not None:
            if "quit" in message:
                self._is_ending = True
                return None
            birth = self._fork(*self._inbox.take_descriptors(3))
            if birth is not None:
                return birth
        return None

    def _fork(self, sock: int, status: int, slate: int) -> Birth | None:
        charge = _Charge(socket.socket(fileno=status))
        nursery_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            wire.send(charge.status, {"error": f"cannot fork: {error.strerror}"})
            charge.status.close()
            pid = -1
        if pid == 0:
            self._charges[0] = charge
            return self._born(nursery_pid, sock, slate)
        os.close(sock)
        os.close(slate)
        if pid > 0:
            self._charges[pid] = charge
            self._selector.register(charge.status, selectors.EVENT_READ, pid)
            _tell(charge, {"pid": pid})
        return None

    def _born(self, nursery_pid: int, sock: int, slate: int) -> Birth:
        """In the child: leaves behind what is the nursery's."""
        signal.set_wakeup_fd(-1)
        kernel.ask_for_death_signal(signal.SIGKILL)
        if os.getppid() != nursery_pid:  # it died in between
            os._exit(1)
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self._selector.close()
        self._inbox.close()
        for end in self._wakes:
            end.close()
        for charge in self._charges.values():
            charge.status.close()
        return Birth(socket.socket(fileno=sock), slate)

    def _look_after(self) -> None:
        """Tells of those who have ended; reaps those whom nobody asks for any more."""
        for pid, charge in list(self._charges.items()):
            if not charge.has_ended:
                found = kernel.ended(pid)
                if found is None:
                    continue
                charge.has_ended, charge.is_reaped = True, found.is_reaped
                if not charge.is_let_go:
                    _tell(charge, {"status": found.code})
            if charge.is_let_go:
                if not charge.is_reaped:
                    os.waitpid(pid, 0)
                del self._charges[pid]

    def _let_go(self, pid: int) -> None:
        charge = self._charges[pid]
        self._selector.unregister(charge.status)
        charge.status.close()
        charge.is_let_go = True

    def _see_off(self) -> None:
        deadline = time.monotonic() + _LAST_GRACE
        while self._charges and (rest := deadline - time.monotonic()) > 0 and os.getppid() == self._worker_pid:
            for key, _ in self._selector.select(rest):
                if key.fileobj is self._wakes[0]:
                    self._wakes[0].recv(4096)
                elif key.fileobj is self._command:
                    self._selector.unregister(self._command)
                else:
                    self._let_go(key.data)
            self._look_after()
        self._kill_all()

    def _kill_all(self) -> None:
        for pid in self._charges:
            kernel.kill_group(pid)


def _wake_only(number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal wakes the selector; what has happened is looked up there."""


def _tell(charge: _Charge, message: wire.Message) -> None:
    try:
        wire.send(charge.status, message)
    except (BrokenPipeError, ConnectionResetError):
        return  # the selector will tell the same
