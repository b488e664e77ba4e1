"""The worker processes of the demo: started as users start them, one killed, the rest stopped in good order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dray.cli.demo import ledger
from dray.cli.exits import Failure
from dray.runtime.children import kernel

_TASKS = "dray.cli.demo.tasks:app"
_PATIENCE = 20.0  # seconds for a worker to end


class Workers:
    """Worker processes on one database. Used in a ``with``, at whose end none is left."""

    def __init__(self, url: str, folder: Path, concurrency: int) -> None:
        others = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
        self._environment = {**others, "DRAY_URL": url, ledger.VARIABLE: str(folder / "ledger")}
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
        """Of those that live."""
        return [process.pid for process in self._processes if process.poll() is None]

    def start(self) -> int:
        """One more worker; its process id."""
        number = len(self._processes) + 1
        words = ["worker", _TASKS, "--concurrency", str(self._concurrency), "--name", f"demo-{number}"]
        with (self._folder / f"worker-{number}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", "dray", *words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its workers
                preexec_fn=_die_with_the_demo,  # noqa: PLW1509 - one prctl, and nothing that could be locked
            )
        self._processes.append(process)
        return process.pid

    def kill(self, pid: int) -> None:
        """As the kernel does when memory runs out."""
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def check(self) -> None:
        """Fails if a worker has ended that was not killed."""
        for number, process in enumerate(self._processes, 1):
            if process.poll() is not None and process.pid not in self._killed:
                lines = (self._folder / f"worker-{number}.log").read_text(errors="replace").splitlines()
                raise Failure(f"worker {process.pid} ended by itself ({process.returncode}): {lines[-1:]}")

    def stop(self) -> list[int]:
        """Ends all as an operator does; the exit codes of those that were not killed."""
        left = [process for process in self._processes if process.pid not in self._killed]
        for process in left:
            process.terminate()
        deadline = time.monotonic() + _PATIENCE
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in left]


def _die_with_the_demo() -> None:
    kernel.ask_for_death_signal(signal.SIGKILL)
