"""Names with any printable characters: enqueued, run, listed, searched for, paused."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from dray import App
from dray.app_interface import core_of
from dray.ops import search as ops

NAMES = [
    "a b",
    "ü/ß",
    "票" * 200,
    "🚚" * 200,  # 800 bytes
    "50 % [a-c]?",
    "50 x [b]b",  # which the one before would match as a pattern
    "q'; DROP TABLE dray_jobs; --",
    'say "hi"\\',
    "mail.*",
    "mail.send",
    "$(reboot) `x` #1",
    "<b>&amp;",
    "..",
    "-x",
]


@pytest.fixture
def ran(url: str) -> Generator[App]:
    """An App in which each name was a task, a queue and a schedule, and each task has run."""
    with App(url) as app:
        app.init()
        for name in NAMES:
            app.queue(name, priority=1)
            core_of(app).define(nothing, {"name": name, "queue": name})
            app.schedule(name, name, every=3600)
            app.enqueue(name)
        app.worker().run_until_idle()
        yield app


def nothing() -> None: ...


def found(app: App, text: str) -> list[str]:
    return sorted(job.task for job in ops.search(core_of(app), text).jobs)


def test_a_job_of_any_name_runs_and_is_found_by_it_alone(ran: App) -> None:
    assert sorted(job.task for job in ran.jobs(state="completed")) == sorted(NAMES)
    for name in NAMES:
        assert [(job.task, job.queue) for job in ran.jobs(task=name, queue=name)] == [(name, name)]
        for key in ("task", "queue"):
            search = ops.Search().plus(key, name)
            assert found(ran, search.text()) == [name]
    assert sorted(queue.name for queue in ran.queues()) == sorted(NAMES)
    assert [schedule.name for schedule in ran.schedules()] == sorted(NAMES)


def test_a_star_is_any_text_and_all_else_is_itself(ran: App) -> None:
    assert found(ran, "task:mail.*") == ["mail.*", "mail.send"]
    assert found(ran, 'task:"mail.*"') == ["mail.*"]
    assert found(ran, "queue:*?") == ["50 % [a-c]?"]
    assert found(ran, "queue:*[*") == ["50 % [a-c]?", "50 x [b]b"]
    assert found(ran, "queue:*%*") == ["50 % [a-c]?"]
    assert found(ran, "queue:*\\") == ['say "hi"\\']
    assert found(ran, "queue:*_*") == ["q'; DROP TABLE dray_jobs; --"]
    assert found(ran, "queue:DROP") == []
    assert found(ran, "task:票*") == ["票" * 200]


def test_a_worker_serves_the_queues_of_a_list(url: str) -> None:
    with App(url) as app:
        app.init()

        @app.task(name="t")
        def task() -> None: ...

        for queue in ("no é", "a:b", "left"):
            task.using(queue=queue).enqueue()

        app.worker(queues="no é:2, a:b").run_until_idle()

        assert {job.queue: job.state for job in app.jobs()} == {
            "no é": "completed",
            "a:b": "completed",
            "left": "queued",
        }


def test_steps_of_a_workflow_have_any_name(url: str) -> None:
    with App(url) as app:
        app.init()

        @app.task(name="sum up")
        def task() -> None: ...

        wf = app.workflow("w")
        first: Any = wf.add(task.using(queue="q"), step="a / b, c")
        wf.add(task.using(queue="q"), step="50 %", after=first)
        run = wf.enqueue()
        app.worker().run_until_idle()

        assert run.job("a / b, c").state == run.job("50 %").state == "completed"
