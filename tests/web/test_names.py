"""Names with any printable characters, on the pages: every link leads to what it names."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import unquote, urlsplit

import pytest

from dray import App
from dray.app_interface import core_of
from dray.web.show import from_path, in_path
from tests.web.browsing import Visitor
from tests.web.hands import Hand

NAMES = ["a/b", "..", ".", "x.json", "a b ~1?#%2F&", '"><b>', "é\\票", "~", "mail.*", "/enqueue", "a/pause"]


@pytest.mark.parametrize("name", [*NAMES, "mail", "shop.jobs:send-1_x"])
def test_a_name_is_one_part_of_an_address(name: str) -> None:
    written = in_path(name)

    assert from_path(unquote(written)) == name
    assert urlsplit(f"http://h/queues/{written}").path == f"/queues/{written}"
    assert "/" not in unquote(written)
    assert written not in {".", ".."}
    assert not written.endswith(".json")


def test_plain_names_are_as_they_are_in_an_address() -> None:
    assert [in_path(name) for name in ("mail", "shop.jobs:send-1_x")] == ["mail", "shop.jobs:send-1_x"]


def nothing() -> None: ...


def links(page: str) -> set[str]:
    return {unescape(found) for found in re.findall(r'href="([^"#]+)"', page)}


def test_every_link_on_the_pages_of_a_name_leads_there(app: App, visitor: Visitor) -> None:
    for name in NAMES:
        core_of(app).define(nothing, {"name": name, "queue": name})
        app.schedule(name, name, every=3600)
        app.enqueue(name)
    hand = Hand(app, "app-1")
    hand.complete(NAMES[0], most=1)

    for name in NAMES:
        part = in_path(name)
        assert visitor.json(f"/queues/{part}.json")["name"] == name
        assert visitor.json(f"/tasks/{part}.json")["name"] == name
        assert visitor.json(f"/schedules/{part}.json")["name"] == name
        for path in (f"/queues/{part}", f"/tasks/{part}", f"/schedules/{part}", f"/tasks/{part}/enqueue"):
            for link in sorted(links(visitor.page(path))):
                if link.startswith(("/jobs?q=", "/queues/", "/tasks/", "/schedules/")):
                    visitor.page(link)
        job = app.jobs(task=name)[0]
        listed = next(link for link in links(visitor.page(f"/queues/{part}")) if link.startswith("/jobs?q=queue"))
        assert [each["id"] for each in visitor.json(listed.replace("/jobs?", "/jobs.json?"))["jobs"]] == [job.id]


def test_a_queue_and_a_schedule_of_any_name_are_paused_from_their_pages(app: App, visitor: Visitor) -> None:
    for name in NAMES:
        app.queue(name, priority=1)
        app.schedule(name, "t", every=3600)
        for kind in ("queues", "schedules"):
            answer = visitor.post(f"/{kind}/{in_path(name)}/pause")
            assert "paused" in visitor.words(answer.headers["location"])
    assert all(queue.paused_at for queue in app.queues())
    assert all(schedule.is_paused for schedule in app.schedules())
    linked = links(visitor.page("/actions"))
    assert {f"/queues/{in_path(name)}" for name in NAMES} <= linked
