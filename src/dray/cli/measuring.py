"""The measurements of ``dray bench``: latency with an idle worker, enqueue rates without one, then a drain.

Beside them the rawest thing that does the same on the same disk or server.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray import App
from dray.address import SqliteAddress, parse_address
from dray.app_interface import core_of
from dray.cli.exits import Failure
from dray.cli.processes import Interrupts, Workers
from dray.model.job import State

_BATCH = 500  # jobs in one transaction
_WARM_UP = 3
_SAMPLES = 300
_PATIENCE = 30.0  # seconds for a worker to start, to run a job, to end
_FIRST_JOB = 10.0  # seconds that it may take
_PAGE = 4096  # bytes that a durable write takes at least
_QUEUE = "default"

app = App()


@app.task(name="bench.nothing", max_attempts=1)
def nothing() -> None:
    """Do nothing."""


@app.task(name="bench.moment", max_attempts=1)
def moment() -> int:
    """Return when it was started, in nanoseconds of a clock that all processes of a machine share."""
    return time.monotonic_ns()


@dataclass(frozen=True, slots=True)
class Rate:
    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.count / self.seconds if self.seconds > 0 else 0.0

    def shape(self, raw: Rate | None = None) -> dict[str, float]:
        made = {"per_second": self.per_second, "count": self.count, "seconds": self.seconds}
        return made if raw is None else {**made, "to_raw": self.per_second / raw.per_second}


def measure(seconds: float, jobs: int, interrupts: Interrupts, tell: Callable[[str], None]) -> dict[str, Any]:
    """Returns all figures of the database that `app` is on, after about that many seconds."""
    tell("raw: the disk or the server")
    raw = _raw(seconds * 0.1)
    # What an enqueue waits for: the disk, or the server's reply after it has reached its disk.
    bound = raw.get("fsync") or raw["commit"]
    tell("pick-up: an idle worker")
    with _worker(interrupts):
        pick_up = _pick_up(seconds * 0.2)
    tell("enqueue: one at a time")
    enqueue = rate_of(lambda: len([nothing.enqueue()]), seconds * 0.2)
    tell("enqueue: in batches")
    calls = [()] * min(_BATCH, jobs)
    enqueue_many = rate_of(lambda: len(nothing.enqueue_many(calls)), seconds * 0.2, limit=jobs)
    tell("drain: one worker process")
    app.pause(_QUEUE)
    with _worker(interrupts):
        total = enqueue.count + enqueue_many.count
        drain = drain_rate(_done, lambda: app.resume(_QUEUE), total, seconds * 0.3)
    return {
        "raw": {name: rate.shape() for name, rate in raw.items()},
        "enqueue": enqueue.shape(bound),
        "enqueue_many": enqueue_many.shape(bound),
        "drain": drain.shape(bound),
        "pick_up": pick_up,
    }


def rate_of(step: Callable[[], int], seconds: float, limit: int | None = None) -> Rate:
    """Repeats `step` for a time, or until it was done often enough; `step` returns how much it did."""
    count, began = 0, time.perf_counter()
    while True:
        count += step()
        taken = time.perf_counter() - began
        if taken >= seconds or (limit is not None and count >= limit):
            return Rate(count, taken)


def _raw(seconds: float) -> dict[str, Rate]:
    address = parse_address(app.url)
    if isinstance(address, SqliteAddress):
        return {"fsync": _fsync_rate(address.path.parent, seconds)}
    backend = core_of(app).backend
    return {
        "round_trip": rate_of(lambda: bool(backend.now()), seconds / 2),
        "commit": rate_of(_commit, seconds / 2),
    }


def _commit() -> int:
    core_of(app).backend.queues.upsert("raw", 0)  # one row in one durable transaction
    return 1


def _fsync_rate(folder: Path, seconds: float) -> Rate:
    """A page written and forced to the disk, again and again: what no durable write can be faster than."""
    path = folder / f"dray_bench_{os.getpid()}.fsync"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    page = bytes(_PAGE)

    def step() -> int:
        os.write(descriptor, page)
        os.fsync(descriptor)
        return 1

    try:
        return rate_of(step, seconds)
    finally:
        os.close(descriptor)
        path.unlink()


def drain_rate(
    done: Callable[[], int], start: Callable[[], object], total: int, seconds: float, pause: float = 0.05
) -> Rate:
    """How fast jobs end from `start` on, until all have or the time is over; a busy machine gets the time for one."""
    before, began = done(), time.perf_counter()
    start()
    while True:
        now = done() - before
        taken = time.perf_counter() - began
        if now >= total or taken >= (seconds if now else max(seconds, _FIRST_JOB)):
            return Rate(now, taken)
        time.sleep(pause)


def _pick_up(seconds: float) -> dict[str, float]:
    rng = random.Random(1)  # noqa: S311 - pauses
    samples: list[float] = []
    deadline = time.monotonic() + seconds
    while len(samples) < _WARM_UP + _SAMPLES and (time.monotonic() < deadline or len(samples) <= _WARM_UP):
        time.sleep(rng.uniform(0.005, 0.03))
        job = moment.enqueue()
        committed = time.monotonic_ns()
        started = job.result(timeout=_PATIENCE)
        samples.append(max(0, started - committed) / 1e9)
    return spread(samples[_WARM_UP:])


def spread(samples: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(samples, n=100, method="inclusive") if len(samples) > 1 else [*samples] * 99
    return {"p50": cuts[49], "p99": cuts[98], "samples": len(samples)}


def _done() -> int:
    counts = core_of(app).backend.history.stats(1_000_000).counts
    return sum(jobs.get(State.COMPLETED, 0) for jobs in counts.values())


@contextmanager
def _worker(interrupts: Interrupts) -> Generator[None]:
    """Runs one worker process during the block, which begins when the worker is ready."""
    known, deadline = {worker.id for worker in app.workers()}, time.monotonic() + _PATIENCE
    options = ["--log-level", "error"]
    with (
        tempfile.TemporaryDirectory() as folder,
        Workers("bench", "dray.cli.measuring:app", app.url, Path(folder), options) as workers,
    ):
        with interrupts.held():
            workers.start()
        while all(worker.id in known for worker in app.workers()):
            workers.check()
            if time.monotonic() > deadline:
                raise Failure(f"the worker has not started within {_PATIENCE:g} s; run `dray doctor` to see why")
            time.sleep(0.02)
        yield
        workers.stop()
