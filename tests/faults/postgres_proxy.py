"""A proxy in front of a real PostgreSQL whose Nth statement fails.

It counts what clients ask for: connections, and statements (Execute, Query, the end of a COPY). Connections are cut
for real, before the server has seen the statement, or after it has done its work and before the client has the
answer. Errors are raised by the server itself, in the statement's database, so that transactions and pipelines are in
the very state that such an error leaves. Everything else passes through.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.faults.count import Count, Fault
from tests.faults.messages import FLUSH, Message, Request, Responses, Stream, executed, fatal, query

CONNECT, CONTROL, STATEMENT, COPY = "connect", "begin or end", "statement", "end of copy"
_CONTROLS = ("BEGIN", "COMMIT", "ROLLBACK")
_PATIENCE = 10.0  # seconds that a statement may take before its response is swallowed
_MORE = 0.005  # seconds in which the rest of what a client has written arrives
_CANCEL = 80877102
_READ_ONLY_SESSIONS = {"read-only once": 1, "read-only servers": 1_000_000}


@dataclass(frozen=True, slots=True)
class PostgresFault(Fault):
    """What becomes of a connection or a statement."""

    does: str
    sqlstate: str = ""
    text: str = ""


_STATEMENTS = frozenset({STATEMENT, CONTROL})
_ALL = _STATEMENTS | {CONNECT, COPY}


def _raises(name: str, sqlstate: str) -> PostgresFault:
    return PostgresFault(name, _STATEMENTS, "raise", sqlstate)


CUT_BEFORE = PostgresFault("lost before it was done", _ALL, "cut before")
CUT_AFTER = PostgresFault("lost after it was done", _ALL, "cut after")
TERMINATED = PostgresFault("shutdown (57P01)", _STATEMENTS, "terminate")
SERIALIZATION = _raises("serialization (40001)", "40001")
DEADLOCK = _raises("deadlock (40P01)", "40P01")
READ_ONLY = _raises("read-only (25006)", "25006")
FULL = _raises("full (53100)", "53100")
CANCELLED = _raises("query cancelled (57014)", "57014")
LOCKED = _raises("lock not available (55P03)", "55P03")
UNPREPARED = PostgresFault("prepared statements gone", frozenset({STATEMENT}), "deallocate")
READ_ONLY_ONCE = PostgresFault("lost, then once on a read-only server", _ALL, "read-only once")
READ_ONLY_SERVERS = PostgresFault("lost, then on read-only servers only", _ALL, "read-only servers")
TOO_MANY = PostgresFault("too many connections (53300)", frozenset({CONNECT}), "refuse", "53300")
STARTING = PostgresFault("starting up (57P03)", frozenset({CONNECT}), "refuse", "57P03")

FAULTS = (
    *(CUT_BEFORE, CUT_AFTER, TERMINATED, SERIALIZATION, DEADLOCK, READ_ONLY),
    *(FULL, CANCELLED, LOCKED, UNPREPARED, READ_ONLY_ONCE, READ_ONLY_SERVERS, TOO_MANY, STARTING),
)


class Proxy:
    """Listens on a socket of its own; `url` is the server's address by way of it."""

    def __init__(self, server: str, count: Count) -> None:
        self.count = count
        self.server = f"{parse_qs(urlsplit(server).query)['host'][0]}/.s.PGSQL.5432"
        self.read_only_sessions = 0  # how many of the connections to come are read-only for their life
        count.on_disarm = self._end_read_only
        self._folder = Path(tempfile.mkdtemp(prefix="dray-proxy-"))
        self.url = server.replace(self.server.removesuffix("/.s.PGSQL.5432"), str(self._folder))
        self._links: set[_Link] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / ".s.PGSQL.5432"))
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def _end_read_only(self) -> None:
        self.read_only_sessions = 0

    def cut_all(self) -> None:
        """Ends every connection, as a failover does."""
        for link in list(self._links):
            link.cut()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.cut_all()
        for link in list(self._links):
            link.join()
        shutil.rmtree(self._folder)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            link = _Link(self, client, self._links.discard)
            self._links.add(link)
            link.start()


class _Cut(Exception):
    """Both sides are to be hung up on."""


