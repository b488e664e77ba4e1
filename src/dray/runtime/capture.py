"""Log records of running bodies, kept with their jobs: bounded, cleaned, written in batches by the engine."""

from __future__ import annotations

import logging
import threading
from collections import deque

from dray.model.job import LogLine
from dray.model.limits import LOG_LINES, LOG_MESSAGE_BYTES
from dray.runtime.execution import Execution, current, deliver_stop
from dray.sanitize import bounded, clean

NAME_BYTES = 200  # of a logger, of a level


class Capture(logging.Handler):
    """Takes the records that are made while a body runs, in its thread, coroutine or child process."""

    def emit(self, record: logging.LogRecord) -> None:
        self._stand_in(record)
        deliver_stop()
        execution = current.get()
        # Our own words about a job are for the worker's log; of what a body logs nothing is left out.
        if execution is None or record.name == "dray":
            return
        try:
            keep(execution, record.levelname, record.name, self.format(record))
        except Exception:  # noqa: BLE001 - as every handler: a bad format string is reported, never raised
            self.handleError(record)

    def _stand_in(self, record: logging.LogRecord) -> None:
        """Where nobody has set up logging, warnings go to stderr, but not once there is any handler: this one."""
        last = logging.lastResort
        if last is None or record.levelno < last.level:
            return
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        last.handle(record)


def keep(execution: Execution, level: str, logger: str, message: str) -> None:
    """Puts one line where the engine finds it. The newest lines stay, where there are more than are ever kept."""
    claim = execution.claim
    line = LogLine(
        claim.id,
        claim.claim,
        execution.link.clock.steady(),
        clean(level, NAME_BYTES),
        clean(logger, NAME_BYTES),
        bounded(message, LOG_MESSAGE_BYTES),
    )
    lines = execution.lines
    if lines is None:
        lines = execution.lines = deque(maxlen=LOG_LINES)
    lines.append(line)
    execution.link.note(execution)


_lock = threading.Lock()
_users: set[object] = set()
_handler = Capture()
_handler.setFormatter(logging.Formatter("%(message)s"))


def start(user: object) -> None:
    """From now on records are captured, until no user is left."""
    with _lock:
        _users.add(user)
        logging.getLogger().addHandler(_handler)  # once, however often


def end(user: object) -> None:
    """This user captures no more; a second time does nothing."""
    with _lock:
        _users.discard(user)
        if not _users:
            logging.getLogger().removeHandler(_handler)
