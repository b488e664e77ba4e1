"""The page of one job, as a reader sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any

import pytest

from dray import App, Job
from dray.app_interface import core_of
from dray.backends.store.stacks import StackStore
from dray.instants import MINUTE, SECOND
from dray.model.job import LogLine
from dray.ops.why import Why
from dray.web.pages import job as job_page
from tests import verbs
from tests.app.hands import Hands
from tests.manual_clock import ManualClock
from tests.web.browsing import Visitor, attributes
from tests.web.executed import statements

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/reports.py", line 61, in build
    revenue = fetch(f"{BASE}/revenue", team=team)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/.venv/lib/python3.13/site-packages/httpx/_models.py", line 829, in raise_for_status
    raise HTTPStatusError(message, request=request, response=self)
  File "/srv/.venv/lib/python3.13/site-packages/httpx/_models.py", line 830, in raise_for_status
    raise HTTPStatusError(message, request=request, response=self)
httpx.HTTPStatusError: Server error '503 Service Unavailable'
"""
HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m{{7*7}}\" hx-get='/x' onmouseover=alert(1)"


@pytest.fixture
def app(url: str, clock: ManualClock) -> Generator[App]:
    with App(url, clock=clock) as opened:

        @opened.task(name="report.build", queue="reports", max_attempts=3, redact=["api_token"])
        def build(team: int, api_token: str = "", note: str = "") -> Any: ...

        yield opened


@pytest.fixture
def hands(app: App, clock: ManualClock) -> Hands:
    return Hands(app, clock)


def enqueue(app: App, **args: Any) -> Job[Any]:
    return app.enqueue("report.build", {"team": 7, **args})


def test_a_queued_job_says_why_it_waits(app: App, visitor: Visitor) -> None:
    job = enqueue(app)

    text = visitor.words(f"/jobs/{job.id}")

    assert "report.build" in text
    assert "Queued" in text
    assert "No worker is alive: start one with dray worker" in text
    assert "It has not started yet." in text
    assert "Nothing was logged yet." in text
    assert "None yet: it has not ended." in text
    assert f"dray why {job.id[-8:]}" in text


def test_any_part_of_an_id_leads_to_the_job(app: App, visitor: Visitor) -> None:
    job = enqueue(app)

    answer = visitor.client.get(f"/jobs/{job.id[-8:]}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job.id}")
    assert visitor.json(f"/jobs/{job.id[-8:]}.json")["id"] == job.id
    for unknown in ("abcdef0123", "nonsense"):
        assert f"No job's id contains '{unknown}'." in visitor.words(f"/jobs/{unknown}", 404)
    enqueue(app)
    answer = visitor.client.get(f"/jobs/{job.id[:8]}", follow_redirects=False)
    assert answer.headers["location"] == f"/jobs?q=id%3A{job.id[:8]}"  # both are listed


