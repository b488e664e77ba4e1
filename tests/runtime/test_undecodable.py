"""A row written by hand with text that is not UTF-8. PostgreSQL refuses such text."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from dray.app import App
from dray.errors import StorageError

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
        app.backend.db.snapshot(lambda tx: tx.rows("job_get", ids=[job.id]))


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
