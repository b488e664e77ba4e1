"""The table and the plot of `make compare`, from fixed results. No peer is installed for this."""

from __future__ import annotations

import importlib.util
import json
import re
from itertools import islice, pairwise
from xml.etree import ElementTree

import pytest

from benchmarks.arena import SIX, SIX_JSON
from benchmarks.compare.__main__ import is_chosen, main
from benchmarks.compare.entrants import ENTRANTS, Guarantees
from benchmarks.compare.peers.work import FIRST, encoded, named, six
from benchmarks.compare.plot import plot
from benchmarks.compare.report import Report, Round, Row
from benchmarks.compare.table import markdown, number

SVG = "{http://www.w3.org/2000/svg}"
SAFE = Guarantees("yes", "run again", "yes", "at least once")
LOSING = Guarantees("no: snapshots", "lost", "-", "at most once")


def rounds(
    enqueue: float, bulk: float | None, drain: float, p50: float, drained: int = 1_000, samples: int = 200
) -> list[Round]:
    return [Round(enqueue * each, bulk, drain * each, drained, p50, 3 * p50, samples, p50 + 1) for each in (2, 1, 3)]


@pytest.fixture
def report() -> Report:
    rows = [
        Row("Slow", "Redis", "1.0", "1 thread", LOSING, rounds(800, None, 70.5, 2_500, drained=900, samples=8)),
        Row("Dray", "SQLite", "0.1.0", "8 threads", SAFE, rounds(500, 60_000, 10_000, 0.6)),
        Row("Broken", "PostgreSQL", "2.0", "default", SAFE, failures=["work: no job ran: ImportError"]),
    ]
    return Report("2 cores, Python 3.13.0", 1_000, 500, rows, ["Gone, Redis: not installed: no such version."])


def cells(table: str, name: str, occurrence: int = 0) -> list[str]:
    line = [line for line in table.splitlines() if line.startswith(f"| {name}")][occurrence]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_the_median_and_the_range_of_each_measure(report: Report) -> None:
    assert cells(markdown(report), "Dray") == [
        "Dray 0.1.0, SQLite", "1,000 (500 to 1,500)", "60,000", "20,000 (10,000 to 30,000)", "0.60", "1.80",
    ]  # fmt: skip


def test_what_a_queue_does_not_have_or_did_not_reach_is_a_dash(report: Report) -> None:
    assert cells(markdown(report), "Slow")[2] == "-"
    assert cells(markdown(report), "Broken")[1:] == ["-"] * 5


def test_guarantees_and_settings_stand_beside_the_rates(report: Report) -> None:
    assert cells(markdown(report), "Slow", 1)[1:] == ["no: snapshots", "lost", "-", "at most once", "1 thread"]


def test_the_notes_tell_what_was_left_out_failed_or_cut_short(report: Report) -> None:
    notes = markdown(report).rpartition("\n\n")[2].splitlines()
    assert notes == [
        "- Left out: Gone, Redis: not installed: no such version.",
        "- Slow, Redis: the drain ended after its time limit, with 900 jobs at least.",
        "- Slow, Redis: only 8 pick-ups in a round, so p99 is the longest.",
        "- Broken, PostgreSQL failed in a round: work: no job ran: ImportError",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.304, "0.30"), (12.34, "12.3"), (999.6, "1,000"), (12_345, "12,345")]
)
def test_a_number_has_three_digits_or_is_whole(value: float | None, text: str) -> None:
    assert number(value) == text


def test_the_plot_is_sorted_and_states_units(report: Report) -> None:
    texts = [text.text or "" for text in ElementTree.fromstring(plot(report)).iter(f"{SVG}text")]
    heads = [text for text in texts if "better" in text]
    assert [re.search(r"jobs a second|ms", head) is not None for head in heads] == [True] * 4
    names = [text for text in texts if text.startswith(("Dray,", "Slow,", "Broken,"))]
    slow = "Slow, Redis \N{DAGGER}\N{DOUBLE DAGGER}"
    assert names == ["Dray, SQLite", slow, slow, "Dray, SQLite", "Dray, SQLite", "Dray, SQLite", slow]


def test_bars_are_as_long_as_their_rates_and_stay_inside(report: Report) -> None:
    root = ElementTree.fromstring(plot(report))
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.get("height") == "14"]
    dray, slow = (float(bar.get("width", "")) for bar in bars[:2])
    assert slow == pytest.approx(dray * 70.5 / 10_000, abs=0.1)
    width, height = map(float, root.get("viewBox", "").split()[2:])
    assert all(
        float(text.get("x", "")) < width and float(text.get("y", "")) < height for text in root.iter(f"{SVG}text")
    )


def test_the_plot_has_colours_for_a_dark_page(report: Report) -> None:
    assert "prefers-color-scheme: dark" in plot(report)


def test_the_json_has_the_figures_and_the_rounds_behind_them(report: Report) -> None:
    slow = json.loads(json.dumps(report.as_json()))["rows"][0]
    assert slow["figures"]["enqueue"] == {"median": 1_600, "low": 800, "high": 2_400}
    assert slow["figures"]["bulk"] is None
    assert [each["enqueue"] for each in slow["rounds"]] == [1_600, 800, 2_400]


def test_an_empty_report_can_be_written() -> None:
    empty = Report("2 cores", 1_000, 500)
    assert markdown(empty).startswith("2 cores")
    ElementTree.fromstring(plot(empty))


def test_the_arguments_are_those_of_the_other_benchmarks() -> None:
    assert six(0)[1:] == SIX[1:]
    assert list(named(7)) == list(json.loads(SIX_JSON))
    assert named(7)["order"] == FIRST + 7
    assert len(encoded(99_999)) == len(SIX_JSON)


def test_every_entrant_has_a_module_and_pinned_versions() -> None:
    for entrant in ENTRANTS:
        assert importlib.util.find_spec(f"benchmarks.compare.peers.{entrant.module}") is not None
        assert all("==" in each or each == "-e .[postgres]" for each in entrant.requirements)
    assert len({entrant.title for entrant in ENTRANTS}) == len(ENTRANTS)


def pauses_of_a_round() -> list[float]:
    """Loads the program of a round anew, as each of its processes does."""
    program = importlib.reload(importlib.import_module("benchmarks.compare.peers.__main__"))
    return list(islice(program.pauses_up_to(5.0), 12))


def test_the_pauses_before_pick_ups_differ_between_rounds() -> None:
    """Or all rounds of a queue that polls have the same times: its interval less the pause."""
    assert pauses_of_a_round() != pauses_of_a_round()


def test_a_dozen_pauses_are_spread_evenly() -> None:
    pauses = sorted([0.0, *pauses_of_a_round(), 5.0])
    assert max(after - before for before, after in pairwise(pauses)) < 1.0


def test_only_takes_a_queue_or_a_store() -> None:
    assert {entrant.store for entrant in ENTRANTS if is_chosen(entrant, ["huey"])} == {
        "SQLite",
        "PostgreSQL",
        "Redis",
    }
    assert {entrant.store for entrant in ENTRANTS if is_chosen(entrant, ["redis"])} == {"Redis"}
    assert all(is_chosen(entrant, None) for entrant in ENTRANTS)


def test_an_unknown_name_is_refused_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compare", "--only", "unknown"])
    with pytest.raises(SystemExit):
        main()
    assert "Celery, DBOS, Dramatiq, Dray, GigQ" in capsys.readouterr().err
