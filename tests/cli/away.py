"""A way to a database that can be closed and opened again: a server that does not answer, a file that is gone."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol
from urllib.parse import parse_qs, quote, unquote, urlsplit

_SOCKET = ".s.PGSQL.5432"


class Way(Protocol):
    """What is closed at first is open."""

    url: str

    def close(self) -> None: ...
    def open(self) -> None: ...


class FileWay:
    """Moves the file away, and back."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._file = Path(unquote(url.removeprefix("sqlite:///")))

    def close(self) -> None:
        self._move("", ".away")

    def open(self) -> None:
        self._move(".away", "")

    def _move(self, before: str, after: str) -> None:
        for part in ("-wal", "-shm", ""):
            found = Path(f"{self._file}{part}{before}")
            if found.exists():
                found.rename(f"{self._file}{part}{after}")


class SocketWay:
    """Passes on what comes and goes between a socket of its own and the server's."""

    def __init__(self, url: str, folder: Path) -> None:
        host = parse_qs(urlsplit(url).query)["host"][0]
        self.url = url.replace(quote(host, safe="/"), str(folder)).replace(host, str(folder))
        self._server = f"{host}/{_SOCKET}"
        self._ours = folder / _SOCKET
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self.open()

    def open(self) -> None:
        self._ends, self._ended = os.pipe()
        listener = self._listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._ours))
        self._ours.chmod(0o777)
        listener.listen(50)
        self._thread = threading.Thread(target=self._pass_on, args=(listener, self._ends))
        self._thread.start()

    def close(self) -> None:
        if self._listener is None or self._thread is None:
            return
        self._ours.unlink()
        os.close(self._ended)
        self._thread.join()
        os.close(self._ends)
        self._listener = None

    def _pass_on(self, listener: socket.socket, ends: int) -> None:
        other: dict[socket.socket, socket.socket] = {}
        while True:
            ready = select.select([listener, ends, *other], [], [])[0]
            if ends in ready:
                break
            for one in ready:
                if one is listener:
                    client, server = listener.accept()[0], socket.socket(socket.AF_UNIX)
                    server.connect(self._server)
                    other |= {client: server, server: client}
                elif isinstance(one, socket.socket) and one in other:
                    self._move(one, other)
        for each in (listener, *other):
            each.close()

    @staticmethod
    def _move(one: socket.socket, other: dict[socket.socket, socket.socket]) -> None:
        try:
            data = one.recv(65536)
            other[one].sendall(data)
        except OSError:
            data = b""
        if not data:
            peer = other.pop(one)
            del other[peer]
            one.close()
            peer.close()


@contextmanager
def way(url: str) -> Generator[Way]:
    """A way to the database of this address."""
    if url.startswith("sqlite"):
        yield FileWay(url)
        return
    with TemporaryDirectory(prefix="dray-way-") as folder:
        made = SocketWay(url, Path(folder))
        try:
            yield made
        finally:
            made.close()
