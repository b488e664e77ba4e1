"""The Context: what it tells a body, and what a body can report through it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

import dray
from dray.app import App
from dray.backends.store.work import Notes, WorkStore
from dray.handle.job import Job
from tests.backends import beside
from tests.runtime.watching import LONG, Gate, come_to, ended, outcomes, state_of, until

Seen = dict[str, Any]


def shown(ctx: dray.Context) -> Seen:
    return {
        "job_id": ctx.job_id,
        "attempt": ctx.attempt,
        "max_attempts": ctx.max_attempts,
        "key": ctx.idempotency_key,
        "cancelled": ctx.cancelled,
        "parents": dict(ctx.parent_results),
    }


@pytest.mark.parametrize("runner", ["thread", "async"])
def test_a_body_knows_its_job_and_its_attempt(app: App, runner: str) -> None:
    seen: list[Seen] = []

    def look(ctx: dray.Context) -> None:
        seen.append(shown(ctx))
        ctx.raise_if_cancelled()
        if ctx.attempt < 3:
            raise ValueError("again")

    @app.task(name="alook", max_attempts=4, retry=0)
    async def alook(whatever_its_name: dray.Context) -> None:
        look(whatever_its_name)

    job = (app.task(name="look", max_attempts=4, retry=0)(look) if runner == "thread" else alook).enqueue()
    app.worker().run_until_idle()

    assert state_of(job) == "completed"
    assert [each["attempt"] for each in seen] == [1, 2, 3]
    same = {"job_id": job.id, "max_attempts": 4, "key": seen[0]["key"], "cancelled": False, "parents": {}}
    assert all({name: each[name] for name in same} == same for each in seen)
    assert seen[0]["key"]


def test_idempotency_keys_of_two_jobs_differ(app: App) -> None:
    @app.task(name="key")
    def key(ctx: dray.Context) -> str:
        return ctx.idempotency_key

    jobs = [key.enqueue(), key.enqueue()]
    app.worker().run_until_idle()

    assert len({job.result(timeout=0) for job in jobs}) == 2


def test_a_snoozed_job_keeps_its_key_and_its_number(app: App) -> None:
    seen: list[tuple[str, int]] = []

    @app.task(name="nap")
    def nap(ctx: dray.Context) -> None:
        seen.append((ctx.idempotency_key, ctx.attempt))
        if len(seen) == 1:
            raise dray.Snooze(0)

    nap.enqueue()
    app.worker().run_until_idle()

    assert len(seen) == 2
    assert len(set(seen)) == 1


# Parents


def test_a_child_sees_what_its_parents_returned(app: App) -> None:
    @app.task(name="parent")
    def parent(n: int) -> dict[str, int]:
        return {"n": n}

    @app.task(name="breaks", max_attempts=1)
    def breaks() -> None:
        raise ValueError("no")

    @app.task(name="asks")
    def asks(ctx: dray.Context) -> dict[str, Any]:
        return dict(ctx.parent_results)

    @app.task(name="takes")
    async def _(parent_results: Mapping[str, Any], more: int = 5) -> dict[str, Any]:
        return {**parent_results, "more": more}

    one, two, none = parent.enqueue(1), parent.enqueue(2), breaks.enqueue()
    child = asks.using(after=[one, two, none], on_parent_failure="run").enqueue()
    other = app.enqueue("takes", {"more": 6}, after=[two])
    lonely = app.enqueue("takes")
    app.worker().run_until_idle()

    assert child.result(timeout=0) == {one.id: {"n": 1}, two.id: {"n": 2}}
    assert other.result(timeout=0) == {two.id: {"n": 2}, "more": 6}
    assert lonely.result(timeout=0) == {"more": 5}


def test_a_parent_without_a_result_is_there_with_none(app: App) -> None:
    @app.task(name="silent")
    def silent() -> None:
        pass

    @app.task(name="asks")
    def _(parent_results: dict[str, Any]) -> dict[str, Any]:
        return parent_results

    first = silent.enqueue()
    child = app.enqueue("asks", after=[first])
    app.worker().run_until_idle()

    assert child.result(timeout=0) == {first.id: None}


# Progress


def test_the_last_word_on_progress_is_kept(app: App) -> None:
    @app.task(name="go")
    def go(ctx: dray.Context) -> None:
        ctx.progress(10, "first")
        ctx.progress(250, "too much\0 postgresql://ann:sesame@db/x")

    job = go.enqueue()
    app.worker().run_until_idle()

    assert job.refresh().progress == (100.0, "too much\ufffd postgresql://ann:***@db/x")


def test_progress_shows_while_the_body_runs(app: App) -> None:
    gate = Gate()

    @app.task(name="go")
    def go(ctx: dray.Context) -> None:
        ctx.progress(42.5, "on the way")
        gate.pass_through()

    with app.worker():
        job = go.enqueue()
        gate.await_arrival()
        until(lambda: job.refresh().progress == (42.5, "on the way"))
        gate.open()
        assert ended(job) == "completed"


def test_progress_that_is_no_number_is_an_error_of_the_body(app: App) -> None:
    @app.task(name="nan", max_attempts=1)
    def nan(ctx: dray.Context) -> None:
        ctx.progress(float("nan"))

    job = nan.enqueue()
    app.worker().run_until_idle()

    assert state_of(job) == "failed(error)"
    assert "nan" in (job.error or "")


@pytest.mark.parametrize("runner", ["thread", "async"])
@pytest.mark.parametrize("percent", [float("inf"), 10**20, True])
def test_progress_is_made_fit_to_be_stored(app: App, runner: str, percent: float) -> None:
    @app.task(name="reports")
    def reports(ctx: dray.Context) -> None:
        ctx.progress(percent, "a\0b\udc80")

    @app.task(name="areports")
    async def areports(ctx: dray.Context) -> None:
        ctx.progress(percent, "a\0b\udc80")

    job = (reports if runner == "thread" else areports).enqueue()
    app.worker().run_until_idle()

    assert state_of(job) == "completed"
    assert job.progress == (min(float(percent), 100.0), "a\ufffdb\\udc80")


def test_progress_of_one_attempt_is_not_shown_with_the_next(app: App) -> None:
    seen: list[Any] = []

    @app.task(name="go", retry=0)
    def go(ctx: dray.Context) -> None:
        if ctx.attempt == 1:
            ctx.progress(90)
            raise ValueError("again")
        seen.append(app.job(ctx.job_id).progress)

    go.enqueue()
    app.worker().run_until_idle()

    assert seen == [(None, None)]


def count_reports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the ids of the jobs whose progress is written, one entry per write."""
    written: list[str] = []
    keep = WorkStore._keep_notes

    def counting(self: WorkStore, tx: Any, worker_id: str, notes: Notes) -> Notes:
        written.extend(report.id for report in notes.reports)
        return keep(self, tx, worker_id, notes)

    monkeypatch.setattr(WorkStore, "_keep_notes", counting)
    return written


