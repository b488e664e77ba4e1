"""One of many processes that enqueue and work on the same database: ``python -m tests.processes.crowd GO``.

They begin when the file GO is there. It has a reading of CLOCK_MONOTONIC in it: all stop enqueueing at the same
moment, and end when nothing is left to do.
Whatever a call of Dray's raises ends the process with a traceback.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

from tests.processes import ledger
from tests.processes.apps import app, crowded


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(threadName)s %(message)s")
    go, made, slowest = Path(sys.argv[1]), 0, 0.0
    with app.worker(concurrency=2, grace=60):
        ledger.write("ready", str(os.getpid()))
        while not go.exists():
            time.sleep(0.05)
        until = float(go.read_text())
        while time.monotonic() < until:
            began = time.monotonic()
            crowded.enqueue(f"{os.getpid()}-{made}")
            made, slowest = made + 1, max(slowest, time.monotonic() - began)
            if made % 10 == 0:
                app.stats()
            time.sleep(0.02)
        ledger.write("made", str(os.getpid()), 0, made)
        ledger.write("slowest", str(os.getpid()), 0, slowest)
        while app.jobs(state=["pending", "running"], limit=1):
            time.sleep(0.2)
    app.close()


if __name__ == "__main__":
    main()
