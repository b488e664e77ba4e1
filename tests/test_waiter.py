"""Waiting for jobs: one thread and one statement a look, whoever waits; through outages, forks and the end."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from dray.app import App
from dray.backends import Backend, open_backend
from dray.backends.watch import Watch
from dray.clock import Ids
from dray.errors import SchemaMissing, StorageError, StorageUnavailable, UnknownJob
from dray.waiter import Waiter, _Looker
from tests.backends.world import World
from tests.manual_clock import ManualClock
from tests.runtime.watching import until
from tests.server import Server

LONG = 30.0


@pytest.fixture
def world(backend: Backend, clock: ManualClock, ids: Ids) -> World:
    return World(backend, clock, ids)


@pytest.fixture
def waiter(backend: Backend) -> Generator[Waiter]:
    made = Waiter(backend)
    yield made
    made.close()


class Counted:
    """A backend that counts the looks of waiters, and says when the next one is over."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks: list[list[str]] = []
        self.watches: list[Watch] = []
        self._changed = threading.Condition()
        self._reads = 0
        ended, watch, read = backend.jobs.ended, backend.watch, backend.db.read

        def counting(ids: Any) -> Any:
            answer = ended(ids)
            with self._changed:
                self.looks.append(list(ids))
                self._changed.notify_all()
            return answer

        def reading(work: Any) -> Any:
            self._reads += 1
            return read(work)

        def watching(**options: Any) -> Watch:
            self.watches.append(watch(**options))
            return self.watches[-1]

        monkeypatch.setattr(backend.jobs, "ended", counting)
        monkeypatch.setattr(backend, "watch", watching)
        monkeypatch.setattr(backend.db, "read", reading)

    def await_look(self, fits: Callable[[list[str]], bool] = lambda _: True, *, after: int = 0) -> None:
        """Until a look that fits has been made, the first `after` ones aside."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(fits, self.looks[after:])), LONG)

    @contextmanager
    def reads(self) -> Generator[list[int]]:
        """How many transactions that only read there were within the block."""
        began, found = self._reads, list[int]()
        yield found
        found.append(self._reads - began)


@pytest.fixture
def counted(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(backend, monkeypatch)


def complete(world: World, job_id: str, result: str = "7") -> None:
    worker = world.worker()
    claim = world.claim_one(worker)
    assert claim.id == job_id
    world.complete(worker, claim, result)
    world.backend.announce_done()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dray-wait"]


# Waiting


def test_it_answers_when_all_of_the_jobs_have_ended(world: World, waiter: Waiter) -> None:
    first, second = world.enqueue(), world.enqueue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait, [first, second], LONG)
        complete(world, first, "1")
        complete(world, second, "2")
        ended = waiting.result(LONG)

    assert {job_id: job.result for job_id, job in ended.items()} == {first: "1", second: "2"}


def test_when_the_time_is_over_it_answers_those_that_have_ended(world: World, waiter: Waiter) -> None:
    first, second = world.enqueue(), world.enqueue()
    complete(world, first)

    assert list(waiter.wait([first, second], 0.2)) == [first]
    assert list(asyncio.run(waiter.wait_async([first, second], 0.2))) == [first]


def test_nothing_to_wait_for_is_no_wait(waiter: Waiter) -> None:
    assert waiter.wait([]) == asyncio.run(waiter.wait_async([])) == {}
    assert threads() == []


@pytest.mark.parametrize("timeout", [None, 5, 0])
def test_an_id_that_does_not_exist_is_unknown_at_once(
    world: World, waiter: Waiter, ids: Ids, timeout: float | None
) -> None:
    live = world.enqueue()

    with pytest.raises(UnknownJob, match="never committed"):
        waiter.wait([live, ids.new()], timeout)
    with pytest.raises(UnknownJob, match="never committed"):
        asyncio.run(waiter.wait_async([live, ids.new()], timeout))


def test_a_job_that_is_deleted_is_unknown_to_who_waits(world: World, waiter: Waiter, counted: Counted) -> None:
    job = world.enqueue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait, [job], LONG)
        counted.await_look()
        world.backend.jobs.delete([job])
        world.backend.announce_done()

        assert isinstance(waiting.exception(LONG), UnknownJob)


@pytest.mark.parametrize("before", ["cancelled", "not there"])
def test_what_was_read_before_a_wait_began_is_not_for_it(
    before: str, world: World, waiter: Waiter, backend: Backend, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, look = ids.new(), backend.jobs.ended
    has_read, goes_on = threading.Event(), threading.Event()

    def looking(asked: Any) -> Any:
        answer = look(asked)
        if not has_read.is_set():
            has_read.set()
            assert goes_on.wait(LONG)
        return answer

    if before == "cancelled":
        backend.jobs.enqueue([world.new(id=job)])
        backend.jobs.cancel([job])
    monkeypatch.setattr(backend.jobs, "ended", looking)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(waiter.wait, [job], LONG)
        assert has_read.wait(LONG)
        if before == "cancelled":
            assert backend.jobs.retry([job])
        else:
            backend.jobs.enqueue([world.new(id=job)])
        second = pool.submit(waiter.wait, [job], LONG)
        until(lambda: len(waiter._waits[job]) == 2)
        goes_on.set()

        if before == "cancelled":
            assert first.result(LONG)[job].state == "cancelled"
        else:
            assert isinstance(first.exception(LONG), UnknownJob)
        complete(world, job)
        assert second.result(LONG)[job].state == "completed"


def test_a_coroutine_waits_without_holding_its_loop_up(world: World, waiter: Waiter) -> None:
    job = world.enqueue()

    async def wait() -> tuple[Any, int]:
        waiting = asyncio.create_task(waiter.wait_async([job], LONG))
        turns = 0
        ending = asyncio.create_task(asyncio.to_thread(complete, world, job))
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0.001)
        await ending
        return (await waiting)[job].result, turns

    result, turns = asyncio.run(wait())
    assert result == "7"
    assert turns > 0


def test_a_coroutine_that_is_cancelled_waits_no_more(world: World, waiter: Waiter, counted: Counted) -> None:
    job, other = world.enqueue(), world.enqueue()

    async def wait() -> None:
        waiting = asyncio.create_task(waiter.wait_async([job], LONG))
        await asyncio.to_thread(counted.await_look)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        waiter.wait([other], 0)

    asyncio.run(wait())
    with pytest.raises(TimeoutError):
        _raise_unless(waiter.wait([other], 0.05))
    assert counted.looks[-1] == [other]


def _raise_unless(ended: dict[str, Any]) -> None:
    if not ended:
        raise TimeoutError


def test_a_loop_that_closed_meanwhile_harms_nobody(world: World, waiter: Waiter, counted: Counted) -> None:
    job = world.enqueue()
    loop = asyncio.new_event_loop()
    abandoned: Any = loop.create_task(waiter.wait_async([job], LONG))
    loop.run_until_complete(asyncio.sleep(0))
    counted.await_look()
    abandoned._log_destroy_pending = False  # what asyncio has to say to such a program is not the point here
    loop.close()

    complete(world, job)

    assert waiter.wait([job], LONG)[job].result == "7"


# What it costs


def test_fifty_who_wait_cost_one_thread_and_one_statement_a_look(
    world: World, waiter: Waiter, counted: Counted
) -> None:
    jobs = [world.enqueue() for _ in range(50)]
    with ThreadPoolExecutor(50) as pool:
        waiting = [pool.submit(waiter.wait, [job], LONG) for job in jobs]
        counted.await_look(lambda ids: len(ids) == 50)
        assert len(threads()) == 1

        looks = len(counted.looks)
        with counted.reads() as reads:
            time.sleep(0.5)
        quiet = len(counted.looks) - looks
        assert reads[0] <= quiet + 1  # the watch, when it is made, sees to it that there is a database
        # Ten times a second where nothing is pushed, once a second else, and what making the watch takes.
        assert quiet <= 12

        with counted.reads() as reads:
            worker = world.worker()
            for claim in world.claim(worker, 50):
                world.complete(worker, claim, "7")
            world.backend.announce_done()
            ended = [each.result(LONG) for each in waiting]
        # The settles read nothing; 50 of them bring at most a look each, not 50 looks each.
        assert reads[0] <= 60

    assert {job_id for each in ended for job_id in each} == set(jobs)
    assert len(counted.watches) == 1


def test_a_look_at_live_jobs_reads_no_arguments(
    world: World, waiter: Waiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.enqueue(args='{"x": "' + "y" * 200_000 + '"}')
    (job,) = world.backend.jobs.newest(limit=1)
    statements: list[str] = []
    read = world.backend.db.read

    def reading(work: Any) -> Any:
        class Noting:
            def __init__(self, tx: Any) -> None:
                self.tx = tx

            def rows(self, name: str, /, **params: Any) -> Any:
                statements.append(name)
                return self.tx.rows(name, **params)

        return read(lambda tx: work(Noting(tx)))

    monkeypatch.setattr(world.backend.db, "read", reading)
    assert waiter.wait([job.id], 0.1) == {}
    assert set(statements) == {"job_ended"}

    complete(world, job.id)
    statements.clear()
    assert list(waiter.wait([job.id], LONG)) == [job.id]
    assert statements[-1] == "job_get"


def test_looks_at_a_busy_database_are_spaced_out(world: World, waiter: Waiter, counted: Counted) -> None:
    job = world.enqueue(queue="later")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait, [job], 1.0)
        commits = 0
        while not waiting.done():
            world.enqueue(queue="other")
            world.backend.announce_done()
            commits += 1

    # One each 20 ms at most, and the first ones: 0.25, 0.5, 1, 2 … 20 ms.
    assert len(counted.looks) <= 1 / 0.02 + 12
    assert commits > len(counted.looks)


def test_who_begins_to_wait_is_not_kept_waiting_by_the_rests_of_others(
    world: World, waiter: Waiter, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[tuple[float, float]] = []
    looked = _Looker.looked

    def noting(self: _Looker, took: float, **what: bool) -> None:
        looked(self, took, **what)
        rests.append((self.rest, took))

    monkeypatch.setattr(_Looker, "looked", noting)
    worker = world.worker()
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            job = world.enqueue()
            rests.clear()
            looks = len(counted.looks)
            waiting = pool.submit(waiter.wait, [job], LONG)
            counted.await_look(after=looks)
            world.complete(worker, world.claim_one(worker))
            waiter.poke()
            waiting.result(LONG)
            rest, took = rests[0]
            assert rest <= took  # no rest but for the time that the look itself took


def test_a_poke_is_a_reason_to_look(world: World, waiter: Waiter, counted: Counted) -> None:
    job = world.enqueue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait, [job], LONG)
        while not any(watch.is_pushed for watch in counted.watches):
            time.sleep(0.001)
        began = time.monotonic()
        for _ in range(5):
            looks = len(counted.looks)
            waiter.poke()
            counted.await_look(after=looks)
        assert time.monotonic() - began < 3  # five looks, where one a second is usual
        complete(world, job)
        waiting.result(LONG)


def test_a_job_that_ends_while_the_watch_is_being_opened_is_seen_at_once(
    world: World, waiter: Waiter, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch tells of what happens after it was opened: without a look then, the job would be found a second
    later."""
    job, steps = world.enqueue(), list[str]()
    open_watch, look = backend.watch, backend.jobs.ended

    def opening(**options: Any) -> Watch:
        complete(world, job)
        watch = open_watch(**options)
        wait = watch.wait

        def waiting(seconds: float | None = None) -> bool:
            steps.append("wait")
            return wait(seconds)

        monkeypatch.setattr(watch, "wait", waiting)
        steps.append("open")
        return watch

    def looking(ids: Any) -> Any:
        steps.append("look")
        return look(ids)

    monkeypatch.setattr(backend, "watch", opening)
    monkeypatch.setattr(backend.jobs, "ended", looking)

    assert waiter.wait([job], LONG)[job].result == "7"
    assert "wait" not in steps
    assert steps[steps.index("open") :] == ["open", "look"]


