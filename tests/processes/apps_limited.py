"""The tasks of `apps`, in a process that may start nothing more after SIGUSR1, and as before after SIGUSR2."""

from __future__ import annotations

import resource
import signal
from types import FrameType

from tests.processes.apps import app

_SOFT, _HARD = resource.getrlimit(resource.RLIMIT_NPROC)


def _limit(number: int, _: FrameType | None) -> None:
    soft = 1 if number == signal.SIGUSR1 else _SOFT
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, _HARD))


for each in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(each, _limit)

__all__ = ["app"]
