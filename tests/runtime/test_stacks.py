"""Stacks of running bodies, requested through the database: threads, coroutines and children of a real worker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.backends.store.stacks import Asked
from dray.backends.store.work import NOTHING
from dray.handle.job import Job
from dray.instants import SECOND
from dray.model.bounds import TRACEBACK_BYTES
from dray.model.job import Demand
from dray.model.worker import NewWorker
from dray.ops.why import Why, why
from dray.runtime.execution import Execution
from dray.runtime.heartbeat import Stacks
from dray.runtime.outcome import shown_stack
from tests import verbs
from tests.backends import raw
from tests.runtime import child_bodies
from tests.runtime.watching import LONG, Gate, come_to, until


def explained(app: App, job: Job[Any], patience: float = LONG) -> Why:
    return why(core_of(app).backend, job.id, new_id=core_of(app).new_id, patience=patience)


def kinds(found: Why) -> list[str]:
    return [each.kind.value for each in found.causes]


def asked(app: App) -> int:
    """Returns the number of stack requests."""
    return raw.run(core_of(app).backend, "SELECT count(*) FROM dray_stacks")[0][0]


def _overhear(stacks: Stacks, asked: Iterable[Asked]) -> None:
    """Notifies no worker."""


def test_a_thread_says_where_its_body_is_and_nothing_of_ours(app: App) -> None:
    gate = Gate()

    @app.task(name="wait")
    def wait() -> None:
        gate.pass_through()

    with app.worker():
        job = wait.enqueue()
        gate.await_arrival()
        found = explained(app, job)
        gate.open()

    assert kinds(found) == ["running"]
    assert found.stack is not None
    assert "in wait\n    gate.pass_through()" in found.stack
    assert "in pass_through" in found.stack
    assert found.stack.startswith(f'  File "{__file__}"')
    assert asked(app) == 0


def test_a_coroutine_says_where_it_waits(app: App) -> None:
    begun, end = threading.Event(), threading.Event()

    async def inner() -> None:
        begun.set()
        while not end.is_set():
            await asyncio.sleep(0.01)

    @app.task(name="wait")
    async def wait() -> None:
        await inner()

    with app.worker():
        job = wait.enqueue()
        assert begun.wait(LONG)
        found = explained(app, job)
        end.set()

    assert kinds(found) == ["running"]
    assert found.stack is not None
    assert "in wait\n    await inner()" in found.stack
    assert "in inner" in found.stack


@pytest.mark.usefixtures("shared_forker")
def test_a_child_process_says_where_its_body_is_though_it_keeps_the_gil(
    app: App, tmp_path: Path, quick_kill: None
) -> None:
    core_of(app).registry.register(child_bodies.keep_the_gil)
    begun = tmp_path / "begun"
    with app.worker(concurrency=1) as worker:
        job = app.enqueue(child_bodies.keep_the_gil.name, {"begun": str(begun)})
        until(begun.exists)
        found = explained(app, job)
        job.cancel()
        until(lambda: job.refresh().row.finished_at is not None)
        assert worker.ran == 1

    assert kinds(found) == ["running"]
    assert "in keep_the_gil" in (found.stack or "")


def test_a_worker_without_a_free_slot_answers_too_and_many_at_once(app: App) -> None:
    gate = Gate()

    @app.task(name="wait")
    def wait() -> None:
        gate.pass_through()

    with app.worker(concurrency=2):
        jobs = wait.enqueue_many([(), ()])
        gate.await_arrival(2)
        waiting = wait.enqueue()
        with ThreadPoolExecutor() as askers:
            found = list(askers.map(partial(explained, app), [*jobs, *jobs]))
        full = explained(app, waiting)
        gate.open()

    assert [kinds(each) for each in found] == [["running"]] * 4
    assert all("in pass_through" in (each.stack or "") for each in found)
    assert (kinds(full), full.stack) == (["slots"], None)
    assert asked(app) == 0


def test_a_job_that_ends_while_its_worker_is_asked_is_explained_as_it_ended(app: App) -> None:
    gate = Gate()

    @app.task(name="wait")
    def wait() -> None:
        gate.pass_through()

    with app.worker():
        job = wait.enqueue()
        gate.await_arrival()
        come_to(job, "running")
        around = core_of(app).backend.why.circumstances(job.id)
        gate.open()
        come_to(job, "completed")
    assert around is not None

    assert not core_of(app).backend.stacks.ask(core_of(app).new_id(), job.id, around.job.claim)
    assert kinds(explained(app, job)) == ["completed"]


def test_a_job_that_is_claimed_and_has_not_begun_says_so(app: App) -> None:
    """As with a job that was claimed ahead: the worker has no body to inspect."""
    worker_id = core_of(app).new_id()
    core_of(app).backend.migrate()
    new = NewWorker(id=worker_id, name="w", host="here", pid=1, boot=core_of(app).clock.boot, tasks=("wait",))
    core_of(app).backend.workers.register(new, 60 * SECOND)
    job = app.enqueue("wait")
    (claim,) = verbs.claim(core_of(app).backend, worker_id, Demand(("default",), ("wait",), 1))
    stacks = Stacks(list[Execution], lambda: None)

    def answer() -> None:
        stacks.hear(until(lambda: core_of(app).backend.work.look(worker_id, NOTHING).asked))
        stacks.answer_one(core_of(app).backend, worker_id)

    with ThreadPoolExecutor() as other:
        answered = other.submit(answer)
        found = explained(app, job)
        answered.result()

    assert (found.job.claim, found.stack) == (claim.claim, None)
    assert kinds(found) == ["running", "not_begun"]


def test_a_worker_that_does_not_look_is_said_not_to_answer(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a worker that is stopped, or whose body holds the GIL."""
    gate = Gate()
    monkeypatch.setattr(Stacks, "hear", _overhear)

    @app.task(name="wait")
    def wait() -> None:
        gate.pass_through()

    with app.worker():
        job = wait.enqueue()
        gate.await_arrival()
        began = time.monotonic()
        found = explained(app, job, patience=0.2)
        gate.open()

    assert kinds(found) == ["running", "no_answer"]
    assert "did not answer within 0.2 s" in found.causes[-1].text
    assert found.stack is None
    assert 0.2 <= time.monotonic() - began < LONG
    assert asked(app) == 0


