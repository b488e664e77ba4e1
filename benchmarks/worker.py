"""`make bench`, last part: throughput, latency and idle cost of a worker, next to raw loops and bare Python.

The exit code does not depend on the results. See docs/explanation/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from typing import Protocol

from benchmarks import depth, drain, enqueues, idle, imports, pickup
from benchmarks.arena import Arena, arenas
from benchmarks.figures import Figures
from benchmarks.processes import run_until_stopped


class Measure(Protocol):
    """One section."""

    def __call__(self, arenas: list[Arena], figures: Figures, /, *, quick: bool) -> None: ...


SECTIONS: dict[str, Measure] = {
    "enqueue": enqueues.measure,
    "drain": drain.measure,
    "workers": drain.measure_crowd,
    "producer": drain.measure_producer,
    "pickup": pickup.measure,
    "idle": idle.measure,
    "crowd": idle.measure_crowd,
    "depth": depth.measure,
    "imports": imports.measure,
}
_WITHOUT_DATABASE = {"imports"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.worker")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it runs, not to compare")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="a section; may be given again")
    parser.add_argument("--on", choices=["sqlite", "postgres", "both"], default="both", help="databases")
    given = parser.parse_args()
    chosen: list[str] = given.only or list(SECTIONS)
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}, {machine}")
    figures = Figures()
    try:
        if set(chosen) <= _WITHOUT_DATABASE:
            run(chosen, [], figures, quick=given.quick)
        else:
            with arenas(given.on) as found:
                run(chosen, found, figures, quick=given.quick)
    finally:
        figures.summary()


def run(sections: list[str], found: list[Arena], figures: Figures, *, quick: bool) -> None:
    for section in sections:
        SECTIONS[section](found, figures, quick=quick)


if __name__ == "__main__":
    run_until_stopped(main)
