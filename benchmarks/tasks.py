"""The tasks that measurements run, on the database that DRAY_URL names."""

from __future__ import annotations

import os
import socket
import time

import dray

SOCKET = "DRAY_BENCH_SOCKET"  # the datagram socket that receives the start of each body

app = dray.App()
_ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


@app.task
def noop(order: int, to: str, amount: float, currency: str, express: bool, items: list[int]) -> None:
    """Does nothing."""


@app.task
def stamp(number: int) -> None:
    """Reports when it started, by the clock that all processes share."""
    now = time.monotonic_ns()
    _ear.sendto(f"{number} {now}".encode(), os.environ[SOCKET])
