"""The load of a worker on its database: transactions and statements, busy and idle."""

from __future__ import annotations

import gc
import logging
import sqlite3
import statistics
import threading
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.backends.postgres import PostgresDatabase
from dray.backends.sqlite import database as sqlite
from dray.backends.sqlite import inotify, watch
from dray.backends.store.work import Look, WorkStore
from dray.instants import MINUTE
from dray.model.job import Demand, Reason
from dray.model.limit import Kind, Source
from dray.model.new_job import NewJob
from dray.model.settlement import completed, failed
from dray.model.worker import NewWorker
from dray.runtime import claiming, engine
from dray.runtime.engine import Engine
from dray.runtime.execution import Execution
from dray.runtime.inbox import Inbox
from tests.backends import raw
from tests.runtime.watching import LONG, Gate, ended, sql, until
from tests.schemas import Schemas
from tests.server import Server


@pytest.fixture(scope="module")
def quiet_server() -> Generator[Server]:
    """A separate server, because the test counts its transactions and no others may run there."""
    own = Server("autovacuum=off")
    yield own
    own.remove()


@pytest.fixture(scope="module")
def schemas(quiet_server: Server) -> Generator[Schemas]:
    with closing(Schemas(quiet_server.url)) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
        return
    server, schemas = (request.getfixturevalue(name) for name in ("quiet_server", "schemas"))
    schema = schemas.take()
    yield f"{server.url}&schema={schema}"
    schemas.give_back(schema)