def test_a_job_that_ends_while_its_page_is_made_is_shown_as_ended(
    app: App, hands: Hands, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = enqueue(app)
    explained = job_page.why

    def explained_too_early(*given: Any, **more: Any) -> Why:
        found = explained(*given, **more)
        hands.fail(job, "503 Service Unavailable")
        return found

    monkeypatch.setattr(job_page, "why", explained_too_early)
    text = visitor.words(f"/jobs/{job.id}")

    assert "Failed, attempt 1 of 3" in text
    assert "It failed" in text
    assert "Cancel…" not in text


def test_a_failed_job_shows_its_attempts_and_folds_library_frames(
    app: App, hands: Hands, clock: ManualClock, visitor: Visitor
) -> None:
    hands.fail(enqueue(app), "503 Service Unavailable")
    job = enqueue(app)
    hands.stumble(job, "first")
    clock.advance(90 * SECOND)
    core_of(app).backend.jobs.promote()
    hands.fail(job, "503 Service Unavailable", traceback=TRACEBACK)
    core_of(app).backend.failures.give_keys(0, clock.now() + 1, 10)  # as a duty does

    page = visitor.page(f"/jobs/{job.id}")
    text = visitor.words(f"/jobs/{job.id}")

    assert "Failed, attempt 2 of 3" in text
    assert "attempt 2 of 3 raised" in text
    assert 'shop/reports.py:61 build revenue = fetch(f"{BASE}/revenue", team=team) 2 frames in httpx' in text
    assert "httpx.HTTPStatusError: Server error" in text
    assert "All 3 frames" in text
    assert "None: it did not complete." in text
    assert "1 other job failed like this" in text
    assert "Attempt 1 failed ValueError: first" in text
    assert 'class="own">shop/reports.py:61' in page
    assert "Retry" in text
    desc = re.search(r"<desc[^>]*>(.*?)</desc>", page)
    assert desc is not None
    assert desc[1].startswith("Attempt 1: failed after")
    assert "Waits for attempt 2, 1m30s." in desc[1]


def test_the_json_is_that_of_the_command_line_with_causes_and_neighbours(app: App, visitor: Visitor) -> None:
    job = enqueue(app)

    shape = visitor.json(f"/jobs/{job.id}.json")

    assert shape["id"] == job.id
    assert shape["args"]["team"] == 7
    assert shape["causes"][0]["kind"] == "no_worker"
    assert (shape["stack"], shape["parents"], shape["children"], shape["attempts"]) == (None, [], [], [])


def test_a_running_job_shows_its_progress_and_how_long_is_left(
    app: App, hands: Hands, clock: ManualClock, visitor: Visitor
) -> None:
    job = enqueue(app)
    claim = hands.claim(job)
    verbs.progress(core_of(app).backend, hands.worker, [(job.id, claim.claim, 64.0, "chart 16 of 25")])
    clock.advance(64 * SECOND)

    text = visitor.words(f"/jobs/{job.id}")

    assert "Running, attempt 1 of 3" in text
    assert "64 % chart 16 of 25 about 36s to go" in text
    assert text.count("chart 16 of 25") == 1  # not in the sentence above the bar too
    assert "Ask where it is" in text
    assert "Cancel…" in text
    assert "Delete…" not in text


def test_its_worker_is_asked_where_the_body_is_and_the_answer_is_kept(
    app: App, hands: Hands, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = enqueue(app)
    hands.claim(job)
    ask, asked = StackStore.ask, list[str]()

    def answered_at_once(self: StackStore, stack_id: str, job_id: str, claim: int) -> bool:
        asked.append(job_id)
        is_asked = ask(self, stack_id, job_id, claim)
        frame = '  File "/srv/shop/reports.py", line 88, in build\n    image = draw(chart, theme)\n'
        return is_asked and self.answer(hands.worker, stack_id, frame)

    monkeypatch.setattr(StackStore, "ask", answered_at_once)

    assert "shop/reports.py:88" not in visitor.words(f"/jobs/{job.id}")
    assert asked == []
    visitor.post(f"/jobs/{job.id}/ask")
    text = visitor.words(f"/jobs/{job.id}")
    assert "Where its body is, asked" in text
    assert "shop/reports.py:88 build image = draw(chart, theme)" in text
    part = visitor.client.get(f"/jobs/{job.id}", headers={"hx-request": "true"}).text
    assert "shop/reports.py:88" in part
    assert asked == [job.id]  # a page that stays up to date does not ask each time


def test_whole_numbers_keep_their_digits_and_hostile_text_stays_text(
    app: App, hands: Hands, visitor: Visitor
) -> None:
    job = enqueue(app, note=HOSTILE, team=2**53 + 1)
    hands.fail(job, HOSTILE, traceback=f"Traceback (most recent call last):\nValueError: {HOSTILE}\n")

    page = visitor.page(f"/jobs/{job.id}")

    assert '<span class="d">9007199254740993</span>' in page
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "\\u202e" in page
    assert "\x1b" not in page
    assert "{{7*7}}" in page  # not 49
    assert not {name for name in attributes(page) if name.startswith(("on", "hx-get"))}


def test_a_large_value_is_cut_and_can_be_saved_whole(app: App, visitor: Visitor) -> None:
    job = enqueue(app, note="x" * 20_000)

    assert "That is the first 16 KiB. Save all of it" in visitor.words(f"/jobs/{job.id}")
    answer = visitor.client.get(f"/jobs/{job.id}/args.json")
    assert answer.json()["note"] == "x" * 20_000
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_redacted_arguments_are_revealed_to_admins_alone_and_that_is_written_down(
    app: App, visitor: Visitor, visitor_as: Callable[..., Visitor]
) -> None:
    job = enqueue(app, api_token="hunter2")

    for path in (f"/jobs/{job.id}", f"/jobs/{job.id}.json", f"/jobs/{job.id}/args.json"):
        assert "hunter2" not in visitor.page(path)
    assert '<span class="h">***</span>' in visitor.page(f"/jobs/{job.id}")
    operator = visitor_as("operator")
    assert "Reveal" not in operator.words(f"/jobs/{job.id}")
    operator.post(f"/jobs/{job.id}/reveal", 403)
    assert core_of(app).backend.actions.newest(10) == []

    assert "hunter2" in visitor.post(f"/jobs/{job.id}/reveal", 200).text
    (action,) = core_of(app).backend.actions.newest(10)
    assert (action.who, action.via, action.verb, action.target) == ("ann", "web", "reveal", job.id)


def test_all_arguments_of_a_task_whose_code_is_not_here_are_hidden(app: App, visitor: Visitor) -> None:
    job = app.enqueue("elsewhere", {"secret": "hunter2"})

    assert "The code of this task is not here, so all its arguments are hidden." in visitor.words(f"/jobs/{job.id}")
    assert "hunter2" not in visitor.page(f"/jobs/{job.id}.json")


def test_a_job_is_retried_cancelled_and_deleted(
    app: App, hands: Hands, visitor: Visitor, visitor_as: Callable[..., Visitor]
) -> None:
    job = enqueue(app)
    path = f"/jobs/{job.id}"

    assert visitor.client.get(visitor.post(f"{path}/cancel").headers["location"]).text.count("It is cancelled.") == 1
    assert app.job(job.id).state == "cancelled"
    visitor.post(f"{path}/retry")
    assert app.job(job.id).state == "queued"
    assert "it has not ended: it is queued" in visitor.post(f"{path}/retry", 409).text
    hands.fail(job)
    visitor_as("operator").post(f"{path}/delete", 403)
    visitor.post(f"{path}/delete")
    assert f"no job has the id {job.id}" in visitor.words(path, 404)
    verbs_done = [(each.verb, each.done, each.refused) for each in core_of(app).backend.actions.newest(10)]
    assert verbs_done == [("delete", 1, 0), ("retry", 0, 1), ("retry", 1, 0), ("cancel", 1, 0)]


def test_a_retry_of_a_job_whose_unique_key_another_holds_is_done_or_says_why(
    app: App, hands: Hands, visitor: Visitor
) -> None:
    first = app.enqueue("report.build", {"team": 1}, unique="report")
    hands.fail(first)
    second = app.enqueue("report.build", {"team": 2}, unique="report")
    assert second.id != first.id

    visitor.post(f"/jobs/{first.id}/retry")

    assert app.job(first.id).state == "queued"
    assert app.job(second.id).state == "queued"


def test_a_viewer_sees_no_button(app: App, hands: Hands, visitor_as: Callable[..., Visitor]) -> None:
    job = enqueue(app)
    hands.fail(job)
    viewer = visitor_as("viewer")

    page = viewer.page(f"/jobs/{job.id}")

    assert 'method="post"' not in page
    assert "Enqueue again" not in page
    for verb in ("retry", "cancel", "delete", "reveal"):
        viewer.post(f"/jobs/{job.id}/{verb}", 403)
    assert app.job(job.id).state == "failed"
    assert core_of(app).backend.actions.newest(10) == []


def test_a_visitor_of_some_queues_sees_no_other_job(app: App, visitor_as: Callable[..., Visitor]) -> None:
    hidden = enqueue(app)
    shown = app.enqueue("report.build", {"team": 8}, queue="mail", after=[hidden])
    visitor = visitor_as("admin", queues=["mail"])

    for path in ("", ".json", "/args", "/result", "/log"):
        visitor.page(f"/jobs/{hidden.id}{path}", 404)
    for verb in ("retry", "cancel", "delete", "reveal"):
        visitor.post(f"/jobs/{hidden.id}/{verb}", 404)
    assert app.job(hidden.id).state == "queued"
    for path in (f"/jobs/{shown.id}", f"/jobs/{shown.id}.json"):
        assert hidden.id not in visitor.page(path)
        assert hidden.id[-8:] not in visitor.page(path)


def test_the_log_is_by_attempt_and_filtered_by_level(
    app: App, hands: Hands, clock: ManualClock, visitor: Visitor
) -> None:
    job = enqueue(app)
    claim = hands.claim(job)
    at = clock.now()
    lines = [
        LogLine(job.id, claim.claim, at, "INFO", "shop", "building"),
        LogLine(job.id, claim.claim, at + SECOND, "WARNING", "shop", "a gap"),
        LogLine(job.id, claim.claim, at + 2 * SECOND, "ERROR", "shop", "giving up"),
    ]
    verbs.write_logs(core_of(app).backend, hands.worker, lines)

    text = visitor.words(f"/jobs/{job.id}")
    assert "Log 3 lines" in text
    assert text.index("building") < text.index("a gap") < text.index("giving up")
    warnings = visitor.words(f"/jobs/{job.id}?level=warnings")
    assert "building" not in warnings
    assert "Log 3 lines, 2 shown" in warnings
    followed = visitor.words(f"/jobs/{job.id}?follow=1")
    assert followed.index("giving up") < followed.index("building")
    assert 'data-topics="jobs logs"' in visitor.page(f"/jobs/{job.id}")
    assert [line["message"] for line in visitor.json(f"/jobs/{job.id}/log.json")] == [
        "building",
        "a gap",
        "giving up",
    ]
    assert "WARNING shop: a gap\n" in visitor.page(f"/jobs/{job.id}/log")


def test_a_clock_that_went_back_makes_no_negative_wait(
    app: App, hands: Hands, clock: ManualClock, visitor: Visitor
) -> None:
    clock.advance(10 * MINUTE)
    job = enqueue(app)
    clock.step(-5 * MINUTE)  # the worker's clock
    hands.fail(job)

    page = visitor.page(f"/jobs/{job.id}")

    assert not re.search(r'(?:width|x)="-', page)
    assert " -" not in re.sub(r"<[^>]*>", " ", page.partition("<main")[2]).replace(" - ", "")


def test_jobs_beside_it_are_drawn_and_linked(app: App, visitor: Visitor) -> None:
    parent = enqueue(app)
    job = app.enqueue("report.build", {"team": 1}, after=[parent], name="second")
    child = app.enqueue("report.build", {"team": 2}, after=[job])

    page = visitor.page(f"/jobs/{job.id}")
    text = visitor.words(f"/jobs/{job.id}")

    assert "One job waits for it: report.build" in text
    assert '<svg class="dag"' in page
    for other in (parent, child):
        assert f'href="/jobs/{other.id}"' in page
    shape = visitor.json(f"/jobs/{job.id}.json")
    assert [each["id"] for each in shape["parents"]] == [parent.id]
    assert [each["id"] for each in shape["children"]] == [child.id]


def test_a_page_of_a_job_takes_few_statements(app: App, hands: Hands, visitor: Visitor) -> None:
    job = enqueue(app)
    hands.fail(job)
    path, part = f"/jobs/{job.id}", {"hx-request": "true"}  # without the menu

    with statements() as made:
        assert visitor.client.get(path, headers=part).status_code == 200

    assert len(made) <= 24, made


def test_a_job_that_a_limit_holds_back_shows_its_key_and_links_what_runs(
    app: App, hands: Hands, visitor: Visitor, visitor_as: Callable[..., Visitor]
) -> None:
    app.queue("reports", key_limit=1)
    first, second = (app.enqueue("report.build", {"team": 7}, key="acct:7") for _ in range(2))
    hands.claim(first)

    text = visitor.words(f"/jobs/{second.id}")

    assert "1 of 1 running for key acct:7, the key_limit of queue reports" in text
    assert "Key acct:7" in text
    assert f'/jobs/{first.id}"' in visitor.page(f"/jobs/{second.id}")
    limited = visitor_as("viewer", queues=["reports"])
    assert "1 of 1 running, the key_limit of queue reports." in limited.words(f"/jobs/{second.id}")
    assert first.id not in limited.page(f"/jobs/{second.id}")
