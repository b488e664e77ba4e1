"""The first page: what needs attention, counts, charts and lists, for each kind of visitor; and what it costs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from dray import Access, App
from dray.app_interface import core_of
from dray.instants import MINUTE, SECOND
from dray.maintenance.rollups import RollUp
from dray.model.action import By
from dray.ops import acting
from dray.ops.top import Top
from dray.web.menu import numbers
from tests.web.browsing import Visitor
from tests.web.executed import page_statements, statements_of
from tests.web.hands import Hand, put_back


def enqueue(app: App, queue: str = "mail", jobs: int = 1, task: str = "send") -> None:
    for _ in range(jobs):
        app.enqueue(task, {}, queue=queue)


def kinds(visitor: Visitor) -> list[tuple[str, str]]:
    return [(each["kind"], each["level"]) for each in visitor.json("/overview.json")["needs_attention"]]


# A database without jobs


def test_an_empty_database_says_what_to_do_next(visitor: Visitor) -> None:
    words = visitor.words("/")

    assert "This database has no jobs yet." in words
    assert "1. Define a task" in words
    assert "dray worker" in words
    assert "3. Enqueue a job" in words
    assert visitor.json("/overview.json")["jobs"] == {}


def test_the_first_page_says_which_steps_are_done(app: App, visitor: Visitor) -> None:
    @app.task(name="greet")
    def greet(name: str) -> None: ...

    Hand(app, "app-1")

    words = visitor.words("/")
    assert "1. Define a task done This app has greet ." in words
    assert "2. Start a worker done app-1" in words
    assert "dray enqueue greet" in words


# What needs attention


def test_all_is_well_says_nothing(app: App, visitor: Visitor) -> None:
    enqueue(app)
    Hand(app)

    assert kinds(visitor) == []
    assert "Needs attention" not in visitor.page("/")


def test_no_worker_while_jobs_wait(app: App, visitor: Visitor) -> None:
    enqueue(app, jobs=2)

    assert "No worker is alive, and 2 jobs wait. Start one: dray worker" in visitor.words("/")
    assert kinds(visitor) == [("no_worker", "bad")]


def test_a_queue_that_no_worker_serves(app: App, visitor: Visitor) -> None:
    enqueue(app, "mail")
    Hand(app, queues=["etl"])

    assert "No worker serves queue mail ; 1 job waits there." in visitor.words("/")
    assert "The live ones serve etl. Start one: dray worker -q mail" in visitor.words("/")
    assert kinds(visitor) == [("unserved", "bad")]


def test_a_paused_queue_says_who_and_why(app: App, visitor: Visitor) -> None:
    enqueue(app, "billing", 3)
    Hand(app)
    acting.pause_queue(core_of(app), "billing", By("ben", "cli"), "double charges, see #412")

    words = visitor.words("/")
    assert "Queue billing has been paused for" in words
    assert "3 jobs wait there. Paused by ben: “double charges, see #412”" in words
    assert kinds(visitor) == [("paused", "warn")]

    visitor.post("/queues/billing/resume", back="/")
    assert kinds(visitor) == []


def test_a_queue_that_code_has_paused_has_no_name_beside_it(app: App, visitor: Visitor) -> None:
    enqueue(app, "billing")
    app.pause("billing")

    assert "Paused by" not in visitor.words("/")
    assert ("paused", "warn") in kinds(visitor)


def test_many_failures_alike_are_one_sentence(app: App, visitor: Visitor) -> None:
    enqueue(app, "hooks", 12)
    enqueue(app, "mail", 2)
    hand = Hand(app, slots=20)
    hand.fail("hooks", "503 for hook {n}", most=12)
    hand.fail("mail", "no answer from server {n}", most=2)

    (notice,) = visitor.json("/overview.json")["needs_attention"]
    assert notice["text"].startswith("12 jobs of send failed with the same error since ")
    assert notice["more"] == "ValueError: · for hook ·"
    assert f"/failures/{notice['target']}" in visitor.page("/")
    assert "Retry 12…" in visitor.words("/")
    assert "no answer from server ·" in visitor.words("/")  # among the failures by error


def test_a_dead_worker_says_what_became_of_its_jobs(app: App, visitor: Visitor) -> None:
    enqueue(app, jobs=3)
    hand = Hand(app, "app-1")
    hand.claim("mail", most=2)
    hand.die()
    Hand(app, "app-2")

    assert "Worker app-1 (pid 42) died" in visitor.words("/")
    assert "Its 2 jobs were taken back: 2 scheduled to run again." in visitor.words("/")
    assert kinds(visitor) == [("died", "note")]


def test_a_job_that_waits_for_long_although_a_worker_is_there(app: App, visitor: Visitor) -> None:
    enqueue(app)
    enqueue(app, "etl")
    Hand(app)
    put_back(app, "jobs", "run_at", 20 * MINUTE)

    (notice,) = visitor.json("/overview.json")["needs_attention"]
    assert notice["kind"] == "old"
    assert "has waited for 20m;" in notice["text"]
    assert notice["more"] == "Slots are free: the page of that job says what keeps it."


def test_a_schedule_that_is_overdue(app: App, visitor: Visitor) -> None:
    enqueue(app)
    Hand(app)
    app.schedule("digest", "send", every=3600)
    put_back(app, "schedules", "next_at", 3600 * SECOND + 5 * MINUTE)

    assert "Schedule digest should have run 5m" in visitor.words("/")
    assert kinds(visitor) == [("late", "warn")]


# What there is


def test_the_overview_shows_a_bit_of_everything(app: App, visitor: Visitor) -> None:
    enqueue(app, "mail", 5)
    enqueue(app, "etl", 2, task="load")
    app.enqueue("send", {}, queue="mail", delay=3600)
    app.schedule("nightly", "send", cron="0 3 * * *", tz="Europe/Berlin")
    hand = Hand(app, "app-1", slots=4)
    hand.complete("mail", most=2)
    hand.fail("mail", "no answer {n}")
    (claim,) = hand.claim("etl", "load")
    hand.progress(claim, 31, "row 1,240,000 of 4,000,000")

    words = visitor.words("/")
    assert "About 8 jobs kept" in words
    assert "Scheduled 1 next in 60m" in words.replace("59m", "60m").replace("1h00m", "60m")
    assert "Queued 3 oldest" in words
    assert "Running 1 of 4 longest" in words
    assert "Completed 2 2 this hour Failed 1 33.3 % of this hour Cancelled 0 0 this hour" in words
    assert "Ended, a minute" in words
    assert "Wait, p95" in words
    assert "app-1 pid 42, seen" in words
    assert "1 / 4" in words
    assert "row 1,240,000 of 4,000,000" in words
    assert 'value="31.0"' in visitor.page("/")
    assert "nightly at 03:00 every day, Europe/Berlin in" in words

    shape = visitor.json("/overview.json")
    assert shape["jobs"]["queued"] == 3
    assert shape["ended"]["total"]["completed"] == 2
    assert {queue["name"]: queue["queued"] for queue in shape["queues"]} == {"mail": 2, "etl": 1}
    assert [job["id"] for job in shape["running"]] == [claim.id]


def test_what_was_rolled_up_stays_on_the_chart_and_in_its_table(app: App, visitor: Visitor) -> None:
    enqueue(app, "mail", 3)
    Hand(app).complete("mail", most=3)
    put_back(app, "jobs", "finished_at", 10 * MINUTE)
    while RollUp(core_of(app).backend).tick() < 1:
        pass

    page = visitor.page("/")
    assert "Ended, a minute. 3 completed, 0 failed, 0 cancelled altogether; at most 3 at a time." in page
    assert page.count('<td class="n">3</td>') >= 1
    assert "3 in 24 h" in visitor.words("/?span=24h")
    assert "Ended, an hour" in visitor.words("/?span=24h")
    assert "Ended, an hour" in visitor.words("/?span=7d")


def test_a_window_that_does_not_exist_is_refused(app: App, visitor: Visitor) -> None:
    enqueue(app)

    assert "there is no window 'forever'; known are 1h, 24h, 7d" in visitor.page("/?span=forever", 400).replace(
        "&#39;", "'"
    )


def test_hostile_names_stay_text(app: App, visitor: Visitor) -> None:
    enqueue(app, "mail", 12)
    hand = Hand(app, "<script>alert(1)</script>\x1b[2J\u202e", slots=20)
    hand.fail("mail", "<img src=x onerror=alert(1)>\u202e boom", most=11)
    (claim,) = hand.claim("mail")
    hand.progress(claim, 5, "<b>bold</b>\x07")

    page = visitor.page("/")
    for bad in ("<script>alert", "<img src=x", "<b>bold", "\x1b", "\u202e", "\x07"):
        assert bad not in page


# The menu


def test_the_menu_has_numbers(app: App, visitor: Visitor) -> None:
    enqueue(app, "mail")
    enqueue(app, "etl")
    app.schedule("digest", "send", every=3600)
    hand = Hand(app)
    hand.fail("mail", "no")

    site = visitor.site
    assert numbers(site, Access("viewer")) == {"queues": "2", "failures": "1", "schedules": "1", "workers": "1"}
    assert numbers(site, Access("viewer", queues=["mail"])) == {"queues": "1"}
    assert '<span class="count bad">1</span>' in visitor.page("/queues")


def test_one_look_a_second_serves_all_visits(app: App, visitor: Visitor) -> None:
    enqueue(app)
    looks: list[Any] = []
    look = Top.look

    def counted(top: Top, *given: Any) -> Any:
        looks.append(top)
        return look(top, *given)

    with patch.object(Top, "look", counted):
        visitor.come_later()
        threads = [threading.Thread(target=visitor.site.snapshot) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        visitor.client.get("/")
    assert len(looks) == 1


# Who sees what


def test_a_viewer_sees_no_button_that_acts(app: App, visitor_as: Callable[..., Visitor]) -> None:
    enqueue(app)
    app.pause("mail")

    main = visitor_as("viewer").page("/").partition("<main")[2].partition("</main>")[0]
    assert "<form" not in main
    assert "Retry" not in main
    assert "Resume" in visitor_as("operator").words("/")


def test_who_may_see_some_queues_sees_nothing_of_the_others(app: App, visitor_as: Callable[..., Visitor]) -> None:
    enqueue(app, "mail", 3)
    enqueue(app, "secret", 20, task="spy")
    hand = Hand(app, "app-1", slots=40)
    hand.fail("secret", "hush {n}", "spy", 12)
    hand.claim("secret", "spy")
    hand.complete("mail")
    app.schedule("unseen", "spy", every=60)
    app.pause("secret")

    someone = visitor_as("operator", queues=["mail"])
    words, page = someone.words("/"), someone.page("/")
    for name in ("secret", "spy", "hush", "unseen", "app-1"):
        assert name not in page
    assert "Queued 2" in words
    assert "Running 0" in words
    assert "Completed 1 this hour" in words
    shape = someone.json("/overview.json")
    assert "spy" not in str(shape)
    assert shape["jobs"] == {"queued": 2, "running": 0, "completed": 1, "failed": 0, "cancelled": 0}

    both = visitor_as("operator", queues=["mail", "secret"])
    assert both.json("/overview.json")["jobs"]["failed"] == 12


# What it costs


def test_the_overview_takes_few_statements(app: App, visitor: Visitor) -> None:
    for queue in ("a", "b", "c"):
        enqueue(app, queue, 3)
        acting.pause_queue(core_of(app), queue, By("ann", "web"), "why")
    hand = Hand(app)
    hand.fail("a", "no")
    lost = Hand(app, "lost")
    lost.claim("b")
    lost.die()

    few = page_statements(visitor, "/overview")
    again = statements_of(lambda: visitor.client.get("/"))
    for queue in ("d", "e", "f", "g"):
        enqueue(app, queue, 30)

    assert few <= 70
    assert again == 0  # all of it is kept for a moment
    assert page_statements(visitor, "/overview") <= few


def test_the_menu_takes_few_statements(app: App, visitor: Visitor) -> None:
    enqueue(app)
    visitor.come_later()

    assert statements_of(lambda: numbers(visitor.site, Access("viewer"))) <= 25
