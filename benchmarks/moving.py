"""`make bench`: how long `dray db move` takes for a million jobs from SQLite to PostgreSQL, and how long the source
is closed."""

from __future__ import annotations

import argparse
import json
import random
import resource
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.figures import Figures
from benchmarks.places import postgres_place, sqlite_place
from dray.backends import open_backend
from dray.clock import Ids, SystemClock
from dray.ops import move, move_plan

CLOCK = SystemClock()
IDS = Ids(CLOCK)
BATCH = 10_000  # jobs

Row = dict[str, Any]


def rows(jobs: int) -> Iterator[tuple[str, Row]]:
    """Yields (table, row). Of ten jobs about six have completed, with a result and a log line or two, every third of
    them after a failed attempt; three have not run; one is a step of a workflow of five."""
    rng, now, worker = random.Random(7), CLOCK.now(), IDS.new()
    made = 0
    while made < jobs:
        chance = rng.random() * 0.92  # a workflow counts five times
        if chance < 0.6:
            done = _job(rng, now, "completed", worker_id=worker)
            yield "jobs", done
            if rng.random() < 0.3:
                trace = "Traceback (most recent call last):\n" + '  File "shop.py", line 3, in send\n' * 6
                error = {"error_type": "ValueError", "error_message": "not yet", "traceback": trace}
                yield "attempts", {"job_id": done["id"], "claim": 1, "attempt": 1, "outcome": "error", **error}
            for _ in range(rng.choice((1, 1, 2))):
                line = {"level": "INFO", "logger": "shop.mail", "message": "sent a message to somebody who waited"}
                yield "logs", {"job_id": done["id"], "claim": 2, "at": now, **line}
            made += 1
        elif chance < 0.9:
            yield "jobs", _job(rng, now, rng.choice(("queued", "scheduled")))
            made += 1
        else:
            yield from _workflow(rng, now, worker)
            made += 5


def _workflow(rng: random.Random, now: int, worker: str) -> Iterator[tuple[str, Row]]:
    workflow = IDS.new()
    yield "workflows", {"id": workflow, "name": "etl", "created_at": now}
    first = _job(rng, now, "completed", worker_id=worker, workflow_id=workflow, step="extract")
    middle = [_job(rng, now, "queued", workflow_id=workflow, step=f"clean-{n}") for n in range(3)]
    last = _job(rng, now, "waiting", workflow_id=workflow, step="load", waiting_on=3)
    yield from (("jobs", job) for job in (first, *middle, last))
    for each in middle:
        yield "edges", {"parent_id": first["id"], "child_id": each["id"], "satisfied": 1}
        yield "edges", {"parent_id": each["id"], "child_id": last["id"], "satisfied": 0}


def _job(rng: random.Random, now: int, state: str, **given: Any) -> Row:
    ended = {"attempt": 2, "claim": 2, "started_at": now, "finished_at": now + rng.randrange(10**9)}
    result = json.dumps({"ok": True, "rows": rng.randrange(1_000), "text": "y" * 80})
    args = json.dumps({"to": f"user{rng.randrange(10**6)}@example.com", "text": "x" * 60})
    times = {"run_at": now + rng.randrange(10**9), "created_at": now, "updated_at": now}
    limits = {"max_attempts": 3, "max_crashes": 3, "priority": rng.choice((0, 5))}
    job = {"id": IDS.new(), "task": "mail.send", "queue": "mail", "state": state, "args": args, **times, **limits}
    return job | given | ({**ended, "result": result} if state == "completed" else {})


def fill(path: Path, jobs: int) -> None:
    """Fills a database by plain SQL as if it had been in use: a worker would take an hour."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        source = rows(jobs)
        while batch := list(islice(source, BATCH)):
            connection.execute("BEGIN")
            for table, row in batch:
                names = ", ".join(row)
                values = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO dray_{table} ({names}) VALUES ({values})", tuple(row.values()))
            connection.execute("COMMIT")


def measure(figures: Figures, source_url: str, target_url: str, jobs: int) -> None:
    source, target = open_backend(source_url), open_backend(target_url, create=False)
    source.migrate()
    fill(Path(source_url.removeprefix("sqlite:///")), jobs)
    closed: list[float] = []

    def tell(step: move.Progress) -> None:
        if step.is_left and not closed:
            closed.append(time.perf_counter())

    plan = move_plan.plan(move.Side(source, source_url), move.Side(target, target_url))
    moved = move.carry(plan, tell=tell)
    for table, rows in moved.rows.items():
        figures.say(table, f"{rows:>12,} rows  {moved.checksums[table]}")
    figures.say("the source was closed for", f"{time.perf_counter() - closed[0]:.1f} s")
    figures.say("peak memory", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    figures.at_most(f"db move, {jobs:,} jobs", moved.seconds, 180.0, " s")
    source.close()
    target.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10,000 jobs")
    jobs = 10_000 if parser.parse_args().quick else 1_000_000
    figures = Figures()
    figures.heading(f"dray db move: {jobs:,} jobs with their history from SQLite into PostgreSQL")
    with sqlite_place() as source, postgres_place() as target:
        measure(figures, source, target, jobs)
    figures.summary()


if __name__ == "__main__":
    main()