def test_questions_are_answered_one_at_a_time_and_each_once(app: App) -> None:
    woken: list[str] = []
    core_of(app).backend.migrate()
    stacks = Stacks(list[Execution], lambda: woken.append("woken"))
    first, second = (Asked(core_of(app).new_id(), core_of(app).new_id(), 1) for _ in range(2))

    stacks.hear([first])
    stacks.hear([first, second])
    stacks.hear([first, second])
    assert woken == ["woken", "woken"]

    assert stacks.answer_one(core_of(app).backend, core_of(app).new_id()), "there is another"
    assert not stacks.answer_one(core_of(app).backend, core_of(app).new_id())
    assert not stacks.answer_one(core_of(app).backend, core_of(app).new_id())


def test_a_stack_is_no_larger_than_a_traceback_and_shows_no_password() -> None:
    frame = '  File "/app/tasks.py", line 1, in deep\n    connect("postgresql://ann:canary@db/shop")\n'

    text = shown_stack(frame * 5_000)

    assert len(text.encode()) <= TRACEBACK_BYTES
    assert "truncated" in text
    assert "canary" not in text
    assert shown_stack("") == ""


def test_where_nothing_can_be_written_nobody_is_asked_and_that_is_said(app: App, url: str) -> None:
    gate = Gate()

    @app.task(name="wait")
    def wait() -> None:
        gate.pass_through()

    with app.worker():
        job = wait.enqueue()
        gate.await_arrival()
        with unwritable(app, url) as other:
            found = explained(other, job)
        gate.open()

    assert kinds(found) == ["running", "not_asked"]
    assert "could not be asked" in found.causes[-1].text
    assert found.stack is None


@contextmanager
def unwritable(app: App, url: str) -> Generator[App]:
    """The same database without write access: another process holds the lock, or the server refuses writes."""
    if url.startswith("sqlite:"):
        with App(url, busy_timeout=0.1) as other, core_of(app).backend.transaction():
            yield other
    else:
        with App(f"{url}&options=-cdefault_transaction_read_only%3Don") as other:
            yield other
