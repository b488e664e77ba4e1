"""What `dray why` says of a job that a limit holds back: which limit, who holds it, and when the job may go."""

from __future__ import annotations

from typing import Any

import pytest

from dray import App
from dray.app_interface import core_of
from dray.instants import MINUTE, SECOND
from dray.model import circumstances
from dray.model.action import By
from dray.model.cause import Cause
from dray.model.limit import Source, bounds_of
from dray.model.worker import NewWorker
from dray.ops import acting, shapes
from dray.ops.why import why
from tests.app.hands import LEASE_US, Hands
from tests.manual_clock import ManualClock


@pytest.fixture(autouse=True)
def able(app: App, clock: ManualClock) -> None:
    """A live worker with free slots: what is said beside limits is not that none is there."""
    core_of(app).backend.migrate()
    new = NewWorker(
        id=core_of(app).ids.new(),
        name="idle",
        host="here",
        pid=1,
        boot=clock.boot,
        tasks=("sync", "other"),
        concurrency=50,
    )
    core_of(app).backend.workers.register(new, 9 * LEASE_US * 9)


def declare(app: App, task: str = "sync", **given: Any) -> None:
    core_of(app).backend.limits.say("task", task, Source.DECLARED, bounds_of(task, given))


def causes(app: App, job: Any) -> list[Cause]:
    return why(core_of(app).backend, job.id).causes


def test_the_jobs_that_hold_a_limit_are_named(app: App, hands: Hands, clock: ManualClock) -> None:
    declare(app, key_limit=1)
    first, second = (app.enqueue("sync", key="acct:7") for _ in range(2))
    hands.claim(first)
    clock.advance(12 * MINUTE)

    (limit,) = causes(app, second)

    assert (
        limit.text
        == f"1 of 1 running for key acct:7, the key_limit of task sync: job {first.id} on worker hands for 12m."
    )
    assert (limit.kind, limit.facts["key"], limit.facts["used"], limit.facts["most"]) == ("limit", "acct:7", 1, 1)
    assert [(each["id"], each["worker"]) for each in limit.facts["running"]] == [(first.id, "hands")]


def test_of_many_that_hold_a_limit_the_longest_running_are_named(app: App, hands: Hands, clock: ManualClock) -> None:
    app.queue("default", limit=5)
    jobs = [app.enqueue("sync") for _ in range(6)]
    for job in jobs[:5]:
        hands.claim(job)
        clock.advance(SECOND)

    (limit,) = causes(app, jobs[5])

    assert limit.text.startswith("5 of 5 running, the limit of queue default: job ")
    assert limit.text.endswith("for 3.0s and 2 more.")
    assert [each["id"] for each in limit.facts["running"]] == [job.id for job in jobs[:3]]


def test_a_rate_says_when_the_next_may_start(app: App, hands: Hands, clock: ManualClock) -> None:
    declare(app, rate="2/min", key_rate="1/15min")
    jobs = [app.enqueue("sync", key=key) for key in "aba"]
    for job in jobs[:2]:
        hands.complete(job)
    clock.advance(50 * SECOND)

    of_all, of_key = causes(app, jobs[2])

    assert (of_all.kind, of_key.kind) == ("rate", "rate")
    assert of_all.text.startswith("2 of 2 started in the last minute, the rate of task sync: the next may start in ")
    assert (of_all.facts["rate"], of_all.facts["key"], of_key.facts["key"]) == ("2/min", None, "a")
    assert of_key.text.startswith("1 of 1 started in the last 15 minutes for key a, the key_rate of task sync: ")
    left = (of_all.facts["opens_at"].timestamp() * SECOND - clock.now()) / SECOND
    assert 8 <= left <= 9  # two bodies took a second each; a slice of the period is 0.6 s


