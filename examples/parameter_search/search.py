"""A search for the best parameters, on all cores: each trial runs in a child process and can be killed.

Usage: python search.py [URL]   (default: a SQLite file in the current directory)
"""

from __future__ import annotations

import os
import sys

import dray

app = dray.App(sys.argv[1] if len(sys.argv) > 1 else None, migrate=True)


@app.task(runner="process", timeout=60, max_attempts=2, retry=0)
def trial(depth: int, rate: float) -> float:
    """Trains a model and returns its loss. One combination crashes the interpreter, as native code may."""
    if (depth, rate) == (4, 0.5):
        os._exit(1)
    return round((depth - 3) ** 2 + (rate - 0.1) ** 2, 4)


def main() -> None:
    grid = [(depth, rate) for depth in (2, 3, 4) for rate in (0.1, 0.5)]
    with app:
        jobs = trial.enqueue_many(grid)
        app.worker(concurrency=2).run_until_idle()
        ended = {call: job.refresh() for call, job in zip(grid, jobs, strict=True)}

        losses = {call: job.result() for call, job in ended.items() if job.state == "completed"}
        best = min(losses, key=lambda call: losses[call])
        print(f"best of {len(losses)}: depth {best[0]}, rate {best[1]}, loss {losses[best]}")
        for (depth, rate), job in ended.items():
            if job.state == "failed":
                print(f"depth {depth}, rate {rate}: {job.reason} after {job.attempt} attempts")


if __name__ == "__main__":
    main()
