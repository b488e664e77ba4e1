"""The pages of queues: how deep, how old, who paused them and why; pausing and resuming."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dray import App
from dray.app_interface import core_of
from dray.instants import MINUTE
from dray.model.action import By
from dray.model.limit import bounds_of
from dray.model.new_job import NewJob
from dray.model.rollup import Part, Tally, floor
from dray.ops import acting
from tests.web.browsing import Visitor
from tests.web.executed import page_statements
from tests.web.hands import Hand


@pytest.fixture
def mail(app: App) -> str:
    for _ in range(4):
        app.enqueue("send", {}, queue="mail")
    hand = Hand(app, "app-1")
    hand.complete("mail", most=2)
    hand.fail("mail", "no answer")
    return "mail"


def acts(app: App) -> list[tuple[str, str, str, str | None, int, int]]:
    found = core_of(app).backend.actions.newest()
    return [(each.who, each.verb, each.target, each.note, each.done, each.refused) for each in found]


def test_without_queues_the_list_says_when_there_is_one(visitor: Visitor) -> None:
    assert "No queue is in use yet." in visitor.words("/queues")
    assert visitor.json("/queues.json") == {"queues": [], "more": 0}


def test_the_list_shows_what_waits_runs_and_ended(app: App, mail: str, visitor: Visitor) -> None:
    app.pause("idle")

    (first, second) = visitor.json("/queues.json")["queues"]
    assert (first["name"], first["queued"], first["running"], first["paused_at"]) == (mail, 1, 0, None)
    assert (first["ended"]["completed"], first["ended"]["failed"]) == (2, 1)
    assert second["name"] == "idle"
    assert second["paused_at"] is not None
    words = visitor.words("/queues")
    assert "mail 1" in words
    assert "33.3 %" in words
    assert "idle paused 0" in words


def test_a_queue_has_a_page_of_its_own(mail: str, visitor: Visitor) -> None:
    words = visitor.words(f"/queues/{mail}?span=24h")

    assert "Queued 1 Oldest" in words
    assert "Completed 2 in 24 h Failed 1 33.3 %" in words
    assert "Newest jobs" in words
    assert words.count(" send ") == 4
    assert "Served by app-1" in words
    shape = visitor.json(f"/queues/{mail}.json")
    assert [job["state"] for job in shape["newest"]].count("completed") == 2
    assert shape["series"]["total"]["failed"] == 1


def test_a_queue_that_nobody_knows_is_not_found(visitor: Visitor) -> None:
    assert "There is no queue nope" in visitor.words("/queues/nope", 404)
    assert "cannot be used" in visitor.page("/queues/no,name", 400)


def test_a_queue_that_no_worker_serves_says_so(app: App, visitor: Visitor) -> None:
    app.enqueue("send", {}, queue="alone")

    assert "No live worker serves this queue. Start one: dray worker -q alone" in visitor.words("/queues/alone")


def test_pausing_asks_takes_a_note_and_is_written_down(app: App, mail: str, visitor: Visitor) -> None:
    assert "Pause queue mail? Jobs that run go on; no worker claims another one." in visitor.words("/queues/mail")

    answer = visitor.post("/queues/mail/pause", note="  double\ncharges, see #412 ", back="/queues")

    assert answer.headers["location"].startswith("/queues?said=Queue+mail+is+paused")
    assert app.queue("mail").is_paused
    assert acts(app) == [("ann", "pause", mail, "double charges, see #412", 1, 0)]
    words = visitor.words("/queues/mail")
    assert "Paused by ann: “double charges, see #412”" in words
    assert "Paused by ann “double charges, see #412”" in words  # in the list of its pauses


def test_resuming_is_written_down_too(app: App, mail: str, visitor: Visitor) -> None:
    acting.pause_queue(core_of(app), mail, By("ben", "cli"))

    answer = visitor.post("/queues/mail/resume")

    assert "/queues/mail?said=Queue+mail+goes+on" in answer.headers["location"]
    assert not app.queue("mail").is_paused
    assert [each[:2] for each in acts(app)] == [("ann", "resume"), ("ben", "pause")]
    assert "Resumed by ann" in visitor.words("/queues/mail")


def test_pausing_twice_says_so_and_leaves_a_row(app: App, mail: str, visitor: Visitor) -> None:
    visitor.post("/queues/mail/pause")
    answer = visitor.post("/queues/mail/pause")

    assert "was+paused+already" in answer.headers["location"]
    assert [each[-2:] for each in acts(app)] == [(0, 1), (1, 0)]
    assert mail in visitor.words("/queues")


@pytest.mark.parametrize("back", ["https://evil.example", "//evil.example", "/jobs"])
def test_an_action_leads_back_to_a_page_with_its_button(mail: str, visitor: Visitor, back: str) -> None:
    assert visitor.post("/queues/mail/pause", back=back).headers["location"].startswith(f"/queues/{mail}?")


def test_a_viewer_may_look_and_not_pause(app: App, mail: str, visitor_as: Callable[..., Visitor]) -> None:
    viewer = visitor_as("viewer")

    for path in ("/queues", f"/queues/{mail}"):
        main = viewer.page(path).partition("<main")[2].partition("</main>")[0]
        assert 'method="post"' not in main
    viewer.post("/queues/mail/pause", 403)
    viewer.post("/queues/mail/resume", 403)
    assert not app.queue("mail").is_paused
    assert acts(app) == []


def test_who_may_see_some_queues_finds_no_other(app: App, mail: str, visitor_as: Callable[..., Visitor]) -> None:
    app.enqueue("spy", {}, queue="secret")
    someone = visitor_as("operator", queues=[mail])

    assert [queue["name"] for queue in someone.json("/queues.json")["queues"]] == [mail]
    assert "secret" not in someone.page("/queues")
    someone.page("/queues/secret", 404)
    someone.json("/queues/secret.json", 404)
    assert "app-1" not in someone.page(f"/queues/{mail}")
    someone.post("/queues/secret/pause", 404)
    assert not app.queue("secret").is_paused
    someone.post(f"/queues/{mail}/pause")
    assert app.queue(mail).is_paused


def test_the_pages_take_few_reads(app: App, mail: str, visitor: Visitor) -> None:
    listed = page_statements(visitor, "/queues")
    one = page_statements(visitor, f"/queues/{mail}")
    for number in range(20):
        app.enqueue("send", {}, queue=f"q{number}")

    assert listed <= 32
    assert one <= 46
    assert page_statements(visitor, "/queues") <= listed
    assert page_statements(visitor, f"/queues/{mail}") <= one


def test_limits_are_shown_in_the_list_and_on_the_page_with_who_set_them(
    app: App, mail: str, visitor: Visitor
) -> None:
    app.queue(mail, limit=5)
    acting.set_limits(core_of(app), "queue", mail, bounds_of(mail, {"rate": "10/s"}), By("ann", "cli"))

    assert "limit 5, rate 10/s" in visitor.words("/queues")
    assert "Limits limit 5, rate 10/s" in visitor.words("/queues/mail")
    assert "Limited by ann" in visitor.words("/queues/mail")
    assert visitor.json("/queues.json")["queues"][0]["limits"] == {"limit": 5, "rate": ["10/s"]}


# Thousands of queues

MANY = 2_000
LAST = f"tenant-{MANY - 1}"


@pytest.fixture
def tenants(app: App) -> None:
    """A queue each, and nothing in them but a job in the last. Of all of them something ended in the last minute."""
    backend, names = core_of(app).backend, [f"tenant-{n:04}" for n in range(MANY)]
    backend.db.write(lambda tx: [tx.run("queue_set", name=name, priority=0) for name in names])
    app.enqueue("send", {}, queue=LAST)
    minute = floor(backend.now(), MINUTE)
    ended = {Part(name, f"task-{name}", "completed"): Tally(3) for name in names}
    backend.rollups.write({minute - MINUTE: ended}, [], minute)


@pytest.mark.usefixtures("tenants")
def test_of_thousands_of_queues_a_page_shows_some_and_says_how_many_more_there_are(visitor: Visitor) -> None:
    page = visitor.page("/queues")
    listed = visitor.json("/queues.json")

    assert page.count("<tr data-row") == 200
    assert len(page) < 500_000
    assert "200 shown, and 1,800 more: find others by a part of their name." in page
    assert (len(listed["queues"]), listed["more"]) == (200, 1_800)
    assert listed["queues"][0]["name"] == LAST  # the fullest first
    assert len(visitor.site.snapshot().queues) <= 1_001
    assert ">999+<" in visitor.page("/jobs").partition("<main")[0]


@pytest.mark.usefixtures("tenants")
def test_a_queue_is_found_by_a_part_of_its_name(app: App, visitor: Visitor) -> None:
    app.enqueue("send", {}, queue="tenant-1_5%")
    assert [each["name"] for each in visitor.json("/queues.json?name=TENANT-199")["queues"]] == [
        LAST, *(f"tenant-199{n}" for n in range(9)),
    ]  # fmt: skip
    assert [each["name"] for each in visitor.json("/queues.json?name=1_5%25")["queues"]] == ["tenant-1_5%"]
    words = visitor.words("/queues?name=tenant-1998")
    assert "tenant-1998 0" in words
    assert "more:" not in words
    assert "No queue has this in its name." in visitor.words("/queues?name=nope")


@pytest.mark.usefixtures("tenants")
def test_no_queue_is_forgotten_among_thousands(
    app: App, visitor: Visitor, visitor_as: Callable[..., Visitor]
) -> None:
    # It is not among the first thousand by name, and neither are those that have jobs.
    core = core_of(app)
    core.backend.jobs.enqueue([NewJob(id=core.new_id(), task="send", queue=f"busy-{n:04}") for n in range(1_050)])
    app.pause("tenant-1900")

    assert "Queue tenant-1900 has been paused" in visitor.words("/")
    assert "Queued 1 Oldest" in visitor.words(f"/queues/{LAST}")
    someone = visitor_as("viewer", queues=[LAST, "tenant-1900", "not-made"])
    assert [(each["name"], each["queued"]) for each in someone.json("/queues.json")["queues"]] == [
        (LAST, 1), ("tenant-1900", 0),
    ]  # fmt: skip
    overview = someone.json("/overview.json")
    assert overview["jobs"]["queued"] == 1
    assert [each["kind"] for each in overview["needs_attention"]] == ["no_worker", "paused"]


@pytest.mark.usefixtures("tenants")
def test_the_json_of_other_pages_with_thousands_of_queues_and_tasks_is_bounded(visitor: Visitor) -> None:
    overview, metrics = visitor.json("/overview.json"), visitor.json("/metrics.json")
    tasks = visitor.json("/tasks.json")

    assert (len(overview["queues"]), overview["more_queues"]) == (200, 1_800)
    assert (len(metrics["queues"]), metrics["more_queues"]) == (100, 1_900)
    assert (len(metrics["tasks"]), metrics["more_tasks"]) == (100, 1_900)
    assert (len(tasks["tasks"]), tasks["more"]) == (500, 1_500)
    for path in ("/", "/overview.json", "/metrics", "/metrics.json", "/tasks.json", "/queues.json"):
        assert len(visitor.page(path)) < 500_000, path
