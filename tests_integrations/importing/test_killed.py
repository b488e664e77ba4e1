"""`dray import` is killed in the middle: the next one carries the rest, and everything is there once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gigq
import pytest
from gigq.db_utils import close_connections
from lilota.stores import TaskStore

import dray.testing
from dray.app_interface import core_of
from tests_integrations.importing.conftest import Import
from tests_integrations.importing.test_lilota import LOGGER, upgrade_db
from tests_integrations.importing.theirs import add

ROOT = Path(__file__).parents[2]
JOBS, BATCH = 30, 5
KILLED = f"""
import os, signal, sys
from dray.backends.store import imports
from dray.cli.run import run
from dray.integrations.importing import carrying

carrying._BATCH = {BATCH}
moment, *words = sys.argv[1:]
module, name = (imports, "_insert") if moment == "inside" else (imports.ImportStore, "write")
original, calls = getattr(module, name), []

def then_die(*args, **options):
    done = original(*args, **options)
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

setattr(module, name, then_die)
sys.exit(run(["import", *words]))
"""


def gigq_file(folder: Path) -> list[str]:
    """Ten jobs, each of which two run after; some come before those that they run after."""
    queue = gigq.JobQueue(str(folder / "gigq.db"))
    workflow = gigq.Workflow("sums")
    for n in range(JOBS // 3):
        first = gigq.Job(f"first-{n}", add, params={"a": n, "b": 1})
        for child in ("a", "b"):
            workflow.add_job(gigq.Job(f"{child}-{n}", add, params={"a": n, "b": 1}), depends_on=[first])
        workflow.add_job(first)
    workflow.submit_all(queue)
    close_connections()
    return ["gigq", str(folder / "gigq.db"), "--task-map", f"{add.__module__}.add=theirs.add"]


def lilota_file(folder: Path) -> list[str]:
    url = f"sqlite:///{folder / 'lilota.db'}"
    upgrade_db(url)
    store = TaskStore(url, LOGGER)
    for n in range(JOBS):
        store.create_task("greet", {"person": {"name": str(n)}})
    return ["lilota", url]


@pytest.mark.parametrize("moment", ["inside", "after"])  # a transaction, or its commit
@pytest.mark.parametrize("source", [gigq_file, lilota_file])
def test_a_second_import_carries_the_rest(
    source: Callable[[Path], list[str]], moment: str, tmp_path: Path, target: dray.App, dray_import: Import
) -> None:
    words = source(tmp_path)
    url = core_of(target).settings.url
    done = subprocess.run(
        [sys.executable, "-c", KILLED, moment, *words, "--url", url],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    before = {job.id for job in target.jobs(limit=1_000)}
    assert 0 < len(before) < JOBS

    said = dray_import(*words)

    assert (said.code, said.json["carried"]) == (0, JOBS - len(before))
    carried = target.jobs(limit=1_000)
    assert len(carried) == JOBS
    assert before < {job.id for job in carried}
    assert dray_import(*words).json["carried"] == 0
    ran = Counter[str]()
    for name in ("theirs.add", "greet"):
        target.task(name=name)(_counting(ran))
    assert dray.testing.drain(target) == JOBS
    assert (len(ran), set(ran.values())) == (JOBS, {1})


def _counting(ran: Counter[str]) -> Callable[..., None]:
    def body(ctx: dray.Context, **arguments: object) -> None:
        ran[ctx.job_id] += 1

    return body
