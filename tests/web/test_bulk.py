"""One action on many jobs: preview, frozen selection, progress, stop; as a person does it in a browser."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from html import unescape
from typing import Any

import pytest

from dray import App, Job
from dray.app_interface import core_of
from dray.backends.store.jobs import JobStore
from dray.instants import MINUTE, SECOND
from dray.model.action import By
from dray.ops import acting
from dray.ops import bulk as ops
from dray.web.bulks import Running
from tests.app.hands import Hands
from tests.manual_clock import ManualClock
from tests.web.browsing import Visitor
from tests.web.executed import statements


@pytest.fixture
def app(url: str, clock: ManualClock) -> Generator[App]:
    with App(url, clock=clock) as opened:
        yield opened
        for thread in threading.enumerate():
            if thread.name == "dray-bulk":
                thread.join(20)  # it would write into the tables that the next test uses
                assert not thread.is_alive()


@pytest.fixture
def hands(app: App, clock: ManualClock) -> Hands:
    return Hands(app, clock)


def enqueue(app: App, count: int, queue: str = "mail") -> list[Job[Any]]:
    return [app.enqueue("mail.send", {}, queue=queue, max_attempts=1) for _ in range(count)]


def failed(app: App, hands: Hands, clock: ManualClock, count: int, queue: str = "mail") -> list[Job[Any]]:
    jobs = enqueue(app, count, queue)
    for job in jobs:
        hands.fail(job)
    clock.advance(SECOND)
    return jobs


def form_of(page: str) -> dict[str, str]:
    """What the preview's form sends."""
    hidden = re.findall(r'<input type="hidden" name="(token|selection)" value="([^"]*)"', page)
    return {name: unescape(value) for name, value in hidden}


def confirm(visitor: Visitor, preview: str, verb: str, status: int = 303) -> str:
    """Presses the preview's button; returns the address of the progress page."""
    answer = visitor.post(f"/bulk/{verb}", status, selection=form_of(visitor.page(preview)).get("selection", ""))
    return answer.headers.get("location", "").partition("?")[0]


def wait(visitor: Visitor, where: str) -> dict[str, Any]:
    running = visitor.site.bulks.get(where.removeprefix("/bulk/"))
    assert running is not None
    assert running.ended.wait(20)
    return visitor.json(f"{where}.json")


def states(app: App, jobs: list[Job[Any]]) -> list[str]:
    return [app.job(job.id).state for job in jobs]


def test_all_that_match_are_retried_as_the_preview_said(
    app: App, hands: Hands, clock: ManualClock, visitor: Visitor
) -> None:
    jobs = failed(app, hands, clock, 3)
    others = failed(app, hands, clock, 1, queue="billing")
    preview = "/bulk?verb=retry&q=state:failed queue:mail&all=1"

    text = visitor.words(preview)
    assert "Retry 3 jobs?" in text
    assert "The search: state:failed queue:mail" in text
    assert "Jobs that come or end later are not touched." in text
    end = wait(visitor, confirm(visitor, preview, "retry"))

    assert (end["done"], end["refused"], end["is_over"], end["error"]) == (3, 0, True, None)
    assert states(app, jobs) == ["queued"] * 3
    assert states(app, others) == ["failed"]
    (action,) = core_of(app).backend.actions.newest(10)
    assert (action.who, action.via, action.verb, action.done, action.refused) == ("ann", "web", "retry", 3, 0)
    assert action.target == "state:failed queue:mail"
    assert action.id == end["id"]
    assert action.note == "complete"


def test_nothing_newer_than_the_preview_is_touched(
    app: App, hands: Hands, clock: ManualClock, visitor: Visitor
) -> None:
    old = failed(app, hands, clock, 2)
    running = enqueue(app, 1)
    form = form_of(visitor.page("/bulk?verb=delete&q=state:failed&all=1"))
    clock.advance(SECOND)
    hands.fail(running[0])
    new = failed(app, hands, clock, 1)

    where = visitor.post("/bulk/delete", selection=form["selection"]).headers["location"].partition("?")[0]

    assert wait(visitor, where)["done"] == 2
    assert states(app, [*running, *new]) == ["failed", "failed"]
    assert core_of(app).backend.jobs.get([job.id for job in old]) == []


def test_ticked_rows_go_the_same_way(app: App, hands: Hands, clock: ManualClock, visitor: Visitor) -> None:
    jobs = failed(app, hands, clock, 3)
    preview = f"/bulk?verb=retry&q=state:failed&id={jobs[0].id}&id={jobs[2].id}"

    assert "Retry 2 jobs? The ticked jobs" in visitor.words(preview)
    wait(visitor, confirm(visitor, preview, "retry"))

    assert states(app, jobs) == ["queued", "failed", "queued"]


