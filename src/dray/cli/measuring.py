"""The measurements of ``dray bench``: latency with an idle worker, enqueue rates without one, then a drain."""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import IO

from dray import App
from dray.address import SqliteAddress, parse_address
from dray.cli.exits import Failure
from dray.cli.processes import Interrupts, start_worker
from dray.model.job import State
from dray.ops.bench import Figures, Rate, Spread, drain_rate, fsync_rate, rate_of

_BATCH = 500  # jobs in one transaction
_WARM_UP = 3
_SAMPLES = 300
_PATIENCE = 30.0  # seconds for a worker to start, to run a job, to end
_QUEUE = "default"

app = App()


@app.task(name="bench.nothing", max_attempts=1)
def nothing() -> None:
    """Do nothing."""


@app.task(name="bench.moment", max_attempts=1)
def moment() -> int:
    """Return when it was started, in nanoseconds of a clock that all processes of a machine share."""
    return time.monotonic_ns()


def measure(seconds: float, jobs: int, interrupts: Interrupts, tell: Callable[[str], None]) -> Figures:
    """Returns all figures of the database that `app` is on, after about that many seconds."""
    app.backend.migrate()
    tell("raw: the disk or the server")
    raw = _raw(seconds * 0.1)
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
    return Figures(raw=raw, enqueue=enqueue, enqueue_many=enqueue_many, drain=drain, pick_up=pick_up)


def _raw(seconds: float) -> dict[str, Rate]:
    address = parse_address(app.url)
    if isinstance(address, SqliteAddress):
        return {"fsync": fsync_rate(address.path.parent, seconds)}
    backend = app.backend
    return {
        "round_trip": rate_of(lambda: bool(backend.now()), seconds / 2),
        "commit": rate_of(_commit, seconds / 2),
    }


def _commit() -> int:
    app.backend.queues.upsert("raw", 0)  # one row in one durable transaction
    return 1


def _pick_up(seconds: float) -> Spread:
    rng = random.Random(1)  # noqa: S311 - pauses
    samples: list[float] = []
    deadline = time.monotonic() + seconds
    while len(samples) < _WARM_UP + _SAMPLES and (time.monotonic() < deadline or len(samples) <= _WARM_UP):
        time.sleep(rng.uniform(0.005, 0.03))
        job = moment.enqueue()
        committed = time.monotonic_ns()
        started = job.result(timeout=_PATIENCE)
        samples.append(max(0, started - committed) / 1e9)
    return Spread.of(samples[_WARM_UP:])


def _done() -> int:
    counts = app.backend.history.stats(1_000_000).counts
    return sum(jobs.get(State.COMPLETED, 0) for jobs in counts.values())


@contextmanager
def _worker(interrupts: Interrupts) -> Generator[None]:
    """Runs one worker process during the block, which begins when the worker is ready."""
    known = {worker.id for worker in app.workers()}
    with tempfile.TemporaryFile("w+") as log, ExitStack() as stack:
        with interrupts.held():
            process = start_worker("dray.cli.measuring:app", app.url, ["--log-level", "error"], log)
            stack.callback(_end, process)
        _await_start(process, log, known)
        yield


def _await_start(process: subprocess.Popen[bytes], log: IO[str], known: set[str]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while all(worker.id in known for worker in app.workers()):
        if process.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            raise Failure(f"the worker did not start: {log.read()[-500:]}")
        time.sleep(0.02)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
