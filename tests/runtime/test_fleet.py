"""What a supervisor knows of its worker processes, and what is counted of their attempts."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Generator
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dray.runtime import fleet as fleet_module
from dray.runtime.condition import Condition
from dray.runtime.ends_counted import MOST_NAMES, EndsCounted
from dray.runtime.fleet import Fleet
from dray.runtime.in_flight import End
from dray.runtime.signals import Signals

WELL = Condition("id", "active", 1, 0.5, is_healthy=True, is_ready=True)


@pytest.fixture
def fleet() -> Generator[Fleet]:
    made = Fleet()
    yield made
    for number in (1, 2):
        made.ended(number)


def report(channel: socket.socket, condition: Condition = WELL, **other: Any) -> None:
    told = {"condition": condition._asdict(), "steps": 1, "slots": 4, "attempts": [["mail", "completed", 3]], **other}
    channel.sendall(json.dumps(told).encode() + b"\n")


def test_all_are_healthy_if_each_is_and_ready_if_one_is(fleet: Fleet) -> None:
    assert fleet.condition() == Condition(None, "starting", 0, None, is_healthy=True, is_ready=False)
    with closing(fleet.open(1)) as one, closing(fleet.open(2)) as two:
        report(one)
        report(two, WELL._replace(is_ready=False, running=2, last_beat_age=3.0, reason="lacks threads"))
        fleet.hear()
        together = fleet.condition()
        report(two, WELL._replace(is_ready=False, is_healthy=False, reason="cannot use the database"))
        fleet.hear()
        unwell = fleet.condition()

    assert together == Condition(None, "active", 3, 3.0, is_healthy=True, is_ready=True, reason="lacks threads")
    assert (unwell.is_healthy, unwell.is_ready, unwell.reason) == (False, True, "cannot use the database")
    assert (fleet.size, fleet.slots) == (2, 8)


def test_a_process_that_says_nothing_more_is_not_healthy(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(fleet.open(1)) as one:
        report(one)
        fleet.hear()
        monkeypatch.setattr(fleet_module, "_STALE", -1.0)
        assert fleet.condition().is_healthy is False
        assert fleet.condition().reason == "a worker process does not report"
        assert fleet.database() is None  # it is not asked


def test_what_a_process_has_counted_outlives_it(fleet: Fleet) -> None:
    with closing(fleet.open(1)) as first:
        report(first)
        fleet.hear()
    fleet.ended(1)
    assert fleet.condition().reason == "no worker process runs"
    with closing(fleet.open(1)) as second:
        report(second, attempts=[["mail", "completed", 1], ["mail", "retried", 2]])
        fleet.hear()
        assert fleet.attempts() == {("mail", "completed"): 4, ("mail", "retried"): 2}


def test_a_report_may_come_in_pieces_and_a_process_may_end_in_the_middle_of_one(fleet: Fleet) -> None:
    with closing(fleet.open(1)) as one:
        whole = json.dumps({"condition": WELL._asdict(), "steps": 1, "slots": 4, "attempts": []}).encode() + b"\n"
        one.sendall(whole[:20])
        fleet.hear()
        assert not fleet.is_ready(1)
        one.sendall(whole[20:] + whole[:20])
        fleet.hear()
        assert fleet.is_ready(1)
    fleet.hear()
    assert fleet.filenos() == []


def test_queues_that_are_counted_by_name_are_bounded(fleet: Fleet) -> None:
    counted = EndsCounted(Mock())
    counted.ended([_end(f"q{number}") for number in range(MOST_NAMES + 20)])
    counted.ended([_end("q0")])
    assert len(counted.counts) == MOST_NAMES + 1
    assert counted.counts["_OTHER", "completed"] == 20
    assert counted.counts["q0", "completed"] == 2

    with closing(fleet.open(1)) as one, closing(fleet.open(2)) as two:
        for channel, letter in ((one, "a"), (two, "b")):
            report(channel, attempts=[[f"{letter}{number}", "failed", 1] for number in range(MOST_NAMES)])
        fleet.hear()
        assert len(fleet.attempts()) == MOST_NAMES + 1
        assert fleet.attempts()["_OTHER", "failed"] == MOST_NAMES


def _end(queue: str) -> End:
    """Of a body that has completed its job by itself."""
    execution: Any = SimpleNamespace(claim=SimpleNamespace(queue=queue))
    return End(execution, None)


def test_a_stop_after_a_reload_stops() -> None:
    asked: list[int] = []
    with Signals(lambda: asked.append(1), reloads=True) as signals:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert (signals.is_reload, signals.count) == (True, 0)
        signal.raise_signal(signal.SIGTERM)
        assert signals.count == 1
    assert len(asked) == 3
