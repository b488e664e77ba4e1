"""The tasks that measurements run, on the database that DRAY_URL names."""

from __future__ import annotations

import os
import socket
import time

import dray

SOCKET = "DRAY_BENCH_SOCKET"  # the datagram socket that is told when a body starts

app = dray.App()
_ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


@app.task
def noop() -> None:
    """Nothing."""


@app.task
def stamp(number: int) -> None:
    """Says when it has started, by the clock that all processes share."""
    now = time.monotonic_ns()
    _ear.sendto(f"{number} {now}".encode(), os.environ[SOCKET])
