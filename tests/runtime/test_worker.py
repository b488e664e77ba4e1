"""The life of a worker: how it starts, how it learns of work, how it ends, and what it refuses."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.app import App
from dray.backends.store.graph import FanOut, GraphStore
from dray.backends.store.work import Exchange, WorkStore
from dray.errors import ConfigError, StorageFull
from dray.model.bounds import FANOUT_CHUNK
from tests.backends import beside
from tests.runtime.watching import LONG, Gate, come_to, outcomes, sql, state_of, until


@pytest.fixture
def add(app: App) -> Any:
    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    return add


# Options


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"concurrency": 0}, ConfigError, "concurrency must be a whole number between 1 and 10,000, not 0"),
        ({"concurrency": True}, ConfigError, "concurrency must be"),
        ({"concurrency": 1.5}, ConfigError, "concurrency must be"),
        ({"concurrency": 10_001}, ConfigError, "concurrency must be"),
        ({"grace": -1}, ConfigError, "grace must be"),
        ({"grace": "5"}, TypeError, "grace must be a number of seconds"),
        ({"lease": 0}, ConfigError, "lease must be"),
        ({"lease": 0.5}, ConfigError, "lease must be at least 1 and at most"),
        ({"lease": float("nan")}, ConfigError, "lease must be"),
        ({"queues": []}, ConfigError, "names no queue"),
        ({"queues": ""}, ConfigError, "names no queue"),
        ({"queues": "a\nb"}, (ConfigError, ValueError), "queue"),
        ({"queues": ["a", "a"]}, ConfigError, "listed twice"),
        ({"queues": "a:0"}, ConfigError, "weight of queue a"),
        ({"queues": "a:-3"}, ConfigError, "weight of queue a"),
        ({"queues": {"a": 1.5}}, ConfigError, "weight of queue a"),
        ({"queues": 7}, TypeError, "queues"),
        ({"queues": ["a", 7]}, TypeError, "queue"),
        ({"imports": "shop.jobs"}, TypeError, "imports"),
        ({"name": 7}, TypeError, "name"),
        ({"threads": 4}, TypeError, "threads"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: Any, kind: Any, says: str) -> None:
    app = App(tmp_path / "jobs.db")

    with pytest.raises(kind, match=says):
        app.worker(**options)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_without_tasks_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="knows no task"):
        app.worker().start()
    assert app.workers() == []


def test_a_worker_runs_once(app: App, add: Any) -> None:
    worker = app.worker()
    with pytest.raises(ConfigError, match="not been started"):
        _ = worker.id
    worker.run_until_idle()
    with pytest.raises(ConfigError, match="started before"):
        worker.start()
    worker.stop()


def test_modules_with_tasks_are_imported_first(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loaded_by_worker.py").write_text("loaded = True")
    with pytest.raises(ConfigError, match="knows no task"):
        app.worker(imports=["loaded_by_worker"]).start()

    import sys

    assert sys.modules.pop("loaded_by_worker").loaded


@pytest.mark.usefixtures("cold")
def test_a_worker_that_cannot_start_leaves_nothing_behind(
    app: App, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConfigError("not today")

    def start(times: int) -> int:
        for _ in range(times):
            with pytest.raises(ConfigError, match="not today"):
                app.worker().start()
        gc.collect()
        return open_files()

    monkeypatch.setattr("dray.runtime.heartbeat.Identity.register", refuse)
    before = start(3)
    # One file each would be 12. A connection that the App opens beside others is kept, with up to three files.
    assert start(12) - before < 7
    monkeypatch.undo()
    assert add.enqueue(1, 2).state == "queued"
    assert app.worker().run_until_idle() == 1


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# run_until_idle


def test_what_is_due_and_what_comes_of_it_is_worked_off(app: App, add: Any) -> None:
    @app.task(name="spawn")
    def spawn(depth: int) -> None:
        if depth:
            spawn.enqueue(depth - 1)
            spawn.using(queue=f"deep.{depth}").enqueue(depth - 1)

    spawn.enqueue(4)
    later = add.using(delay=3_600).enqueue(1, 2)

    assert app.worker().run_until_idle() == 31
    assert state_of(later) == "scheduled"
    assert app.worker().run_until_idle() == 0


def test_it_counts_bodies_and_waits_for_retries_that_are_due(app: App) -> None:
    @app.task(name="thrice", retry=0)
    def thrice(ctx: dray.Context) -> None:
        if ctx.attempt < 3:
            raise ValueError("again")

    @app.task(name="later", retry=600)
    def later() -> None:
        raise ValueError("again")

    jobs = thrice.enqueue(), later.enqueue()

    assert app.worker().run_until_idle() == 4
    assert [state_of(job) for job in jobs] == ["completed", "scheduled"]


def test_it_waits_for_what_somebody_else_is_about_to_free(
    app: App, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the fan-out duty does, in a transaction that is not committed yet."""
    tries: list[str] = []
    free = GraphStore.fan_out

    def busy(self: GraphStore, limit: int = FANOUT_CHUNK) -> FanOut:
        if threading.current_thread().name != "dray-engine" or len(tries) > 3:
            return free(self, limit)
        tries.append("tried")
        return FanOut(decided=0, left=True)

    @app.task(name="complete")
    def complete(ctx: dray.Context) -> None:
        with ctx.transaction():
            pass

    monkeypatch.setattr(GraphStore, "fan_out", busy)
    parent = complete.enqueue()
    child = add.using(after=[parent]).enqueue(1, 2)

    app.worker().run_until_idle()

    assert state_of(child) == "completed"
    assert len(tries) > 3


