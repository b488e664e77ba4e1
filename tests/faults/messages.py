"""PostgreSQL's protocol, as far as a proxy needs it: messages, and which responses belong to which request.

Version 3: a message is one letter, a length and a body; the very first one of a connection has no letter.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

_LENGTH = struct.Struct("!I")
_NOTICES = b"NAS"  # of the server, at any time: a notice, a notification, a setting that has changed
READY = b"Z"
ERROR = b"E"
COPY_IN = b"G"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of either side."""

    kind: bytes  # empty: the first of a connection
    body: bytes

    @property
    def raw(self) -> bytes:
        return self.kind + _LENGTH.pack(len(self.body) + 4) + self.body

    @property
    def text(self) -> str:
        """What a Query says."""
        return self.body.rstrip(b"\0").decode(errors="replace")


class Stream:
    """The messages that arrive on a socket."""

    def __init__(self, source: socket.socket, *, has_started: bool) -> None:
        self._socket = source
        self._has_started = has_started
        self._bytes = bytearray()

    def receive(self) -> bool:
        """Takes in what is there; False: the other side has hung up."""
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            return False
        self._bytes += data
        return bool(data)

    def messages(self) -> Iterator[Message]:
        """All that are complete."""
        while (message := self._next()) is not None:
            yield message

    def peek(self) -> bytes:
        """The letter of the next message, if any of it is there."""
        return bytes(self._bytes[:1])

    def _next(self) -> Message | None:
        letters = 1 if self._has_started else 0
        if len(self._bytes) < letters + 4:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes, letters)
        if len(self._bytes) < letters + length:
            return None
        message = Message(bytes(self._bytes[:letters]), bytes(self._bytes[letters + 4 : letters + length]))
        del self._bytes[: letters + length]
        self._has_started = True
        return message


class Request:
    """A request that the server will respond to."""

    def __init__(self, kind: bytes, *, hidden: bool = False) -> None:
        self.kind = kind
        self.hidden = hidden  # sent by the proxy: the client must not see the response
        self.is_over = False
        self.is_copying = False  # the server waits for the rows of a COPY


_ENDS = {b"P": b"1", b"B": b"2", b"C": b"3", b"D": b"Tn", b"E": b"CIs", b"S": READY, b"Q": READY}


class Responses:
    """Matches the server's messages with the requests, in order."""

    def __init__(self) -> None:
        self.newest = Request(b"S")  # the server says that it is ready once it has let the client in
        self._requests = deque([self.newest])
        self.status = b"I"  # of the transaction, when it was last ready

    def sent(self, kind: bytes, *, hidden: bool = False) -> Request:
        """Notes a request that was sent; returns the one that the server responds to last."""
        if kind in _ENDS:
            self.newest = Request(kind, hidden=hidden)
            self._requests.append(self.newest)
        return self.newest

    def hear(self, message: Message) -> bool:
        """Takes in a message of the server's; whether the client is to see it."""
        if message.kind in _NOTICES or not self._requests:
            return True
        head = self._requests[0]
        if message.kind == READY:
            self.status = message.body[:1]
            while self._requests and head.kind not in b"SQ":
                head = self._pop()  # these were skipped after an error
            self._pop()
            return True
        if message.kind == ERROR:
            head.is_over = True
            while self._requests and self._requests[0].kind not in b"SQ":
                self._pop()
            return True
        if message.kind == COPY_IN:
            head.is_copying = True
        elif message.kind in _ENDS[head.kind] and head.kind not in b"SQ":
            self._pop()
        return not head.hidden

    def _pop(self) -> Request:
        self._requests.popleft().is_over = True
        return self._requests[0] if self._requests else Request(b"S")


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def query(text: str) -> Message:
    return Message(b"Q", _string(text))


def executed(text: str, portal: str) -> tuple[Message, Message, Message]:
    """A statement without parameters by the extended protocol. The unnamed statement is always parsed again by its
    users; the portal is the proxy's own."""
    parse = Message(b"P", b"\0" + _string(text) + b"\0\0")
    bind = Message(b"B", _string(portal) + b"\0" + b"\0\0" * 3)
    return parse, bind, Message(b"E", _string(portal) + b"\0\0\0\0")


def fatal(sqlstate: str, text: str) -> Message:
    """How the server refuses a connection."""
    fields = {"S": "FATAL", "V": "FATAL", "C": sqlstate, "M": text}
    return Message(ERROR, b"".join(name.encode() + _string(value) for name, value in fields.items()) + b"\0")


FLUSH = Message(b"H", b"")
