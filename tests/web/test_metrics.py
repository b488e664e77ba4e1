"""Rates and times: of everything, by queue, by task; and the drawings of charts."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest

from dray import App
from dray.app_interface import core_of
from dray.instants import MINUTE
from dray.maintenance.rollups import RollUp
from dray.web.figures import per
from dray.web.svg import charts
from tests.web.browsing import Visitor
from tests.web.executed import page_statements
from tests.web.hands import Hand, put_back


@pytest.fixture
def ended(app: App) -> None:
    for queue, task in (("mail", "send"), ("mail", "send"), ("mail", "send"), ("etl", "load")):
        app.enqueue(task, {}, queue=queue)
    hand = Hand(app)
    hand.complete("mail", most=2)
    hand.fail("mail", "no")
    hand.complete("etl", "load")


def test_before_anything_ended(visitor: Visitor) -> None:
    words = visitor.words("/metrics")

    assert "0 jobs ended this hour." in words
    assert words.count("Nothing ended this hour.") == 4  # two histograms, two tables
    assert visitor.json("/metrics.json")["queues"] == {}


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("span", ["1h", "24h", "7d"])
def test_rates_and_times_by_queue_and_task(visitor: Visitor, span: str) -> None:
    shape = visitor.json(f"/metrics.json?span={span}")

    assert (shape["total"]["completed"], shape["total"]["failed"]) == (3, 1)
    assert {name: each["completed"] for name, each in shape["queues"].items()} == {"mail": 2, "etl": 1}
    assert {name: each["failed"] for name, each in shape["tasks"].items()} == {"send": 1, "load": 0}
    assert sum(point["completed"] for point in shape["points"]) == 3
    assert sum(shape["total"]["ran"]) == 4
    words = visitor.words(f"/metrics?span={span}")
    assert "Completed 3 Failed 1 Cancelled 0" in words
    assert "How long jobs ran" in words
    assert "Time Jobs under" in words  # as a table
    assert "By task" in words


@pytest.mark.usefixtures("ended")
def test_what_is_rolled_up_counts_once(app: App, visitor: Visitor) -> None:
    put_back(app, "jobs", "finished_at", 5 * MINUTE)
    put_back(app, "jobs", "started_at", 5 * MINUTE)
    before = visitor.json("/metrics.json")["total"]
    while RollUp(core_of(app).backend).tick() < 1:
        pass
    after = visitor.json("/metrics.json")["total"]

    assert (after["completed"], after["failed"]) == (before["completed"], before["failed"]) == (3, 1)


def test_metrics_are_not_for_those_who_see_some_queues(visitor_as: Callable[..., Visitor]) -> None:
    visitor_as("admin", queues=["mail"]).page("/metrics", 403)


@pytest.mark.usefixtures("ended")
def test_the_page_takes_few_reads(app: App, visitor: Visitor) -> None:
    few = page_statements(visitor, "/metrics")
    for number in range(10):
        app.enqueue("send", {}, queue=f"q{number}")
        Hand(app).complete(f"q{number}")

    assert few <= 40
    assert page_statements(visitor, "/metrics") <= few


# Drawings

NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)


def _bars(*counts: tuple[int, int, int]) -> str:
    points = [charts.Bar(NOON + timedelta(minutes=n), *each) for n, each in enumerate(counts)]
    return str(charts.bars(points, title="Ended, a minute", step=60))


def _ticks(drawing: str) -> list[str]:
    up = drawing.partition('class="y"')[2].partition("</div>")[0]
    return re.findall(r"<span>([^<]*)</span>", up)


def test_a_chart_of_bars_says_in_words_what_it_shows() -> None:
    drawing = unescape(_bars((2000, 0, 0), (2480, 20, 3)))

    assert 'aria-label="Ended, a minute. 4,480 completed, 20 failed, 3 cancelled altogether; at most 2,503' in drawing
    assert "<title>12:01 UTC: 2,480 completed, 20 failed, 3 cancelled</title>" in drawing
    assert _ticks(drawing) == ["0", "1k", "2k", "3k"]


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (3, ["0", "1", "2", "3"]),
        (7, ["0", "2", "4", "6", "8"]),
        (640, ["0", "200", "400", "600", "800"]),
        (100_000, ["0", "25k", "50k", "75k", "100k"]),
        (3_000_000, ["0", "1m", "2m", "3m"]),
    ],
)
def test_counts_have_round_ticks(most: int, ticks: list[str]) -> None:
    assert _ticks(_bars((most, 0, 0))) == ticks


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (0.0, ["0", "1 ms"]),
        (0.17, ["0", "50 ms", "100 ms", "150 ms", "200 ms"]),
        (3.8, ["0", "1 s", "2 s", "3 s", "4 s"]),
        (95.0, ["0", "30 s", "1 m", "1.5 m", "2 m"]),
        (20_000.0, ["0", "2 h", "4 h", "6 h"]),
        (500_000.0, ["0", "2 d", "4 d", "6 d"]),
    ],
)
def test_times_have_round_ticks(most: float, ticks: list[str]) -> None:
    line = charts.Line("wait", "l-a", [0.0, most])
    assert _ticks(str(charts.lines([line], [NOON, NOON + timedelta(minutes=1)], title="p95", step=60))) == ticks


def test_a_line_has_gaps_where_nothing_is_known() -> None:
    ats = [NOON + timedelta(minutes=n) for n in range(4)]
    drawing = str(charts.lines([charts.Line("run", "l-a", [1.0, None, 2.0, 3.0])], ats, title="p95", step=60))

    path = re.search(r'class="l-a" d="([^"]*)"', drawing)
    assert path is not None
    assert path[1].count("M") == 1
    dot = re.search(r'class="l-a alone" d="([^"]*)"', drawing)
    assert dot is not None
    assert dot[1].startswith("M0 ")
    assert 'aria-label="p95. Last: run 3 s."' in drawing


def test_an_empty_chart_is_drawn() -> None:
    assert "0 completed" in str(charts.bars([], title="Ended", step=60))
    assert "nothing" in str(charts.lines([charts.Line("run", "l-a", [])], [], title="p95", step=60))
    assert "none" in str(charts.columns([], title="By time"))
    assert "<path" in str(charts.spark([]))
    assert "<path" in str(charts.spark([3]))


def test_gauges_and_slots_stay_within_their_box() -> None:
    assert 'width="92"' in str(charts.gauge(9, 3))
    assert 'class="on" width="0"' in str(charts.gauge(0, 0))
    assert str(charts.slots(2, 4)).count('class="on"') == 2
    assert str(charts.slots(1, 10_000)).count("<rect") == 64
    assert str(charts.slots(1, 10_000)).count('class="on"') == 1


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (0, "0 /s"),
        (14.23, "14.2 /s"),
        (250.0, "250 /s"),
        (0.05, "3.0 /min"),
        (0.0005, "1.8 /h"),
        (0.00002, "1.7 /day"),
    ],
)
def test_rates_in_the_unit_that_fits(rate: float, words: str) -> None:
    assert per(rate) == words