def test_a_poke_when_nobody_waits_is_nothing(waiter: Waiter, counted: Counted) -> None:
    waiter.poke()

    assert counted.looks == []
    assert threads() == []


# The thread's life


def test_the_thread_stays_for_a_while_and_then_ends_with_its_watch(
    world: World, counted: Counted, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.waiter.LINGER", 0.2)
    waiter = Waiter(backend)
    job, other = world.enqueue(), world.enqueue(queue="other")
    waiter.wait([job], 0.05)
    (thread,) = threads()
    waiter.wait([other], 0.05)
    assert threads() == [thread]

    thread.join(LONG)

    assert not thread.is_alive()
    for watch in counted.watches:
        with pytest.raises(StorageError, match="closed"):
            watch.wait(0)
    complete(world, job)
    assert list(waiter.wait([job], LONG)) == [job]
    waiter.close()
    assert threads() == []


def test_close_wakes_who_waits_and_the_next_wait_starts_anew(world: World, waiter: Waiter, counted: Counted) -> None:
    job = world.enqueue()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(waiter.wait, [job], LONG) for _ in range(2)]
        until(lambda: len(waiter._all_waits()) == 2)
        counted.await_look()
        waiter.close()
        for each in waiting:
            assert "closed while this waited" in str(each.exception(LONG))
    assert threads() == []

    complete(world, job)

    assert list(waiter.wait([job], LONG)) == [job]
    waiter.close()
    waiter.close()


