"""A worker's log: a line for each end that was written, and a bounded number of them."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

import pytest

import dray
from dray.app import App
from dray.clock import SystemClock
from dray.errors import JobFailed
from dray.log import END_FIELDS
from dray.model.job import ALL_QUEUES, Claim, Held, Outcome, Reason
from dray.model.settlement import Settled, Settlement, completed, errored, failed, released
from dray.runtime.end_log import MOST, EndLog
from dray.runtime.execution import Execution
from dray.runtime.in_flight import End, InFlight

NONE = Settled([], [], [], [], [])


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """What the log says about ends."""
    caplog.set_level(logging.INFO, "dray")
    return lambda: [each.getMessage() for each in caplog.records if "job" in each.getMessage()]


# What a line says


def test_each_end_is_a_line_with_its_time_and_attempt(app: App, lines: Any) -> None:
    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="own")
    def own(ctx: dray.Context) -> None:
        with ctx.transaction():
            pass

    @app.task(name="stops")
    def stops() -> None:
        raise dray.Cancel("not needed")

    @app.task(name="naps")
    def naps() -> None:
        raise dray.Snooze(60)

    for task in (own, stops, naps):
        task.enqueue()
    add.enqueue(1, 2)
    app.worker(concurrency=1).run_until_idle()

    jobs = {job.task: job.id[-8:] for job in app.jobs()}
    said = {line.split("(")[1].split(")")[0]: line for line in lines()}
    for task, words in {
        "add": "completed in T, attempt 1 of 3",
        "own": "completed in T, attempt 1 of 3",
        "stops": "was cancelled after T, attempt 1 of 3: not needed",
        "naps": "was put back after T, without counting the attempt, and runs again in 1m00s",
    }.items():
        before, after = f"job {jobs[task]} ({task}) {words}".split("T")
        assert said[task].startswith(before)
        assert said[task].endswith(after)
    assert len(lines()) == 4


def test_after_a_retry_the_first_attempts_can_be_told_apart(app: App, lines: Any) -> None:
    @app.task(name="fails", max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    job = fails.enqueue()
    app.worker().run_until_idle()
    with pytest.raises(JobFailed, match=r"\(fails\) failed in attempt 1 of 1: "):
        job.result(5)
    assert job.retry()
    app.worker().run_until_idle()

    ends = [re.sub(r"after \S+,", "after T,", each) for each in lines() if "(fails)" in each]
    said = f"job {job.id[-8:]} (fails) failed after T, attempt 1 of 1"
    assert ends == [f"{said}: ValueError: no", f"{said} (claim 2): ValueError: no"]
    with pytest.raises(JobFailed, match=r"\(fails\) failed in start 2, attempt 1 of 1: "):
        job.result(5)


def test_a_failed_attempt_shows_its_traceback_without_frames_of_dray(
    app: App, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="fails", max_attempts=2, retry=0)
    def fails() -> None:
        raise ValueError("no\nsuch user")

    job = fails.enqueue()
    app.worker(concurrency=1).run_until_idle()

    head, second = lines()
    (trace, _) = ((each.exc_text or "").splitlines() for each in caplog.records if each.exc_text)
    assert head.startswith(f"job {job.id[-8:]} (fails) will be retried at once: attempt 1 of 2 failed after ")
    assert head.endswith(": ValueError: no\\nsuch user")
    assert trace[0] == "    Traceback (most recent call last):"
    assert [line for line in trace if 'File "' in line] == [line for line in trace if "test_end_log.py" in line]
    assert all(line.startswith("    ") for line in trace), "no line looks like a record of its own"
    assert f"({job.task}) failed after " in second
    fields = getattr(caplog.records[-1], END_FIELDS, None) or getattr(caplog.records[-2], END_FIELDS)
    assert (fields["event"], fields["job"], fields["attempt"]) == ("failed", job.id, 2)
    assert fields["error"] == "ValueError: no\nsuch user"


# Only what was written


@dataclass
class Link:
    clock: Any


def execution(n: int) -> Execution:
    claim = Claim(f"0193-{n:08}", 1, "tasks.add", "default", "{}", 1, 3, 0, 3, None, 0, 0, None)
    made = Execution(claim, Any, "w", Link(SystemClock()))  # pyright: ignore[reportArgumentType] - no body runs
    made.is_over = True
    return made


def outcomes(in_flight: InFlight, *ends: tuple[Execution, Settlement]) -> list[Settlement]:
    in_flight.take([each for each, _ in ends])
    for each, settlement in ends:
        in_flight.end(each, settlement)
    return [settlement for _, settlement in ends]


def test_an_outcome_that_was_not_written_is_not_told() -> None:
    told: list[End] = []
    in_flight = InFlight(told.extend)
    some = [execution(n) for n in range(5)]
    batch = outcomes(in_flight, *((each, completed(each.claim, 0, 1)) for each in some))
    assert told == []

    stale, locked, refused, there, written = (each.claim.id for each in some)
    in_flight.written(batch, Settled([stale], [there], [locked], [refused], []))

    assert [(end.execution.claim.id, end.settlement.state) for end in told if end.settlement] == [
        (refused, "failed"),
        (there, "completed"),
        (written, "completed"),
    ]
    told.clear()
    in_flight.written([batch[1]], NONE, is_left=True)
    assert told == []


def test_a_retry_that_was_cancelled_meanwhile_is_told_as_cancelled() -> None:
    told: list[End] = []
    in_flight = InFlight(told.extend)
    one = execution(1)
    batch = outcomes(in_flight, (one, errored(one.claim, 0, 1, Outcome.ERROR, 5, "E", "no", None)))

    any_final, _ = in_flight.written(batch, Settled([], [], [], [], [one.claim.id]))

    assert any_final
    assert [end.settlement and end.settlement.state for end in told] == ["cancelled"]


def test_a_job_whose_claim_was_never_answered_is_announced_when_it_is_given_back() -> None:
    """Nothing is known of it but its id: jobs of any queue may have waited for the slot that it held."""
    in_flight = InFlight()
    known = execution(1)
    in_flight.take([known])

    in_flight.release_unknown([Held("0193-unknown", 1, False), Held(known.claim.id, known.claim.claim, False)], now=5)
    batch = list(in_flight.outcomes.values())
    _, queues = in_flight.written(batch, NONE)

    assert [each.id for each in batch] == ["0193-unknown"]
    assert queues == {ALL_QUEUES}


def test_the_room_of_a_job_is_announced_unless_another_has_taken_it_in_the_same_transaction() -> None:
    in_flight = InFlight()
    ended = [execution(number) for number in range(3)]
    for each, key in zip(ended, (None, "a", "b"), strict=True):
        each.claim = each.claim._replace(held=True, key=key)
    in_flight.take(ended)
    taken = [each.claim._replace(id=f"after {each.claim.id}") for each in ended[:2]]

    def queues_after(*settled: Execution) -> set[str]:
        batch = [completed(each.claim, 1, 2) for each in settled]
        for each, settlement in zip(settled, batch, strict=True):
            in_flight.end(each, settlement)
        return in_flight.written(batch, NONE, taken)[1]

    assert queues_after(*ended[:2]) == set()
    assert queues_after(ended[2]) == {ended[2].claim.queue}, "those were jobs of other keys"


# Bounded


class Seconds:
    """A clock for the log."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ends(count: int, *, failures: int = 0) -> list[End]:
    made = [execution(n) for n in range(count)]
    good = [End(each, completed(each.claim, 0, 1)) for each in made[failures:]]
    bad = [End(each, failed(each.claim, 0, 1, Reason.ERROR, "E", "no", None)) for each in made[:failures]]
    return [*good, *bad]


