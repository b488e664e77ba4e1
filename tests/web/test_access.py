"""The three roles, and visitors who may see some queues alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dray import Access, App, ConfigError
from dray.web import pages
from dray.web.access import granted
from tests.web.browsing import Visitor

MAY: dict[str, set[str]] = {
    "viewer": set(),
    "operator": {"retry", "cancel", "pause", "resume", "run", "ask"},
    "admin": {"retry", "cancel", "pause", "resume", "run", "ask", "delete", "remove", "enqueue", "prune", "reveal"},
}


@pytest.mark.parametrize("role", MAY)
def test_each_role_may_do_what_it_is_for(role: Any) -> None:
    access = Access(role)

    assert {verb for verb in MAY["admin"] if access.may(verb)} == MAY[role]


@pytest.mark.parametrize("answer", [True, 1, "root", "Admin", ["admin"], object(), b"admin"])
def test_anything_else_than_a_role_is_an_error_and_no_right(answer: object) -> None:
    with pytest.raises(ConfigError, match="access= returned"):
        granted(answer)


@pytest.mark.parametrize(
    "given", [{"role": "root"}, {"role": "viewer", "user": 7}, {"role": "viewer", "queues": "mail"}, {"role": None}]
)
def test_an_access_that_makes_no_sense_is_refused_when_it_is_made(given: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, TypeError)):
        Access(**given)


def test_a_visitor_of_some_queues_sees_and_acts_on_those_alone(app: App, visitor_as: Callable[..., Visitor]) -> None:
    for name in ("mail", "secret"):
        app.queue(name, priority=0)
    visitor = visitor_as("admin", queues=["mail"])

    assert [queue["name"] for queue in visitor.json("/queues.json")["queues"]] == ["mail"]
    assert "secret" not in visitor.page("/queues")
    assert visitor.client.post(
        "/queues/secret/pause",
        data={"token": visitor.token},
        headers={"origin": "http://testserver"},
        follow_redirects=False,
    ).status_code in {403, 404, 409}
    assert not app.queue("secret").is_paused


def test_pages_and_actions_of_the_whole_database_are_refused_to_them(visitor_as: Callable[..., Visitor]) -> None:
    visitor = visitor_as("admin", queues=["mail"])

    for page in pages.PAGES:
        if page.is_whole and "{" not in page.path:
            assert "whole database" in visitor.page(page.path, 403)
    for post in pages.POSTS:
        if post.is_whole and "{" not in post.path:
            assert "whole database" in visitor.post(post.path, 403).text
