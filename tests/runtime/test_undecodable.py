"""A row written by hand with text that is not UTF-8. PostgreSQL refuses such text."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.errors import StorageError
from dray.instants import MINUTE
from dray.model.job import Demand
from dray.model.worker import NewWorker

LATIN = b'{"word":"caff\xe9"}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def app(path: Path) -> Generator[App]:
    with App(path) as opened:

        @opened.task(name="echo")
        def echo(word: str) -> str:
            return word

        yield opened


def test_whoever_copies_rows_does_not_take_escaped_bytes_for_what_is_stored(app: App, path: Path) -> None:
    job = app.enqueue("echo", {"word": "x"})
    put_latin(path, job.id)
    assert [each.id for each in app.jobs()] == [job.id]  # lists can show it

    with pytest.raises(StorageError, match="UTF-8"):
        core_of(app).backend.db.snapshot(lambda tx: tx.rows("job_get", ids=[job.id]))


def put_latin(path: Path, job_id: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE dray_jobs SET args = CAST(? AS TEXT) WHERE id = ?", (LATIN, job_id))


def test_it_fails_by_itself_and_keeps_no_other_job_from_running_or_being_listed(
    app: App, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = [app.enqueue("echo", {"word": str(n)}) for n in range(3)]
    bad = app.enqueue("echo", {"word": "x"}, priority=9)
    put_latin(path, bad.id)

    assert {job.id for job in app.jobs()} == {job.id for job in (*good, bad)}
    assert app.worker(concurrency=2).run_until_idle() >= 3

    assert [job.result(timeout=0) for job in good] == ["0", "1", "2"]
    assert (bad.refresh().state, bad.reason) == ("failed", "arguments")
    assert not [record for record in caplog.records if "cannot use the database" in record.message]


def test_a_row_with_an_endless_timeout_fails_by_itself(app: App, path: Path) -> None:
    good = [app.enqueue("echo", {"word": str(n)}) for n in range(3)]
    bad = app.enqueue("echo", {"word": "x"}, priority=9)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE dray_jobs SET timeout = 9e999 WHERE id = ?", (bad.id,))

    app.worker(concurrency=2).run_until_idle()

    assert [job.result(timeout=0) for job in good] == ["0", "1", "2"]
    assert bad.refresh().state != "completed"


def test_arguments_of_any_size_and_odd_timeouts_are_claimed_as_they_were_enqueued(app: App) -> None:
    words = ["x" * size for size in (1, 1_000, 1_012, 1_013, 100_000)]
    timeouts = [n + 0.1 + 0.2 for n in range(5)]
    jobs = [
        app.enqueue("echo", {"word": word}, timeout=timeout) for word, timeout in zip(words, timeouts, strict=True)
    ]
    worker = NewWorker(id=core_of(app).new_id(), name="by hand", host="here", pid=1, boot="boot")
    core_of(app).backend.workers.register(worker, MINUTE)

    claims = core_of(app).backend.work.exchange(worker.id, (), Demand(("default",), ("echo",), 10)).claims

    assert [claim.id for claim in claims] == [job.id for job in jobs]
    assert [json.loads(claim.args)["word"] for claim in claims] == words
    assert [claim.timeout for claim in claims] == pytest.approx(timeouts, rel=1e-12)
