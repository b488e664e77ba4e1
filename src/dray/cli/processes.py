"""The signals that a command handles, and the worker processes that the demo and the bench start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import FrameType
from typing import IO, Any

from dray.runtime.children import kernel

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handling(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], Any]]) -> Generator[None]:
    """Installs signal handlers, and restores the previous ones at the end of the block."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Interrupts:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt; another changes nothing: cleaning up has begun."""

    def __init__(self) -> None:
        self._is_held = self._is_asked = False

    def caught(self) -> AbstractContextManager[None]:
        return handling(dict.fromkeys(ENDING, self._handle))

    @contextmanager
    def held(self) -> Generator[None]:
        """Delays the KeyboardInterrupt: a process that is just being started would be left behind."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_asked:
            raise KeyboardInterrupt

    def _handle(self, _: int, __: FrameType | None) -> None:
        is_first, self._is_asked = not self._is_asked, True
        if is_first and not self._is_held:
            raise KeyboardInterrupt


def start_worker(
    app: str, url: str, options: Sequence[str], log: IO[Any], more: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts ``dray worker`` on a database; the kernel kills it if this process dies first."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    return subprocess.Popen(  # noqa: S603 - this program
        [sys.executable, "-m", "dray", "worker", app, *options],
        env={**others, "DRAY_URL": url, **(more or {})},  # not on the command line: it may hold a password
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C goes to this process, which then stops its workers
        preexec_fn=partial(kernel.ask_for_death_signal, signal.SIGKILL),  # noqa: PLW1509 - a prctl, without a lock
    )
