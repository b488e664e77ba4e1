"""Threads that enqueue at the same moment share a transaction; each gets its own result or error."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

import pytest

from dray.backends import Backend, open_backend
from dray.backends.database import DataRefused
from dray.backends.sqlite import SqliteDatabase
from dray.backends.store.group_commit import GroupCommit, _Request
from dray.clock import Ids, SystemClock
from dray.errors import StorageLocked
from dray.model.new_job import AlikeJobs, NewJob
from tests.runtime.watching import LONG, until

IDS = Ids(SystemClock())


def job(args: str = "{}") -> NewJob:
    return NewJob(id=IDS.new(), task="t", args=args)


def alone(args: str = "{}") -> list[AlikeJobs]:
    return [AlikeJobs(PATTERN, [IDS.new()], [args])]


PATTERN = job()


class Written:
    """A `write` that notes what it is given, and waits where it is told to: in its transaction, or before."""

    def __init__(self) -> None:
        self.begun: list[bool] = []  # of each transaction: whether it has to be durable
        self.batches: list[list[str]] = []
        self.may_begin = threading.Event()
        self.may_begin.set()
        self.may_go_on = threading.Event()
        self.fails: Callable[[Sequence[str]], BaseException | None] = lambda _: None

    def __call__(self, gather: Callable[[], Sequence[AlikeJobs]], /, *, durable: bool) -> None:
        self.begun.append(durable)
        assert self.may_begin.wait(LONG)
        names = [args for jobs in gather() for args in jobs.args]
        self.batches.append(names)
        if len(self.batches) == 1:
            assert self.may_go_on.wait(LONG)
        error = self.fails(names)
        if error is not None:
            raise error


@pytest.fixture
def written() -> Written:
    return Written()


def crowd(
    group: GroupCommit, written: Written, names: Sequence[str], careless: str = ""
) -> dict[str, BaseException | None]:
    """The first name writes; the others come meanwhile. All but the careless ask for a durable commit. Returns how
    the call of each has ended."""

    def add(name: str) -> None:
        group.add(alone(name), durable=name not in careless)

    with ThreadPoolExecutor(len(names)) as threads:
        calls = {names[0]: threads.submit(add, names[0])}
        until(lambda: written.batches if written.may_begin.is_set() else written.begun)
        calls |= {name: threads.submit(add, name) for name in names[1:]}
        until(lambda: len(group._waiting) == len(names) - 1)
        written.may_begin.set()
        written.may_go_on.set()
        return {name: call.exception(LONG) for name, call in calls.items()}


@pytest.mark.parametrize(("careless", "durable"), [("abcd", False), ("abc", True), ("", True)])
def test_a_shared_commit_is_as_durable_as_the_strictest_asks(
    written: Written, careless: str, *, durable: bool
) -> None:
    crowd(GroupCommit(written), written, "abcd", careless)

    assert written.begun == ["a" not in careless, durable]


def test_those_who_come_while_one_writes_share_the_next_transaction(written: Written) -> None:
    ends = crowd(GroupCommit(written), written, "abcdefgh")

    assert set(ends.values()) == {None}
    assert [sorted(batch) for batch in written.batches] == [["a"], list("bcdefgh")]


def test_those_who_come_until_the_transaction_has_begun_share_it(written: Written) -> None:
    written.may_begin.clear()

    ends = crowd(GroupCommit(written), written, "abcdefgh")

    assert set(ends.values()) == {None}
    assert [sorted(batch) for batch in written.batches] == [list("abcdefgh")]


def test_those_who_ask_for_a_durable_commit_share_no_other(written: Written) -> None:
    written.may_begin.clear()

    crowd(GroupCommit(written), written, "abcd", careless="ab")

    assert [sorted(batch) for batch in written.batches] == [["a", "b"], ["c", "d"]]
    assert written.begun == [False, True]


def told(group: GroupCommit) -> _Request:
    """A request that has shared the last commit, and whose thread has not run since."""
    request = _Request(alone(), durable=True)
    request.is_over = True
    group._waiting[request] = SimpleQueue()
    return request


def test_the_next_transaction_begins_when_those_of_the_last_are_gone(written: Written) -> None:
    """They come back with their next jobs. Begun at once, every other transaction had the jobs of one thread."""
    group = GroupCommit(written)
    written.may_go_on.set()
    last = told(group)
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(lambda: group.add(alone(), durable=True)) for _ in range(2)]
        until(lambda: len(group._waiting) == 3)
        assert not written.begun
        group._leave(last)
        for call in calls:
            call.result(LONG)

    assert sum(len(batch) for batch in written.batches) == 2
    assert not group._waiting


def test_each_that_leaves_wakes_one_other(written: Written) -> None:
    """Woken all at once, each waited once more, for the GIL."""
    group = GroupCommit(written)
    last, over, waits = told(group), [told(group) for _ in range(3)], _Request(alone(), durable=True)
    group._waiting[waits] = SimpleQueue()
    bells = dict(group._waiting)

    woken: list[list[_Request]] = []
    for each in (last, *over):
        group._leave(each)
        woken.append([request for request, bell in bells.items() if not bell.empty()])

    assert woken == [over[:1], over[:2], over[:3], [*over, waits]]


def test_one_that_never_goes_does_not_keep_the_others_from_writing(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.backends.store.group_commit._LONGEST_WAIT", 0.01)
    group = GroupCommit(written)
    written.may_go_on.set()
    told(group)

    group.add(alone("a"), durable=True)

    assert written.batches == [["a"]]


def test_threads_that_enqueue_all_the_time_share_every_transaction() -> None:
    sizes: list[int] = []

    def write(gather: Callable[[], Sequence[AlikeJobs]], /, *, durable: bool) -> None:
        sizes.append(len(gather()))
        time.sleep(0.002)  # as a commit: others run meanwhile

    group = GroupCommit(write)

    def produce(_: int) -> None:
        for _ in range(50):
            group.add(alone(), durable=True)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(produce, range(8)))

    assert sum(sizes) == 8 * 50
    assert len(sizes) < 80, "50 if all share each; 100 if one half writes while the other comes back"


def test_one_that_cannot_be_written_fails_alone(written: Written) -> None:
    written.fails = lambda names: DataRefused("bad") if "c" in names else None

    ends = crowd(GroupCommit(written), written, "abcd")

    assert {name: type(error) for name, error in ends.items() if error is not None} == {"c": DataRefused}
    assert [sorted(batch) for batch in written.batches[:2]] == [["a"], ["b", "c", "d"]]
    assert sorted(map(str, written.batches[2:])) == ["['b']", "['c']", "['d']"]


def test_an_error_of_the_database_is_told_to_all_that_share_a_transaction(written: Written) -> None:
    """Alone, each would wait for the same lock once more."""
    written.fails = lambda names: StorageLocked("locked") if len(names) > 1 else None

    ends = crowd(GroupCommit(written), written, "abcd")

    failed = {name: type(error) for name, error in ends.items() if error is not None}
    assert failed == dict.fromkeys("bcd", StorageLocked)
    assert len({id(error) for error in ends.values()}) == 4
    assert len(written.batches) == 2


def test_after_one_was_interrupted_another_writes_for_those_who_wait(written: Written) -> None:
    written.fails = lambda names: KeyboardInterrupt() if names[0] == "a" else None

    ends = crowd(GroupCommit(written), written, "abcd")

    assert {name: type(error) for name, error in ends.items() if error is not None} == {"a": KeyboardInterrupt}
    assert [sorted(batch) for batch in written.batches] == [["a"], ["b", "c", "d"]]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # from 3.12 on; this is what is tested
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(written: Written) -> None:
    group = GroupCommit(written)
    parent = threading.Thread(target=lambda: group.add(alone(), durable=True))
    parent.start()
    until(lambda: written.batches)

    child = os.fork()
    if not child:
        group.add(alone(), durable=True)  # the second batch: it is not told to wait
        os._exit(len(written.batches))
    written.may_go_on.set()
    parent.join(LONG)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_threads_write_each_job_once_in_fewer_transactions(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.jobs.enqueue([job()])
    commits: list[int] = []
    post, waiting = backend.db.post, backend.jobs._group._waiting
    given = [[job() for _ in range(25)] for _ in range(8)]
    producing = set(range(len(given)))

    def counted(gather: Callable[[], Sequence[AlikeJobs]], **options: bool) -> None:
        commits.append(1)
        # As on a slow disk: the next jobs of the other threads come while a transaction is under way.
        until(lambda: sum(not each.is_over for each in waiting.copy()) >= len(producing) - 1)
        post(gather, **options)

    monkeypatch.setattr(backend.db, "post", counted)

    def produce(number: int) -> list[str]:
        ids = [backend.jobs.enqueue([each])[0].id for each in given[number]]
        producing.remove(number)
        return ids

    with ThreadPoolExecutor(len(given)) as threads:
        returned = [each for ids in threads.map(produce, range(len(given))) for each in ids]

    assert returned == [each.id for jobs in given for each in jobs]
    assert {each.id for each in backend.jobs.get(returned)} == set(returned)
    assert 0 < len(commits) < 100


def test_bad_data_of_one_thread_costs_no_other_a_job(backend: Backend) -> None:
    backend.jobs.enqueue([job()])
    together = threading.Barrier(4)

    def produce(args: str) -> tuple[str, bool]:
        together.wait(LONG)
        made = job(args)
        try:
            backend.jobs.enqueue([made])
        except DataRefused:
            return made.id, False
        return made.id, True

    with ThreadPoolExecutor(4) as threads:
        ends = [end for _ in range(10) for end in threads.map(produce, ["{}", '"\ud800"', "{}", "{}"])]

    assert [is_written for _, is_written in ends] == [True, False, True, True] * 10
    there = {each.id for each in backend.jobs.get([job_id for job_id, _ in ends])}
    assert there == {job_id for job_id, is_written in ends if is_written}


def test_a_thread_that_may_not_write_does_not_wait_for_another(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other may be waiting for it: for the transaction that it has open."""
    backend.jobs.enqueue([job()])
    has_turn, may_end = threading.Event(), threading.Event()

    def hold_turn() -> None:
        with backend.jobs._group._turn.lock:
            has_turn.set()
            may_end.wait(LONG)

    def refuse() -> None:
        raise StorageLocked("this thread has a transaction open")

    monkeypatch.setattr(backend.db, "check_may_write", refuse)
    other = threading.Thread(target=hold_turn)
    other.start()
    try:
        assert has_turn.wait(LONG)
        with pytest.raises(StorageLocked, match="has a transaction open"):
            backend.jobs.enqueue([job()])
    finally:
        may_end.set()
        other.join()


