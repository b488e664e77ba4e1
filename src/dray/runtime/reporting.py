"""What a worker process tells its supervisor, over a socket that it inherits: lines of JSON.

A report goes out each second and when something changes: the worker's condition, its slots, the attempts it has ended
and the steps its engine has taken. When the supervisor asks for it (`fleet.py`), the metrics of the database follow.
The end of the socket is the end of the supervisor, and then of this worker.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from dray.backends.watch import Bell, rest
from dray.log import log
from dray.runtime.ends_counted import Attempts
from dray.runtime.notify import Reporting

CHANNEL = "DRAY_REPORT_FD"  # in the environment of workers whose supervisor wants reports
DATABASE = b"database\n"  # what the supervisor asks for
_EACH = 1.0  # seconds between two reports
_TURN_EACH = 3.0  # seconds between two times that the engine is woken, to see that it takes steps
_PATIENCE = 5.0  # seconds that the supervisor may take to read


def channel_of(environment: MutableMapping[str, str]) -> socket.socket | None:
    """The socket that the environment names, which is then for this process alone; None: no reports are wanted."""
    given = environment.pop(CHANNEL, None)
    if given is None:
        return None
    channel = socket.socket(fileno=int(given))
    channel.set_inheritable(False)
    channel.settimeout(_PATIENCE)
    return channel


class Reporter:
    """A `Voice`. `attempts`: those that the worker has ended; `database` reads what is asked for, in bounded time."""

    reloads = False

    def __init__(self, channel: socket.socket, attempts: Attempts, database: Callable[[], str | None]) -> None:
        self._channel = channel
        self._attempts = attempts
        self._database = database
        self._worker: Reporting | None = None
        self._bell = Bell()
        self._is_over = False
        self._steps, self._turn_at = 0, 0.0
        self._thread = threading.Thread(target=self._run, name="dray-status", daemon=True)
        self._thread.start()

    def started(self, worker: Reporting) -> None:
        self._worker = worker
        self._bell.ring()

    def ends(self, *, reloads: bool) -> None:  # noqa: ARG002 - a supervisor decides about that
        self._bell.ring()

    def close(self) -> None:
        self._is_over = True
        self._bell.ring()
        self._thread.join(_EACH)

    def _run(self) -> None:
        try:
            while not self._is_over:
                if self._worker is not None:
                    self._send(self._report(self._worker))
                rest((self._channel.fileno(), self._bell.fileno()), _EACH)
                self._bell.silence()
                if rest((self._channel.fileno(),), 0):
                    asked = self._channel.recv(4096)
                    if not asked:
                        self._supervisor_ended()
                        return
                    if asked.endswith(DATABASE):
                        self._send({"database": self._database()})
        except OSError as error:
            log.debug("the supervisor cannot be told: %s", error)
            self._supervisor_ended()
        finally:
            self._channel.close()

    def _send(self, told: Mapping[str, Any]) -> None:
        self._channel.sendall(json.dumps(told).encode() + b"\n")

    def _report(self, worker: Reporting) -> dict[str, Any]:
        now = time.monotonic()
        if now >= self._turn_at:  # each time costs a look at the database
            self._steps, self._turn_at = worker.turn(), now + _TURN_EACH
        return {
            "condition": worker.condition()._asdict(),
            "steps": self._steps,
            "slots": worker.slots,
            "attempts": [[queue, event, count] for (queue, event), count in dict(self._attempts).items()],
        }

    def _supervisor_ended(self) -> None:
        if not self._is_over:
            with suppress(ProcessLookupError):
                os.kill(os.getpid(), signal.SIGTERM)
