"""A process that enqueues one job after the other and says how long each took to start: ``produce TASK COUNT``.

A line of JSON each on standard error: milliseconds from the call to the commit, and from there to the body's start.
"""

from __future__ import annotations

import json
import sys
import time

import dray
from tests.processes.harness import APPS


def main() -> None:
    task, count = sys.argv[1:]
    with dray.App() as app:
        for number in range(int(count)):
            time.sleep(0.005 * (number % 5))
            called = time.monotonic_ns()
            job = app.enqueue(f"{APPS}.{task}")
            committed = time.monotonic_ns()
            started = job.result(timeout=30)
            said = {"call": (committed - called) / 1e6, "pickup": (started - committed) / 1e6}
            print(json.dumps(said), file=sys.stderr)


if __name__ == "__main__":
    main()
