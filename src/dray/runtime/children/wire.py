"""What a worker, its forker and its children share: messages on sockets, and a few bytes of memory.

Messages are JSON behind a length, with descriptors beside them. No pickle: a message is data, no code.
Anything else is `Garbled`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from dray.model.bounds import TRACEBACK_BYTES
from dray.runtime.execution import StopCause
from dray.wording import counted

Message = dict[str, Any]

LONGEST = 16 << 20  # bytes; a result of 1 MiB has room, also where each of its characters is escaped twice
_LENGTH = struct.Struct("!I")
_INT = struct.Struct("i")
_CHUNK = 1 << 16
_DESCRIPTORS = 4
_CLOSED_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # 0: not on macOS
_TURN = struct.Struct("!I")
_ORDER = struct.Struct("!QB")  # the number of the job that is to stop, and why
_STOPS = tuple(StopCause)
_BEGUN, _BEGUN_AT = struct.Struct("!QQ"), 16  # the number of the job whose body has begun, and when
_STACK_AT = 32
_encoded = json.JSONEncoder(separators=(",", ":")).encode
_PATIENCE = 0.25  # seconds; a stack is written in a millisecond, unless the process is stopped


class Garbled(Exception):
    """These bytes are no message of ours."""


def send(sock: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Sends one message, and descriptors that the other side gets copies of."""
    text = _encoded(message).encode()
    data = _LENGTH.pack(len(text)) + text
    if descriptors:
        sent = socket.send_fds(sock, [data], descriptors)
        data = data[sent:]
    sock.sendall(data)


class MessageReader:
    """Reads messages from a socket, with the descriptors that came with them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self.descriptors: list[int] = []  # received and not yet taken

    def fileno(self) -> int:
        return self._sock.fileno()

    def read(self, *, wait: bool = True) -> bool:
        """Takes in what there is. False: nothing is there; with `wait`, nothing will ever come."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            # Not socket.recv_fds: it leaves its flags out, and then whatever a body starts inherits what came.
            room = socket.CMSG_SPACE(_DESCRIPTORS * _INT.size)
            data, ancillary, _, _ = self._sock.recvmsg(_CHUNK, room, flags | _CLOSED_ON_EXEC)
        except (BlockingIOError, ConnectionResetError):  # the latter: the other side has ended with something unread
            return False
        for level, kind, given in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(given) - len(given) % _INT.size
                came = [number for (number,) in _INT.iter_unpack(given[:whole])]
                for number in came if not _CLOSED_ON_EXEC else ():
                    os.set_inheritable(number, False)  # noqa: FBT003
                self.descriptors += came
        self._data += data
        return bool(data)

    def next(self) -> Message | None:
        if len(self._data) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._data)
        if length > LONGEST:
            raise Garbled(f"a message of {length:,} bytes")
        end = _LENGTH.size + length
        if len(self._data) < end:
            return None
        text = bytes(self._data[_LENGTH.size : end])
        del self._data[:end]
        return _parsed(text)

    def wait(self) -> Message | None:
        """Waits for the next message; None: none will come."""
        while (message := self.next()) is None:
            if not self.read():
                return None
        return message

    def take_descriptors(self, count: int | None = None) -> list[int]:
        taken = self.descriptors[:count]
        del self.descriptors[: len(taken)]
        return taken

    def close(self) -> None:
        for descriptor in self.take_descriptors():
            os.close(descriptor)
        self._sock.close()


def _parsed(text: bytes) -> Message:
    try:
        message: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"{counted(len(text), 'byte that is', 'bytes that are')} not JSON") from error
    if not isinstance(message, dict):
        raise Garbled(f"a message that is a {type(message).__name__}")
    return cast("Message", message)


def take_turn(turns: socket.socket) -> int | None:
    """In a child: the number of the job that it may begin now."""
    try:
        return int.from_bytes(turns.recv(_TURN.size, socket.MSG_DONTWAIT)) or None  # 0: the worker has let go
    except (BlockingIOError, ConnectionResetError):  # the latter: it has, with a ring unheard
        return None


