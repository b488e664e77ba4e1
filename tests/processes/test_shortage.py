"""A worker whose user may start no more threads and processes: it hands back what it cannot run, and says so.

The limit is the kernel's own (RLIMIT_NPROC). Root is exempt from it, so a worker that root starts is another user,
who may still read and write all files.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.processes.harness import APPS, Fleet, Process
from tests.processes.places import Together, on_both

NOBODY = 65534
LEASE = 3.0


def another_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    caps = "+dac_override,+dac_read_search"
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return ["setpriv", *user, f"--inh-caps={caps}", f"--ambient-caps={caps}"]


def probe(worker: Process, path: str) -> tuple[int, str]:
    """The status, and the reason if it gave one."""
    port = re.search(r"http://127\.0\.0\.1:(\d+)/health", worker.said)
    assert port is not None
    try:
        with urlopen(f"http://127.0.0.1:{port[1]}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read()).get("reason") or ""
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read()).get("reason") or ""


def limit(worker: Process) -> str:
    """How many processes and threads its user may have, as far as it goes by that."""
    limits = Path(f"/proc/{worker.pid}/limits").read_text()
    return next(line.split()[2] for line in limits.splitlines() if line.startswith("Max processes"))


def test_what_cannot_be_started_goes_back_and_runs_when_the_limit_is_lifted(together: Together) -> None:
    together.wait(starved)


@on_both
def starved(fleet: Fleet) -> None:
    words = ["-c", "4", "--lease", str(LEASE), "--health-port", "0"]
    worker = fleet.run(["-m", "dray", "worker", f"{APPS}_limited:app", *words], under=another_user())
    fleet.until(lambda: fleet.worker_of(worker), "the worker to register")
    go = fleet.folder / "go"
    long = fleet.enqueue("until_there", label="long", path=str(go))
    fleet.until(lambda: fleet.ledger.starts("long"), "the first thread")
    assert (probe(worker, "/health"), probe(worker, "/ready")) == ((200, ""), (200, ""))

    worker.send(signal.SIGUSR1)
    fleet.until(lambda: limit(worker) == "1", "the limit")
    tasks = ("until_there", "until_there_async", "until_there_in_process")
    jobs = [fleet.enqueue(task, label=task, path=str(go)) for task in tasks for _ in range(2)]
    fleet.until(lambda: probe(worker, "/ready")[0] == 503, "it to say that it is not ready")
    assert "cannot start" in probe(worker, "/ready")[1]
    fleet.until(lambda: probe(worker, "/health")[0] == 503, "it to say so twice", seconds=LEASE)
    fleet.until(lambda: fleet.states() == {"running": 1, "queued": 6}, "what cannot run to go back")
    assert [(job.refresh().attempt, fleet.outcomes(job)) for job in jobs] == [(0, [])] * 6

    worker.send(signal.SIGUSR2)
    fleet.until(lambda: probe(worker, "/ready") == (200, ""), "it to be ready again")
    assert probe(worker, "/health") == (200, "")
    (fleet.folder / "go.1").touch()
    fleet.ended([long, *jobs])
    assert fleet.states() == {"completed": 7}
    assert [job.refresh().attempt for job in (long, *jobs)] == [1] * 7
    assert len(fleet.ledger.starts()) == 7
    assert worker.end() == 0
    assert worker.lines("Traceback") == [], worker.said
    assert worker.said.count("can't start new thread") <= 3, worker.said
    fleet.audit()


TOGETHER = (starved,)
