"""The four measures of one queue in one round. Every process of a queue is a new one, and every database is empty.

- enqueue: jobs enqueued one by one by one process.
- bulk: the jobs of the drain, enqueued 1,000 in a call or a transaction.
- drain: one worker on these jobs, from the start of the first body to the start of the last, by the stamps that
  bodies write into shared memory. The start of the process does not count. It ends when all jobs have started or
  after a time limit; then those that have started count.
- pick-up: from the return of the enqueue call to the start of the body, in an idle worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.compare.entrants import Entrant
from benchmarks.compare.environment import ROOT
from benchmarks.compare.peers.work import stamps_of
from benchmarks.compare.report import Round
from benchmarks.compare.stores import Store
from benchmarks.figures import spread

_PATIENCE = 60.0  # seconds until the first job has to have started
_LONGEST = 600.0  # seconds that an action may take
_LOOK = 0.1  # seconds between looks at the stamps


class Failed(Exception):
    """A process of the queue failed, or no job ran; the text says why."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much to do."""

    jobs: int
    singles: int
    samples: int
    drain_limit: float  # seconds
    pickup_limit: float


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process and its output."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def last_line(self) -> str:
        self.log.seek(0)
        return _last_line(self.log.read().decode(errors="replace"))


class Place:
    """An empty database and empty stamps, for the processes of one measurement."""

    def __init__(self, command: Sequence[str], url: str, folder: Path, slots: int) -> None:
        self._command = command
        file = folder / "stamps"
        file.write_bytes(bytes(8 * slots))
        self.stamps = stamps_of(file)
        path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        self._env = {**os.environ, "COMPARE_URL": url, "COMPARE_STAMPS": str(file), "PYTHONPATH": path}
        self.run("prepare")

    def run(self, *arguments: str) -> Any:
        """Runs an action to its end and returns what it printed."""
        command = [*self._command, *arguments]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=self._env, capture_output=True, text=True, check=False, timeout=_LONGEST
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{arguments[0]}: took longer than {_LONGEST:g} s") from error
        if done.returncode:
            raise Failed(f"{arguments[0]}: {_last_line(done.stderr)}")
        return json.loads(_last_line(done.stdout))

    @contextmanager
    def worker(self) -> Generator[Worker]:
        """Runs a worker in a process group of its own, which is ended at exit."""
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [*self._command, "work"], cwd=ROOT, env=self._env, stdout=log, stderr=log, start_new_session=True
            )
            try:
                yield Worker(process, log)
            finally:
                # At once: nothing is measured any more, and some workers wait long for their threads.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _last_line(log: str) -> str:
    lines = log.strip().splitlines()
    return lines[-1] if lines else "no output"


def measure(entrant: Entrant, python: str, store: Store, size: Size) -> Round:
    command = [python, "-m", "benchmarks.compare.peers", entrant.module]

    @contextmanager
    def place_for(slots: int) -> Generator[Place]:
        with tempfile.TemporaryDirectory(prefix="dray-compare-") as folder:
            yield Place(command, store.fresh(), Path(folder), slots)

    with place_for(size.singles + 1) as place:
        enqueue = size.singles / place.run("each", str(size.singles))
    jobs = min(size.jobs, entrant.drain_at_most)
    with place_for(jobs + 1) as place:
        seconds = place.run("bulk", str(jobs))
        if seconds is None:
            place.run("each", str(jobs))
        drained, drain = _drain(place, size)
    with place_for(size.samples + 100) as place, place.worker():
        found = place.run("pickup", str(size.samples), str(entrant.pause), str(size.pickup_limit))
    pickups = spread(found["from_return"])
    return Round(
        enqueue=enqueue,
        bulk=None if seconds is None else jobs / seconds,
        drain=drain,
        drained=drained,
        p50=max(0.0, pickups.p50),  # a body can start before the call returns
        p99=max(0.0, pickups.p99),
        samples=len(found["from_return"]),
        p50_from_call=spread(found["from_call"]).p50,
    )


def _drain(place: Place, size: Size) -> tuple[int, float]:
    """Returns how many jobs ran, and the rate."""
    with place.worker() as worker:
        _wait_for_first(place, worker)
        deadline = time.monotonic() + size.drain_limit
        while not all(place.stamps) and time.monotonic() < deadline and not worker.has_ended:
            time.sleep(_LOOK)
    stamps = sorted(stamp for stamp in place.stamps if stamp)
    return len(stamps), (len(stamps) - 1) / ((stamps[-1] - stamps[0]) / 1e9)


def _wait_for_first(place: Place, worker: Worker) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not any(place.stamps):
        if worker.has_ended or time.monotonic() > deadline:
            raise Failed(f"work: no job ran: {worker.last_line()}")
        time.sleep(_LOOK)
