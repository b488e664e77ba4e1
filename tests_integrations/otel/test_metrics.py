"""Metrics by the messaging conventions, without labels that could grow for ever."""

from __future__ import annotations

from typing import Any

import pytest

import dray
from tests_integrations.otel.conftest import Telemetry


def counted(points: list[Any]) -> dict[tuple[Any, ...], int]:
    """What was counted, by operation, queue and error."""
    names = ("messaging.operation.name", "messaging.destination.name", "error.type")
    assert {point.attributes["messaging.system"] for point in points} <= {"dray"}
    return {
        tuple(point.attributes.get(name) for name in names): getattr(point, "value", None) or point.count
        for point in points
    }


def test_what_is_sent_and_what_runs_is_counted_and_timed(traced: dray.App, telemetry: Telemetry) -> None:
    @traced.task(name="send", queue="mail", max_attempts=2, retry=0)
    def send(to: str) -> None:
        raise ValueError(to)

    @traced.task(name="add")
    def add() -> None: ...

    send.enqueue("ann")
    add.enqueue_many([()] * 3)
    add.using(unique="k", delay=60).enqueue()
    add.using(unique="k").enqueue()  # it is there already: nothing is sent
    with pytest.raises(dray.UnknownJob):
        add.using(after="00000000-0000-7000-8000-000000000000").enqueue()
    traced.worker().run_until_idle()

    failed = "dray.errors.UnknownJob"
    assert counted(telemetry.metric("messaging.client.sent.messages")) == {
        ("send", "mail", None): 1,
        ("send", "default", None): 4,
        ("send", "default", failed): 1,
    }
    assert counted(telemetry.metric("messaging.client.operation.duration")) == {
        ("send", "mail", None): 1,
        ("send", "default", None): 2,
        ("send", None, None): 1,
        ("send", "default", failed): 1,
    }
    assert counted(telemetry.metric("messaging.client.consumed.messages")) == {
        ("process", "mail", None): 2,
        ("process", "default", None): 3,
    }
    durations = telemetry.metric("messaging.process.duration")
    assert counted(durations) == {("process", "mail", "ValueError"): 2, ("process", "default", None): 3}
    assert {point.attributes["dray.task"] for point in durations} == {"send", "add"}
    assert durations[0].explicit_bounds[0] == 0.005
    assert durations[0].explicit_bounds[-1] == 3600


def test_queues_beyond_a_hundred_share_a_label(traced: dray.App, telemetry: Telemetry) -> None:
    add = traced.task(name="t")(nothing)
    flow = traced.workflow("many queues")
    for number in range(150):
        flow.add(add.using(queue=f"tenant-{number}"))

    flow.enqueue()

    sent = counted(telemetry.metric("messaging.client.sent.messages"))
    assert len(sent) == 101
    assert sent["send", "_OTHER", None] == 50


def nothing() -> None:
    pass
