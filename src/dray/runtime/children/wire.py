"""Messages between a worker, its forker and its children: JSON behind a length, descriptors beside them.

No pickle: a message is data, whoever wrote it. Whatever is not such a message is a `Garbled`.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, cast

from dray.wording import counted

Message = dict[str, Any]

LONGEST = 16 << 20  # bytes; a result of 1 MiB has room, also where each of its characters is escaped twice
_LENGTH = struct.Struct("!I")
_INT = struct.Struct("i")
_CHUNK = 1 << 16
_DESCRIPTORS = 4
_CLOSED_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # 0: not on macOS


class Garbled(Exception):
    """What came is no message of ours."""


def send(sock: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Sends one message, and descriptors that the other side gets copies of."""
    text = json.dumps(message, separators=(",", ":")).encode()
    data = _LENGTH.pack(len(text)) + text
    if descriptors:
        sent = socket.send_fds(sock, [data], descriptors)
        data = data[sent:]
    sock.sendall(data)


class Inbox:
    """Reads messages from a socket, with the descriptors that came with them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self.descriptors: list[int] = []  # received and not yet taken

    def read(self, *, wait: bool = True) -> bool:
        """Takes in what there is; False: there is nothing, and if it may wait, there never will be."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            # Not socket.recv_fds: it leaves its flags out, and then whatever a body starts inherits what came.
            room = socket.CMSG_SPACE(_DESCRIPTORS * _INT.size)
            data, ancillary, _, _ = self._sock.recvmsg(_CHUNK, room, flags | _CLOSED_ON_EXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # the other side has ended with something unread
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
        """The next message that is complete."""
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
        """The next message; None: there is none to come."""
        while (message := self.next()) is None:
            if not self.read():
                return None
        return message

    def take_descriptors(self, count: int | None = None) -> list[int]:
        """The first `count` of them, or all."""
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