def test_progress_is_written_twice_a_second_at_most_however_busy_the_worker_is(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = count_reports(monkeypatch)
    is_over = threading.Event()

    @app.task(name="reports")
    def reports(ctx: dray.Context) -> float:
        began = time.monotonic()
        for n in range(200):
            ctx.progress(n / 2)
            time.sleep(0.005)
        is_over.set()
        return time.monotonic() - began

    @app.task(name="noise", max_attempts=1)
    def noise() -> None:
        if not is_over.is_set():
            noise.enqueue()

    with app.worker(concurrency=2):
        job = reports.enqueue()
        noise.enqueue()
        seconds = job.result(timeout=LONG)

    assert 2 <= len([each for each in written if each == job.id]) <= 2 * seconds + 2
    assert job.refresh().progress.percent == pytest.approx(199 / 2)


@pytest.mark.parametrize("ending", ["rolled back", "committed"])
def test_a_transaction_that_has_the_row_of_a_job_that_reports_holds_no_other_job_up(
    postgres_url: str, ending: str
) -> None:
    """Only PostgreSQL locks single rows: here an uncommitted enqueue that runs after the job, open for as long as a
    web request takes."""
    gate = Gate()
    with App(postgres_url, migrate=True) as app, beside.connect(postgres_url) as request:

        @app.task(name="reports")
        def reports(ctx: dray.Context) -> None:
            ctx.progress(10)
            gate.pass_through()
            ctx.log.info("nearly done")
            ctx.progress(90, "nearly")

        @app.task(name="other")
        def other() -> int:
            return 7

        with app.worker(concurrency=2):
            job = reports.enqueue()
            gate.await_arrival()
            until(lambda: job.refresh().progress.percent == 10)
            child = other.using(after=[job], connection=request).enqueue()
            gate.open()
            until(lambda: "nearly done" in [line.message for line in job.logs()])
            assert other.enqueue().result(timeout=5) == 7
            assert state_of(job) == "running"
            request.commit() if ending == "committed" else request.rollback()
            assert ended(job) == "completed"
            assert job.refresh().progress == (90.0, "nearly")
            if ending == "committed":
                assert app.job(child.id).result(timeout=LONG) == 7


def test_last_words_whose_row_somebody_holds_are_written_when_they_let_it_go(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body has completed its job itself, so there is no outcome whose write would be retried."""
    gate, written = Gate(), count_reports(monkeypatch)
    with App(postgres_url, migrate=True) as app, beside.connect(postgres_url) as request:

        @app.task(name="reports")
        def reports(ctx: dray.Context) -> None:
            with ctx.transaction():
                pass
            gate.pass_through()
            ctx.progress(90, "nearly")

        with app.worker(concurrency=1):
            job = reports.enqueue()
            gate.await_arrival()
            beside.execute(request, "SELECT 1 FROM dray_jobs WHERE id = ? FOR SHARE", job.id)
            gate.open()
            until(lambda: len(written) >= 2)
            assert len(written) < 4  # with pauses
            request.rollback()
            until(lambda: job.refresh().progress == (90.0, "nearly"))


# Cancelled


def test_a_body_can_ask_whether_it_is_to_stop(app: App) -> None:
    began = threading.Event()

    @app.task(name="asks")
    def asks(ctx: dray.Context) -> None:
        began.set()
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            ctx.raise_if_cancelled()
            time.sleep(0.001)

    with app.worker(concurrency=1):
        job = asks.enqueue()
        assert began.wait(LONG)
        assert job.cancel()
        assert ended(job) == "cancelled(user)"

    assert outcomes(job) == ["cancelled"]


def test_a_body_that_catches_exceptions_is_stopped_all_the_same(app: App) -> None:
    began = threading.Event()

    @app.task(name="catches")
    def catches(ctx: dray.Context) -> None:
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            try:
                began.set()
                ctx.raise_if_cancelled()
                time.sleep(0.001)
            except Exception:  # noqa: BLE001
                pass

    with app.worker(concurrency=1):
        job = catches.enqueue()
        assert began.wait(LONG)
        assert job.cancel()
        assert ended(job) == "cancelled(user)"


def test_a_context_shows_what_it_is_of(app: App) -> None:
    @app.task(name="show")
    def show(ctx: dray.Context) -> str:
        return repr(ctx)

    job: Job[str] = show.enqueue()
    app.worker().run_until_idle()

    assert job.result(timeout=0) == f"<Context of show {job.id} attempt 1>"


def test_a_plain_call_needs_no_worker(app: App) -> None:
    @app.task(name="plain")
    async def plain(n: int, ctx: dray.Context | None = None) -> int:
        return n + 1

    assert asyncio.run(plain(1)) == 2
    come_to(plain.enqueue(1), "queued")
