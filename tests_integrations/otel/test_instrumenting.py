"""Instrumenting: once, undone, without an SDK, with one that is broken. Jobs are the same in every case."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

import dray
from dray.app_interface import core_of
from dray.errors import ConfigError
from dray.integrations.otel import instrument, uninstrument
from tests_integrations.otel.conftest import Telemetry


def works(app: dray.App) -> list[dray.Job[Any]]:
    """Enqueues in several ways, and runs; returns the jobs."""

    @app.task(name="add")
    def add(a: int) -> int:
        return a

    @app.task(name="aadd", retry=0, max_attempts=2)
    async def aadd(ctx: dray.Context, a: int) -> int:
        if ctx.attempt == 1:
            raise ValueError(a)
        return a

    jobs = [add.enqueue(0), *add.enqueue_many([(1,), (2,)]), aadd.enqueue(3)]
    app.worker().run_until_idle()
    assert [job.result() for job in jobs] == [0, 1, 2, 3]
    assert [attempt.outcome for attempt in jobs[3].attempts()] == ["error", "completed"]
    return jobs


def test_a_second_time_changes_nothing_and_says_so(
    app: dray.App, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    instrument(app, telemetry.provider)
    with caplog.at_level(logging.WARNING, "dray"):
        instrument(app, telemetry.provider)

    works(app)

    assert "is instrumented already" in caplog.text
    assert sum(span.name == "process default" for span in telemetry.spans) == 5


def test_it_can_be_undone_and_done_again(app: dray.App, telemetry: Telemetry) -> None:
    instrument(app, telemetry.provider)
    uninstrument(app)
    uninstrument(app)

    jobs = works(app)

    assert telemetry.spans == []
    assert [app.job(job.id).headers for job in jobs] == [{}] * 4
    assert core_of(app).hooks.middleware == ()
    instrument(app, telemetry.provider)
    app.enqueue("add", {"a": 1})
    assert len(telemetry.spans) == 1


def test_not_beside_a_worker(app: dray.App, telemetry: Telemetry) -> None:
    app.task(name="works")(works)
    with app.worker(), pytest.raises(ConfigError, match="before the worker starts"):
        instrument(app, telemetry.provider)
    app.enqueue("elsewhere")
    assert telemetry.spans == []

    instrument(app, telemetry.provider)
    with app.worker(), pytest.raises(ConfigError, match="after it has ended"):
        uninstrument(app)


def test_bad_arguments_are_refused_by_name() -> None:
    wrong: Any = "app"
    for function in (instrument, uninstrument):
        with pytest.raises(TypeError, match=r"only a dray\.App can be instrumented, not str"):
            function(wrong)
    with pytest.raises(TypeError, match=r"tracer_provider must be .+ with get_tracer\(\), not str"):
        instrument(dray.App("sqlite:///unused.db"), tracer_provider=wrong)
    with pytest.raises(TypeError, match="meter_provider"):
        instrument(dray.App("sqlite:///unused.db"), meter_provider=wrong)


def test_without_an_sdk_nothing_is_made_and_nothing_added(app: dray.App) -> None:
    instrument(app)  # no provider is set in this process: what the API does alone

    jobs = works(app)

    assert [app.job(job.id).headers for job in jobs] == [{}] * 4


def test_without_the_api_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "dray.integrations.otel")

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dray\[otel\]'"):
        importlib.import_module("dray.integrations.otel")


class BrokenExporter(SpanExporter):
    def export(self, spans: Any) -> Any:
        raise OSError("the collector is away")


class BrokenStart(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise OSError("cannot start")


class BrokenEnd(SpanProcessor):
    def on_end(self, span: Any) -> None:
        raise OSError("cannot end")


@pytest.mark.parametrize("broken", [SimpleSpanProcessor(BrokenExporter()), BrokenStart(), BrokenEnd()])
def test_jobs_are_the_same_when_telemetry_is_broken(
    sqlite_url: str, broken: SpanProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(broken)
    with dray.App(sqlite_url) as app, caplog.at_level(logging.CRITICAL, "opentelemetry"):
        instrument(app, provider)
        works(app)


def test_an_unsampled_trace_stays_unsampled_in_the_worker(app: dray.App, telemetry: Telemetry) -> None:
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

    telemetry.provider.sampler = ParentBased(ALWAYS_OFF)
    instrument(app, telemetry.provider)

    jobs = works(app)

    assert telemetry.spans == []
    assert int(app.job(jobs[1].id).headers["traceparent"][-2:], 16) & 1 == 0  # the flag that says sampled


def test_a_step_that_a_body_adds_stays_in_an_unsampled_trace(app: dray.App, telemetry: Telemetry) -> None:
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

    telemetry.provider.sampler = ParentBased(ALWAYS_OFF)
    instrument(app, telemetry.provider)

    @app.task(name="added")
    def added() -> None: ...

    @app.task(name="first")
    def first(ctx: dray.Context) -> None:
        ctx.add(added)

    flow = app.workflow("flow")
    flow.add(first)
    flow.enqueue()
    app.worker().run_until_idle()

    _, trace_of_first, *_ = app.jobs(task="first")[0].headers["traceparent"].split("-")
    _, trace_of_added, _, flags = app.jobs(task="added")[0].headers["traceparent"].split("-")
    assert (trace_of_added, int(flags, 16) & 1) == (trace_of_first, 0)
