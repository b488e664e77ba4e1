"""The lock file: when it proves death, and when it proves nothing; with real processes, files and users."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dray.backends import Backend, open_backend
from dray.backends.sqlite import trust
from dray.backends.sqlite.database import SqliteDatabase
from dray.clock import UNKNOWN_BOOT, Ids, SystemClock
from dray.errors import StorageUnavailable
from dray.instants import SECOND
from dray.maintenance import Rescuer
from dray.model.worker import Judgement, NewWorker
from tests.backends.lives import judge_as_nobody, live, until
from tests.backends.processes import Process, ask, error_of
from tests.manual_clock import ManualClock

LONG = 3_600_000_000
NOBODY_IS_DEAD = Judgement([], [], [], None, has_orphans=False, clock_at=0)
ids = Ids(SystemClock())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def backend(url: str) -> Generator[Backend]:
    with closing(open_backend(url)) as opened:
        opened.migrate()
        yield opened


def folder_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-workers")


def lock_files(path: Path) -> list[str]:
    folder = folder_of(path)
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def judged(backend: Backend) -> Judgement:
    """Returns the verdicts, at any time."""
    return backend.workers.judge()._replace(clock_at=0)


def dead(backend: Backend) -> list[str]:
    judgement = backend.workers.judge()
    assert judgement == judgement._replace(overdue=[], strangers=[])
    return [verdict.worker_id for verdict in judgement.dead]


def add_worker(backend: Backend, lock: str | None, *, boot: str | None = None, lease_us: int = LONG) -> str:
    """Writes the row of a worker, with any proof."""
    worker = NewWorker(id=ids.new(), name="w", host="h", pid=1, boot=boot or SystemClock().boot, lock=lock)
    backend.workers.register(worker, lease_us)
    return worker.id


def add_lock_file(path: Path, worker_id: str) -> str:
    """Creates an unlocked lock file; returns its description for a row."""
    folder_of(path).mkdir(exist_ok=True)
    file = folder_of(path) / f"{worker_id}.lock"
    file.touch()
    return f"{file.stat().st_dev}:{file.stat().st_ino}"


# Death


def test_a_killed_worker_is_dead_within_moments_whatever_its_lease_says(backend: Backend, url: str) -> None:
    with Process(live, url, LONG) as worker:
        told = worker.hear()
        lives_on = (backend.proofs.suspects(), dead(backend))
        worker.kill()
        began = time.monotonic()

        until(lambda: backend.proofs.suspects() is True)

        print(f"free {(time.monotonic() - began) * 1e3:.1f} ms after the kill")
        assert lives_on == (False, [])
        assert dead(backend) == [told["id"]]


def test_a_stopped_worker_is_no_suspect(backend: Backend, url: str) -> None:
    with Process(live, url, 0) as worker:
        worker.hear()
        os.kill(worker.pid, signal.SIGSTOP)

        assert backend.proofs.suspects() is False
        assert judged(backend) == NOBODY_IS_DEAD


def test_looking_without_a_worker_finds_nothing_and_makes_nothing(backend: Backend, path: Path) -> None:
    assert backend.proofs.suspects() is False
    assert not folder_of(path).exists()


def test_many_may_look_at_once(backend: Backend, url: str) -> None:
    with Process(live, url, LONG) as worker:
        told = worker.hear()
        worker.kill()
        until(lambda: backend.proofs.suspects() is True)
        others = [open_backend(url) for _ in range(4)]
        ready = threading.Barrier(4, timeout=30)
        found: list[list[str]] = []

        def look(other: Backend) -> None:
            ready.wait()
            found.extend(dead(other) for _ in range(50))

        threads = [threading.Thread(target=look, args=(other,)) for other in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for other in others:
            other.close()

        assert found == [[told["id"]]] * 200


def test_a_worker_that_leaves_takes_its_file_and_the_last_one_the_folder(backend: Backend, path: Path) -> None:
    with closing(backend.watch()) as watch:
        first, second = (backend.proofs.prove(ids.new(), watch) for _ in range(2))
        both = lock_files(path)

        first.close()
        one = lock_files(path)
        second.close()
        second.close()

        assert (len(both), len(one)) == (2, 1)
        assert (first.is_held, first.check(), first.fileno()) == (False, False, None)
        assert not folder_of(path).exists()


def test_the_file_of_a_buried_worker_is_removed(backend: Backend, url: str, path: Path) -> None:
    with Process(live, url, LONG) as killed, Process(live, url, LONG) as living:
        killed.hear()
        told = living.hear()
        killed.kill()
        until(lambda: len(dead(backend)) == 1)

        backend.workers.rescue(backend.workers.judge().dead, rng=random.Random(7))

        assert lock_files(path) == [f"{told['id']}.lock"]
        assert backend.proofs.suspects() is False


def test_files_of_workers_that_never_registered_are_removed_after_a_minute(backend: Backend, path: Path) -> None:
    fresh, old, locked = ids.new(), ids.new(), ids.new()
    for worker_id in (fresh, old):
        add_lock_file(path, worker_id)
    with closing(backend.watch()) as watch, closing(backend.proofs.prove(locked, watch)):
        long_ago = time.time() - 61
        for worker_id in (old, locked):
            os.utime(folder_of(path) / f"{worker_id}.lock", (long_ago, long_ago))

        backend.workers.judge()

        assert lock_files(path) == sorted([f"{fresh}.lock", f"{locked}.lock"])


def test_other_files_in_the_folder_are_left_alone(backend: Backend, path: Path) -> None:
    folder_of(path).mkdir()
    note = folder_of(path) / "note.txt"
    note.write_text("mine")
    os.utime(note, (0, 0))

    backend.workers.judge()

    assert backend.proofs.suspects() is False
    assert note.read_text() == "mine"


# Children


def test_a_forked_child_does_not_keep_the_proof(backend: Backend, url: str) -> None:
    with Process(live, url, LONG) as worker:
        told = worker.hear()
        worker.say("fork")
        child = worker.hear()
        worker.kill()

        until(lambda: dead(backend) == [told["id"]])

        os.kill(child, 0)  # it exists


@pytest.mark.parametrize("order", ["fork_with_the_proof", "spawn_with_the_proof"])
def test_a_child_that_was_given_the_descriptor_keeps_the_proof_until_it_ends(
    backend: Backend, url: str, order: str
) -> None:
    with Process(live, url, 0) as worker:
        told = worker.hear()
        worker.say(order)
        child = worker.hear()
        worker.kill()
        while_it_lives = [backend.proofs.suspects(), dead(backend)]

        os.kill(child, signal.SIGKILL)

        until(lambda: dead(backend) == [told["id"]])
        assert while_it_lives == [False, []]


def test_a_program_started_by_the_worker_does_not_keep_the_proof(backend: Backend, url: str) -> None:
    with Process(live, url, LONG) as worker:
        told = worker.hear()
        worker.say("spawn")
        worker.hear()
        worker.kill()

        until(lambda: dead(backend) == [told["id"]])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # from 3.12 on; this is what is tested
def test_no_child_keeps_a_proof_that_was_being_made_or_looked_at_while_it_was_forked(
    backend: Backend, path: Path
) -> None:
    stop = threading.Event()
    made: list[bool] = []

    def prove() -> None:
        with closing(backend.watch()) as watch:
            while not stop.is_set():
                proof = backend.proofs.prove(ids.new(), watch)
                made.append(proof.check())
                backend.proofs.suspects()
                proof.close()

    thread = threading.Thread(target=prove)
    thread.start()
    children: list[int] = []
    try:
        for _ in range(40):
            pid = os.fork()
            if not pid:
                _write_open_lock_files(path.with_name("inherited"))
                os._exit(0)
            children.append(pid)
    finally:
        stop.set()
        thread.join()
        codes = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children}
    assert codes == {0}
    assert path.with_name("inherited").read_text() == ""
    assert made
    assert all(made)


def _write_open_lock_files(to: Path) -> None:
    with to.open("a") as file, os.scandir("/proc/self/fd") as descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                target = os.readlink(descriptor.path)  # noqa: PTH115 - may no longer be a path
                if "-workers/" in target:
                    file.write(f"{target}\n")


# What proves nothing


def test_a_replaced_file_proves_nothing_and_its_owner_notices(backend: Backend, url: str, path: Path) -> None:
    with Process(live, url, LONG) as worker:
        told = worker.hear()
        file = folder_of(path) / f"{told['id']}.lock"
        spare = file.with_suffix(".new")
        spare.touch()
        spare.rename(file)

        worker.say("check")

        assert worker.hear() == [False, True]
        assert judged(backend) == NOBODY_IS_DEAD


def test_a_removed_folder_proves_nothing_and_its_owner_notices(backend: Backend, url: str, path: Path) -> None:
    with Process(live, url, LONG) as worker:
        worker.hear()
        shutil.rmtree(folder_of(path))

        worker.say("check")

        assert worker.hear() == [False, True]
        assert (backend.proofs.suspects(), judged(backend)) == (False, NOBODY_IS_DEAD)


def test_without_a_file_the_lease_decides(backend: Backend) -> None:
    gone = add_worker(backend, "1:2", lease_us=-1)
    unproven = add_worker(backend, None, lease_us=-1)
    add_worker(backend, "1:2")

    judgement = backend.workers.judge()

    assert [verdict.worker_id for verdict in judgement.overdue] == [gone, unproven]
    assert (judgement.dead, judgement.strangers) == ([], [])


def test_another_file_than_the_rows_proves_nothing(backend: Backend, path: Path) -> None:
    worker_id = add_worker(backend, "1:2")
    add_lock_file(path, worker_id)

    assert (backend.proofs.suspects(), judged(backend)) == (True, NOBODY_IS_DEAD)


def test_a_file_that_may_not_be_read_proves_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:  # not below pytest's folder, which only its owner can read
        Path(folder).chmod(0o777)
        assert ask(judge_as_nobody, f"{folder}/jobs.db") == [False, [], []]


# Boots


def test_a_worker_of_another_boot_is_gone_with_it_where_the_file_is_on_a_disk(backend: Backend) -> None:
    gone = add_worker(backend, "1:2", boot="another-boot:7")

    assert dead(backend) == [gone]


def test_of_a_worker_of_another_boot_on_a_shared_file_system_nothing_is_known(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def network(_: Path) -> str:
        return "nfs4"

    monkeypatch.setattr(trust, "kind_of", network)
    stranger = add_worker(backend, "1:2", boot="another-boot:7")

    judgement = backend.workers.judge()

    assert ([v.worker_id for v in judgement.strangers], judgement.dead, judgement.overdue) == ([stranger], [], [])


def test_a_worker_in_another_time_namespace_proves_its_life_and_death_but_its_lease_says_nothing(
    backend: Backend, url: str, path: Path
) -> None:
    kernel = SystemClock().boot.partition(":")[0]
    with closing(backend.watch()) as watch:
        living, gone, unproven = ids.new(), ids.new(), ids.new()
        with closing(backend.proofs.prove(living, watch)) as proof:
            locks = {living: proof.lock, gone: add_lock_file(path, gone), unproven: "1:2"}
            for worker_id, lock in locks.items():
                worker = NewWorker(id=worker_id, name="w", host="h", pid=1, boot=f"{kernel}:0", lock=lock)
                backend.workers.register(worker, -1)

            judgement = backend.workers.judge()

    assert [v.worker_id for v in judgement.dead] == [gone]
    assert [v.worker_id for v in judgement.strangers] == [unproven]
    assert judgement.overdue == []


# A boot that the system does not identify


def unnamed(path: Path) -> tuple[ManualClock, Backend]:
    clock = ManualClock(boot=UNKNOWN_BOOT)
    backend = open_backend(f"sqlite:///{path}", clock=clock)
    backend.migrate()
    return clock, backend


def test_where_no_boot_is_named_the_lock_still_proves_life_and_death(path: Path) -> None:
    _, backend = unnamed(path)
    with (
        closing(backend),
        closing(backend.watch()) as watch,
        closing(backend.proofs.prove(ids.new(), watch)) as proof,
    ):
        living, gone, unseen = proof.path.stem, ids.new(), ids.new()  # type: ignore[attr-defined]
        locks = {living: proof.lock, gone: add_lock_file(path, gone), unseen: "1:2"}
        for worker_id, lock in locks.items():
            worker = NewWorker(id=worker_id, name="w", host="h", pid=1, boot=UNKNOWN_BOOT, lock=lock)
            backend.workers.register(worker, LONG)

        judgement = backend.workers.judge()

    assert [v.worker_id for v in judgement.dead] == [gone]
    assert [v.worker_id for v in judgement.strangers] == [unseen]
    assert judgement.overdue == []


def test_where_no_boot_is_named_a_lease_of_before_the_last_start_keeps_no_job_for_ever(path: Path) -> None:
    """Its lock file is gone, and its lease is from the clock of a machine that had been up for a year."""
    clock, backend = unnamed(path)
    with closing(backend):
        add_worker(backend, "1:2", boot=UNKNOWN_BOOT, lease_us=365 * 24 * LONG)
        rescuer = Rescuer(backend, None, clock, random.Random(7), 15 * SECOND, lambda: None)
        for _ in range(20):
            rescuer.tick()
            clock.advance(SECOND)

        assert [worker.state for worker in backend.workers.all()] == ["dead"]


@pytest.mark.parametrize(("theirs", "ours"), [(UNKNOWN_BOOT, None), ("another:7", UNKNOWN_BOOT)])
def test_who_cannot_name_the_boot_is_not_taken_for_one_of_another_boot(
    path: Path, theirs: str, ours: str | None
) -> None:
    """Another container may not be allowed to read the boot id."""
    clock = SystemClock() if ours is None else ManualClock(boot=ours)
    with closing(open_backend(f"sqlite:///{path}", clock=clock)) as backend:
        backend.migrate()
        unseen = add_worker(backend, "1:2", boot=theirs)

        judgement = backend.workers.judge()

    assert ([v.worker_id for v in judgement.strangers], judgement.dead) == ([unseen], [])


def test_on_a_shared_file_system_a_free_lock_of_a_boot_without_a_name_proves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def network(_: Path) -> str:
        return "nfs4"

    _, backend = unnamed(path)
    monkeypatch.setattr(trust, "kind_of", network)
    with closing(backend):
        gone = ids.new()
        worker = NewWorker(id=gone, name="w", host="h", pid=1, boot=UNKNOWN_BOOT, lock=add_lock_file(path, gone))
        backend.workers.register(worker, LONG)

        judgement = backend.workers.judge()

    assert ([v.worker_id for v in judgement.strangers], judgement.dead) == ([gone], [])


# Files and permissions


@pytest.mark.parametrize(("mode", "folder_mode"), [(0o600, 0o700), (0o660, 0o770), (0o644, 0o755), (0o640, 0o750)])
def test_the_folder_and_its_files_have_the_databases_rights_whatever_the_umask(
    url: str, path: Path, mode: int, folder_mode: int
) -> None:
    with closing(open_backend(url, file_mode=mode)) as backend:
        backend.migrate()
        umask = os.umask(0o077)
        try:
            with closing(backend.watch()) as watch, closing(backend.proofs.prove(ids.new(), watch)):
                (file,) = folder_of(path).iterdir()
                modes = [stat.S_IMODE(found.stat().st_mode) for found in (folder_of(path), file)]
        finally:
            os.umask(umask)
    assert modes == [folder_mode, mode]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_folder_and_its_files_are_of_the_databases_group(backend: Backend, path: Path) -> None:
    os.chown(path, -1, 65534)

    with closing(backend.watch()) as watch, closing(backend.proofs.prove(ids.new(), watch)):
        (file,) = folder_of(path).iterdir()
        groups = [found.stat().st_gid for found in (folder_of(path), file)]

    assert groups == [65534, 65534]


def test_the_folder_is_beside_the_file_that_a_link_leads_to(backend: Backend, path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link.db").symlink_to(path)
    with (
        closing(open_backend(f"sqlite:///{elsewhere / 'link.db'}")) as other,
        closing(other.watch()) as watch,
        closing(other.proofs.prove(ids.new(), watch)),
    ):
        assert len(lock_files(path)) == 1
        assert [file.name for file in elsewhere.iterdir()] == ["link.db"]


def test_where_the_folder_cannot_be_made_the_error_says_so(backend: Backend, path: Path) -> None:
    folder_of(path).write_text("in the way")
    with closing(backend.watch()) as watch:
        kind, text = error_of(lambda: backend.proofs.prove(ids.new(), watch))

    assert kind == StorageUnavailable.__name__
    assert str(folder_of(path)) in text


def test_lock_files_are_looked_at_with_a_manual_clock_too(url: str, path: Path) -> None:
    clock = ManualClock()
    with closing(open_backend(url, clock=clock)) as backend, closing(backend.watch()) as watch:
        assert isinstance(backend.db, SqliteDatabase)
        worker_id = ids.new()
        with closing(backend.proofs.prove(worker_id, watch)) as proof:
            worker = NewWorker(id=worker_id, name="w", host="h", pid=1, boot=clock.boot, lock=proof.lock)
            backend.workers.register(worker, 1)
            clock.advance(LONG)
            assert judged(backend) == NOBODY_IS_DEAD
