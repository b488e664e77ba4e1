"""`/metrics` as Prometheus gets it: what it says, how often it reads, who may have it."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from dray import App, StorageError, dashboard
from dray.app_interface import core_of
from dray.backends import Backend
from dray.instants import HOUR, MINUTE
from dray.maintenance.rollups import RollUp
from dray.model.rollup import Part, Tally, floor
from dray.ops import prometheus
from dray.ops.prometheus import Exporter, Own
from tests.web.browsing import Visitor
from tests.web.hands import Hand, put_back
from tests.web.test_login import TOKEN, Server

SCRAPER = {"accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"}


def samples(text: str) -> dict[str, float]:
    """Name with labels -> value."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    assert len({name for name, _, _ in lines}) == len(lines)  # none twice
    return {name: float(value) for name, _, value in lines}


@pytest.fixture
def exporter(app: App, monkeypatch: pytest.MonkeyPatch) -> Exporter:
    """One that reads at each scrape."""
    monkeypatch.setattr(prometheus, "_KEPT", 0.0)
    monkeypatch.setattr(prometheus, "_PATIENCE", 60.0)
    return Exporter(lambda: core_of(app).backend)


def test_a_scrape_of_a_new_database(exporter: Exporter) -> None:
    found = samples(exporter.text())

    assert found["dray_up"] == 1
    assert found['dray_jobs{state="queued"}'] == found["dray_slots"] == found['dray_workers{state="active"}'] == 0


def test_queues_workers_and_duties(app: App, exporter: Exporter) -> None:
    for queue in ("mail", "mail", "mail", "etl"):
        app.enqueue("send", {}, queue=queue)
    app.pause("etl")
    hand = Hand(app, slots=7)
    (claim,) = hand.claim("mail")
    core_of(app).backend.leases.take("prune", hand.id)
    put_back(app, "jobs", "run_at", 5 * MINUTE)

    text = exporter.text()
    found = samples(text)
    assert found['dray_queue_jobs{queue="mail",state="queued"}'] == 2
    assert found['dray_queue_jobs{queue="mail",state="running"}'] == 1
    assert 290 < found['dray_queue_oldest_ready_seconds{queue="mail"}'] < 1_000
    assert (found['dray_queue_paused{queue="etl"}'], found['dray_queue_paused{queue="mail"}']) == (1, 0)
    assert (found["dray_slots"], found["dray_slots_busy"], found['dray_workers{state="active"}']) == (7, 1, 1)
    assert found['dray_duty_held{duty="prune"}'] == 1
    assert claim.id not in text
    assert not any(word in text for word in (hand.id, hand.name, "here"))

    hand.die()
    found = samples(exporter.text())
    assert (found["dray_slots"], found['dray_workers{state="active"}'], found['dray_duty_held{duty="prune"}']) == (
        0,
        0,
        0,
    )


def test_what_ends_is_counted_once_its_minute_is_rolled_up(app: App, exporter: Exporter) -> None:
    backend = core_of(app).backend
    backend.rollups.write({}, [], floor(backend.now() - 10 * MINUTE, MINUTE))
    assert "finished_total" not in exporter.text()
    for queue in ("mail", "mail", "etl"):
        app.enqueue("send", {}, queue=queue)
    hand = Hand(app)
    hand.complete("mail")
    hand.fail("mail", "no")
    hand.complete("etl")
    for column in ("finished_at", "started_at"):
        put_back(app, "jobs", column, 5 * MINUTE)
    while RollUp(backend).tick() < 1:
        pass

    for _ in range(2):  # a second look adds nothing
        found = samples(exporter.text())
        assert found['dray_queue_finished_total{queue="mail",outcome="completed"}'] == 1
        assert found['dray_queue_finished_total{queue="mail",outcome="failed"}'] == 1
        assert found['dray_task_finished_total{task="send",outcome="completed"}'] == 2
        assert found['dray_task_run_seconds_count{task="send"}'] == 3
        assert found['dray_task_run_seconds_bucket{task="send",le="+Inf"}'] == 3
        assert found['dray_queue_run_seconds_bucket{queue="etl",le="86400"}'] == 1


