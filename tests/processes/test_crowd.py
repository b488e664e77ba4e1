"""Many processes on one SQLite file, each of which enqueues and works: nobody is told that it is locked."""

from __future__ import annotations

import os
import time
from collections import Counter

from tests.processes.harness import Fleet

CROWD = 32
SECONDS = float(os.environ.get("DRAY_SOAK_SECONDS", "1.5"))


def test_thirty_two_processes_enqueue_and_work_on_one_file(sqlite_yard: Fleet) -> None:
    fleet = sqlite_yard
    go = fleet.folder / "go"
    crowd = [fleet.fork(["-m", "tests.processes.crowd", str(go)]) for _ in range(CROWD)]
    fleet.until(lambda: len(fleet.ledger.entries("ready")) == CROWD, "all of them to be up", seconds=90)
    go.with_suffix(".new").write_text(str(time.monotonic() + SECONDS))
    go.with_suffix(".new").rename(go)

    codes = [process.wait(SECONDS + 90) for process in crowd]

    assert codes == [0] * CROWD, next(process.said for process in crowd if process.wait())
    made = {entry.label: entry.more for entry in fleet.ledger.entries("made")}
    assert len(made) == CROWD
    assert sum(made.values()) > CROWD
    labels = [f"{pid}-{number}" for pid, count in made.items() for number in range(count)]
    assert fleet.states() == {"completed": len(labels)}
    assert Counter(entry.label for entry in fleet.ledger.ends()) == Counter(labels)
    assert [process.remarks for process in crowd if process.remarks] == []
    print(
        f"{len(labels)} jobs; the slowest enqueue took {max(e.more for e in fleet.ledger.entries('slowest')):.3f} s"
    )
    fleet.audit()
