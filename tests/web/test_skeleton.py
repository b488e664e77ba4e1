"""Every page answers whole, without its frame, and as JSON."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dray import Access, App, ConfigError, dashboard
from tests.web.browsing import Visitor


def test_a_dashboard_without_access_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="needs access="):
        dashboard(app)


def test_a_page_is_whole_a_part_or_json(app: App, visitor: Visitor) -> None:
    app.queue("mail", priority=0)

    assert "<nav" in visitor.page("/queues")
    part = visitor.client.get("/queues", headers={"hx-request": "true"}).text
    assert "<nav" not in part
    assert 'id="main"' in part
    assert [queue["name"] for queue in visitor.json("/queues.json")["queues"]] == ["mail"]


def test_a_page_that_does_not_exist_says_so(visitor: Visitor) -> None:
    assert "There is no such page." in visitor.page("/nowhere", 404)
    assert "Look at the jobs" in visitor.words("/nowhere", 404)


def test_a_visitor_without_access_sees_nothing(app: App) -> None:
    stranger = Visitor(dashboard(app, access=lambda _: None), Access("viewer"))

    assert "Queues" not in stranger.page("/queues", 403)


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_pausing_takes_an_operator(app: App, visitor_as: Callable[..., Visitor], role: str) -> None:
    app.queue("mail", priority=0)
    someone = visitor_as(role)

    someone.post("/queues/mail/pause", 403 if role == "viewer" else 303)

    assert app.queue("mail").is_paused == (role == "operator")
