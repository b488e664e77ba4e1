"""The pages of schedules: the rule in words, what comes, what was, and what can be done there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from dray import App
from dray.app_interface import core_of
from tests.web.browsing import Visitor
from tests.web.executed import page_statements


@pytest.fixture
def digest(app: App) -> str:
    @app.task(name="mail.digest", queue="mail", redact=["token"])
    def send(team: int, token: str = "") -> None: ...

    app.schedule("digest", send, cron="0 3 * * *", tz="Europe/Berlin", args={"team": 7, "token": "s3cret"})
    return "digest"


def acts(app: App) -> list[tuple[str, str, str, int]]:
    return [(each.verb, each.kind, each.target, each.done) for each in core_of(app).backend.actions.newest()]


def test_the_list_says_each_rule_in_words(app: App, digest: str, visitor: Visitor) -> None:
    app.schedule("often", "mail.digest", every=90, args={"team": 1})

    words = visitor.words("/schedules")
    shape = visitor.json("/schedules.json")

    assert f"{digest} At 03:00 every day, Europe/Berlin mail.digest in" in words
    assert "often Every 1 minute 30 seconds mail.digest in 1m" in words
    assert [(each["name"], each["rule"]) for each in shape["schedules"]] == [
        ("digest", "0 3 * * * Europe/Berlin"),
        ("often", "every 1 minute 30 seconds"),
    ]


def test_without_schedules_the_list_says_how_to_add_one(visitor: Visitor) -> None:
    assert "There are no schedules." in visitor.words("/schedules")


def test_schedules_are_found_by_name_or_task_and_read_on(app: App, visitor: Visitor) -> None:
    for number in range(105):
        app.schedule(f"s{number:03}", "tick", every=60)
    app.schedule("other", "tock", every=60)

    first = visitor.json("/schedules.json?name=TICK")
    rest = visitor.json(f"/schedules.json?name=tick&after={first['next']}")

    assert [each["name"] for each in first["schedules"] + rest["schedules"]] == [f"s{n:03}" for n in range(105)]
    assert "No schedule has this in its name" in visitor.words("/schedules?name=%25")


def test_a_schedule_shows_what_comes_and_hides_what_is_secret(digest: str, visitor: Visitor) -> None:
    words = visitor.words(f"/schedules/{digest}")
    shape = visitor.json(f"/schedules/{digest}.json")

    assert "At 03:00 every day, Europe/Berlin" in words
    assert "of missed times, the last is made up for" in words
    assert "a job is made at each time, even while an earlier one is live" in words
    assert len(shape["coming"]) == 5
    assert len(re.findall(r"\d{4}, 03:00:00", words)) == 5  # in the zone of the rule
    assert shape["args"] == {"team": 7, "token": "***"}
    assert "s3cret" not in visitor.page(f"/schedules/{digest}")


def test_arguments_of_a_task_whose_code_is_not_here_are_hidden(app: App, visitor: Visitor) -> None:
    app.schedule("foreign", "elsewhere", every=60, args={"password": "s3cret"})

    assert "s3cret" not in visitor.page("/schedules/foreign") + visitor.page("/schedules/foreign.json")
    assert "all its arguments are hidden" in visitor.words("/schedules/foreign")


def test_a_schedule_is_run_now_and_its_job_is_listed(app: App, digest: str, visitor: Visitor) -> None:
    visitor.post(f"/schedules/{digest}/run")

    (job,) = app.jobs(schedule=digest)
    assert f"queued {job.id[-8:]} 0 of 3" in visitor.words(f"/schedules/{digest}")
    assert [each["id"] for each in visitor.json(f"/schedules/{digest}.json")["jobs"]] == [job.id]
    assert acts(app) == [("run", "schedule", "digest", 1)]


def test_only_the_newest_jobs_are_shown(app: App, digest: str, visitor: Visitor) -> None:
    for _ in range(25):
        app.run_schedule(digest)

    assert len(visitor.json(f"/schedules/{digest}.json")["jobs"]) == 20
    assert "the newest 20" in visitor.words(f"/schedules/{digest}")


def test_a_schedule_is_paused_and_resumed(app: App, digest: str, visitor: Visitor) -> None:
    visitor.post(f"/schedules/{digest}/pause")
    assert "Paused" in visitor.words(f"/schedules/{digest}")
    assert "once it is resumed" in visitor.words(f"/schedules/{digest}")
    assert "was paused already" in visitor.post(f"/schedules/{digest}/pause", 409).text

    visitor.post(f"/schedules/{digest}/resume")
    assert "was not paused" in visitor.post(f"/schedules/{digest}/resume", 409).text

    assert [each[0] for each in acts(app)] == ["resume", "resume", "pause", "pause"]


def test_a_schedule_is_removed_after_it_was_asked_for(app: App, digest: str, visitor: Visitor) -> None:
    assert "It makes no more jobs" in visitor.words(f"/schedules/{digest}")

    assert visitor.post(f"/schedules/{digest}/remove").headers["location"].startswith("/schedules?said=")

    assert app.schedules() == []
    assert acts(app) == [("remove", "schedule", "digest", 1)]
    visitor.page(f"/schedules/{digest}", 404)
    visitor.post(f"/schedules/{digest}/run", 404)


def test_a_viewer_sees_no_button_and_an_operator_may_not_remove(
    app: App, digest: str, visitor_as: Callable[..., Visitor]
) -> None:
    viewer, operator = visitor_as("viewer"), visitor_as("operator")

    for path in ("/schedules", f"/schedules/{digest}"):
        assert 'method="post"' not in viewer.page(path)
    for verb in ("run", "pause", "resume", "remove"):
        viewer.post(f"/schedules/{digest}/{verb}", 403)
    operator.post(f"/schedules/{digest}/remove", 403)
    assert "Remove…" not in operator.words(f"/schedules/{digest}")
    assert acts(app) == []
    operator.post(f"/schedules/{digest}/run")
    assert len(acts(app)) == 1


def test_a_visitor_of_some_queues_sees_none(digest: str, visitor_as: Callable[..., Visitor]) -> None:
    someone = visitor_as("admin", queues=["mail"])

    someone.page("/schedules", 403)
    someone.page(f"/schedules/{digest}", 403)
    someone.post(f"/schedules/{digest}/run", 403)


def test_names_that_cannot_be_are_not_found(visitor: Visitor) -> None:
    visitor.page("/schedules/nothing", 404)


def test_the_pages_take_few_reads(app: App, digest: str, visitor: Visitor) -> None:
    for number in range(20):
        app.schedule(f"s{number}", "tick", every=60)
        app.run_schedule(digest)

    assert page_statements(visitor, "/schedules") <= 2
    assert page_statements(visitor, f"/schedules/{digest}") <= 3