def test_what_was_written_late_is_counted_once_its_minute_is_counted_again(app: App, exporter: Exporter) -> None:
    rollups = core_of(app).backend.rollups
    minute = floor(core_of(app).backend.now() - 9 * MINUTE, MINUTE)
    sent, paid = Part("mail", "send", "completed"), Part("mail", "pay", "completed")

    def look() -> tuple[float, float]:
        exporter._readings._looked_at = 0  # as a minute later
        found = samples(exporter.text())
        return found['dray_queue_finished_total{queue="mail",outcome="completed"}'], found[
            'dray_queue_run_seconds_count{queue="mail"}'
        ]

    rollups.write({minute: {sent: tally(4)}}, [], minute + MINUTE)
    assert "finished_total" not in exporter.text()  # it ended before the first look
    rollups.write({minute + MINUTE: {sent: tally(2)}}, [], minute + 2 * MINUTE)
    assert look() == (2, 2)

    rollups.write({minute: {sent: tally(5)}, minute + MINUTE: {sent: tally(3), paid: tally(7)}}, [], None)

    assert look() == (2 + 1 + 1 + 7, 2 + 1 + 1 + 7)
    assert look() == (11, 11)


def tally(jobs: int) -> Tally:
    return Tally(jobs, Counter({"1": jobs}), Counter({"2": jobs}))


def test_names_are_bounded_and_one_that_was_shown_stays(app: App, exporter: Exporter) -> None:
    for number in range(120):
        app.enqueue("send", {}, queue=f"q{number:03}")
    app.enqueue("send", {}, queue="q119")  # the fullest
    shown = samples(exporter.text())
    for _ in range(3):
        app.enqueue("send", {}, queue="late")
    exporter._readings._top = None  # it keeps counts for a while
    later = samples(exporter.text())

    def named(found: dict[str, float]) -> set[str]:
        return set(re.findall(r'dray_queue_jobs\{queue="([^"]*)"', "\n".join(found)))

    assert len(named(shown)) == 101
    assert {"q119", "_OTHER"} <= named(shown)
    assert named(later) == named(shown)
    assert shown['dray_queue_jobs{queue="_OTHER",state="queued"}'] == 20
    assert later['dray_queue_jobs{queue="_OTHER",state="queued"}'] == 23


def test_a_queue_that_is_named_other_is_told_apart_from_the_rest(app: App, exporter: Exporter) -> None:
    for number in range(120):
        app.enqueue("send", {}, queue=f"q{number:03}")
    for _ in range(2):
        app.enqueue("send", {}, queue="other")
    shown = samples(exporter.text())

    assert shown['dray_queue_jobs{queue="other",state="queued"}'] == 2
    assert shown['dray_queue_jobs{queue="_OTHER",state="queued"}'] == 21