class _Link(threading.Thread):
    """One client and its session."""

    def __init__(self, proxy: Proxy, client: socket.socket, on_end: Callable[[_Link], None]) -> None:
        super().__init__(name="proxy-link", daemon=True)
        self._proxy = proxy
        self._client = client
        self._server = socket.socket(socket.AF_UNIX)
        self._from_the_client = Stream(client, has_started=False)
        self._from_the_server = Stream(self._server, has_started=True)
        self._responses = Responses()
        self._on_end = on_end
        self._parsed: dict[bytes, str] = {}  # statements by their names
        self._bound = ""  # what the newest Bind is for
        self._portals = 0

    def cut(self) -> None:
        for side in (self._client, self._server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        try:
            self._relay()
        except (_Cut, OSError):
            pass  # either side is told by the end of its connection
        finally:
            for side in (self._server, self._client):
                side.close()
            self._on_end(self)

    def _relay(self) -> None:
        self._begin()
        while True:
            ready, _, _ = select.select([self._client, self._server], [], [])
            if self._server in ready and not self._from_server():
                return
            if self._client in ready and not self._from_client():
                return

    # The beginning

    def _begin(self) -> None:
        first = self._first()
        self._server.connect(self._proxy.server)
        if struct.unpack("!I", first.body[:4])[0] == _CANCEL:
            self._server.sendall(first.raw)
            raise _Cut
        fault = self._proxy.count.fault_for(CONNECT, "connect")
        if fault is not None:
            self._fail_to_connect(fault, first)
            return
        if self._proxy.read_only_sessions > 0:
            self._proxy.read_only_sessions -= 1
            first = Message(b"", first.body[:-1] + b"default_transaction_read_only\0on\0\0")
        self._server.sendall(first.raw)

    def _first(self) -> Message:
        while self._from_the_client.receive():
            for message in self._from_the_client.messages():
                return message
        raise _Cut

    def _fail_to_connect(self, fault: Fault, first: Message) -> None:
        assert isinstance(fault, PostgresFault)
        if fault.does == "refuse":
            self._client.sendall(fatal(fault.sqlstate, f"injected: {fault.name}").raw)
        self._note_read_only(fault)
        if fault.does == "cut after":
            self._server.sendall(first.raw)
            self._swallow(self._responses.newest)
        raise _Cut

    # Either way

    def _from_server(self) -> bool:
        is_there = self._from_the_server.receive()
        seen = [message.raw for message in self._from_the_server.messages() if self._responses.hear(message)]
        self._client.sendall(b"".join(seen))
        return is_there

    def _from_client(self) -> bool:
        is_there = self._from_the_client.receive()
        for message in self._from_the_client.messages():
            self._pass_on(message)
        return is_there

    def _pass_on(self, message: Message) -> None:
        if message.kind in b"EQc":
            what = self._what(message)
            unit = COPY if message.kind == b"c" else CONTROL if what.startswith(_CONTROLS) else STATEMENT
            fault = self._proxy.count.fault_for(unit, what)
            if fault is not None:
                self._fail(fault, message)
                return
        self._note(message)
        self._send(message)

    def _note(self, message: Message) -> None:
        """Remembers what statements say, to tell which one has failed."""
        if message.kind == b"P":
            name, text, _ = message.body.split(b"\0", 2)
            self._parsed[name] = text.decode()
        if message.kind == b"B":
            _, name, _ = message.body.split(b"\0", 2)
            self._bound = self._parsed.get(name, "?")

    def _what(self, message: Message) -> str:
        return {b"E": self._bound, b"Q": message.text, b"c": "the end of a COPY"}[message.kind]

    def _send(self, message: Message, *, hidden: bool = False) -> Request:
        request = self._responses.sent(message.kind, hidden=hidden)
        self._server.sendall(message.raw)
        return request

    # Faults

    def _fail(self, fault: Fault, message: Message) -> None:
        assert isinstance(fault, PostgresFault)
        self._note_read_only(fault)
        if fault.does in {"cut before", *_READ_ONLY_SESSIONS}:
            raise _Cut
        if fault.does == "cut after":
            self._cut_after(message)
        if fault.does == "deallocate":
            if self._responses.status != b"E":
                self._run("DEALLOCATE ALL", hidden=True, by_query=message.kind == b"Q")
            self._send(message)
            return
        text = "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10);"
        if fault.does == "raise":
            text = f"RAISE EXCEPTION 'injected: {fault.name}' USING ERRCODE = '{fault.sqlstate}';"
        self._run(f"DO $$ BEGIN {text} END $$", hidden=False, by_query=message.kind == b"Q")

    def _note_read_only(self, fault: PostgresFault) -> None:
        self._proxy.read_only_sessions = _READ_ONLY_SESSIONS.get(fault.does, self._proxy.read_only_sessions)

    def _run(self, text: str, *, hidden: bool, by_query: bool) -> None:
        """Has the server do something in the database of a statement, or before it."""
        if by_query and not hidden:
            self._send(query(text))
            return
        self._portals += 1
        parse, bind, execute = executed(text, f"proxy_{self._portals}")
        self._send(parse, hidden=True)
        self._send(bind, hidden=True)
        self._send(execute, hidden=hidden)

    def _cut_after(self, message: Message) -> None:
        last = self._send(message)
        if message.kind == b"E" and self._next_is_sync():
            last = self._send(Message(b"S", b""))  # outside a transaction block it is this that commits
        elif message.kind == b"E":
            self._send(FLUSH)
        self._swallow(last, has_copied=message.kind == b"c")
        raise _Cut

    def _next_is_sync(self) -> bool:
        if not self._from_the_client.peek() and select.select([self._client], [], [], _MORE)[0]:
            self._from_the_client.receive()
        return self._from_the_client.peek() == b"S"

    def _swallow(self, last: Request, *, has_copied: bool = False) -> None:
        """Waits until the server has responded, or wants the rows of a COPY; the client sees nothing of it."""
        deadline = time.monotonic() + _PATIENCE
        while not (last.is_over or (last.is_copying and not has_copied)) and time.monotonic() < deadline:
            if not select.select([self._server], [], [], 0.1)[0]:
                continue
            if not self._from_the_server.receive():
                return
            for message in self._from_the_server.messages():
                self._responses.hear(message)
