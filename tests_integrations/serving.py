"""A real web server in a process of its own, which tests ask, stop and kill."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2

ROOT = Path(__file__).parents[1]
PATIENCE = 30.0


class Server:
    """What `served` starts."""

    def __init__(self, process: subprocess.Popen[bytes], origin: str, log: Path) -> None:
        self._process, self.origin, self._log = process, origin, log
        self.client = httpx2.Client(base_url=origin, timeout=PATIENCE)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_until_ready(self) -> None:
        until(lambda: self._is_listening() or self._process.poll() is not None)
        assert self._process.poll() is None, f"the server did not start: {self.log}"

    def _is_listening(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", int(self.origin.rpartition(":")[2]))) == 0

    def tell(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(PATIENCE)


@contextmanager
def served(*command: str, folder: Path, port: int | None = None, **environ: str) -> Generator[Server]:
    """Runs ``python -m COMMAND`` in a folder; ``{port}`` in it is a free port."""
    port = port or free_port()
    words = [word.format(port=port) for word in command]
    log = folder / f"log-{port}"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    server = Server(process, f"http://127.0.0.1:{port}", log)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.client.close()
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)


def until(happened: Callable[[], bool]) -> None:
    """Waits for something that another process does."""
    ends = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