class Statements:
    """Records every statement that this process sends to a database."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.senders: list[str] = []  # the name of the thread, for each

    def note(self, text: str) -> None:
        self.senders.append(threading.current_thread().name)
        self.sent.append(text)

    def clear(self) -> None:
        self.sent.clear()
        self.senders.clear()


def _changes(text: str) -> bool:
    words = text.upper()
    return any(word in words for word in ("INSERT INTO", "UPDATE DRAY", "DELETE FROM"))


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Statements:
    found = Statements()
    connect = sqlite.connect
    execute: Any = psycopg.Cursor.execute
    many: Any = psycopg.Cursor.executemany

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(found.note)
        return connection

    def counted(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        found.note(str(query))
        return execute(self, query, *args, **options)

    def counted_many(self: Any, query: Any, rows: Any, **options: Any) -> Any:
        given = list(rows)
        for _ in given:
            found.note(str(query))
        return many(self, query, given, **options)

    monkeypatch.setattr(sqlite, "connect", traced)
    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    monkeypatch.setattr(psycopg.Cursor, "executemany", counted_many)
    return found


def transactions(app: App, statements: Statements) -> int:
    """Returns how many transactions have written so far; on PostgreSQL by its transaction counter."""
    if app.url.startswith("sqlite:"):
        last: dict[str, str] = {}
        is_open: dict[str, bool] = {}
        count = 0
        for sender, text in zip(statements.senders, statements.sent, strict=True):
            begins = "BEGIN IMMEDIATE" in text
            # A thread that finds the lock taken sends BEGIN until it has it. A statement alone is a transaction too.
            count += last.get(sender) != text if begins else _changes(text) and not is_open.get(sender, False)
            is_open[sender] = begins or (is_open.get(sender, False) and text not in {"COMMIT", "ROLLBACK"})
            last[sender] = text
        return count
    return int(sql(app, "SELECT pg_current_xact_id()::text")[0][0])


def nothing() -> None:
    pass


def test_a_thousand_short_jobs_take_thirty_transactions(app: App, statements: Statements) -> None:
    app.task(name="nothing")(nothing).enqueue_many([()] * 1_000)
    before = transactions(app, statements)

    assert app.worker(concurrency=4).run_until_idle() == 1_000

    # About 15 for the jobs; the worker's start and end, its duties and its beats add some.
    assert transactions(app, statements) - before < 60


def test_the_statements_of_a_batch_do_not_grow_with_its_jobs(app: App, statements: Statements) -> None:
    """On SQLite a statement for each job would also be a moment for each at which the engine waits for the GIL. Few
    jobs are claimed by one statement there, many by four."""
    sent: dict[int, int] = {}
    worker_id = register(app)
    for count in (1, 100, 400):
        add(app, count)
        claims = core_of(app).backend.work.exchange(worker_id, (), Demand(("default",), ("nothing",), count)).claims
        ends = [completed(claim, 1, 2, '"a result"') for claim in claims]
        add(app, count)
        before = len(statements.sent)
        again = core_of(app).backend.work.exchange(worker_id, ends, Demand(("default",), ("nothing",), count))
        sent[count] = len(statements.sent) - before
        assert (len(again.claims), again.settled.stale) == (count, [])

    assert sent[400] == sent[100] <= 12
    assert sent[1] == sent[100] - (3 if app.url.startswith("sqlite:") else 0)


def test_the_end_of_a_job_is_counted_by_no_statement_of_its_own(app: App, statements: Statements) -> None:
    """A duty counts what has ended; the key of an error is written with the failure."""
    worker_id, count = register(app), 10
    add(app, 2 * count)
    work = core_of(app).backend.work
    claims = work.exchange(worker_id, (), Demand(("default",), ("nothing",), 2 * count)).claims
    ends = [completed(claim, 1, 2) for claim in claims[:count]]
    ends += [failed(claim, 1, 2, Reason.ERROR, "ValueError", "no", None) for claim in claims[count:]]
    statements.clear()
    work.exchange(worker_id, ends, Demand((), (), 0))

    # On SQLite two for each failure, the record of the attempt and the end; of the completed ones none has its own.
    assert len(statements.sent) <= 2 * count + 10
    assert not [text for text in statements.sent if "dray_rollups" in text]
    assert sql(app, "SELECT count(*), count(error_key) FROM dray_jobs") == [(2 * count, count)]


def add(app: App, count: int) -> None:
    """Jobs whose announcements are sent when this returns: a thread may send them."""
    core_of(app).backend.jobs.enqueue(
        [NewJob(id=core_of(app).new_id(), task="nothing", args="{}") for _ in range(count)]
    )
    database = core_of(app).backend.db
    if isinstance(database, PostgresDatabase):
        database._notifier.flush()


def register(app: App) -> str:
    worker = NewWorker(id=core_of(app).ids.new(), name="counted", host="here", pid=1, boot="boot")
    core_of(app).backend.workers.register(worker, MINUTE)
    return worker.id


def test_a_job_on_its_own_takes_three_transactions(app: App, statements: Statements) -> None:
    """One enqueues it, one claims it, one ends it. On PostgreSQL two NOTIFYs count as well."""
    each = 3 if app.url.startswith("sqlite:") else 5
    task = app.task(name="nothing")(nothing)
    with app.worker(concurrency=1, lease=300):
        task.enqueue().result(timeout=LONG)
        settle(app, statements)
        before = transactions(app, statements)
        for _ in range(10):
            task.enqueue().result(timeout=LONG)
        spent = transactions(app, statements) - before

    assert 10 * 3 <= spent <= 10 * each + 8  # plus an occasional duty


def test_whoever_is_called_and_alone_claims_without_a_look(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of another process wakes the worker; here another App stands in for it."""
    app.task(name="nothing")(nothing)
    steps: list[str] = []
    for step in ("_look", "_exchange"):
        monkeypatch.setattr(Engine, step, noting(steps, step, getattr(Engine, step)))
    with app.worker(queues="default", concurrency=1, lease=300), App(url) as other:
        other.enqueue("nothing").result(timeout=LONG)
        first_steps: list[str] = []
        for _ in range(10):
            quiet(steps)
            steps.clear()
            other.enqueue("nothing").result(timeout=LONG)
            first_steps.append(steps[0])

    assert first_steps.count("_exchange") >= 8  # the commit of a duty may wake it in vain