def test_each_limit_that_is_reached_is_a_cause_and_no_other(app: App, hands: Hands) -> None:
    declare(app, limit=1, key_limit=3)
    app.queue("default", limit=9, rate="1/day")
    first, second = (app.enqueue("sync", key="a") for _ in range(2))
    hands.claim(first)

    found = causes(app, second)

    assert [(each.kind, each.facts["scope"], each.facts["option"]) for each in found] == [
        ("rate", "queue", "rate"),
        ("limit", "task", "limit"),
    ]


def test_a_limit_of_0_says_how_to_lift_it_and_that_a_person_must(app: App) -> None:
    app.queue("api", limit=0)
    core = core_of(app)
    acting.set_limits(core, "task", "sync", bounds_of("sync", {"key_limit": 0}), By("ann", "cli"))
    job = app.enqueue("sync", queue="api", key="a", delay=60)

    by_code, by_person, _ = sorted(causes(app, job), key=lambda each: each.kind != "stopped")

    assert by_code.text == (
        "No job of queue api starts: the code has set its limit to 0. "
        "`dray limits set queue api --limit N` lets N run."
    )
    assert by_person.text == (
        "No job with a key of task sync starts: an operator has set its key_limit to 0. `dray limits set task sync "
        "--key-limit N` lets N run, `dray limits reset task sync` what the code allows."
    )
    standstill = core.backend.why.standstill(job.id)
    assert standstill is not None
    assert standstill.needs_help


def test_the_keys_that_may_come_first_are_counted(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in "abcda":
        app.enqueue("sync", key=key)
    app.enqueue("sync", key="z", priority=3)
    app.enqueue("other", key="y")
    job = app.enqueue("sync", key="a")

    (turn,) = causes(app, job)

    assert turn.kind == "turn"
    assert turn.text == (
        "The keys of task sync take turns in queue default: key a comes after at most 3 other keys and 2 jobs of its "
        "own key and 1 job of a higher priority."
    )
    assert (turn.facts["keys"], turn.facts["of_key"], turn.facts["higher"]) == (3, 2, 1)
    for module in ("dray.model.limit_causes", "dray.backends.store.why"):
        monkeypatch.setattr(f"{module}.AHEAD_LIMIT", 2)
    (bounded,) = causes(app, job)
    assert bounded.facts["is_more"]
    assert (bounded.facts["keys"], bounded.facts["of_key"]) == (2, 2)


@pytest.mark.parametrize("key", [None, "z"])
def test_jobs_with_keys_and_a_higher_priority_come_before_it(
    app: App, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in "abcabc":
        app.enqueue("sync", key=each, priority=9)
    app.enqueue("sync", key="d")
    app.enqueue("unknown", key="d", priority=9)
    app.enqueue("other", priority=9)
    job = app.enqueue("other", key=key)

    (behind,) = causes(app, job)

    assert behind.text == (
        "7 jobs that workers of queue default know come before it, by priority, time or id; 6 of them with keys, as "
        "far as limits let them start."
    )
    assert (behind.kind, behind.facts["ahead"], behind.facts["with_keys"]) == ("behind", 7, 6)
    for module in ("dray.model.causes", "dray.backends.store.why"):
        monkeypatch.setattr(f"{module}.AHEAD_LIMIT", 2)
    assert causes(app, job)[0].text.startswith("More than 3 jobs")


def test_a_job_whose_limits_leave_room_is_ready(app: App) -> None:
    declare(app, limit=1, rate="1/s", key_limit=1, key_rate="1/s")
    job = app.enqueue("sync", key="a")

    assert [each.kind for each in causes(app, job)] == ["ready"]
    assert circumstances.AHEAD_LIMIT == 1_000


def test_a_job_shows_its_key(app: App) -> None:
    keyed, plain = app.enqueue("sync", key="acct:7"), app.enqueue("sync")

    assert (app.job(keyed).key, app.job(plain).key) == ("acct:7", None)
    assert [shapes.job(app.job(each))["key"] for each in (keyed, plain)] == ["acct:7", None]