def test_a_child_that_a_transaction_keeps_locked_costs_the_other_jobs_nothing(
    app: App, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user's transaction does on PostgreSQL: every step says that children are left, which it could not tell."""
    idle_steps: list[FanOut] = []
    exchanges: list[Exchange] = []
    free, exchange = GraphStore.fan_out, WorkStore.exchange

    def locked(self: GraphStore, limit: int = FANOUT_CHUNK) -> FanOut:
        step = free(self, limit)
        if threading.current_thread().name == "dray-engine" and not step.decided:
            idle_steps.append(step)
        return step._replace(left=True)

    def counted(self: WorkStore, *args: Any, **options: Any) -> Exchange:
        answer = exchange(self, *args, **options)
        if answer.fan_out.left:
            exchanges.append(answer)
        return answer

    monkeypatch.setattr(GraphStore, "fan_out", locked)
    monkeypatch.setattr(WorkStore, "exchange", counted)
    parents = add.enqueue_many([(n, 0) for n in range(100)])
    for parent in parents:
        add.using(after=[parent]).enqueue(1, 2)
    began = time.monotonic()

    app.worker(concurrency=1).run_until_idle()

    # Beside the one that ends each exchange, a few look whether the lock is gone: 7 in 1.3 s.
    assert len(idle_steps) - len(exchanges) <= 10 + 8 * (time.monotonic() - began)
    assert app.stats().states["completed"] == 200


def test_it_waits_for_the_last_body(app: App) -> None:
    @app.task(name="slow")
    def slow() -> str:
        time.sleep(0.4)
        return "done"

    @app.task(name="quick")
    def quick() -> None:
        pass

    job = slow.enqueue()
    quick.enqueue_many([()] * 20)

    assert app.worker(concurrency=2).run_until_idle() == 21
    assert job.result(timeout=0) == "done"


def test_several_at_once_share_the_work(app: App) -> None:
    seen: list[int] = []

    @app.task(name="one")
    def one(n: int) -> None:
        seen.append(n)

    one.enqueue_many([(n,) for n in range(300)])
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.append(app.worker(concurrency=2).run_until_idle())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(seen) == list(range(300))
    assert sum(counts) == 300


def test_an_async_program_can_use_it(app: App, add: Any) -> None:
    import asyncio

    async def program() -> int:
        job = await add.aenqueue(2, 3)
        with app.worker():
            return await job.aresult(timeout=LONG)

    assert asyncio.run(program()) == 5


# In the background


def test_what_is_enqueued_in_the_process_is_picked_up_at_once(app: App, add: Any) -> None:
    with app.worker(concurrency=1):
        add.enqueue(0, 0).result(timeout=LONG)
        took: list[float] = []
        for n in range(20):
            began = time.perf_counter()
            assert add.enqueue(n, 1).result(timeout=LONG) == n + 1
            took.append(time.perf_counter() - began)

    assert sorted(took)[10] < 0.2  # about 3 ms; a poll would take a second


def test_so_is_what_another_program_inserts(app: App, url: str, add: Any) -> None:
    with app.worker(concurrency=1), App(url) as other, beside.connect(url) as connection:
        began = time.monotonic()
        assert app.job(other.enqueue("add", {"a": 1, "b": 2}).id).result(timeout=LONG) == 3
        theirs = add.using(connection=connection).enqueue(3, 4)
        connection.commit()
        assert theirs.result(timeout=LONG) == 7
        assert time.monotonic() - began < 5


def test_a_worker_shows_while_it_lives(app: App, add: Any) -> None:
    with app.worker(name="mailer", queues="mail:2,default", concurrency=3) as worker:
        (shown,) = app.workers()
        assert (shown.id, shown.name, shown.concurrency) == (worker.id, "mailer", 3)
        assert set(shown.queues) == {"mail", "default"}
        assert worker.ran == 0
    assert [each.state for each in app.workers()] in ([], ["stopped"])


def test_attempts_name_their_worker(app: App, add: Any) -> None:
    with app.worker() as worker:
        job = add.enqueue(1, 2)
        job.result(timeout=LONG)
        assert [attempt.worker for attempt in job.attempts()] == [worker.id]


def test_a_closed_app_opens_again_under_a_running_worker(app: App, add: Any) -> None:
    gate = Gate()

    @app.task(name="hold")
    def hold(ctx: dray.Context) -> int:
        gate.pass_through()
        with ctx.transaction() as tx:
            tx.execute("SELECT 1")
            tx.result = 7
        return 0

    with app.worker(concurrency=2):
        job = hold.enqueue()
        gate.await_arrival()
        app.close()
        gate.open()
        assert app.job(job.id).result(timeout=LONG) == 7
        assert add.enqueue(1, 2).result(timeout=LONG) == 3


def test_two_workers_of_one_app_run_each_job_once(app: App) -> None:
    seen: list[int] = []

    @app.task(name="one")
    def one(n: int) -> None:
        seen.append(n)

    with app.worker(concurrency=2) as first, app.worker(concurrency=2) as second:
        assert first.id != second.id
        jobs = one.enqueue_many([(n,) for n in range(400)])
        until(lambda: len(seen) >= 400 and all(job.refresh().state == "completed" for job in jobs[-20:]))
        until(lambda: app.stats().states.get("completed") == 400)

    assert sorted(seen) == list(range(400))


def test_two_apps_in_one_process_do_not_meet(tmp_path: Path, app: App) -> None:
    def where() -> str:
        return "here"

    def there() -> str:
        return "there"

    app.task(name="where")(where)
    with App(tmp_path / "other.db") as other:
        other.task(name="where")(there)
        with app.worker(), other.worker():
            assert app.enqueue("where").result(timeout=LONG) == "here"
            assert other.enqueue("where").result(timeout=LONG) == "there"


@pytest.mark.usefixtures("cold")
def test_workers_come_and_go_without_leaving_files_open(app: App, add: Any) -> None:
    def come_and_go(times: int) -> int:
        for _ in range(times):
            add.enqueue(1, 2)
            app.worker().run_until_idle()
        gc.collect()
        return open_files()

    before = come_and_go(3)
    # One file each would be 12. A connection that the App opens beside others is kept, with up to three files.
    assert come_and_go(12) - before < 7


# Shutdown


def test_an_idle_worker_ends_at_once(app: App, add: Any) -> None:
    took: list[float] = []
    for _ in range(5):
        worker = app.worker()
        worker.start()
        add.enqueue(1, 2).result(timeout=LONG)
        began = time.monotonic()
        worker.stop()
        took.append(time.monotonic() - began)

    assert sorted(took)[2] < 1.0  # about 0.03
    assert max(took) < 5.0


def test_an_idle_worker_ends_at_once_though_nothing_can_be_written(
    app: App, add: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk, which can still be read: it logs that once, and does not wait because it has no jobs."""
    worker = app.worker(lease=300)
    worker.start()
    tries: list[str] = []

    def refuse(*_: Any, **__: Any) -> None:
        tries.append("tried")
        raise StorageFull("the disk is full")

    monkeypatch.setattr(worker._backend.work, "exchange", refuse)
    monkeypatch.setattr(worker._backend.workers, "beat", refuse)
    add.enqueue(1, 2)
    until(lambda: len(tries) > 3)

    began = time.monotonic()
    worker.stop()

    assert time.monotonic() - began < 10  # of 25 seconds of grace
    assert caplog.text.count("cannot use the database") == 1
    assert "can use the database again" not in caplog.text


def test_running_jobs_end_within_the_grace_and_waiting_ones_are_not_started(app: App, add: Any) -> None:
    gate = Gate()

    @app.task(name="hold")
    def hold() -> str:
        gate.pass_through()
        return "finished"

    worker = app.worker(concurrency=1, grace=LONG, lease=30)
    worker.start()
    job = hold.enqueue()
    gate.await_arrival()
    waiting = [add.enqueue(n, n) for n in range(3)]
    ender = threading.Thread(target=worker.stop)
    ender.start()
    until(lambda: [each.state for each in app.workers()] == ["draining"], seconds=LONG)
    late = add.enqueue(5, 5)
    gate.open()
    ender.join(LONG)

    assert job.result(timeout=0) == "finished"
    assert {(state_of(each), each.attempt) for each in [*waiting, late]} == {("queued", 0)}
    assert app.worker().run_until_idle() == 4


@pytest.mark.parametrize("runner", ["thread", "async"])
def test_what_does_not_end_in_time_goes_back_unburned(app: App, runner: str) -> None:
    began = threading.Event()

    def slow() -> None:
        began.set()
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            time.sleep(0.005)

    async def aslow() -> None:
        import asyncio

        began.set()
        await asyncio.sleep(LONG)

    task = app.task(name="slow", max_attempts=1)(slow if runner == "thread" else aslow)
    with app.worker(concurrency=1, grace=0.1):
        job = task.enqueue()
        assert began.wait(LONG)

    assert (state_of(job), job.attempt, outcomes(job)) == ("queued", 0, [])
    assert job.error is None


def test_a_body_that_does_not_stop_keeps_its_claim_until_it_ends(app: App, quick_kill: None) -> None:
    """Leaving `with` does not end the user's process, and no other worker may run the job meanwhile."""
    is_let_go, began = threading.Event(), threading.Event()

    @app.task(name="deaf")
    def deaf() -> str:
        began.set()
        is_let_go.wait(LONG)  # in C, where no exception can be raised
        return "ended by itself"

    with app.worker(concurrency=1, grace=0.05, lease=1) as worker:
        job = deaf.enqueue()
        assert began.wait(LONG)
    worker_id = worker.id

    assert state_of(job) == "running"
    beat = sql(app, "SELECT last_seen_at FROM dray_workers WHERE id = ?", worker_id)
    until(lambda: sql(app, "SELECT last_seen_at FROM dray_workers WHERE id = ?", worker_id) != beat)
    assert (state_of(job), job.attempt) == ("running", 1)
    is_let_go.set()
    come_to(job, "queued")  # the stop request from before has reached it
    assert (job.attempt, outcomes(job)) == (0, [])
    until(lambda: worker_id not in {each.id for each in app.workers() if each.state != "stopped"})
    assert app.worker().run_until_idle() == 1
    assert job.result(timeout=0) == "ended by itself"


def test_an_error_in_the_block_does_not_keep_the_worker(app: App, add: Any) -> None:
    with pytest.raises(ZeroDivisionError), app.worker():
        assert 1 / add.enqueue(1, -1).result(timeout=LONG)
    assert not [thread for thread in threading.enumerate() if thread.name == "dray-engine"]
