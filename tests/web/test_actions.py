"""The page of what people did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dray import App
from dray.app_interface import core_of
from dray.backends.store import pages
from dray.model.action import By
from dray.ops import acting
from tests.web.browsing import Visitor
from tests.web.executed import page_statements

ANN, BEN = By("ann", "web"), By("ben <b>x</b>\u202e", "cli")


@pytest.fixture
def core(app: App) -> Any:
    return core_of(app)


def test_without_actions_the_page_says_so(visitor: Visitor) -> None:
    assert "Nobody has done anything yet." in visitor.words("/actions")


def test_each_action_is_told_with_its_note_and_a_link(app: App, core: Any, visitor: Visitor) -> None:
    job = app.enqueue("mail", {})
    acting.cancel(core, [job.id], ANN)
    acting.cancel(core, [job.id], ANN)
    acting.pause_queue(core, "mail", BEN, "double charges")
    acting.retry(core, [job.id], ANN, target="state:cancelled task:mail")

    words, page = visitor.words("/actions"), visitor.page("/actions")

    assert "ann web retry jobs state:cancelled task:mail 1 0" in words
    assert "ben <b>x</b>\\u202e cli pause queue mail double charges 1 0" in words
    assert f"ann web cancel job {job.id[-8:]} 0 1" in words  # refused: it had ended
    assert f'href="/jobs/{job.id}"' in page
    assert 'href="/queues/mail"' in page
    assert 'href="/jobs?q=state%3Acancelled+task%3Amail"' in page
    assert "<b>x</b>" not in page
    assert [each["verb"] for each in visitor.json("/actions.json")["actions"]] == [
        "retry", "pause", "cancel", "cancel"
    ]  # fmt: skip


def test_actions_are_found_by_person_and_kind_and_read_on(core: Any, visitor: Visitor) -> None:
    for number in range(60):
        acting.pause_queue(core, f"q{number}", ANN if number % 2 else BEN)
    acting.prune(core, None, ["completed"], ANN)

    by_ann = visitor.json("/actions.json?who=ann&kind=queue")
    first = visitor.json("/actions.json")
    rest = visitor.json(f"/actions.json?before={first['next']}")

    assert [each["target"] for each in by_ann["actions"]] == [f"q{n}" for n in reversed(range(1, 60, 2))]
    assert (len(first["actions"]), len(rest["actions"]), rest["next"]) == (50, 11, None)
    assert "No action fits." in visitor.words("/actions?who=nobody")
    assert "there is no kind" in visitor.page("/actions?kind=<b>", 400)
    assert "is no id" in visitor.page("/actions?before=1", 400)


def test_a_search_says_how_far_it_looked_and_goes_on(
    core: Any, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "WINDOW", 3)
    acting.pause_queue(core, "first", By("zoe", "cli"))
    for number in range(4):
        acting.pause_queue(core, f"q{number}", ANN)

    first = visitor.json("/actions.json?who=zoe")

    assert first["actions"] == []
    assert "Look further" in visitor.words("/actions?who=zoe")
    assert len(visitor.json(f"/actions.json?who=zoe&before={first['next']}")["actions"]) == 1


def test_every_role_may_read_it_unless_only_some_queues_are_theirs(visitor_as: Callable[..., Visitor]) -> None:
    assert "Actions" in visitor_as("viewer").words("/actions")
    visitor_as("admin", queues=["mail"]).page("/actions", 403)


def test_the_page_takes_few_reads(core: Any, visitor: Visitor) -> None:
    acting.pause_queue(core, "mail", ANN)

    assert page_statements(visitor, "/actions") <= 3
