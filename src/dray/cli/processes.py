"""The signals that a command handles, and the worker processes that the demo and the bench start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Self

from dray.cli.exits import Failure
from dray.runtime.children import kernel
from dray.runtime.signals import handling

ENDING = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 20.0  # seconds for a worker to end


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


class Workers:
    """Processes of ``dray worker`` on one database. None is left at the end of its ``with``."""

    def __init__(
        self, name: str, app: str, url: str, folder: Path, options: Sequence[str], **environment: str
    ) -> None:
        self._name = name
        self._command = [sys.executable, "-m", "dray", "worker", app, *options, "--name"]
        others = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
        # The address is not on the command line: it may hold a password.
        self._environment = {**others, "DRAY_URL": url, **environment}
        self._folder = folder  # of their logs
        self._processes: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.poll() is None]

    def start(self) -> int:
        """Starts one more worker and returns its process id; the kernel kills it if this process dies first."""
        number = len(self._processes) + 1
        with (self._folder / f"worker-{number}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - this program
                [*self._command, f"{self._name}-{number}"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to this process, which then stops its workers
                preexec_fn=partial(kernel.ask_for_death_signal, signal.SIGKILL),  # noqa: PLW1509 - a prctl, without a lock
            )
        self._processes.append(process)
        return process.pid

    def kill(self, pid: int) -> None:
        """Kills a worker, as the kernel does when memory runs out."""
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def check(self) -> None:
        """Fails if a worker has ended that was not killed."""
        for number, process in enumerate(self._processes, 1):
            if process.poll() is not None and process.pid not in self._killed:
                lines = (self._folder / f"worker-{number}.log").read_text(errors="replace").splitlines()
                raise Failure(f"worker {process.pid} ended by itself ({process.returncode}): {lines[-1:]}")

    def stop(self) -> list[int]:
        """Stops all workers as an operator does; returns the exit codes of those that were not killed."""
        left = [process for process in self._processes if process.pid not in self._killed]
        for process in left:
            process.terminate()
        deadline = time.monotonic() + _PATIENCE
        for process in left:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            process.kill()  # unless it has ended
        return [process.wait() for process in left]
