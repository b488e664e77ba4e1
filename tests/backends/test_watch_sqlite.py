"""A commit to the file, by any process in any way, ends a wait: by inotify, or by polling without it.

The fixture `unaided` disables the safety poll, and `wakes` tells a wake-up from what that poll finds in the end.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dray.backends import open_backend
from dray.backends import watch as shared
from dray.backends.sqlite import inotify
from dray.backends.sqlite import watch as module
from dray.backends.sqlite.watch import SqliteWatch
from dray.backends.watch import Bell, Watch, rest
from dray.errors import StorageError, StorageUnavailable
from tests.backends.processes import ROOT, integrity, raw_sql

UNAIDED = 6.0  # seconds; much longer than any wake-up takes on a busy machine
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")

WRITER = """
import json, sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
connection.execute("PRAGMA synchronous = " + sys.argv[2])
print("ready", flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        began = time.monotonic()
        connection.execute("INSERT INTO note VALUES (1)")
        times.append((began, time.monotonic()))
    print(json.dumps(times), flush=True)
"""

SLOW_DISK = """
#include <time.h>
static int slow(void) { struct timespec t = {0, 20 * 1000 * 1000}; nanosleep(&t, 0); return 0; }
int fsync(int fd) { return slow(); }
int fdatasync(int fd) { return slow(); }
"""


class Writer:
    """Another process with plain sqlite3 that commits when told to."""

    def __init__(self, path: Path, synchronous: str, environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), synchronous],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )
        assert self._hear() == "ready"

    def commit(self, times: int = 1) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{times}\n")
        self._process.stdin.flush()

    def times(self) -> list[tuple[float, float]]:
        """Returns when each commit began and ended."""
        return json.loads(self._hear())

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate()


def make(path: Path) -> Path:
    """Creates a database with Dray's tables and one other table."""
    backend = open_backend(f"sqlite:///{path}")
    backend.migrate()
    backend.close()
    raw_sql(str(path), "CREATE TABLE note (x)")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make(tmp_path / "jobs.db")


@pytest.fixture
def unaided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAFETY_POLL", UNAIDED)


@pytest.fixture
def without_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: inotify.Inotify) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(inotify.Inotify, "__init__", refuse)


