"""Traces: from the request that enqueues to the last attempt, in every runner."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.trace import SpanKind, StatusCode

import dray
from dray.app_interface import core_of
from dray.settings import Settings
from dray.testing import drain, inline
from tests_integrations.otel import shop
from tests_integrations.otel.conftest import Telemetry


def nothing() -> None:
    pass


def ids(span: Any) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def linked(span: Any) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


@pytest.mark.parametrize("is_async", [False, True])
def test_one_trace_leads_from_the_request_to_the_last_retry(
    traced: dray.App, telemetry: Telemetry, is_async: bool
) -> None:
    seen: list[int] = []

    def work(ctx: dray.Context) -> str:
        seen.append(trace.get_current_span().get_span_context().span_id)
        with telemetry.tracer.start_as_current_span("work"):
            if ctx.attempt < 3:
                raise ConnectionError("not yet")
        return "done"

    async def awork(ctx: dray.Context) -> str:
        await asyncio.sleep(0)
        return work(ctx)

    task = traced.task(name="work", queue="mail", retry=0)(awork if is_async else work)

    with telemetry.tracer.start_as_current_span("POST /orders", kind=SpanKind.SERVER):
        job = task.enqueue()
    traced.worker().run_until_idle()

    assert job.result() == "done"
    (request,) = telemetry.named("POST /orders")
    (send,) = telemetry.named("send mail")
    attempts = telemetry.named("process mail")
    assert {span.context.trace_id for span in telemetry.spans} == {request.context.trace_id}
    assert send.parent.span_id == request.context.span_id
    assert send.kind is SpanKind.PRODUCER
    assert dict(send.attributes) == {
        "messaging.system": "dray",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "dray.task": "work",
    }
    assert [span.attributes["dray.attempt"] for span in attempts] == [1, 2, 3]
    assert [span.context.span_id for span in attempts] == seen
    worker = job.attempts()[-1].worker
    for span in attempts:
        assert span.kind is SpanKind.CONSUMER
        assert linked(span) == [ids(send)]
        assert span.parent.span_id == send.context.span_id
        assert span.attributes["messaging.message.id"] == job.id
        assert span.attributes["messaging.client.id"] == worker
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR] * 2 + [StatusCode.UNSET]
    assert [span.attributes.get("error.type") for span in attempts] == ["ConnectionError"] * 2 + [None]
    assert [event.name for event in attempts[0].events] == ["exception"]
    assert [span.parent.span_id for span in telemetry.named("work")] == seen


@pytest.fixture
def shop_app(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[dray.App]:
    monkeypatch.setenv("SPANS", str(tmp_path / "spans.jsonl"))
    core = core_of(shop.app)
    before = core.settings
    core.settings = replace(before, url=Settings.of(url).url)
    with shop.app as opened:
        opened.init()
        yield opened
        shop.provider.force_flush()
    core.settings, core._opened = before, None


def written(path: Path, count: int) -> list[dict[str, Any]]:
    """The spans of all processes, once there are as many as this."""
    shop.provider.force_flush()
    until = time.monotonic() + 20
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) >= count or time.monotonic() > until:
            return [json.loads(line) for line in lines]
        time.sleep(0.02)


def test_the_trace_goes_on_in_child_processes(shop_app: dray.App, tmp_path: Path) -> None:
    with shop.tracer.start_as_current_span("POST /orders"):
        retried, once = shop.in_process.enqueue(), shop.in_async_process.enqueue()
    flow = shop_app.workflow("flow")
    flow.add(shop.grow)
    run = flow.enqueue()
    shop_app.worker(concurrency=1).run_until_idle()
    assert (retried.state, once.state, run.refresh().state) == ("completed", "completed", "completed")

    spans = written(tmp_path / "spans.jsonl", 17)
    sends = {span["attributes"]["messaging.message.id"]: span for span in spans if span["name"] == "send default"}
    processed = [span for span in spans if span["name"] == "process default"]
    of_request = [span for span in processed if span["attributes"]["messaging.message.id"] in {retried.id, once.id}]
    (request,) = (span for span in spans if span["name"] == "POST /orders")
    children = {span["pid"] for span in processed}
    assert request["pid"] not in children
    assert {span["context"]["trace_id"] for span in of_request} == {request["context"]["trace_id"]}
    assert sorted(span["attributes"]["dray.attempt"] for span in of_request) == [1, 1, 2, 3]
    for span in of_request:
        sent = sends[span["attributes"]["messaging.message.id"]]
        assert span["parent_id"] == sent["context"]["span_id"]
        assert [link["context"]["span_id"] for link in span["links"]] == [sent["context"]["span_id"]]
    assert sum(span["name"] == "work" for span in spans) == 4

    # The workflow: its step, the step that the body of that adds, and what the body enqueues.
    (growing,) = (span for span in processed if span["attributes"]["dray.task"] == "grow")
    added = [span for span in processed if span["attributes"]["dray.task"] == "grown"]
    assert {span["context"]["trace_id"] for span in [growing, *added]} == {growing["context"]["trace_id"]}
    assert len(added) == 2
    (created,) = (span for span in spans if span["name"] == "create default")
    assert created["parent_id"] == growing["context"]["span_id"]
    assert created["attributes"]["messaging.message.conversation_id"] == run.id
    assert created["context"]["span_id"] in {span["parent_id"] for span in added}


def test_jobs_of_a_bulk_have_a_context_each_to_which_the_send_links(traced: dray.App, telemetry: Telemetry) -> None:
    @traced.task(name="add")
    def add(a: int) -> int:
        return a

    with telemetry.tracer.start_as_current_span("request") as request:
        jobs = add.enqueue_many([(1,), (2,), (3,)])
    traced.worker().run_until_idle()

    assert [job.result() for job in jobs] == [1, 2, 3]
    (send,) = telemetry.named("send default")
    creates = telemetry.named("create default")
    assert send.kind is SpanKind.CLIENT
    assert send.attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in send.attributes
    assert linked(send) == [ids(span) for span in creates]
    assert {span.kind for span in creates} == {SpanKind.PRODUCER}
    assert {span.parent.span_id for span in [send, *creates]} == {request.get_span_context().span_id}
    by_id = {span.attributes["messaging.message.id"]: span for span in creates}
    assert [*by_id] == [job.id for job in jobs]
    for span in telemetry.named("process default"):
        assert linked(span) == [ids(by_id[span.attributes["messaging.message.id"]])]


def test_a_very_large_bulk_shares_one_context(traced: dray.App, telemetry: Telemetry) -> None:
    add = traced.task(name="add")(nothing)

    jobs = add.enqueue_many([()] * 1_001)

    (send,) = telemetry.spans
    assert (send.kind, send.attributes["messaging.batch.message_count"]) == (SpanKind.PRODUCER, 1_001)
    parents = {traced.job(job.id).headers["traceparent"].rsplit("-", 1)[0] for job in (jobs[0], jobs[-1])}
    assert parents == {f"00-{send.context.trace_id:032x}-{send.context.span_id:016x}"}


def test_steps_of_a_workflow_go_to_their_queues_in_one_trace(traced: dray.App, telemetry: Telemetry) -> None:
    flow = traced.workflow("flow")
    first = traced.task(name="first", queue="a")(nothing)
    second = traced.task(name="second", queue="b")(nothing)
    one = flow.add(first)
    flow.add(second, after=one)

    with telemetry.tracer.start_as_current_span("request") as request:
        run = asyncio.run(flow.aenqueue())
    traced.worker().run_until_idle()

    assert run.refresh().state == "completed"
    assert [span.name for span in telemetry.spans] == [
        *("create a", "create b", "send", "request", "process a", "process b")
    ]
    assert {span.context.trace_id for span in telemetry.spans} == {request.get_span_context().trace_id}
    (of_b,) = telemetry.named("process b")
    assert linked(of_b) == [ids(*telemetry.named("create b"))]
    assert of_b.attributes["messaging.message.conversation_id"] == run.id


def test_a_job_of_a_schedule_starts_a_trace_of_its_own(traced: dray.App, telemetry: Telemetry) -> None:
    traced.schedule("ticks", traced.task(name="tick")(nothing), every=3600)
    of_slot = core_of(traced).all_schedules.job_now("ticks")
    core_of(traced).backend.jobs.enqueue([of_slot])  # as the scheduler does: not through the App

    with telemetry.tracer.start_as_current_span("the test, which has nothing to do with it"):
        drain(traced)

    (process,) = telemetry.named("process default")
    assert process.parent is None
    assert not process.links


def test_jobs_that_run_inline_are_traced_as_in_a_worker(traced: dray.App, telemetry: Telemetry) -> None:
    add = traced.task(name="add")(nothing)

    with inline(traced), telemetry.tracer.start_as_current_span("the test") as test:
        add.enqueue()
        assert trace.get_current_span() is test

    (send,), (process,) = telemetry.named("send default"), telemetry.named("process default")
    assert process.parent.span_id == send.context.span_id
    assert linked(process) == [ids(send)]


def test_headers_given_by_the_user_win_and_baggage_travels(traced: dray.App, telemetry: Telemetry) -> None:
    read: list[Any] = []

    @traced.task(name="t")
    def t() -> None:
        read.append(baggage.get_baggage("tenant"))

    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        own = traced.enqueue("t", headers={"traceparent": given})
    finally:
        context.detach(token)
    traced.worker().run_until_idle()

    assert traced.job(own.id).headers == {"traceparent": given, "baggage": "tenant=acme"}
    (process,) = telemetry.named("process default")
    assert f"{process.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert read == ["acme"]


def test_a_held_unique_key_and_a_refused_enqueue_show_in_the_span(traced: dray.App, telemetry: Telemetry) -> None:
    first = traced.enqueue("t", unique="k")
    traced.enqueue("t", unique="k")
    with pytest.raises(dray.UnknownJob):
        traced.enqueue("t", after="00000000-0000-7000-8000-000000000000")

    sends = telemetry.named("send default")
    assert [span.attributes["messaging.message.id"] for span in sends[:2]] == [first.id] * 2
    assert sends[2].attributes["error.type"] == "dray.errors.UnknownJob"
    assert sends[2].status.status_code is StatusCode.ERROR


def test_only_failures_are_errors(traced: dray.App, telemetry: Telemetry) -> None:
    @traced.task(name="t", max_attempts=1)
    def t(ctx: dray.Context, kind: str) -> None:
        if kind == "timeout":
            while True:
                time.sleep(0.01)
        raise {"cancel": dray.Cancel, "fail": dray.Fail}[kind](kind)

    for kind in ("cancel", "fail"):
        t.enqueue(kind)
    t.using(timeout=0.2).enqueue("timeout")
    traced.worker(concurrency=1).run_until_idle()

    kinds = [span.attributes.get("error.type") for span in telemetry.named("process default")]
    assert kinds == [None, "dray.job_control.Fail", "Timeout"]


def test_log_records_of_bodies_carry_the_ids_of_the_trace(traced: dray.App, telemetry: Telemetry) -> None:
    records: list[logging.LogRecord] = []
    before = logging.getLogRecordFactory()

    def with_trace(*args: Any, **kwargs: Any) -> logging.LogRecord:  # as OpenTelemetry's logging instrumentation does
        record = before(*args, **kwargs)
        record.otelTraceID = f"{trace.get_current_span().get_span_context().trace_id:032x}"
        return record

    @traced.task(name="t")
    def t(ctx: dray.Context) -> None:
        ctx.log.info("charged")

    @traced.task(name="u")
    async def u(ctx: dray.Context) -> None:
        await asyncio.sleep(0)
        ctx.log.info("charged")

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keeping()
    logging.setLogRecordFactory(with_trace)
    logging.getLogger("dray.task").addHandler(handler)
    try:
        jobs = t.enqueue(), u.enqueue()
        traced.worker().run_until_idle()
    finally:
        logging.getLogger("dray.task").removeHandler(handler)
        logging.setLogRecordFactory(before)

    expected = {f"{span.context.trace_id:032x}" for span in telemetry.named("process default")}
    assert len(expected) == 2
    assert {vars(record)["otelTraceID"] for record in records} == expected
    assert [job.logs()[0].message for job in jobs] == ["charged"] * 2