def test_from_the_call_to_the_body_there_is_one_short_transaction(
    app: App, url: str, statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle worker sends nothing before the body starts but the claim: BEGIN, what it needs to claim, COMMIT. The
    engine then lets the body start: a slot that is being woken gets the GIL only from an engine that sleeps."""
    monkeypatch.setattr(engine, "_HAND_OVER", LONG)  # the end of the body ends it
    sent: list[int] = []
    begun: list[tuple[int, bool]] = []
    naps: list[int] = []
    exchange, doze = Engine._exchange, Inbox.doze

    def exchanging(self: Engine, *args: Any) -> float:
        begun.append((len(statements.sent), self._poll_policy._claims_without_look))
        return exchange(self, *args)

    def dozing(self: Inbox, seconds: float) -> bool:
        naps.extend([len(begun)] if seconds == LONG else [])
        return doze(self, seconds)

    monkeypatch.setattr(Engine, "_exchange", exchanging)
    monkeypatch.setattr(Inbox, "doze", dozing)

    @app.task(name="counts")
    def counts() -> None:
        until(lambda: len(begun) in naps)
        start, is_at_once = begun[-1]
        if is_at_once:
            sent.append(statements.senders[start:].count("dray-engine"))

    with app.worker(queues="default", concurrency=2, lease=300), App(url) as other:
        for _ in range(12):
            other.enqueue("counts").result(timeout=LONG)
            until(lambda: not app.jobs(state=["running"]))
            time.sleep(0.15)  # the engine has seen its own writes and sleeps

    assert len(sent) >= 6  # the commit of a duty may wake it in vain
    # Most of them: every 5 s a writer of SQLite also asks who writes the log back.
    assert statistics.median_high(sent) == (3 if app.url.startswith("sqlite:") else 4), sent


def noting(steps: list[str], step: str, method: Any) -> Any:
    def noted(*args: Any, **options: Any) -> Any:
        steps.append(step)
        return method(*args, **options)

    return noted


def quiet(steps: list[str]) -> None:
    """Waits until the engine has seen its own writes and sleeps."""
    until(lambda: len(steps) == (time.sleep(0.15), len(steps))[1])


def test_a_worker_beside_a_busy_queue_looks_seldom(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app.task(name="nothing")(nothing)
    steps: list[str] = []
    monkeypatch.setattr(Engine, "_look", noting(steps, "_look", Engine._look))
    with app.worker(queues="other", lease=300):
        began, enqueued = time.monotonic(), 0
        while enqueued < 150 or time.monotonic() - began < 3.0:
            app.enqueue("nothing", queue="busy")
            enqueued += 1
            time.sleep(0.002)
        looks, took = len(steps), time.monotonic() - began

    # 50 in the first second, then 13 each. PostgreSQL wakes a worker only for its own queues.
    assert looks < 80 + 14 * took


def test_a_worker_beside_a_busy_producer_writes_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite, where the producer waits for each of its transactions. One that is in another process has the lock
    while it waits for the disk; here another App sleeps in its transactions."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    steps: list[str] = []
    monkeypatch.setattr(Engine, "_exchange", noting(steps, "_exchange", Engine._exchange))
    monkeypatch.setattr(claiming, "_BUSY_RATE", 1)  # a busy machine's producer is slow
    with App(url) as app, App(url) as other:
        app.task(name="nothing")(nothing)
        with app.worker(queues="default", lease=300):
            jobs = [NewJob(id=core_of(app).new_id(), task="nothing", args="{}") for _ in range(1_000)]
            for job in jobs:
                core_of(other).backend.db.write(lambda tx, job=job: (tx.insert([job], {}), time.sleep(0.0005)))
                time.sleep(0.0002)
            spent = len(steps)
            until(lambda: sql(app, "SELECT count(*) FROM dray_jobs WHERE state = 'completed'") == [(1_000,)])

    assert spent < 400  # about 120; it was 900


def settle(app: App, statements: Statements) -> None:
    """Waits until a new worker has taken its duties and finished its first writes."""
    quiet = 0
    while quiet < 3:
        before = transactions(app, statements)
        time.sleep(0.1)
        # On PostgreSQL each look counts as a transaction.
        quiet = quiet + 1 if transactions(app, statements) - before <= 1 else 0


def test_an_idle_worker_writes_nothing_and_reads_little(app: App, statements: Statements) -> None:
    seconds = 2.0
    app.task(name="nothing")(nothing).enqueue()
    with app.worker(lease=600):
        until(lambda: app.stats().states["completed"] == 1)
        settle(app, statements)
        time.sleep(0.5)  # the log has been checkpointed
        statements.clear()
        time.sleep(seconds)
        sent = list(statements.sent)

    assert [text for text in sent if _changes(text) or "BEGIN IMMEDIATE" in text] == []
    assert len(sent) <= 25 * seconds  # one look and those of the duties, every second


def test_an_idle_worker_on_sqlite_looks_only_after_a_commit_and_needs_no_event_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_OF_WAL", inotify.DELETE_SELF)  # the kernel does not tell of writes
    looks: list[float] = []
    look = WorkStore.look

    def counted(*args: Any, **options: Any) -> Look:
        looks.append(time.monotonic())
        return look(*args, **options)

    monkeypatch.setattr(WorkStore, "look", counted)
    with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app, App(core_of(app).settings.url) as producer:
        app.task(name="nothing")(nothing)
        with app.worker(lease=600):
            time.sleep(3.0)  # it has started, and its duties have written
            looks.clear()
            time.sleep(4.5)
            assert looks == []
            job = producer.task(name="nothing")(nothing).enqueue()
            job.result(timeout=LONG)

    assert looks


def test_an_idle_worker_is_silent(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.task(name="nothing")(nothing)
    with app.worker():
        time.sleep(0.5)

    loud = [record for record in caplog.records if record.levelno >= logging.WARNING and "SQLite 3" not in record.msg]
    assert loud == []


def test_a_row_that_somebody_holds_is_tried_again_without_haste(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, calls = Gate(), count_exchanges(monkeypatch)

    @app.task(name="hold")
    def hold() -> int:
        gate.pass_through()
        return 7

    with app.worker(concurrency=1):
        job = hold.enqueue()
        gate.await_arrival()
        with raw.job_held(core_of(app).backend, job.id):
            gate.open()
            before = calls[0]
            time.sleep(1.0)
            assert calls[0] - before < 100
        assert ended(job) == "completed"


def test_lines_and_reports_cost_no_transactions_of_their_own(app: App, statements: Statements) -> None:
    @app.task(name="talks")
    def talks(ctx: dray.Context) -> None:
        for n in range(50):
            ctx.log.info("line %d", n)
            ctx.progress(n)

    talks.enqueue_many([()] * 100)
    before = transactions(app, statements)
    app.worker(concurrency=4).run_until_idle()

    assert transactions(app, statements) - before < 150
    assert sql(app, "SELECT count(*) FROM dray_logs") == [(5_000,)]


def count_exchanges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls = [0]
    exchange = Engine._exchange

    def counting(self: Engine, *args: Any) -> float:
        calls[0] += 1
        return exchange(self, *args)

    monkeypatch.setattr(Engine, "_exchange", counting)
    return calls


def sync(account: str) -> None: ...


def test_an_idle_worker_passes_over_closed_keys_without_a_transaction(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite each one would keep all other writers from the file."""
    task = app.task(name="sync", key="account", key_limit=0)(sync)
    other = app.task(name="other", queue="other")(nothing)
    task.enqueue_many([(f"account {n:04}",) for n in range(1_500)])
    calls = count_exchanges(monkeypatch)
    looks, look = list[bool](), WorkStore.look

    def looking(self: WorkStore, *given: Any, **named: Any) -> Look:
        seen = look(self, *given, **named)
        looks.append(seen.goes_on)
        return seen

    monkeypatch.setattr(WorkStore, "look", looking)
    with app.worker(concurrency=8, queues=["default"]):
        until(lambda: looks and not looks[-1])
        before = calls[0]
        for _ in range(5):
            seen = len(looks)
            other.enqueue()
            until(lambda: len(looks) > seen and not looks[-1])  # noqa: B023 - over before the next one
        # After a commit of another process the worker claims without a look, until such a claim has found nothing.
        assert calls[0] - before <= 1

        core_of(app).backend.limits.say("task", "sync", Source.OVERRIDE, {Kind.KEY_LIMIT: ()})
        assert ended(task.enqueue("opened")) == "completed"


@pytest.mark.parametrize("kind", ["ready", "due"])
def test_a_row_that_cannot_be_taken_now_is_tried_again_without_haste(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Only PostgreSQL locks single rows: the look finds this one, and the claim skips it."""
    calls = count_exchanges(monkeypatch)
    with App(postgres_url, migrate=True) as app:
        job = app.task(name="nothing")(nothing).using(delay=0.2 if kind == "due" else 0).enqueue()
        with raw.job_held(core_of(app).backend, job.id):
            worker = app.worker(concurrency=1)
            worker.start()
            time.sleep(1.2)
            tried = calls[0]
        assert ended(job) == "completed"
        worker.stop()

    assert tried < 100


def test_nothing_is_kept_of_jobs_that_have_ended(app: App) -> None:
    """However they ended: normally, or in a transaction of the body."""

    @app.task(name="plain")
    def plain(ctx: dray.Context) -> None:
        ctx.progress(50)

    @app.task(name="itself")
    def itself(ctx: dray.Context) -> None:
        with ctx.transaction() as tx:
            tx.execute("SELECT 1")

    @app.task(name="fails", max_attempts=1)
    async def fails() -> None:
        raise ValueError("no")

    gc.collect()
    before = executions()
    with app.worker(concurrency=2):
        for task in (plain, itself, fails):
            task.enqueue_many([()] * 50)
        until(lambda: not app.jobs(state=["queued", "running"]))
        until(lambda: gc.collect() or executions() - before <= 4, seconds=5)


def executions() -> int:
    return sum(type(each) is Execution for each in gc.get_objects())


def test_a_worker_that_waited_on_empty_tables_reads_no_more_a_job_when_many_come(postgres_url: str) -> None:
    """A cached plan made for an empty table read the whole table: 149 rows per job at 5,000 jobs, and growing."""
    jobs, schema = 3_000, postgres_url.rpartition("=")[2]
    with dray.App(postgres_url, migrate=True) as app, psycopg.connect(postgres_url.partition("&")[0]) as server:
        server.autocommit = True

        @app.task(name="nothing")
        def nothing() -> None: ...

        core_of(app).backend.migrate()
        server.execute(f"ALTER TABLE {schema}.dray_jobs SET (autovacuum_enabled = FALSE)".encode())
        with app.worker(concurrency=4) as worker:
            for _ in range(6):  # so that its statements are prepared and planned now
                nothing.enqueue().result(timeout=30)
            nothing.enqueue_many([()] * jobs)
            until(lambda: worker.ran >= jobs)
        app.close()  # a session reports its reads at its end at the latest

        def told() -> list[tuple[int, int]]:
            found = server.execute(
                "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables "
                "WHERE schemaname = %s AND relname = 'dray_jobs' AND n_tup_upd >= %s",
                (schema, 2 * jobs),
            )
            return found.fetchall()

        ((in_order, by_index),) = until(told)
    assert in_order < 1_000
    assert by_index < 20 * jobs
