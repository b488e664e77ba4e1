"""Jobs that end without a body have a line of the log each; its rate is bounded."""

from __future__ import annotations

import logging

import pytest

from dray.maintenance.unrun_log import MOST, UnrunLog
from tests.backends.world import World


def cancelled(world: World, count: int) -> list[str]:
    parent = world.enqueue()
    children = [
        each.id for each in world.backend.jobs.enqueue([world.new("c", parents=(parent,)) for _ in range(count)])
    ]
    world.backend.jobs.cancel([parent])
    return children


def test_what_became_of_a_job_is_said_with_its_id_and_task(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="dray")
    (child,) = cancelled(world, 1)

    UnrunLog(world.backend).ended([child])

    said = f"job {child[-8:]} (c) was cancelled: a job that it runs after did not complete"
    assert caplog.messages == [said]
    assert caplog.records[0].__dict__["dray_end"]["job"] == child


def test_there_are_fifty_lines_a_second_and_the_rest_is_counted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="dray")
    children, now = cancelled(world, MOST + 20), [0.0]
    told = UnrunLog(world.backend, lambda: now[0])

    told.ended(children)
    told.ended(children[:1])
    assert len(caplog.messages) == MOST
    now[0] = 1.0
    told.ended(children[:1])

    assert caplog.messages[MOST:] == ["21 more jobs ended without a body", caplog.messages[0]]


def test_what_is_not_wanted_is_not_read(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, logger="dray")
    (child,) = cancelled(world, 1)
    monkeypatch.setattr(world.backend.jobs, "get", None)

    UnrunLog(world.backend).ended([child])

    assert caplog.messages == []
