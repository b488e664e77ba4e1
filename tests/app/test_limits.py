"""Limits through an App: what is in force, who said so, how much is used, and what people change."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dray import App, ConfigError
from dray.app_interface import core_of
from dray.core import AppCore
from dray.model.action import By
from dray.model.limit import Kind, bounds_of
from dray.ops import acting, limits, shapes
from dray.ops.limits import LimitInfo
from tests.app.hands import Hands
from tests.backends import raw

ANN = By("ann", "web")


@pytest.fixture
def core(app: App) -> AppCore:
    core_of(app).backend.migrate()
    return core_of(app)


def only(app: App) -> LimitInfo:
    (info,) = app.limits()
    return info


def test_without_limits_there_are_none(app: App, core: AppCore) -> None:
    assert app.limits() == []


def test_a_limit_says_what_is_in_force_and_how_much_of_it_is_used(app: App, hands: Hands) -> None:
    app.queue("api", limit=5, rate=["1000/day", "10/s"], key_limit=1, key_rate="3/min")
    first = app.enqueue("sync", queue="api", key="7")
    app.enqueue("sync", queue="api", key="8")
    hands.claim(first)

    assert only(app) == LimitInfo(
        scope="queue",
        name="api",
        limit=5,
        rate=("10/s", "1000/day"),
        key_limit=1,
        key_rate=("3/min",),
        declared={"limit": 5, "rate": ["10/s", "1000/day"], "key_limit": 1, "key_rate": ["3/min"]},
        override={},
        running=1,
        started={"10/s": 1, "1000/day": 1},
    )
    shown = limits.in_force(core_of(app).backend, "queue")
    assert limits.words(shown["api"]) == "limit 5, rate 10/s and 1000/day, key_limit 1, key_rate 3/min"


def test_what_an_operator_says_wins_and_what_code_says_is_still_shown(app: App, core: AppCore) -> None:
    app.queue("api", limit=5, rate="10/s")

    changed = acting.set_limits(core, "queue", "api", {**bounds_of("api", {"limit": 2}), Kind.RATE: ()}, ANN)

    info = only(app)
    assert changed
    assert (info.limit, info.rate, info.started) == (2, (), {})
    assert (info.declared, info.override) == ({"limit": 5, "rate": ["10/s"]}, {"limit": 2, "rate": None})


def test_an_operator_says_one_thing_after_another_and_takes_all_back(app: App, core: AppCore) -> None:
    app.queue("api", limit=5)
    acting.set_limits(core, "queue", "api", bounds_of("api", {"limit": 0}), ANN)
    acting.set_limits(core, "queue", "api", bounds_of("api", {"rate": "1/s"}), ANN)
    assert only(app).override == {"limit": 0, "rate": ["1/s"]}

    assert acting.reset_limits(core, "queue", "api", ANN)

    assert (only(app).limit, only(app).rate, only(app).override) == (5, (), {})


def test_a_limit_that_code_no_longer_declares_for_its_queue_is_lifted_when_a_worker_starts(
    app: App, core: AppCore, url: str
) -> None:
    app.queue("api", limit=5, rate="10/s")
    app.queue("mail", limit=5)
    acting.set_limits(core, "queue", "api", bounds_of("api", {"key_limit": 1}), ANN)

    with App(url) as later:
        later.queue("api", rate="20/s")  # at once, kinds that it does not name stay
        assert app.limits()[0].limit == 5
        core_of(later).declare_limits(core.backend)

    api, mail = app.limits()
    assert (api.limit, api.rate, api.key_limit) == (None, ("20/s",), 1)
    assert mail.limit == 5, "code that does not speak of a queue lifts nothing there"


def test_a_worker_that_starts_parks_what_an_earlier_release_has_queued(app: App, core: AppCore) -> None:
    app.enqueue("sync", key="7")
    raw.run(core.backend, "UPDATE dray_jobs SET state = 'queued'")

    core.declare_limits(core.backend)

    assert raw.run(core.backend, "SELECT state FROM dray_jobs") == [("parked",)]


def test_each_change_leaves_a_row_and_one_that_changes_nothing_too(core: AppCore) -> None:
    for _ in range(2):
        acting.set_limits(core, "task", "sync", {**bounds_of("sync", {"limit": 2}), Kind.KEY_LIMIT: ()}, ANN)
    for _ in range(2):
        acting.reset_limits(core, "task", "sync", ANN)

    rows = core.backend.actions.newest()[::-1]
    assert [(row.verb, row.kind, row.target, row.note, row.done, row.refused) for row in rows] == [
        ("set", "task", "sync", "limit 2, key_limit none", 1, 0),
        ("set", "task", "sync", "limit 2, key_limit none", 0, 1),
        ("reset", "task", "sync", None, 1, 0),
        ("reset", "task", "sync", None, 0, 1),
    ]
    assert core.backend.limits.all() == []


def test_a_name_that_cannot_be_is_refused_before_anything_is_written(core: AppCore) -> None:
    with pytest.raises(ConfigError, match="queue name 'a,b' cannot be used"):
        acting.set_limits(core, "queue", "a,b", bounds_of("a,b", {"limit": 2}), ANN)
    assert core.backend.actions.newest() == []


def test_workers_of_the_queues_that_may_have_got_room_are_woken(
    app: App, core: AppCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle worker does not look again by itself where a limit lets nothing start."""
    told: list[list[str]] = []

    def hear(queues: Iterable[str]) -> None:
        told.append(sorted(queues))

    monkeypatch.setattr(core.backend, "announce", hear)
    app.enqueue("sync", queue="a")
    app.enqueue("sync", queue="b", key="7")
    app.enqueue("other", queue="c")
    told.clear()
    woken: list[list[str]] = []
    core.on_enqueue.append(lambda queues: woken.append(sorted(queues)))

    acting.set_limits(core, "task", "sync", bounds_of("sync", {"limit": 2}), ANN)
    acting.reset_limits(core, "task", "sync", ANN)
    acting.reset_limits(core, "task", "sync", ANN)  # nothing changes
    app.queue("d", limit=1)
    app.queue("d", limit=1)

    assert woken == told == [["a", "b"], ["a", "b"], ["d"]]


def test_a_limit_as_json(app: App) -> None:
    app.queue("api", limit=5, rate="10/s")

    assert shapes.limit(only(app)) == {
        "scope": "queue",
        "name": "api",
        "limit": 5,
        "rate": ["10/s"],
        "key_limit": None,
        "key_rate": [],
        "declared": {"limit": 5, "rate": ["10/s"]},
        "override": {},
        "running": 0,
        "started": {"10/s": 0},
    }
