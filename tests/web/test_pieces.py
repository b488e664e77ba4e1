"""What a job's page is made of: tracebacks, values, sentences, timelines. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from dray.web.sentences import words
from dray.web.timeline import timeline
from dray.web.traces import stack, trace
from dray.web.values import shown_value

START = datetime(2026, 11, 16, 8, 38, 21, tzinfo=UTC)

GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/srv/shop/a.py", line 9, in <module>
  |     try: f()
  |          ^^^
  | ExceptionGroup: several (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/usr/lib/python3.13/json/decoder.py", line 353, in raw_decode
    |     obj, end = self.scan_once(s, idx)
    | json.decoder.JSONDecodeError: Expecting value
    +------------------------------------
"""


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def attempt(number: int, outcome: str, begin: float, end: float | None) -> dict[str, Any]:
    finished = None if end is None else at(end)
    return {"number": number, "outcome": outcome, "started_at": at(begin), "finished_at": finished}


def job(state: str, end: float | None = None) -> dict[str, Any]:
    finished = None if end is None else at(end)
    return {"state": state, "created_at": START, "finished_at": finished, "workflow": None}


def test_the_errors_of_a_group_are_read_too() -> None:
    assert [(part.kind, part.text) for part in trace(GROUP).parts] == [
        ("own", "shop/a.py:9  <module>"),
        ("exc", "ExceptionGroup: several (1 sub-exception)"),
        ("fold", "1 frame in json"),
        ("exc", "json.decoder.JSONDecodeError: Expecting value"),
    ]


def test_text_that_is_no_traceback_stays_whole() -> None:
    assert [part.text for part in trace("what it said\n  indented").parts] == ["what it said", "  indented"]
    assert trace("").parts == []


def test_a_stack_of_libraries_alone_is_not_folded_away() -> None:
    text = '  File "/usr/lib/python3.13/threading.py", line 1, in run\n    self._target()\n'
    assert [part.code for part in stack(text).parts] == ["self._target()"]


def test_a_value_keeps_its_digits_and_is_cut_when_it_is_large() -> None:
    small = shown_value({"n": 2**70, "list": [1, "two"], "token": "***", "text": 'a "quoted"\n\u202e'})
    assert ("d", str(2**70)) in small.pieces
    assert ("h", "***") in small.pieces
    assert "\u202e" not in small.text
    large = shown_value(list(range(1_000_000)))
    assert large.is_cut
    assert len(large.text) == 16 * 1024


def test_a_value_a_hundred_levels_deep_is_shown() -> None:
    value: Any = 1
    for _ in range(100):
        value = [value]
    assert shown_value(value).text.count("[") == 100


def test_a_sentence_links_known_jobs_alone() -> None:
    known, other = "0199d3c2-77aa-7c41-8b0e-51d951721fc6", "0199d3c2-77aa-7c41-8b0e-51d951721fc7"
    text = f"Its parent {known} failed 2m ago (2026-11-16T08:38:33Z); see `dray why {other}`."
    assert [(word.kind, word.text) for word in words(text, {known})] == [
        ("text", "Its parent "),
        ("job", "51721fc6"),
        ("text", " failed 2m ago "),
        ("time", "08:38:33"),
        ("text", "; see "),
        ("code", "dray why 51721fc7"),
        ("text", "."),
    ]


def test_a_timeline_tells_waits_and_attempts() -> None:
    tries = [attempt(1, "error", 1, 13), attempt(2, "crashed", 20, 83), attempt(3, "running", 173, None)]

    drawn = timeline(job("running"), tries, [{"at": at(5), "level": "WARNING"}], at(221))

    assert drawn.words == (
        "Queued, 1.0s. Attempt 1: failed after 12s. Waits for attempt 2, 7.0s. Attempt 2: its worker died after "
        "1m03s. Waits for attempt 3, 1m30s. Attempt 3 has been running for 48s."
    )
    assert [tick.level for tick in drawn.ticks] == ["warning"]


def test_clocks_that_differ_make_no_negative_segment() -> None:
    tries = [attempt(1, "error", -60, -50), attempt(2, "completed", -55, -40)]

    drawn = timeline(job("completed", -40), tries, [], at(0))

    assert all(each.seconds >= 0 and each.begin >= 0 for each in drawn.segments)
    assert drawn.seconds > 0


def test_only_the_newest_attempts_are_drawn() -> None:
    tries = [attempt(n, "error", n * 10, n * 10 + 5) for n in range(1, 101)]

    drawn = timeline(job("failed", 1005), tries, [], at(2000))

    assert drawn.segments[0].number == 71


def test_a_job_that_never_started_has_a_timeline() -> None:
    assert timeline(job("queued"), [], [], at(10)).words == "Queued, 10s."
    assert timeline(job("cancelled", 10), [], [], at(20)).words == "Never started, 10s."
    assert timeline(job("scheduled"), [], [], at(10)).words == "Waits for its time, 10s."
