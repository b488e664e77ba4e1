"""A SQLite file that is removed or replaced while in use: nothing is lost silently."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from dray.app import App
from dray.errors import StorageUnavailable
from tests.runtime.watching import LONG


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def app(path: Path) -> Generator[App]:
    with App(path) as opened:

        @opened.task(name="double")
        def double(n: int) -> int:
            return 2 * n

        yield opened


def remove(path: Path) -> None:
    for file in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
        file.unlink(missing_ok=True)


def test_what_would_be_lost_is_refused_and_the_next_call_finds_what_is_there(app: App, path: Path) -> None:
    app.enqueue("double", {"n": 1})
    remove(path)

    with pytest.raises(StorageUnavailable, match="removed or replaced"):
        app.enqueue("double", {"n": 2})
    job = app.enqueue("double", {"n": 3})

    assert path.exists()
    assert [each.id for each in app.jobs()] == [job.id]
    with App(path) as other:
        assert [each.id for each in other.jobs()] == [job.id]


def test_so_are_looks_at_a_file_that_is_no_longer_there(app: App, path: Path, tmp_path: Path) -> None:
    app.enqueue("double", {"n": 1})
    with App(tmp_path / "other.db") as other:
        job = other.enqueue("double", {"n": 2})
    assert len(app.jobs()) == 1
    remove(path)
    shutil.move(tmp_path / "other.db", path)

    with pytest.raises(StorageUnavailable, match="removed or replaced"):
        app.jobs()

    assert [each.id for each in app.jobs()] == [job.id]


def test_a_log_whose_file_is_gone_is_not_taken_for_a_new_ones(app: App, path: Path) -> None:
    app.enqueue("double", {"n": 1})
    path.unlink()

    with App(path) as other, pytest.raises(StorageUnavailable, match="is gone, and its jobs"):
        other.enqueue("double", {"n": 2})

    assert not path.exists()


def test_a_worker_goes_on_with_the_file_that_is_there(app: App, path: Path) -> None:
    with app.worker(lease=2) as worker:
        assert app.enqueue("double", {"n": 1}).result(timeout=LONG) == 2
        before = worker.id
        remove(path)
        with App(path) as other:
            assert other.enqueue("double", {"n": 2}).result(timeout=LONG) == 4
        assert worker.id != before
