"""Threads that enqueue at the same moment share a transaction; each gets its own result or error."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from dray.backends import Backend
from dray.backends.database import DataRefused
from dray.backends.store.group_commit import GroupCommit
from dray.clock import Ids, SystemClock
from dray.errors import StorageLocked
from dray.model.new_job import NewJob
from tests.runtime.watching import LONG, until

IDS = Ids(SystemClock())


def job(args: str = "{}") -> NewJob:
    return NewJob(id=IDS.new(), task="t", args=args)


class Written:
    """A `write` that notes what it is given, and waits where it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.durable: list[bool] = []
        self.may_go_on = threading.Event()
        self.fails: Callable[[Sequence[NewJob]], BaseException | None] = lambda _: None

    def __call__(self, jobs: Sequence[NewJob], /, *, durable: bool) -> None:
        self.batches.append([each.args for each in jobs])
        self.durable.append(durable)
        if len(self.batches) == 1:
            assert self.may_go_on.wait(LONG)
        error = self.fails(jobs)
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
        group.add([job(name)], durable=name not in careless)

    with ThreadPoolExecutor(len(names)) as threads:
        calls = {names[0]: threads.submit(add, names[0])}
        until(lambda: written.batches)
        calls |= {name: threads.submit(add, name) for name in names[1:]}
        until(lambda: len(group._waiting) == len(names) - 1)
        written.may_go_on.set()
        return {name: call.exception(LONG) for name, call in calls.items()}


@pytest.mark.parametrize(("careless", "durable"), [("abcd", False), ("abc", True), ("", True)])
def test_a_shared_commit_is_as_durable_as_the_strictest_asks(
    written: Written, careless: str, *, durable: bool
) -> None:
    crowd(GroupCommit(written), written, "abcd", careless)

    assert written.durable == ["a" not in careless, durable]


def test_those_who_come_while_one_writes_share_the_next_transaction(written: Written) -> None:
    ends = crowd(GroupCommit(written), written, "abcdefgh")

    assert set(ends.values()) == {None}
    assert [sorted(batch) for batch in written.batches] == [["a"], list("bcdefgh")]


def test_one_that_cannot_be_written_fails_alone(written: Written) -> None:
    written.fails = lambda jobs: DataRefused("bad") if any(each.args == "c" for each in jobs) else None

    ends = crowd(GroupCommit(written), written, "abcd")

    assert {name: type(error) for name, error in ends.items() if error is not None} == {"c": DataRefused}
    assert [sorted(batch) for batch in written.batches[:2]] == [["a"], ["b", "c", "d"]]
    assert sorted(map(str, written.batches[2:])) == ["['b']", "['c']", "['d']"]


def test_an_error_of_the_database_is_told_to_all_that_share_a_transaction(written: Written) -> None:
    """Alone, each would wait for the same lock once more."""
    written.fails = lambda jobs: StorageLocked("locked") if len(jobs) > 1 else None

    ends = crowd(GroupCommit(written), written, "abcd")

    failed = {name: type(error) for name, error in ends.items() if error is not None}
    assert failed == dict.fromkeys("bcd", StorageLocked)
    assert len({id(error) for error in ends.values()}) == 4
    assert len(written.batches) == 2


def test_after_one_was_interrupted_another_writes_for_those_who_wait(written: Written) -> None:
    written.fails = lambda jobs: KeyboardInterrupt() if jobs[0].args == "a" else None

    ends = crowd(GroupCommit(written), written, "abcd")

    assert {name: type(error) for name, error in ends.items() if error is not None} == {"a": KeyboardInterrupt}
    assert [sorted(batch) for batch in written.batches] == [["a"], ["b", "c", "d"]]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # from 3.12 on; this is what is tested
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(written: Written) -> None:
    group = GroupCommit(written)
    parent = threading.Thread(target=lambda: group.add([job()], durable=True))
    parent.start()
    until(lambda: written.batches)

    child = os.fork()
    if not child:
        group.add([job()], durable=True)  # the second batch: it is not told to wait
        os._exit(len(written.batches))
    written.may_go_on.set()
    parent.join(LONG)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_threads_write_each_job_once_in_fewer_transactions(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.jobs.enqueue([job()])
    commits: list[int] = []
    exchange = backend.db.exchange

    def counted(work: object, **options: bool) -> object:
        commits.append(1)
        return exchange(work, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(backend.db, "exchange", counted)
    given = [[job() for _ in range(25)] for _ in range(8)]
    together = threading.Barrier(8)

    def produce(jobs: list[NewJob]) -> list[str]:
        together.wait(LONG)
        return [backend.jobs.enqueue([each])[0].id for each in jobs]

    with ThreadPoolExecutor(8) as threads:
        returned = [each for ids in threads.map(produce, given) for each in ids]

    assert returned == [each.id for jobs in given for each in jobs]
    assert {each.id for each in backend.jobs.get(returned)} == set(returned)
    assert len(commits) < 200


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
