"""The list of jobs, as a reader sees it: search, tabs, chips, pages, exports."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Generator
from typing import Any
from unittest.mock import patch

import pytest

from dray import App, Job
from dray.instants import SECOND
from dray.ops.search import Found, search
from tests.app.hands import Hands
from tests.manual_clock import ManualClock
from tests.web.browsing import Visitor, attributes
from tests.web.executed import statements

HOSTILE = "<script>alert(1)</script>\u202e{{7*7}}\" onmouseover='x' hx-get=/x"


@pytest.fixture
def app(url: str, clock: ManualClock) -> Generator[App]:
    with App(url, clock=clock) as opened:

        @opened.task(name="mail.send", queue="mail", redact=["token"])
        def send(user: int = 0, token: str = "", note: str = "") -> Any: ...

        yield opened


@pytest.fixture
def hands(app: App, clock: ManualClock) -> Hands:
    return Hands(app, clock)


def enqueue(app: App, count: int = 1, **options: Any) -> list[Job[Any]]:
    return [app.enqueue("mail.send", {"user": n}, **options) for n in range(count)]


def listed(visitor: Visitor, path: str) -> list[str]:
    return [job["id"] for job in visitor.json(path)["jobs"]]


def test_an_empty_database_says_what_to_do(app: App, visitor: Visitor) -> None:
    app.init()

    text = visitor.words("/jobs")

    assert "There are no jobs yet." in text
    assert "Looked through 0 jobs" in text
    assert listed(visitor, "/jobs.json") == []
    assert "No job fits this search." in visitor.words("/jobs?q=state:failed")


def test_a_list_shows_each_job_with_its_error_and_its_tabs_count(app: App, hands: Hands, visitor: Visitor) -> None:
    failed, queued = enqueue(app, 2)
    hands.fail(failed, "503 Service Unavailable")

    text = visitor.words("/jobs")

    assert f'failed mail.send {failed.id[-8:]} {{"user": 0}} ValueError: 503 Service Unavailable mail 1 of' in text
    assert f'queued mail.send {queued.id[-8:]} {{"user": 1}} mail' in text
    assert "All 2 Waiting 0 Scheduled 0 Queued 1 Running 0 Completed 0 Failed 1 Cancelled 0" in text
    assert listed(visitor, "/jobs.json?q=state:failed") == [failed.id]


def test_a_search_is_shown_as_chips_each_of_which_can_be_taken_away(app: App, visitor: Visitor) -> None:
    app.init()

    page = visitor.page("/jobs?q=state:failed task:mail.* -tag:test")

    assert "Without task:mail.*" in page
    assert 'href="/jobs?q=state%3Afailed+-tag%3Atest"' in page  # without the task
    assert 'href="/jobs?q=state%3Afailed+task%3Amail.%2A"' in page  # without the tag
    assert re.search(r'aria-current="page">Failed', page)
    assert "Without state" not in page  # its tab shows it
    assert 'href="/jobs?q=state%3Aqueued+task%3Amail.%2A+-tag%3Atest"' in page


def test_a_filter_is_added_by_a_form(app: App, visitor: Visitor) -> None:
    app.init()

    for key, value, query in [
        ("queue", "mail", "state%3Afailed+queue%3Amail"),
        ("ran", ">30s", "state%3Afailed+ran%3A%3E30s"),
        ("args", "user.id:42", "state%3Afailed+args.user.id%3A42"),
        ("error", "two words", "state%3Afailed+error%3A%22two+words%22"),
    ]:
        answer = visitor.client.get(
            "/jobs", params={"q": "state:failed", "key": key, "value": value}, follow_redirects=False
        )
        assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs?q={query}")
    assert "is no number of an attempt" in visitor.words("/jobs?key=attempt&value=many", 400)


def test_a_search_that_cannot_be_read_says_what_and_where(app: App, visitor: Visitor) -> None:
    app.init()

    text = visitor.words("/jobs?q=queue:mail stat:failed", 400)

    assert "This search cannot be read. 'stat:' at character 12 is no filter; did you mean state:?" in text
    assert f'queue:mail stat:failed\n<b aria-hidden="true">{" " * 11}^' in visitor.page(
        "/jobs?q=queue:mail stat:failed", 400
    )
    assert "did you mean state:?" in visitor.json("/jobs.json?q=stat:failed", 400)["error"]
    assert "is no place in this list" in visitor.json("/jobs.json?before=nonsense", 400)["error"]


def test_an_id_in_the_box_leads_to_its_job(app: App, visitor: Visitor, visitor_as: Callable[..., Visitor]) -> None:
    job, _ = enqueue(app, 2)

    for part in (job.id, job.id[-8:], job.id[-8:].upper(), f"id:{job.id}"):
        answer = visitor.client.get("/jobs", params={"q": part}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job.id}")
    assert listed(visitor, f"/jobs.json?q={job.id}") == [job.id]
    assert "No job fits this search." in visitor_as("viewer", queues=["billing"]).words(f"/jobs?q={job.id}")


def test_pages_go_on_where_they_ended_although_many_jobs_ended_at_once(
    app: App, hands: Hands, visitor: Visitor
) -> None:
    jobs = enqueue(app, 120)
    for job in jobs:
        app.job(job.id).cancel()  # the clock stands still: all end at the same instant

    seen: list[str] = []
    query = "?q=state:cancelled"
    while True:
        page = visitor.json(f"/jobs.json{query}")
        seen += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        query = f"?q=state:cancelled&before={page['next']}"

    assert len(seen) == 120
    assert set(seen) == {job.id for job in jobs}
    text = visitor.page("/jobs?q=state:cancelled")
    assert "Older" in text
    assert "Newest" not in text
    older = re.search(r'href="([^"]*before=[^"]*)"', text)
    assert older is not None
    assert "Newest" in visitor.page(older[1].replace("&amp;", "&"))


def test_a_search_that_stopped_at_its_time_can_look_further(app: App, visitor: Visitor) -> None:
    (job,) = enqueue(app)
    stopped = Found([], job.id, 20_000, False, "enqueued")

    with patch("dray.web.pages.jobs.search", return_value=stopped):
        page = visitor.page("/jobs?q=error:rare")

    assert "None found yet." in page
    assert "Looked through 20,000 jobs in" in page
    assert "There may be more." in page
    assert f'before={job.id}">Look further' in page


def test_a_clock_that_went_back_makes_no_negative_time(
    app: App, hands: Hands, clock: ManualClock, visitor: Visitor
) -> None:
    (job,) = enqueue(app)
    claim = hands.claim(job)
    clock.step(-100 * SECOND)
    hands.complete(job, claim=claim)

    assert "-" not in visitor.words("/jobs?q=state:completed").partition("Ended")[2].replace(job.id, "")


def test_hostile_values_stay_text(app: App, hands: Hands, visitor: Visitor) -> None:
    job = app.enqueue("mail.send", {"user": 2**53 + 1, "note": HOSTILE}, tags=["nightly"])
    hands.fail(job, HOSTILE)

    for path in ("/jobs", "/jobs?q=" + '"<script>alert(1)</script>"'):
        page = visitor.page(path)
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert not {name for name in attributes(page) if name.startswith(("on", "hx-get"))}
    assert "9007199254740993" in visitor.page("/jobs")
    assert "{{7*7}}" in visitor.page("/jobs")


def test_redacted_arguments_are_not_shown_found_or_exported(app: App, visitor: Visitor) -> None:
    app.enqueue("mail.send", {"token": "hunter2"})
    app.enqueue("elsewhere", {"token": "hunter2"})  # its code is not here, so all of it may be secret

    for path in ("/jobs", "/jobs.json", "/jobs/export.csv", "/jobs/export.jsonl"):
        assert "hunter2" not in visitor.page(path)
    assert listed(visitor, "/jobs.json?q=args.token:hunter2") == []


def test_large_arguments_are_not_read_for_a_list(app: App, visitor: Visitor) -> None:
    app.enqueue("mail.send", {"note": "x" * 100_000})

    assert "{… 97 KiB of arguments}" in visitor.words("/jobs")


def test_exports_are_safe_files(app: App, hands: Hands, visitor: Visitor) -> None:
    (job,) = enqueue(app)
    hands.fail(job, "no")
    app.enqueue("mail.send", {}, name="=HYPERLINK(1)")

    answer = visitor.client.get("/jobs/export.csv?q=state:queued")
    assert answer.headers["content-disposition"] == 'attachment; filename="jobs.csv"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert row["name"] == "'=HYPERLINK(1)"
    lines = [json.loads(line) for line in visitor.page("/jobs/export.jsonl?q=state:failed").splitlines()]
    assert [line["id"] for line in lines] == [job.id]
    assert "is no filter" in visitor.words("/jobs/export.csv?q=stat:x", 400)


def test_a_viewer_sees_no_boxes_and_no_buttons(app: App, visitor_as: Callable[..., Visitor]) -> None:
    enqueue(app)

    page = visitor_as("viewer").page("/jobs")

    assert 'type="checkbox"' not in page
    assert "/bulk?" not in page
    assert "Enqueue…" not in page
    assert "Delete…" not in visitor_as("operator").page("/jobs")
    assert "Delete…" in visitor_as("admin").page("/jobs")


def test_a_visitor_of_some_queues_sees_their_jobs_alone(app: App, visitor_as: Callable[..., Visitor]) -> None:
    (mine,) = enqueue(app)
    (hidden,) = enqueue(app, queue="billing")
    visitor = visitor_as("operator", queues=["mail"])

    assert listed(visitor, "/jobs.json") == [mine.id]
    assert listed(visitor, "/jobs.json?q=queue:billing") == []
    for path in ("/jobs", "/jobs/export.csv", "/jobs/export.jsonl"):
        assert hidden.id not in visitor.page(path)
    assert "All Waiting Scheduled" in visitor.words("/jobs")  # counts are of all queues, so there are none


def test_a_list_takes_few_statements(app: App, visitor: Visitor) -> None:
    enqueue(app, 60)
    visitor.page("/jobs")  # the counts of the tabs are shared

    with statements() as made:
        assert visitor.client.get("/jobs", headers={"hx-request": "true"}).status_code == 200

    assert len(made) <= 6, made


def test_the_search_asks_for_no_more_than_a_page(app: App, visitor: Visitor) -> None:
    enqueue(app, 3)

    with patch("dray.web.pages.jobs.search", wraps=search) as asked:
        visitor.page("/jobs")

    assert asked.call_args.kwargs["limit"] == 50