def test_a_job_on_its_own_is_one_statement_on_sqlite(tmp_path: Path) -> None:
    with closing(open_backend(f"sqlite:///{tmp_path}/jobs.db")) as backend:
        backend.jobs.enqueue([job()])
        assert isinstance(backend.db, SqliteDatabase)
        statements: list[str] = []
        assert backend.db._writer is not None
        backend.db._writer.set_trace_callback(statements.append)

        made = job("1")
        backend.jobs.enqueue([made])

        assert len(statements) == 1, statements
        assert [each.args for each in backend.jobs.get([made.id])] == ["1"]


def test_sqlite_asks_again_for_the_jobs_once_it_has_the_write_lock(tmp_path: Path) -> None:
    """Others hold it for milliseconds; who comes meanwhile would have to wait for another commit."""
    with closing(open_backend(f"sqlite:///{tmp_path}/jobs.db")) as backend:
        backend.jobs.enqueue([job()])
        assert isinstance(backend.db, SqliteDatabase)
        writer, had_lock, given = backend.db._writer, list[bool](), [*alone("1"), *alone("2")]
        assert writer is not None
        statements: list[str] = []
        writer.set_trace_callback(statements.append)
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")

            def gather() -> list[AlikeJobs]:
                had_lock.append(writer.in_transaction)
                return given[: len(had_lock)]

            with ThreadPoolExecutor(1) as threads:
                posted = threads.submit(lambda: backend.db.post(gather))
                until(lambda: any("BEGIN" in each for each in statements))
                other.execute("COMMIT")
                posted.result(LONG)

        assert had_lock == [False, True]
        assert {each.args for each in backend.jobs.get([jobs.ids[0] for jobs in given])} == {"1", "2"}


def test_jobs_of_one_task_are_one_statement_whoever_enqueues_them(tmp_path: Path) -> None:
    with closing(open_backend(f"sqlite:///{tmp_path}/jobs.db")) as backend:
        backend.jobs.enqueue([job()])
        assert isinstance(backend.db, SqliteDatabase)
        statements: list[str] = []
        assert backend.db._writer is not None
        backend.db._writer.set_trace_callback(statements.append)

        batch = [*alone("1"), *alone("2"), *alone("3")]
        backend.db.post(lambda: batch)

        assert len(statements) == 3, statements  # BEGIN, INSERT, COMMIT
        assert [each.args for each in backend.jobs.get([jobs.ids[0] for jobs in batch])] == ["1", "2", "3"]
