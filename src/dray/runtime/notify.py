"""What a service manager is told, by the protocol of sd_notify(3): ready, status, watchdog, reloading, stopping.

Messages go to the socket that the environment names (NOTIFY_SOCKET), and are never waited for. The watchdog is about
the engine: a ping goes out if the engine has taken a step since the last one, for which it is woken. So a worker
whose engine hangs is restarted. One whose database is away is not: a restart would not help, and would end its jobs.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from dray.log import log
from dray.runtime.condition import Condition
from dray.runtime.service import Loop
from dray.runtime.signals import SUPERVISED
from dray.sanitize import bounded, escape_control
from dray.wording import counted

_STATUS_EACH = 10.0  # seconds
_SHORTEST = 0.01  # seconds between two messages, however impatient the watchdog
_STATUS_BYTES = 500


class Reporting(Protocol):
    """A worker, as it is watched."""

    @property
    def slots(self) -> int: ...
    def condition(self) -> Condition: ...
    def turn(self) -> int: ...  # wakes the engine; returns how many steps it has taken


class Voice(Protocol):
    """What a worker in the foreground tells about itself. None of it may raise or take long."""

    reloads: bool  # SIGHUP starts the process over instead of ending it

    def started(self, worker: Reporting) -> None: ...  # it is registered
    def ends(self, *, reloads: bool) -> None: ...
    def close(self) -> None: ...


class Manager:
    """A service manager. `watchdog`: seconds within which it wants to hear of this process; None: it does not."""

    def __init__(self, address: str, watchdog: float | None) -> None:
        # A leading @ stands for the NUL of an abstract socket, which a variable cannot hold.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog = watchdog
        self._is_warned = False

    def tell(self, *lines: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
                connection.setblocking(False)  # noqa: FBT003
                connection.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._is_warned:
                log.warning("the service manager cannot be told (NOTIFY_SOCKET): %s", error)
            self._is_warned = True

    def reloading(self) -> None:
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self.tell("STOPPING=1", "STATUS=stopping")

    @property
    def period(self) -> float:
        """Seconds between two messages."""
        return _STATUS_EACH if self.watchdog is None else max(_SHORTEST, min(_STATUS_EACH, self.watchdog / 3))


def manager_of(environment: Mapping[str, str]) -> Manager | None:
    """The service manager that the environment names; None: there is none."""
    address = environment.get("NOTIFY_SOCKET", "")
    if address[:1] not in {"/", "@"} or not hasattr(socket, "AF_UNIX"):
        return None
    watchdog = None
    if environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
        with suppress(ValueError, OverflowError):
            watchdog = int(environment.get("WATCHDOG_USEC", "")) / 1_000_000
    return Manager(address, watchdog if watchdog and watchdog > 0 else None)


def status_of(condition: Condition) -> str:
    """A line for people: `systemctl status` shows it."""
    said = f"{condition.state}, {counted(condition.running, 'job')} running"
    text = f"{said}; {condition.reason}" if condition.reason else said
    return f"STATUS={bounded(escape_control(text), _STATUS_BYTES)}"


class ManagedVoice:
    """Tells a service manager."""

    reloads = True

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._worker: Reporting | None = None
        self._turns = 0
        self._loop = Loop("dray-status", self._tick)

    def started(self, worker: Reporting) -> None:
        self._worker = worker
        self._turns = worker.turn()
        self._manager.tell("READY=1", status_of(worker.condition()))
        try:
            self._loop.start()
        except (RuntimeError, MemoryError) as error:
            log.warning("no thread can be started for the service manager's watchdog: %s", error)

    def ends(self, *, reloads: bool) -> None:
        if reloads:
            self._manager.reloading()
        else:
            self._manager.stopping()

    def close(self) -> None:
        self._loop.end()

    def _tick(self) -> float:
        assert self._worker is not None
        turns = self._worker.turn()
        is_turning, self._turns = turns != self._turns, turns
        pings = ["WATCHDOG=1"] if is_turning and self._manager.watchdog is not None else []
        self._manager.tell(status_of(self._worker.condition()), *pings)
        return self._manager.period


class Silent:
    """No service manager has started this process."""

    reloads = False

    def started(self, worker: Reporting) -> None: ...
    def ends(self, *, reloads: bool) -> None: ...
    def close(self) -> None: ...


def voice_of(environment: Mapping[str, str]) -> Voice:
    """A worker with a supervisor leaves this to it."""
    manager = None if SUPERVISED in environment else manager_of(environment)
    return Silent() if manager is None else ManagedVoice(manager)