def test_of_the_rest_paused_queues_hide_no_others(app: App, exporter: Exporter) -> None:
    """Scalers leave out what is paused: the rest is so when all of it is."""

    def rest() -> tuple[float, float]:
        exporter._readings._top = None  # it keeps counts for a while
        shown = samples(exporter.text())
        return shown['dray_queue_paused{queue="_OTHER"}'], shown['dray_queue_oldest_ready_seconds{queue="_OTHER"}']

    app.enqueue("send", {}, queue="held")
    put_back(app, "jobs", "run_at", 2 * HOUR)
    app.enqueue("send", {}, queue="late")
    put_back(app, "jobs", "run_at", HOUR)
    for number in range(200):
        app.enqueue("send", {}, queue=f"q{number % 100:03}")  # fuller than those two

    is_paused, oldest = rest()
    assert (is_paused, oldest // 3600) == (0, 3)
    app.pause("held")
    is_paused, oldest = rest()
    assert (is_paused, oldest // 3600) == (0, 1)
    app.pause("late")
    is_paused, oldest = rest()
    assert (is_paused, oldest // 3600) == (1, 3)


def test_five_scrapers_cost_one_read(app: App) -> None:
    asked: list[int] = []

    def backend() -> Backend:
        asked.append(1)
        return core_of(app).backend

    exporter = Exporter(backend)
    assert len({exporter.text() for _ in range(25)}) == 1
    assert len(asked) == 1


def test_while_the_database_is_away_a_scrape_shows_what_memory_knows(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away = [True]
    monkeypatch.setattr(prometheus, "_KEPT", 0.0)

    def backend() -> Backend:
        if is_away:
            raise StorageError("no route to host")
        return core_of(app).backend

    own = Own(4, 1, is_healthy=False, is_ready=False, attempts={('a"b\\', "retried"): 3})
    exporter = Exporter(backend, lambda: own)
    away = samples(exporter.text())
    is_away.clear()
    back = samples(exporter.text())

    assert (away["dray_up"], away["dray_worker_slots"], away["dray_worker_busy"]) == (0, 4, 1)
    assert away['dray_worker_attempts_total{queue="a\\"b\\\\",outcome="retried"}'] == 3
    assert not any(name.startswith("dray_jobs") for name in away)
    assert back["dray_up"] == 1


def test_a_read_that_hangs_keeps_no_scrape_waiting_and_is_not_joined_by_others(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "_PATIENCE", 0.05)
    asked: list[int] = []
    may_go_on = threading.Event()

    def backend() -> Backend:
        asked.append(1)
        assert may_go_on.wait(60)
        return core_of(app).backend

    exporter = Exporter(backend)
    assert [samples(exporter.text()) for _ in range(3)] == [{"dray_up": 0}] * 3
    assert len(asked) == 1
    monkeypatch.setattr(prometheus, "_PATIENCE", 60.0)
    may_go_on.set()
    assert samples(exporter.text())["dray_up"] == 1


def test_a_scraper_gets_text_and_a_browser_the_page(visitor: Visitor) -> None:
    scraped = visitor.client.get("/metrics", headers=SCRAPER)

    assert scraped.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert samples(scraped.text)["dray_up"] == 1
    assert visitor.client.get("/metrics.txt").text.startswith("# HELP dray_up ")
    assert "<html" in visitor.client.get("/metrics", headers={"accept": "text/html,*/*;q=0.8"}).text


def test_metrics_take_the_right_to_see_the_whole_database(app: App, visitor_as: Callable[..., Visitor]) -> None:
    assert visitor_as("viewer").client.get("/metrics", headers=SCRAPER).status_code == 200
    some = visitor_as("admin", queues=["mail"]).client.get("/metrics", headers=SCRAPER)
    assert (some.status_code, some.text) == (403, "Metrics are of the whole database: you see some queues alone.\n")
    nobody = TestClient(dashboard(app, access=lambda _: None))
    assert nobody.get("/metrics", headers=SCRAPER).status_code == 403


def test_the_token_of_dray_web_opens_metrics_and_nothing_else(app: App) -> None:
    scraper = Server(app, token=TOKEN, has_links=False).browser()
    header = {"authorization": f"Bearer {TOKEN}"}

    assert scraper.get("/metrics", headers={**SCRAPER, **header}).status_code == 200
    assert scraper.get("/metrics.txt", headers=header).status_code == 200
    assert scraper.get("/jobs", headers=header).status_code == 303  # to /login
    without = scraper.get("/metrics", headers=SCRAPER)
    assert (without.status_code, without.headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer TOKEN" in without.text


def test_a_token_cannot_be_guessed_by_scraping(app: App) -> None:
    scraper = Server(app, token=TOKEN, has_links=False).browser()
    for number in range(6):
        wrong = {**SCRAPER, "authorization": f"Bearer wrong token {number}"}
        assert scraper.get("/metrics", headers=wrong).status_code == 401

    right = {**SCRAPER, "authorization": f"Bearer {TOKEN}"}
    assert scraper.get("/metrics", headers=right).status_code == 401  # for a minute
    assert Server(app, has_links=True).browser().get("/metrics", headers=right).status_code == 401  # it has none