def test_fifty_ticked_rows_fit_into_one_search(app: App, visitor: Visitor) -> None:
    jobs = enqueue(app, 50)
    ids = "&".join(f"id={job.id}" for job in jobs)

    assert "Cancel 50 jobs?" in visitor.words(f"/bulk?verb=cancel&{ids}")
    assert "at most 50 jobs can be ticked" in visitor.words(f"/bulk?verb=cancel&{ids}&id={jobs[0].id}", 400)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("verb=retry", "no job is ticked"),
        ("verb=eat&all=1", "verb must be one of retry, cancel, delete"),
        ("verb=retry&id=nonsense", "a ticked job has no id"),
        ("verb=retry&all=1&q=stat:x", "is no filter"),
    ],
)
def test_what_cannot_be_meant_is_refused(app: App, visitor: Visitor, query: str, problem: str) -> None:
    app.init()

    assert problem in visitor.words(f"/bulk?{query}", 400)


def test_nothing_that_fits_has_no_button(app: App, visitor: Visitor) -> None:
    app.init()

    page = visitor.page("/bulk?verb=retry&q=state:failed&all=1")

    assert "No job fits." in page
    assert "/bulk/retry" not in page


def test_refused_jobs_are_named_with_the_reason(app: App, hands: Hands, clock: ManualClock, visitor: Visitor) -> None:
    (parent,) = enqueue(app, 1)
    child = app.enqueue("mail.send", {}, after=[parent])
    hands.fail(parent)
    core_of(app).backend.graph.fan_out_all()  # cancels the child
    (other,) = enqueue(app, 1)
    app.job(other.id).cancel()
    clock.advance(SECOND)

    where = confirm(visitor, "/bulk?verb=retry&q=state:cancelled&all=1", "retry")
    end = wait(visitor, where)

    assert (end["done"], end["refused"]) == (1, 1)
    text = visitor.words(where)
    assert "1 retried, 1 refused" in text
    assert re.search(rf"{child.id[-8:]} .*{parent.id[-8:]}", text)


def test_it_can_be_stopped_and_says_what_was_left(
    app: App, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "STEP", 2)
    jobs = enqueue(app, 5)
    began, go_on = threading.Event(), threading.Event()
    cancel = JobStore.cancel

    def slowly(*args: Any, **named: Any) -> Any:
        began.set()
        assert go_on.wait(20)
        return cancel(*args, **named)

    monkeypatch.setattr(JobStore, "cancel", slowly)
    where = confirm(visitor, "/bulk?verb=cancel&q=queue:mail&all=1", "cancel")
    assert began.wait(20)
    page = visitor.page(where)
    # The page comes again without a script too; with one, a page that is loaded again would lose what is done in it.
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in page
    assert page.count('http-equiv="refresh"') == 1
    assert "Stop" in page
    visitor.post(f"{where}/stop")
    go_on.set()

    end = wait(visitor, where)

    assert (end["done"], end["left"], end["is_stopped"]) == (2, 3, True)
    text = visitor.words(where)
    assert "Stopped" in text
    assert "2 cancelled, 3 left as they are." in text
    assert states(app, jobs).count("cancelled") == 2
    assert 'http-equiv="refresh"' not in visitor.page(where)


