"""Failures grouped by error, as a reader sees them."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from dray import App
from dray.app_interface import core_of
from dray.instants import HOUR, SECOND
from tests.app.hands import Hands
from tests.manual_clock import ManualClock
from tests.web.browsing import Visitor
from tests.web.executed import statements


@pytest.fixture
def app(url: str, clock: ManualClock) -> Generator[App]:
    with App(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def hands(app: App, clock: ManualClock) -> Hands:
    return Hands(app, clock)


@pytest.fixture
def fail(app: App, hands: Hands, clock: ManualClock) -> Callable[..., str]:
    """Enqueues a job that fails, and groups it as the duty does."""

    def make(task: str, error: str, queue: str = "mail") -> str:
        job = app.enqueue(task, {}, queue=queue, max_attempts=1)
        hands.fail(job, error, traceback=f"Traceback (most recent call last):\nValueError: {error}\n")
        clock.advance(SECOND)
        core_of(app).backend.failures.give_keys(0, clock.now(), 100)
        return job.id

    return make


def test_there_are_no_failures_at_first(app: App, visitor: Visitor) -> None:
    app.init()

    assert "No failed jobs." in visitor.words("/failures")
    assert visitor.json("/failures.json") == []
    assert "Retry this group" not in visitor.page("/failures")


def test_errors_that_differ_in_numbers_are_one_group(visitor: Visitor, fail: Callable[..., str]) -> None:
    fail("webhook", "503 for url /hooks/88123")
    newest = fail("webhook", "503 for url /hooks/91204")
    fail("mail.send", "no answer within 30 s")

    text = visitor.words("/failures")
    groups = visitor.json("/failures.json")

    assert [(group["task"], group["count"]) for group in groups] == [("mail.send", 1), ("webhook", 2)]
    assert groups[1]["newest_id"] == newest
    assert "mail.send 1 " in text
    assert "webhook 2 " in text
    assert "Retry this group…" in text


def test_a_group_shows_its_newest_traceback_and_its_jobs(visitor: Visitor, fail: Callable[..., str]) -> None:
    ids = [fail("webhook", f"503 for url /hooks/{n}") for n in (88123, 91204)]
    (group,) = visitor.json("/failures.json")

    text = visitor.words(f"/failures/{group['key']}")
    page = visitor.page(f"/failures/{group['key']}")

    assert "ValueError: 503 for url /hooks/91204" in text
    for job_id in ids:
        assert f'href="/jobs/{job_id}"' in page
    assert "/bulk?verb=retry&amp;q=state%3Afailed+error_key%3A" in page
    assert [job["id"] for job in visitor.json(f"/failures/{group['key']}.json")["jobs"]] == ids[::-1]


def test_a_group_that_is_gone_says_so(app: App, visitor: Visitor, fail: Callable[..., str]) -> None:
    job_id = fail("webhook", "503")
    (group,) = visitor.json("/failures.json")
    visitor.post(f"/jobs/{job_id}/retry")

    assert "No failed job is of this group now" in visitor.words(f"/failures/{group['key']}", 404)
    assert "There is no such group" in visitor.words("/failures/nonsense", 404)


def test_only_the_failures_of_a_time_are_shown(
    visitor: Visitor, fail: Callable[..., str], clock: ManualClock
) -> None:
    fail("old", "long ago")
    clock.advance(2 * HOUR)
    fail("new", "just now")

    assert [group["task"] for group in visitor.json("/failures.json?since=1h")] == ["new"]
    assert [group["task"] for group in visitor.json("/failures.json?since=24h")] == ["new", "old"]
    assert [group["task"] for group in visitor.json("/failures.json?since=nonsense")] == ["new", "old"]


def test_a_viewer_may_look_and_not_retry(visitor_as: Callable[..., Visitor], fail: Callable[..., str]) -> None:
    fail("webhook", "503")
    viewer = visitor_as("viewer")

    assert "webhook" in viewer.words("/failures")
    (group,) = viewer.json("/failures.json")
    for path in ("/failures", f"/failures/{group['key']}"):
        assert "/bulk" not in viewer.page(path)


def test_a_visitor_of_some_queues_sees_their_failures_alone(
    visitor_as: Callable[..., Visitor], fail: Callable[..., str]
) -> None:
    fail("secret", "hidden error 17", queue="billing")
    mine = fail("webhook", "503 for 1", queue="mail")
    fail("webhook", "503 for 2", queue="billing")
    visitor = visitor_as("operator", queues=["mail"])

    (group,) = visitor.json("/failures.json")
    assert (group["task"], group["count"], group["newest_id"]) == ("webhook", 1, mine)
    assert "secret" not in visitor.page("/failures")
    assert [job["id"] for job in visitor.json(f"/failures/{group['key']}.json")["jobs"]] == [mine]
    everyone = {group["task"]: group["key"] for group in visitor_as("viewer").json("/failures.json")}
    visitor.page(f"/failures/{everyone['secret']}", 404)


def test_a_hostile_error_stays_text(visitor: Visitor, fail: Callable[..., str]) -> None:
    fail("webhook", "<script>alert(1)</script>\u202e")
    (group,) = visitor.json("/failures.json")

    for path in ("/failures", f"/failures/{group['key']}"):
        page = visitor.page(path)
        assert "<script>alert" not in page
        assert "\u202e" not in page


def test_groups_take_few_statements(visitor: Visitor, fail: Callable[..., str]) -> None:
    for n in range(3):
        fail(f"task{n}", "no")

    with statements() as made:
        assert visitor.client.get("/failures", headers={"hx-request": "true"}).status_code == 200

    assert len(made) <= 3 + 3 * 3, made
