"""The testing kit where there are limits, rates and keys: it minds them by its own clock, and never hangs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.instants import MINUTE
from dray.task.task import Task
from dray.testing import clock, drain, inline
from dray.testing.draining import Drainer

Make = Callable[..., Task[[str], None]]


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def make(app: App, ran: list[str]) -> Generator[Make]:
    """Declares a task with options, for one test."""
    names: list[str] = []

    def declare(name: str, **options: Any) -> Task[[str], None]:
        def body(account: str) -> None:
            ran.append(account)

        names.append(name)
        return app.task(name=name, **options)(body)

    yield declare
    for name in names:
        core_of(app).registry.forget(name)


def test_a_drain_lets_time_pass_until_a_rate_opens(app: App, make: Make, ran: list[str]) -> None:
    task = make("paced", rate="2/min")
    for number in range(5):
        task.enqueue(str(number))

    with clock(app) as time:
        before = time.now
        assert drain(app) == 5
        passed = (time.now - before).total_seconds()

    assert ran == ["0", "1", "2", "3", "4"]
    assert 120 <= passed < 123


def test_a_drain_without_delays_leaves_what_waits_for_a_rate(app: App, make: Make, ran: list[str]) -> None:
    task = make("paced", rate="2/min")
    jobs = [task.enqueue(str(number)) for number in range(3)]

    assert drain(app, delays=False) == 2

    assert ran == ["0", "1"]
    assert jobs[2].refresh().state == "queued"


def test_a_rate_that_opens_while_drain_looks_is_not_the_end(
    app: App, make: Make, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, time passes by itself between a claim that finds nothing and the look that follows."""
    claim = Drainer._claim

    def slow(self: Drainer) -> Any:
        found = claim(self)
        if found is None:
            self._clock.advance(2 * MINUTE)
        return found

    monkeypatch.setattr(Drainer, "_claim", slow)
    task = make("paced", rate="2/min")
    for number in range(5):
        task.enqueue(str(number))

    assert drain(app) == 5
    assert len(ran) == 5


def test_the_rates_of_keys_open_too(app: App, make: Make, ran: list[str]) -> None:
    task = make("paced", key="account", key_rate="1/min")
    for account in "aab":
        task.enqueue(account)

    assert drain(app) == 3

    assert ran == ["a", "b", "a"]


def test_a_drain_ends_although_a_limit_stops_a_task(app: App, make: Make, ran: list[str]) -> None:
    task = make("stopped", limit=0)
    job = task.enqueue("a")

    assert drain(app) == 0

    assert (ran, job.refresh().state) == ([], "queued")


def test_keys_take_turns_in_a_drain(app: App, make: Make, ran: list[str]) -> None:
    task = make("turns", key="account", key_limit=1)
    for account in "aaabc":
        task.enqueue(account)

    assert drain(app) == 5

    assert ran == ["a", "b", "c", "a", "a"]


def test_a_job_that_was_enqueued_by_name_gets_its_key_in_a_drain(app: App, make: Make, ran: list[str]) -> None:
    make("keyed", key="account")
    other = App(core_of(app).settings.url)
    try:
        job = other.enqueue("keyed", {"account": "acct:7"})
    finally:
        other.close()

    assert drain(app) == 1

    assert ran == ["acct:7"]
    assert (job.refresh().row.key, job.row.attempt) == ("acct:7", 1)


def test_inline_runs_what_is_enqueued_although_earlier_jobs_wait_under_the_same_limit(
    app: App, make: Make, ran: list[str]
) -> None:
    task = make("alone", key="account", limit=1, key_limit=1)
    core_of(app).declare_limits(core_of(app).backend)
    earlier = task.enqueue("a")

    with inline(app):
        job = task.enqueue("a")

    assert (ran, job.refresh().state) == (["a"], "completed")
    assert earlier.refresh().state == "queued"
