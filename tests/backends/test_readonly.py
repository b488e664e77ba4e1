"""A read-only SQLite file: how it is opened, and what a reader sees of concurrent writers."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dray.backends import open_backend
from dray.backends.sqlite.files import Way, way
from tests.backends.processes import Process, enqueue
from tests.backends.readers import look_again_and_again, opened_by_python, try_to_write, wait_for_the_end
from tests.cli.restricted import is_possible, powerless


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A closed database with one job, in its own folder."""
    folder = tmp_path / "place"
    folder.mkdir()
    backend = open_backend(str(folder / "jobs.db"))
    enqueue(backend)
    backend.close()
    yield folder / "jobs.db"
    folder.chmod(0o755)


@pytest.fixture
def under() -> list[str]:
    if not is_possible(powerless()):
        pytest.skip("this machine does not let us restrict a process so")
    return powerless()


def lock(path: Path) -> None:
    for file in path.parent.iterdir():
        file.chmod(0o444)
    path.parent.chmod(0o555)


def test_what_can_be_written_is_opened_for_writing(path: Path) -> None:
    assert way(path) is Way.WRITE
    assert way(path.with_name("other.db")) is None


def test_a_reader_sees_a_writer_come_and_go(path: Path, under: list[str]) -> None:
    """The same backend is frozen while no process writes, live as soon as there is a -wal, and frozen again."""
    lock(path)
    with Process(look_again_and_again, str(path), under=under) as reader:
        reader.say(True)
        assert reader.hear() == [1, "FROZEN", ["jobs.db"]]

        path.parent.chmod(0o755)
        path.chmod(0o644)
        writer = open_backend(str(path))
        enqueue(writer)
        lock(path)
        reader.say(True)
        assert reader.hear() == [2, "READ", ["jobs.db", "jobs.db-shm", "jobs.db-wal"]]

        enqueue(writer)
        reader.say(True)
        assert reader.hear()[:2] == [3, "READ"]

        path.parent.chmod(0o755)
        writer.close()
        lock(path)
        reader.say(True)
        assert reader.hear() == [3, "FROZEN", ["jobs.db"]]
        reader.say(False)
        assert reader.ended() == 0


def test_a_reader_can_wait_for_a_job(path: Path, under: list[str]) -> None:
    writer = open_backend(str(path))
    (job,) = writer.jobs.newest()
    lock(path)
    with Process(wait_for_the_end, str(path), job.id, under=under) as reader:
        assert reader.hear() == "waiting"
        writer.jobs.cancel([job.id])
        assert reader.hear() == [job.id]
    path.parent.chmod(0o755)
    writer.close()


def test_a_log_that_was_left_behind_is_read_with_its_index(path: Path, under: list[str], tmp_path: Path) -> None:
    """As after a crash: the -wal and the -shm exist, and no process has them open."""
    copy = tmp_path / "copy"
    copy.mkdir()
    with closing(sqlite3.connect(path)) as crashed:
        crashed.execute("UPDATE dray_jobs SET id = replace(id, substr(id, 1, 8), 'ffffffff')")
        crashed.commit()
        for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm"):
            shutil.copy(path.with_name(name), copy / name)
    lock(copy / "jobs.db")

    with Process(look_again_and_again, str(copy / "jobs.db"), under=under) as reader:
        reader.say(True)
        assert reader.hear() == [1, "READ", ["jobs.db", "jobs.db-shm", "jobs.db-wal"]]
    copy.chmod(0o755)


@pytest.mark.parametrize("writable", ["nothing", "the folder", "the file"])
def test_a_write_is_refused_and_leaves_nothing(path: Path, under: list[str], writable: str) -> None:
    lock(path)
    if writable == "the folder":
        path.parent.chmod(0o755)
    if writable == "the file":
        path.chmod(0o644)

    with Process(try_to_write, str(path), under=under) as process:
        said, *files = process.answer()

    assert str(path) in said
    assert "\n" not in said
    assert files == ["jobs.db"]


@pytest.mark.parametrize("is_locked", [False, True], ids=["writable", "read-only"])
def test_the_file_is_never_opened_by_python(path: Path, under: list[str], is_locked: bool) -> None:
    """Closing its descriptor would release the locks that SQLite holds on it in the same process."""
    if is_locked:
        lock(path)

    with Process(opened_by_python, str(path), under=under) as process:
        assert process.answer() == []