def ring(turns: socket.socket) -> None:
    """Wakes a worker that does not listen to each message."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it has been rung often enough; it is gone
        turns.send(b".", socket.MSG_DONTWAIT)


class Turns:
    """The worker's side of a socket on which its child finds the numbers of the jobs that it may begin.

    The child takes one number for each job. The worker has a copy of the child's end and can take numbers back: the
    kernel gives each to one of the two. So the worker knows which jobs have not begun, and never will, and that a
    signal for the last one that has begun hits no other. The other way round, the child rings.
    """

    def __init__(self) -> None:
        self._ours, self.childs = socket.socketpair()

    def fileno(self) -> int:
        return self._ours.fileno()

    def grant(self, numbers: Sequence[int]) -> None:
        self._ours.sendall(b"".join(map(_TURN.pack, numbers)))

    def recall(self) -> set[int]:
        """Takes back all that the child has not taken, and wakes the thread that waits for the child."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while got := self.childs.recv(_CHUNK, socket.MSG_DONTWAIT):
                data += got
        if data:
            ring(self.childs)
        return {number for (number,) in _TURN.iter_unpack(data[: len(data) - len(data) % _TURN.size])}

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._ours.recv(_CHUNK, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._ours.close()
        self.childs.close()


@dataclass(frozen=True)
class SharedFlags:
    """A few bytes that a worker and its child both see: the order to stop, and the child's stack.

    Not messages: a child reads none while its body runs and has to see an order at once. The stack is written by a
    signal handler, while the interpreter may be busy in a call that keeps the GIL. `descriptor` is what the other
    side needs.
    """

    descriptor: int

    @classmethod
    def new(cls) -> SharedFlags:
        if hasattr(os, "memfd_create"):
            flags = cls(os.memfd_create("dray-flags"))
        else:
            with tempfile.TemporaryFile() as file:
                flags = cls(os.dup(file.fileno()))
        flags.wipe()
        return flags

    def wipe(self) -> None:
        """Before a job: no order, no stack. Both sides share the file offset."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, bytes(_STACK_AT), 0)  # whole: only a stack makes it longer
        os.lseek(self.descriptor, _STACK_AT, os.SEEK_SET)

    def order(self, job: int, stop: StopCause) -> None:
        """Orders a job to stop; jobs are numbered from 1."""
        os.pwrite(self.descriptor, _ORDER.pack(job, _STOPS.index(stop)), 0)

    def stop_of(self, job: int) -> StopCause | None:
        order: tuple[int, int] = _ORDER.unpack(os.pread(self.descriptor, _ORDER.size, 0))
        return _STOPS[order[1]] if order[0] == job else None

    def begin(self, job: int, at: int) -> None:
        """The body of a job begins."""
        os.pwrite(self.descriptor, _BEGUN.pack(job, at), _BEGUN_AT)

    def begun(self) -> tuple[int, int]:
        """The job whose body has begun last, and when."""
        number, at = _BEGUN.unpack(os.pread(self.descriptor, _BEGUN.size, _BEGUN_AT))
        return number, at

    @property
    def has_stack(self) -> bool:
        return self.size > _STACK_AT

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def stack(self) -> str:
        """The newest part of the stacks that were written."""
        return self._read(max(_STACK_AT, self.size - TRACEBACK_BYTES))

    def await_stack(self, before: int) -> str:
        """Waits for a stack written after the first `before` bytes."""
        deadline = time.monotonic() + _PATIENCE
        last = before
        while time.monotonic() < deadline:
            time.sleep(0.005)
            size = self.size
            if size == last > before:
                break
            last = size
        return self._read(max(before, last - TRACEBACK_BYTES))

    def _read(self, start: int) -> str:
        return os.pread(self.descriptor, TRACEBACK_BYTES, start).decode(errors="replace").strip("\0\n")

    def close(self) -> None:
        os.close(self.descriptor)