def test_an_error_of_the_database_ends_it_and_is_shown(
    app: App, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(app, 1)

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(JobStore, "cancel", fails)

    end = wait(visitor, confirm(visitor, "/bulk?verb=cancel&q=queue:mail&all=1", "cancel"))

    assert end["error"] == "RuntimeError; the dashboard's log says more"
    assert end["done"] == 0


def test_an_operator_may_act_on_a_thousand_jobs_and_an_admin_on_more(
    app: App, visitor_as: Callable[..., Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = enqueue(app, 4)
    monkeypatch.setattr("dray.web.pages.bulk.OPERATORS_BULK", 3)
    operator, preview = visitor_as("operator"), "/bulk?verb=cancel&q=queue:mail&all=1"

    assert "You may cancel 3 jobs at once. Narrow the search, or ask an admin." in operator.words(preview)
    assert "selection" not in form_of(operator.page(preview))
    assert "selection" in form_of(visitor_as("admin").page(preview))
    monkeypatch.setattr("dray.web.pages.bulk.OPERATORS_BULK", 4)
    form = form_of(operator.page(preview))
    monkeypatch.setattr("dray.web.pages.bulk.OPERATORS_BULK", 3)
    end = wait(
        operator, operator.post("/bulk/cancel", selection=form["selection"]).headers["location"].partition("?")[0]
    )
    assert "more than 3 jobs" in end["error"]
    assert states(app, jobs) == ["queued"] * 4


def test_a_viewer_may_not_and_an_operator_may_not_delete(
    app: App, hands: Hands, clock: ManualClock, visitor_as: Callable[..., Visitor]
) -> None:
    jobs = failed(app, hands, clock, 1)
    form = form_of(visitor_as("admin").page("/bulk?verb=delete&q=state:failed&all=1"))

    for role, verb in (("viewer", "retry"), ("viewer", "cancel"), ("viewer", "delete"), ("operator", "delete")):
        someone = visitor_as(role)
        someone.page(f"/bulk?verb={verb}&all=1", 404)
        someone.post(f"/bulk/{verb}", 403, selection=form["selection"])
    assert states(app, jobs) == ["failed"]
    assert core_of(app).backend.actions.newest(10) == []


def test_a_selection_is_one_visitors_own_and_of_their_queues(
    app: App, hands: Hands, clock: ManualClock, visitor_as: Callable[..., Visitor]
) -> None:
    mine = failed(app, hands, clock, 1)
    theirs = failed(app, hands, clock, 1, queue="billing")
    restricted = visitor_as("operator", queues=["mail"])
    preview = "/bulk?verb=retry&q=state:failed&all=1"

    assert "Retry 1 job?" in restricted.words(preview)
    foreign = form_of(visitor_as("operator").page(preview))
    answer = restricted.post("/bulk/retry", 409, selection=foreign["selection"])
    assert "This selection was not made here" in answer.text
    where = confirm(restricted, preview, "retry")
    wait(restricted, where)
    assert states(app, [*mine, *theirs]) == ["queued", "failed"]
    visitor_as("operator", user="bob").page(where, 404)


def test_a_changed_or_old_selection_is_refused(
    app: App, hands: Hands, clock: ManualClock, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = failed(app, hands, clock, 1)
    form = form_of(visitor.page("/bulk?verb=retry&q=state:failed&all=1"))

    visitor.post("/bulk/retry", 409, selection=form["selection"][:-2] + "xx")
    visitor.post("/bulk/retry", 409, selection="")
    monkeypatch.setattr(ops, "_VALID_US", -MINUTE)
    old = form_of(visitor.page("/bulk?verb=retry&q=state:failed&all=1"))
    assert "older than 10 minutes" in visitor.post("/bulk/retry", 409, selection=old["selection"]).text
    assert states(app, jobs) == ["failed"]


def test_only_a_few_run_at_once(app: App, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue(app, 1)
    go_on, cancel = threading.Event(), JobStore.cancel

    def slowly(*args: Any, **named: Any) -> Any:
        assert go_on.wait(20)
        return cancel(*args, **named)

    monkeypatch.setattr(JobStore, "cancel", slowly)
    preview = "/bulk?verb=cancel&q=queue:mail&all=1"
    started = [confirm(visitor, preview, "cancel") for _ in range(4)]

    answer = visitor.post("/bulk/cancel", 409, selection=form_of(visitor.page(preview)).get("selection", ""))
    go_on.set()

    assert "4 bulk actions are running here" in answer.text
    assert sum(wait(visitor, where)["done"] for where in started) == 1


def test_a_bulk_action_that_is_not_there_says_where_to_look(app: App, hands: Hands, visitor: Visitor) -> None:
    (job,) = enqueue(app, 1)
    acting.cancel(core_of(app), [job.id], By("ann", "cli"))
    (single,) = core_of(app).backend.actions.newest(1)

    for unknown in (core_of(app).new_id(), "nonsense", single.id):
        assert "There is no such bulk action" in visitor.words(f"/bulk/{unknown}", 404)


@dataclass
class Held:
    began: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go_on: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def step(self) -> None:
        """Lets one step be done, and waits for the next to begin."""
        self.go_on.release()
        assert self.began.acquire(timeout=20)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Generator[Held]:
    """Steps of two jobs that are cancelled when the test says so."""
    monkeypatch.setattr(ops, "STEP", 2)
    held, cancel = Held(), JobStore.cancel

    def slowly(*args: Any, **named: Any) -> Any:
        held.began.release()
        assert held.go_on.acquire(timeout=20)
        return cancel(*args, **named)

    monkeypatch.setattr(JobStore, "cancel", slowly)
    yield held
    held.go_on.release(100)


def test_another_process_shows_its_progress_and_stops_it(
    app: App, visitor_as: Callable[..., Visitor], held: Held
) -> None:
    jobs = enqueue(app, 7)
    here, there = visitor_as("operator"), visitor_as("operator")  # a dashboard each, as in two processes
    where = confirm(here, "/bulk?verb=cancel&q=queue:mail&all=1", "cancel")
    assert held.began.acquire(timeout=20)
    assert there.json(f"{where}.json")["done"] == 0
    held.step()

    seen = there.json(f"{where}.json")
    assert (seen["done"], seen["refused"], seen["is_over"]) == (2, 0, False)
    text = there.words(where)
    assert "2 cancelled. " in text
    assert "Another process of this server runs it." in text
    assert '<noscript><meta http-equiv="refresh"' in there.page(where)
    there.post(f"{where}/stop")
    held.go_on.release(100)
    end = wait(here, where)

    assert (end["done"], end["is_over"], end["is_stopped"], end["left"]) == (4, True, True, 3)
    seen = there.json(f"{where}.json")
    assert (seen["done"], seen["is_over"], seen["is_stopped"]) == (4, True, True)
    assert "Stopped" in there.words(where)
    assert 'http-equiv="refresh"' not in there.page(where)
    assert states(app, jobs).count("cancelled") == 4
    (action,) = core_of(app).backend.actions.newest(10)
    assert (action.done, action.note) == (4, "stopped by ann")


@pytest.mark.parametrize(("most", "note"), [(4, "complete"), (3, "ended: this would cancel more than 3 jobs")])
def test_another_process_shows_how_it_ended(
    app: App, visitor_as: Callable[..., Visitor], monkeypatch: pytest.MonkeyPatch, most: int, note: str
) -> None:
    enqueue(app, 4)
    here, there = visitor_as("operator"), visitor_as("operator")
    form = form_of(here.page("/bulk?verb=cancel&q=queue:mail&all=1"))
    monkeypatch.setattr("dray.web.pages.bulk.OPERATORS_BULK", most)
    where = here.post("/bulk/cancel", selection=form["selection"]).headers["location"].partition("?")[0]
    end = wait(here, where)

    seen = there.json(f"{where}.json")

    kept = ("id", "verb", "search", "is_over", "is_stopped", "error", "done", "refused")
    assert [seen[each] for each in kept] == [end[each] for each in kept]
    (action,) = core_of(app).backend.actions.newest(10)
    assert (action.note or "").startswith(note)


def test_another_process_shows_it_to_those_alone_who_may_see_it(app: App, visitor_as: Callable[..., Visitor]) -> None:
    enqueue(app, 1)
    here = visitor_as("operator", queues=["mail"])
    where = confirm(here, "/bulk?verb=cancel&q=queue:mail&all=1", "cancel")
    wait(here, where)

    visitor_as("operator", queues=["mail"]).page(where)
    visitor_as("admin", user="bob").page(where)
    for role, user, queues in (
        ("operator", "bob", None),
        ("admin", "bob", ["billing"]),
        ("viewer", "bob", None),
        ("operator", "", ["billing"]),
    ):
        other = visitor_as(role, user=user, queues=queues)
        other.page(where, 404)
        other.post(f"{where}/stop", 403 if role == "viewer" else 404)


def test_a_preview_takes_few_statements(app: App, visitor: Visitor) -> None:
    enqueue(app, 3)

    with statements() as made:
        visitor.client.get("/bulk?verb=cancel&q=queue:mail&all=1", headers={"hx-request": "true"})

    assert len(made) <= 12, made


def test_a_preview_of_a_hundred_thousand_jobs_is_short(
    app: App, visitor: Visitor, capsys: pytest.CaptureFixture[str]
) -> None:
    @app.task(name="mail.send", queue="mail")
    def send() -> None: ...

    send.enqueue_many([()] * 100_000)
    preview, took = "/bulk?verb=cancel&q=queue:mail task:mail.*&all=1", list[float]()
    shape: dict[str, Any] = {}

    for _ in range(5):
        began = time.monotonic()
        shape = visitor.json(preview.replace("/bulk", "/bulk.json"))
        took.append(time.monotonic() - began)

    with capsys.disabled():
        print(f"\na preview of 100,000 jobs took {1e3 * min(took):.0f} to {1e3 * max(took):.0f} ms")
    assert shape["is_capped"]
    assert 0 < shape["count"] <= 10_000
    assert len(shape["jobs"]) == 10
    assert statistics.median(took) < 1.0, "100 ms is the aim, on a machine that does nothing else"
    assert re.search(r"Cancel [\d,]+ jobs or more\?", visitor.words(preview))


def test_a_page_that_is_made_while_it_ends_does_not_say_done_beside_the_numbers_of_before(
    app: App, visitor: Visitor, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(app, 3)
    where = confirm(visitor, "/bulk?verb=cancel&all=1&q=queue:mail", "cancel")
    answers = iter([False])
    monkeypatch.setattr(Running, "is_over", property(lambda _: next(answers, True)))  # it ends after the first look

    words = visitor.words(where)

    assert "Done" not in words
    monkeypatch.undo()
