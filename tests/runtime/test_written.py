"""A body that completes its job in a transaction and continues is not stopped: the job will not run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.app import App
from dray.errors import StorageUnavailable
from dray.handle.job import Job
from dray.runtime.worker import Worker
from tests.runtime.test_outage import fail_once
from tests.runtime.watching import LONG, come_to, ended, sql, until

pytestmark = pytest.mark.usefixtures("shared_forker")

KNOWN = ["written-thread", "written-async", "written-process"]
ALL = [*KNOWN, "written-elsewhere"]


@pytest.fixture
def app(kinds_app: App) -> App:
    return kinds_app


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "body"


def go_on(app: App, name: str, path: Path) -> Job[Any]:
    """Starts a job whose body has completed it in the database, and still runs."""
    job = app.enqueue(name, {"path": str(path)})
    until(lambda: Path(f"{path}.begun").exists())
    assert job.refresh().state == "completed"
    return job


def knows(worker: Worker) -> bool:
    """Whether it has heard what its bodies have completed: a child tells its parent after the commit."""
    return all(execution.is_written for execution in worker._in_flight.executions())


def stops(worker: Worker) -> list[str | None]:
    """Records why bodies were told to stop."""
    return [execution.stop for execution in worker._in_flight.executions() if not execution.is_over]


def runs_to_its_end(worker: Worker, job: Job[Any], path: Path) -> None:
    assert stops(worker) == [None]
    Path(f"{path}.go").touch()
    until(lambda: Path(f"{path}.ended").exists())
    until(lambda: not worker._in_flight.executions())
    assert (job.refresh().state, job.attempt) == ("completed", 1)


@pytest.mark.parametrize("name", ALL)
def test_it_goes_on_though_the_worker_has_to_find_out_what_it_still_holds(
    app: App, path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a server restart: the job is not among the running ones."""
    with app.worker(concurrency=2, lease=60) as worker:
        job = go_on(app, name, path)
        fail_once(worker, "exchange", monkeypatch)
        assert ended(app.enqueue("of-thread")) == "completed"  # after it has read again which jobs it holds

        runs_to_its_end(worker, job, path)


@pytest.mark.parametrize("name", ALL)
def test_it_goes_on_though_the_worker_was_declared_dead(app: App, path: Path, name: str) -> None:
    with app.worker(concurrency=2, lease=60) as worker:
        job = go_on(app, name, path)
        before = worker.id
        sql(app, "UPDATE dray_workers SET state = 'dead', stopped_at = started_at")
        worker._heartbeat.wake()
        until(lambda: worker.id != before)

        runs_to_its_end(worker, job, path)


@pytest.mark.parametrize("name", KNOWN)
def test_it_goes_on_though_the_worker_was_declared_dead_and_cannot_ask_the_database(
    app: App, path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise StorageUnavailable("the network is gone")

    with app.worker(concurrency=2, lease=60) as worker:
        job = go_on(app, name, path)
        until(lambda: knows(worker))
        before = worker.id
        monkeypatch.setattr(worker._engine._backend.work, "completed_by", refuse)
        sql(app, "UPDATE dray_workers SET state = 'dead', stopped_at = started_at")
        worker._heartbeat.wake()
        until(lambda: worker.id != before)

        runs_to_its_end(worker, job, path)


@pytest.mark.parametrize("name", KNOWN)
def test_it_goes_on_though_the_worker_is_cut_off(
    app: App, path: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another body, whose job another worker will run, is stopped."""

    def refuse(*_: Any, **__: Any) -> None:
        raise StorageUnavailable("the network is gone")

    with app.worker(concurrency=2, lease=1.5) as worker:
        job = go_on(app, name, path)
        until(lambda: knows(worker))
        other = app.enqueue("unwritten", {"path": str(tmp_path / "other")})
        come_to(other, "running")
        until((tmp_path / "other.begun").exists)
        with monkeypatch.context() as cut:
            cut.setattr(worker._beats.workers, "beat", refuse)
            cut.setattr(type(worker._heartbeat.lease.proof), "is_held", False)
            until(lambda: len(stops(worker)) == 1)

            runs_to_its_end(worker, job, path)
        (tmp_path / "other.go").touch()
        assert other.result(LONG) is None
        assert other.refresh().attempt == 1
