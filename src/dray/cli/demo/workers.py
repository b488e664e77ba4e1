"""The worker processes of the demo: one is killed, the others are stopped as an operator does."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from dray.cli.demo.tasks import LEDGER
from dray.cli.exits import Failure
from dray.cli.processes import start_worker

_PATIENCE = 20.0  # seconds for a worker to end


class Workers:
    """Worker processes on one database. None is left at the end of its ``with``."""

    def __init__(self, url: str, folder: Path, concurrency: int) -> None:
        self._url = url
        self._folder = folder
        self._concurrency = concurrency
        self._processes: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    @property
    def pids(self) -> list[int]:
        """The process ids of the live ones."""
        return [process.pid for process in self._processes if process.poll() is None]

    def start(self) -> int:
        """Starts one more worker and returns its process id."""
        number = len(self._processes) + 1
        options = ["--concurrency", str(self._concurrency), "--name", f"demo-{number}"]
        more = {LEDGER: str(self._folder / "ledger")}
        with (self._folder / f"worker-{number}.log").open("wb") as log:
            process = start_worker("dray.cli.demo.tasks:app", self._url, options, log, more)
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
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in left]