@pytest.fixture
def watch(path: Path) -> Iterator[SqliteWatch]:
    opened = SqliteWatch(path)
    yield opened
    opened.close()


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the requested length of each sleep."""
    seconds: list[float] = []

    def counted(descriptors: tuple[int, ...], length: float) -> bool:
        seconds.append(length)
        return rest(descriptors, length)

    monkeypatch.setattr(module, "rest", counted)
    return seconds


def wakes(watch: Watch) -> bool:
    began = time.monotonic()
    return watch.wait() and time.monotonic() - began < UNAIDED - 1


def commit(path: Path) -> None:
    raw_sql(str(path), "INSERT INTO note VALUES (1)")


def notes(reader: sqlite3.Connection) -> int:
    return reader.execute("SELECT count(*) FROM note").fetchall()[0][0]


def latencies(watch: Watch, writer: Writer, path: Path, commits: int) -> list[float]:
    """Repeatedly lets another process commit, and waits; returns the seconds from each commit until it is seen."""
    found: list[float] = []
    with closing(sqlite3.connect(path)) as reader:
        for number in range(commits):
            time.sleep(number % 7 * 0.000_5)
            writer.commit()
            while notes(reader) <= number:
                assert wakes(watch), f"commit {number} was not seen"
            seen_at = time.monotonic()
            found.append(seen_at - writer.times()[0][1])
    return found


def report(name: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    print(f"{name}: commit → seen p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms, n={len(ordered)}")


def wait_until(watch: Watch, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        watch.wait(0.01)


def settle(watch: Watch) -> None:
    """Waits until all earlier events have been reported."""
    while watch.wait(0.03):
        pass


def run(script: str, *args: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *args],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=20,
    ).stdout.strip()


# Commits


@LINUX
@pytest.mark.usefixtures("unaided")
@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
def test_of_200_commits_by_another_process_none_is_missed(path: Path, watch: SqliteWatch, synchronous: str):
    assert watch.is_pushed
    with closing(Writer(path, synchronous)) as writer:
        report(synchronous, latencies(watch, writer, path, 200))


@pytest.fixture
def slow_disk(tmp_path: Path) -> dict[str, str]:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW_DISK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {"LD_PRELOAD": str(library)}


@LINUX
@pytest.mark.usefixtures("unaided")
def test_a_commit_that_is_visible_20_ms_after_its_event_is_not_missed(
    path: Path, watch: SqliteWatch, slow_disk: dict[str, str]
):
    with closing(Writer(path, "FULL", slow_disk)) as writer:
        report("FULL, fsync 20 ms", latencies(watch, writer, path, 25))
        writer.commit()
        ((began, ended),) = writer.times()
    assert ended - began > 0.019, "the disk was not slow: this test shows nothing"


@LINUX
@pytest.mark.usefixtures("unaided")
def test_a_commit_whose_event_comes_while_the_one_before_becomes_visible_is_not_missed(
    path: Path, watch: SqliteWatch, slow_disk: dict[str, str]
):
    with closing(Writer(path, "FULL", slow_disk)) as writer, closing(sqlite3.connect(path)) as reader:
        for burst in range(1, 6):
            writer.commit(4)
            while notes(reader) < 4 * burst:
                assert wakes(watch), "the last commit of a burst was not seen"
            writer.times()


@LINUX
@pytest.mark.usefixtures("unaided")
def test_a_commit_under_way_when_the_watch_is_made_is_not_missed(path: Path, slow_disk: dict[str, str]):
    with closing(Writer(path, "FULL", slow_disk)) as writer, closing(sqlite3.connect(path)) as reader:
        for number in range(5):
            writer.commit()
            time.sleep(0.005)
            with closing(SqliteWatch(path)) as watch:
                while notes(reader) <= number:
                    assert wakes(watch), "its event came before the watch, and no other follows"
            writer.times()


@LINUX
@pytest.mark.usefixtures("unaided")
def test_a_commit_of_this_process_is_seen(path: Path, watch: SqliteWatch):
    settle(watch)
    commit(path)
    assert wakes(watch)
    settle(watch)
    assert not watch.wait(0.01)


@LINUX
def test_a_commit_that_was_told_of_leaves_no_doubt(path: Path, watch: SqliteWatch, rests: list[float]):
    """Without that, 7 sleeps confirm that no other commit had begun when it became visible."""
    settle(watch)
    time.sleep(1.1)
    settle(watch)
    watch.expect_own()
    commit(path)
    assert watch.wait(UNAIDED)
    rests.clear()

    assert not watch.wait(1.2)

    assert len(rests) <= 2
    assert watch.is_unchanged


@LINUX
@pytest.mark.usefixtures("unaided")
def test_a_commit_under_way_beside_one_that_was_told_of_is_not_missed(
    path: Path, watch: SqliteWatch, slow_disk: dict[str, str]
):
    """Its event may come before the other one is seen. The write lock is not free then, so the doubt stays."""
    with closing(Writer(path, "FULL", slow_disk)) as writer, closing(sqlite3.connect(path)) as reader:
        for burst in range(1, 6):
            writer.commit(4)
            while notes(reader) < 4 * burst:
                watch.expect_own()
                assert wakes(watch), "the last commit of a burst was not seen"
            writer.times()


@LINUX
def test_a_watch_that_made_sure_leaves_the_write_lock_free(path: Path, watch: SqliteWatch):
    settle(watch)
    watch.expect_own()
    commit(path)
    assert watch.wait(UNAIDED)

    commit(path)  # it would fail at once

    assert watch.wait(UNAIDED)
    assert not watch.is_unchanged


@LINUX
@pytest.mark.usefixtures("unaided")
def test_a_job_that_another_process_enqueues_is_seen(path: Path, watch: SqliteWatch):
    settle(watch)
    run("import sys; from tests.backends.processes import *; enqueue(open_backend(sys.argv[1]))", str(path))
    assert wakes(watch)


@LINUX
@pytest.mark.usefixtures("unaided")
def test_a_database_behind_a_link_is_watched_where_it_is(path: Path, tmp_path: Path):
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    with closing(SqliteWatch(link)) as watch:
        assert watch.is_pushed
        settle(watch)
        commit(link)
        assert wakes(watch)


@LINUX
@pytest.mark.usefixtures("unaided")
@pytest.mark.parametrize(
    "statement",
    [
        "VACUUM",
        "PRAGMA wal_checkpoint(PASSIVE)",
        "PRAGMA wal_checkpoint(RESTART)",
        "PRAGMA wal_checkpoint(TRUNCATE)",
    ],
)
def test_commits_are_seen_after_the_log_was_folded_back(path: Path, watch: SqliteWatch, statement: str):
    commit(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)
    settle(watch)
    commit(path)
    assert wakes(watch)


def test_an_idle_watch_pins_no_old_state_of_the_file(path: Path, watch: SqliteWatch):
    commit(path)
    watch.wait(0.01)
    # (was it blocked, pages in the log, pages checkpointed): a reader left open would block it.
    assert raw_sql(str(path), "PRAGMA wal_checkpoint(TRUNCATE)") == [(0, 0, 0)]


def test_a_commit_that_waits_for_the_disk_is_seen_soon_after_with_few_looks():
    """By the pauses alone: at most a tenth of the time that the commit took, and 50 µs."""
    pace = module.Pace(0.0)
    now = 10.0  # the doubt of the start is over
    pace.note(now, is_written=True, is_changed=False)
    looks: list[float] = []
    while now < 10.02:
        now += pace.pauses(now, is_pushed=True)[0]
        pace.note(now, is_written=False, is_changed=False)
        looks.append(now - 10.0)

    lags = [late - early for early, late in pairwise(looks)]
    assert all(lag <= max(0.000_063, early / 10 + 0.000_06) for early, lag in zip(looks, lags, strict=False)), looks
    assert sum(look < 0.001 for look in looks) <= 12
    assert len(looks) <= 40  # in 20 ms


@LINUX
def test_the_thread_that_waits_is_woken_on_time(watch: SqliteWatch):
    """The kernel may end a timed wait 50 µs late, by default: as long as the first pause itself."""
    prctl = ctypes.CDLL(None).prctl
    slacks: list[int] = []

    def wait() -> None:
        prctl(29, ctypes.c_ulong(50_000), 0, 0, 0)  # PR_SET_TIMERSLACK
        watch.wait(0.0)
        slacks.append(prctl(30, 0, 0, 0, 0))  # PR_GET_TIMERSLACK

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join()

    assert slacks == [1]


@LINUX
@pytest.mark.usefixtures("unaided")
def test_a_large_transaction_under_way_is_not_looked_at_for_each_of_its_writes(
    path: Path, watch: SqliteWatch, rests: list[float]
):
    settle(watch)
    rests.clear()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("PRAGMA cache_size = 10")  # pages; everything else goes to the log at once
        connection.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        writing = threading.Thread(target=_write_much, args=(connection,))
        writing.start()
        while writing.is_alive():
            assert not watch.wait(0.05)
        seconds = time.monotonic() - began
        looks = len(rests)
        connection.execute("COMMIT")
    assert wakes(watch)
    wal = path.with_name("jobs.db-wal").stat().st_size
    print(f"{looks} rests in {seconds:.2f} s while {wal / 1e6:.0f} MB were written")
    assert looks < 2_000 * seconds + 100


def _write_much(connection: sqlite3.Connection) -> None:
    for _ in range(10_000):
        connection.execute("INSERT INTO note VALUES (zeroblob(4000))")


# The file


def _replace(path: Path, new: Path) -> None:
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink()
    new.replace(path)


@LINUX
@pytest.mark.usefixtures("unaided")
def test_a_file_that_was_replaced_is_watched_instead(path: Path, watch: SqliteWatch, tmp_path: Path):
    settle(watch)
    _replace(path, make(tmp_path / "new.db"))
    assert wakes(watch)
    settle(watch)
    assert watch.is_pushed
    with closing(Writer(path, "FULL")) as writer:
        latencies(watch, writer, path, 20)
    watch.close()
    assert integrity(path) == "ok"


@pytest.mark.usefixtures("without_inotify")
def test_a_replaced_file_is_noticed_by_polling_too(monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path):
    monkeypatch.setattr(module, "SAFETY_POLL", 0.2)
    watch = SqliteWatch(path)
    _replace(path, make(tmp_path / "new.db"))
    assert watch.wait() or watch.wait()
    settle(watch)
    commit(path)
    assert watch.wait()
    watch.close()


@LINUX
def test_a_file_that_is_gone_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, path: Path, watch: SqliteWatch, tmp_path: Path, rests: list[float]
):
    monkeypatch.setattr(module, "SAFETY_POLL", 0.2)
    away = tmp_path / "away"
    away.mkdir()
    for end in ("-wal", "-shm", ""):
        path.with_name(path.name + end).rename(away / f"jobs.db{end}")
    wait_until(watch, lambda: not watch.is_pushed)
    began = time.monotonic()
    rests.clear()
    assert watch.wait(), "what cannot be seen may have changed"
    assert time.monotonic() - began > 0.15
    assert len(rests) < 50
    make(path)
    wait_until(watch, lambda: watch.is_pushed)
    settle(watch)
    commit(path)
    assert watch.wait()


def test_a_watch_on_no_file_is_refused(tmp_path: Path):
    with pytest.raises(StorageUnavailable, match=r"nothing\.db"):
        SqliteWatch(tmp_path / "nothing.db")
    assert list(tmp_path.iterdir()) == []


# inotify


def test_events_are_read_as_the_kernel_writes_them():
    header = struct.Struct("iIII")
    buffer = (
        header.pack(3, inotify.MODIFY, 0, 0)
        + header.pack(1, inotify.CREATE, 0, 16)
        + b"jobs.db-wal\0\0\0\0\0"
        + header.pack(3, inotify.IGNORED, 0, 0)
        + header.pack(-1, inotify.Q_OVERFLOW, 0, 0)
    )
    assert inotify.parse(buffer) == [
        (3, inotify.MODIFY, b""),
        (1, inotify.CREATE, b"jobs.db-wal"),
        (3, inotify.IGNORED, b""),
        (-1, inotify.Q_OVERFLOW, b""),
    ]


@LINUX
@pytest.mark.usefixtures("unaided")
def test_events_that_were_dropped_count_as_a_change(path: Path, watch: SqliteWatch, tmp_path: Path):
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip("too many events fit into the queue")
    settle(watch)
    stray = tmp_path / "stray"
    for _ in range(limit // 2 + 10):
        os.close(os.open(stray, os.O_CREAT))
        stray.unlink()
    assert wakes(watch)
    settle(watch)
    commit(path)
    assert wakes(watch)


@LINUX
@pytest.mark.usefixtures("unaided")
def test_a_watch_that_was_lost_is_set_again(path: Path, watch: SqliteWatch):
    settle(watch)
    assert watch._inotify is not None
    watch._inotify.remove(watch._watches[watch._wal])  # the kernel does the same when a file system is unmounted
    assert wakes(watch)
    assert watch.is_pushed
    settle(watch)
    commit(path)
    assert wakes(watch)


@LINUX
@pytest.mark.usefixtures("unaided")
def test_other_files_in_the_folder_wake_nobody(watch: SqliteWatch, tmp_path: Path):
    settle(watch)
    for name in ("other.db-wal", "jobs.db-journal", "jobs.db-wal2"):
        (tmp_path / name).write_text("x")
    assert not watch.wait(0.05)


# Without inotify


@pytest.mark.usefixtures("without_inotify", "unaided")
def test_without_inotify_commits_are_seen_by_polling(path: Path):
    with closing(SqliteWatch(path)) as watch, closing(Writer(path, "FULL")) as writer:
        assert not watch.is_pushed
        found = latencies(watch, writer, path, 50)
        report("polling", found)
        assert max(found) < 0.5


@LINUX
def test_inotify_is_used_as_soon_as_it_can_be_had(monkeypatch: pytest.MonkeyPatch, path: Path):
    monkeypatch.setattr(module, "SAFETY_POLL", 0.05)

    def no_space(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(inotify.Inotify, "add", no_space)
        watch = SqliteWatch(path)
        assert not watch.is_pushed
        settle(watch)
        commit(path)
        assert watch.wait() or watch.wait()
    wait_until(watch, lambda: watch.is_pushed)
    watch.close()


@pytest.mark.usefixtures("without_inotify")
def test_polling_slows_down_to_20_looks_a_second(path: Path, rests: list[float]):
    with closing(SqliteWatch(path)) as watch:
        assert not watch.wait(0.6)
        before = time.process_time()
        rests.clear()
        assert not watch.wait(0.5)
        assert len(rests) < 15
        assert max(rests) <= 0.05
        assert time.process_time() - before < 0.03


# Wake-ups


@pytest.mark.usefixtures("unaided")
def test_a_poke_from_another_thread_ends_the_wait(watch: SqliteWatch):
    settle(watch)
    threading.Timer(0.1, watch.poke).start()
    began = time.monotonic()
    assert watch.wait()
    assert 0.09 < time.monotonic() - began < 5


@pytest.mark.usefixtures("unaided")
def test_a_poke_from_a_signal_handler_ends_the_wait(watch: SqliteWatch):
    settle(watch)

    def handle(number: int, frame: object) -> None:
        watch.poke()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        assert watch.wait()
        assert 0.09 < time.monotonic() - began < 5
    finally:
        signal.signal(signal.SIGALRM, before)


def test_many_pokes_before_a_wait_count_as_one(watch: SqliteWatch):
    settle(watch)
    for _ in range(20_000):
        watch.poke()
    assert watch.wait()
    assert not watch.wait(0.01)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_bell_that_nobody_silences_can_be_rung_for_ever(monkeypatch: pytest.MonkeyPatch, platform: str):
    with monkeypatch.context() as patch:
        patch.setattr(shared.sys, "platform", platform)
        bell = Bell()
    for _ in range(20_000):
        bell.ring()
    assert rest((bell.fileno(),), 0)
    assert bell.silence()
    assert not bell.silence()
    assert not rest((bell.fileno(),), 0)


def test_descriptors_past_1024_are_waited_for_too():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("this process may not have so many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    bell = Bell()
    high = fcntl.fcntl(bell.fileno(), fcntl.F_DUPFD_CLOEXEC, 1100)
    try:
        assert not rest((high,), 0.000_1)
        bell.ring()
        assert rest((high,), 0.000_1)
    finally:
        os.close(high)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Idle, fork, end


@LINUX
def test_an_idle_watch_costs_next_to_nothing(watch: SqliteWatch, rests: list[float]):
    before = time.process_time()
    for _ in range(3):
        began = time.monotonic()
        assert not watch.wait(60)
        assert 1.9 < time.monotonic() - began < 3, "no wait is longer than the safety poll"
    cpu = time.process_time() - before
    print(f"idle for 6 s: {cpu * 1e3:.1f} ms CPU, {len(rests)} rests")
    assert cpu < 0.03
    assert len(rests) < 30, "17 of them in the first second: a commit may have begun before there was a watch"
    assert rests[-2:] == pytest.approx([2.0, 2.0], abs=0.01)


FORK = """
import os, signal, sys
from pathlib import Path
from dray.backends import open_backend
from dray.backends.sqlite import watch as module
from dray.errors import ForkedConnection
from tests.backends.processes import locked_files, raw_sql