def test_waits_and_closes_at_the_same_time_leave_nobody_behind(world: World, waiter: Waiter) -> None:
    job = world.enqueue()
    is_over = threading.Event()

    def wait() -> int:
        rounds = 0
        while not is_over.is_set():
            try:
                waiter.wait([job], 0.01)
            except StorageError:
                rounds += 1
        return rounds

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(wait) for _ in range(4)]
        for _ in range(100):
            waiter.close()
        is_over.set()
        assert sum(each.result(LONG) for each in waiting) > 0
    waiter.close()
    assert threads() == []


def test_a_forked_child_waits_with_a_thread_of_its_own(url: str) -> None:
    code = r"""
        import os, sys, threading, dray

        def wait():
            try:
                job.result(30)
            except dray.JobCancelled:
                os.write(1, b"cancelled\n")  # at once: two processes write

        app = dray.App(sys.argv[1])
        job = app.enqueue("x")
        waiting = threading.Thread(target=wait)
        waiting.start()
        try:
            job.result(0.05)  # the thread that looks is there
        except TimeoutError:
            pass
        child = os.fork()
        if child == 0:
            app.cancel(job.id)
            wait()
            os._exit(7)
        waiting.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout.split() == ["cancelled", "cancelled", "7"]


# When the database goes away


def test_a_wait_that_cannot_begin_says_why(empty_url: str) -> None:
    backend = open_backend(empty_url, create=False)
    waiter = Waiter(backend)
    try:
        with pytest.raises((SchemaMissing, StorageUnavailable)):
            waiter.wait([Ids(ManualClock()).new()])
    finally:
        waiter.close()
        backend.close()


@pytest.fixture
def server() -> Generator[Server]:
    own = Server()
    yield own
    own.remove()


def test_waits_under_way_outlive_an_outage_and_new_ones_hear_of_it(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dray")
    with App(server.url, migrate=True) as app, ThreadPoolExecutor(2) as pool:
        job, other = app.enqueue("x"), app.enqueue("x")
        waiting = pool.submit(job.result, LONG)
        impatient = pool.submit(other.result, 0.5)
        assert isinstance(impatient.exception(LONG), TimeoutError)
        server.stop()
        with pytest.raises(StorageUnavailable):
            other.result(LONG)
        impatient = pool.submit(job.result, 0.1)
        assert isinstance(impatient.exception(LONG), StorageUnavailable)
        assert not waiting.done()
        server.start()
        app.cancel(job)

        assert "was cancelled" in str(waiting.exception(LONG))

    told = [record.getMessage() for record in caplog.records if "jobs that are waited for" in record.getMessage()]
    assert len(told) == 1
