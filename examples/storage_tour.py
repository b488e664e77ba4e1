"""A job's life in the storage layer: enqueue, claim, crash, rescue, a late result refused, completion.

Runs on a scratch SQLite file by default; name any database address to run it there. `make demo` runs this.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from dray.backends import Backend, open_backend
from dray.clock import Ids, SystemClock
from dray.instants import MILLISECOND, SECOND
from dray.model.job import Claim
from dray.model.new_job import NewJob
from dray.model.queue import Demand
from dray.model.settlement import completed
from dray.model.worker import NewWorker

clock = SystemClock()
ids = Ids(clock)
ANYTHING = Demand(queues=("default",), tasks=("fetch", "report"), limit=10)


def say(text: str) -> None:
    print(f"  {text}")


def start_worker(backend: Backend, name: str, lease_us: int) -> str:
    worker = NewWorker(id=ids.new(), name=name, host="here", pid=1, boot=clock.boot)
    backend.worker_register(worker, lease_us)
    return worker.id


def claim_soon(backend: Backend, worker: str) -> list[Claim]:
    """Claims again and again until something is due; a real worker sleeps until it is woken."""
    claims: list[Claim] = []
    while not claims:
        claims = backend.job_claim(worker, ANYTHING)
    return claims


def tour(backend: Backend) -> None:
    backend.migrate()
    fetch = NewJob(id=ids.new(), task="fetch", args='{"page": 1}')
    report = NewJob(id=ids.new(), task="report", parents=(fetch.id,))
    backend.job_enqueue([fetch, report])
    say(f"enqueued fetch, and report to run after it: {states(backend, fetch, report)}")

    doomed = start_worker(backend, "doomed", lease_us=50 * MILLISECOND)
    (lost,) = backend.job_claim(doomed, ANYTHING)
    say(f"a worker claims fetch (attempt {lost.attempt}) and dies: {states(backend, fetch, report)}")

    while not (verdicts := backend.worker_overdue()):
        pass
    backend.job_rescue(verdicts, rng=random.Random())
    say(f"its lease runs out and the job is taken back: {states(backend, fetch, report)}")

    healthy = start_worker(backend, "healthy", lease_us=15 * SECOND)
    (claim,) = claim_soon(backend, healthy)
    say(f"another worker claims it (attempt {claim.attempt}, claim {claim.claim})")

    now = clock.steady()
    late = backend.job_settle(doomed, [completed(lost, now, now, '"too late"')])
    say(f"the dead worker's late result is refused: {len(late.stale)} stale, {states(backend, fetch, report)}")

    backend.job_settle(healthy, [completed(claim, now, clock.steady(), '"page one"')])
    say(f"the right result counts, and report may run: {states(backend, fetch, report)}")

    (last,) = claim_soon(backend, healthy)
    now = clock.steady()
    backend.job_settle(healthy, [completed(last, now, now, '"sent"')])
    say(f"done: {states(backend, fetch, report)}")
    for attempt in backend.attempt_list(fetch.id):
        say(f"history of fetch: attempt {attempt.attempt} ended as {attempt.outcome} ({attempt.error_message})")
    assert states(backend, fetch, report) == "fetch completed, report completed"


def states(backend: Backend, *new: NewJob) -> str:
    return ", ".join(f"{job.task} {job.state}" for job in backend.job_get([n.id for n in new]))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{Path(folder) / 'tour.db'}"
        backend = open_backend(url)
        print(f"A tour of Dray's storage, on {backend.db.place}")
        try:
            tour(backend)
        finally:
            backend.close()


if __name__ == "__main__":
    main()