def test_above_fifty_a_second_there_is_one_line_with_counts_instead(lines: Any) -> None:
    clock = Seconds()
    log = EndLog(clock)
    log.ended(ends(MOST))
    assert len(lines()) == MOST

    log.ended(ends(1_190, failures=2))
    assert len(lines()) == MOST + 2, "failures keep their lines"
    clock.now += 1
    log.tick()
    assert lines()[-1] == "1,240 jobs ended in the last second: 1,238 completed, 2 failed"

    log.ended(ends(3_000, failures=1_000))
    said = len(lines())
    assert said == MOST + 3 + MOST, "failures alone, and not more than fifty"
    log.ended(ends(3_000))
    assert len(lines()) == said, "nothing is said of any job"
    clock.now += 1
    log.ended(ends(1))
    assert lines()[-1] == "6,000 jobs ended in the last second: 5,000 completed, 1,000 failed"
    clock.now += 1
    log.tick()
    assert lines()[-1] == "1 job ended in the last second: 1 completed"
    log.ended(ends(1))
    assert " completed in " in lines()[-1], "there are lines again"


def test_what_was_only_counted_is_said_at_the_end(lines: Any) -> None:
    log = EndLog(Seconds())
    log.ended(ends(MOST + 1))
    log.tick(is_over=True)
    assert lines()[-1] == "51 jobs ended in the last second: 51 completed"


def test_what_nobody_asked_for_costs_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dray")
    log = EndLog(Seconds())
    one = execution(1)
    log.ended([End(one, released(one.claim, 1)), *ends(100, failures=1)])
    log.tick(is_over=True)

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "failed after" in record.getMessage()


# The program's own logging


def test_a_logger_that_is_turned_off_stays_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dray")
    one = execution(1)

    EndLog().ended([End(one, failed(one.claim, 0, 1, Reason.ERROR, "E", "no", None))])

    assert caplog.records == []


def test_a_handler_that_raises_is_reported_and_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(f"no room for {record.levelname}")

    broken, logger, one = Broken(), logging.getLogger("dray"), execution(1)
    logger.addHandler(broken)
    try:
        EndLog().ended([End(one, failed(one.claim, 0, 1, Reason.ERROR, "E", "no", None))])
    finally:
        logger.removeHandler(broken)

    assert "OSError: no room for WARNING" in capsys.readouterr().err
