"""What is measured, in which order: latency while a worker is idle, rates of enqueueing without one, then a drain."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import IO

from dray.address import SqliteAddress, parse_address
from dray.cli.bench.interrupts import Interrupts
from dray.cli.bench.tasks import app, moment, nothing
from dray.cli.exits import Failure
from dray.model.job import State
from dray.ops.bench import Figures, Rate, Spread, drain_rate, fsync_rate, rate_of
from dray.runtime.children import kernel

_BATCH = 500  # jobs in one transaction
_WARM_UP = 3
_SAMPLES = 300
_PATIENCE = 30.0  # seconds for a worker to start, to run a job, to end
_QUEUE = "default"


def measure(seconds: float, jobs: int, interrupts: Interrupts, tell: Callable[[str], None]) -> Figures:
    """All figures of the database that the tasks' app is on, in about so many seconds."""
    app.backend.migrate()
    tell("raw: the disk or the server")
    raw = _raw(seconds * 0.1)
    tell("pick-up: an idle worker")
    with _worker(interrupts):
        pick_up = _pick_up(seconds * 0.2)
    tell("enqueue: one at a time")
    enqueue = rate_of(lambda: len([nothing.enqueue()]), seconds * 0.2)
    tell("enqueue: many at a time")
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
    """One worker process, as users start it, from when it is there."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    known = {worker.id for worker in app.workers()}
    with tempfile.TemporaryFile("w+") as said, ExitStack() as stack:
        with interrupts.held():
            process = subprocess.Popen(
                [sys.executable, "-m", "dray", "worker", "dray.cli.bench.tasks:app", "--log-level", "error"],
                env={**others, "DRAY_URL": app.url},  # not typed: it may hold a password
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for the bench, which then stops its worker
                preexec_fn=_die_with_the_bench,  # noqa: PLW1509 - one prctl, and nothing that could be locked
            )
            stack.callback(_end, process)
        _await_start(process, said, known)
        yield


def _await_start(process: subprocess.Popen[bytes], said: IO[str], known: set[str]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while all(worker.id in known for worker in app.workers()):
        if process.poll() is not None or time.monotonic() > deadline:
            said.seek(0)
            raise Failure(f"the worker did not start: {said.read()[-500:]}")
        time.sleep(0.02)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _die_with_the_bench() -> None:
    kernel.ask_for_death_signal(signal.SIGKILL)