module.SAFETY_POLL = 15.0
path, uses_backend = Path(sys.argv[1]), sys.argv[2] == "with"
watch = module.SqliteWatch(path)
if uses_backend:
    backend = open_backend(str(path))
    backend.queues.all()
held = locked_files(str(path))
pid = os.fork()
if not pid:
    try:
        watch.wait(0)
    except ForkedConnection:
        watch.close()
        watch.close()
        # SQLite in this process believes the locks to be held: they have to be.
        assert locked_files(str(path)) == held, (locked_files(str(path)), held)
        anew = module.SqliteWatch(path)
        raw_sql(str(path), "INSERT INTO note VALUES (1)")
        assert anew.wait(5)
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert locked_files(str(path)) == held
while watch.wait(0.05):
    pass
assert watch.is_pushed
if not os.fork():
    raw_sql(str(path), "INSERT INTO note VALUES (1)")
    os._exit(0)
assert watch.wait(5)
watch.close()
print("well")
"""


@LINUX
@pytest.mark.parametrize("backend", ["with", "without"])
def test_a_forked_child_leaves_its_parents_watch_alone(path: Path, backend: str):
    assert run(FORK, str(path), backend) == "well"
    assert integrity(path) == "ok"


def test_closing_ends_the_wait_under_way(watch: SqliteWatch):
    settle(watch)
    threading.Timer(0.05, watch.close).start()
    assert watch.wait()
    watch.close()
    watch.poke()
    with pytest.raises(StorageError, match="closed"):
        watch.wait(0)


@LINUX
def test_nothing_stays_open_after_a_watch(path: Path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(12):
        SqliteWatch(path).close()
    # One file each would be 12. Threads of other tests may open or close some meanwhile.
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 6
