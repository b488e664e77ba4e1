"""A search for the best parameters, on all cores: each trial runs in a child process and can be killed.

Its database is the one that DRAY_URL names; else dray.db in the current folder.
"""

from __future__ import annotations

import os

import dray

app = dray.App(migrate=True)
GRID = [(depth, rate) for depth in (2, 3, 4) for rate in (0.1, 0.5)]


@app.task(runner="process", timeout=60, max_attempts=2, retry=0)
def trial(depth: int, rate: float) -> float:
    """Trains a model and returns its loss. One combination crashes the interpreter, as native code may."""
    if (depth, rate) == (4, 0.5):
        os._exit(1)
    return round((depth - 3) ** 2 + (rate - 0.1) ** 2, 4)


def main() -> None:
    with app:
        # Unique for a week, also once it has ended: a second run of this program gets the same jobs.
        jobs = trial.using(unique=True, unique_for=7 * 86400).enqueue_many(GRID)
        print(f"{sum(not job.duplicate for job in jobs)} of {len(jobs)} trials are new")
        app.worker(concurrency=2).run_until_idle()
        ended = {call: job.refresh() for call, job in zip(GRID, jobs, strict=True)}

        losses = {call: job.result() for call, job in ended.items() if job.state == "completed"}
        best = min(losses, key=lambda call: losses[call])
        print(f"best of {len(losses)}: depth {best[0]}, rate {best[1]}, loss {losses[best]}")
        for (depth, rate), job in ended.items():
            if job.state == "failed":
                print(f"depth {depth}, rate {rate}: {job.reason} after {job.attempt} attempts")


if __name__ == "__main__":
    main()
