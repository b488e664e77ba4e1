"""What ended is counted minute by minute and hour by hour, once and whole, however late, and outlives the jobs."""

from __future__ import annotations

import pytest

from dray.backends.store import rollups as store
from dray.errors import ConfigError
from dray.instants import DAY, HOUR, MINUTE, SECOND, to_datetime
from dray.maintenance import rollups
from dray.maintenance.rollups import RollUp
from dray.model import settlement as model
from dray.model.error_group import error_key
from dray.model.job import Reason
from dray.model.retention import Retention
from dray.model.rollup import ALL, KEPT, Tallies, floor
from dray.ops import metrics
from tests import verbs
from tests.backends import raw
from tests.backends.world import World
from tests.maintenance.conftest import Counts


def end(world: World, times: int = 1, *, queue: str = "default", task: str = "task", failed: bool = False) -> None:
    """Runs jobs that wait for two seconds and run for three."""
    worker = world.worker()
    for _ in range(times):
        world.enqueue(task, queue=queue, max_attempts=1)
    world.clock.advance(2 * SECOND)
    claims = world.claim(worker, times, queue=queue, tasks=(task,))
    began = world.clock.steady()
    world.clock.advance(3 * SECOND)
    ended = began + 3 * SECOND
    if failed:
        settlements = [model.failed(c, began, ended, Reason.ERROR, "ValueError", "no", None) for c in claims]
    else:
        settlements = [model.completed(c, began, ended) for c in claims]
    verbs.settle(world.backend, worker, settlements)


def to_next_minute(world: World) -> None:
    """Lets the minute be over, and the moment after it in which outcomes are still written."""
    world.clock.advance(MINUTE - world.clock.now() % MINUTE + 6 * SECOND)


def roll_up(world: World) -> int:
    """Does all there is to do, as a worker that has just taken the duty; returns the number of steps."""
    duty = RollUp(world.backend)
    return 1 + sum(1 for _ in iter(lambda: duty.tick() < 1, False))


def counted(world: World, span: str, queue: str = ALL, task: str = ALL) -> list[tuple[str, int]]:
    found = raw.run(
        world.backend,
        "SELECT outcome, jobs FROM dray_rollups WHERE span = ? AND queue = ? AND task = ? ORDER BY at, outcome",
        *(span, queue, task),
    )
    return [(outcome, jobs) for outcome, jobs in found]


def test_what_ended_in_a_minute_is_counted_when_it_is_over(world: World) -> None:
    end(world, 3)
    end(world, 2, queue="mail", task="send", failed=True)
    roll_up(world)
    before = counted(world, "minute")
    to_next_minute(world)
    roll_up(world)

    assert before == []
    assert counted(world, "minute") == [("completed", 3), ("failed", 2)]


def test_a_chart_shows_the_minute_that_is_not_over_and_the_same_when_it_is(world: World) -> None:
    end(world, 3)
    end(world, 2, queue="mail", task="send", failed=True)
    at = to_datetime(floor(world.clock.now(), MINUTE))
    now = metrics.series(world.backend, "1h")
    by_task = metrics.rates(world.backend, "1h", "task")
    to_next_minute(world)
    roll_up(world)
    later = metrics.series(world.backend, "1h")

    (point,) = [point for point in now.points if point.at == at]
    assert (point.completed, point.failed, point.cancelled) == (3, 2, 0)
    assert 2 <= (point.waited_p50 or 0) < 5
    assert 2 <= (point.ran_p95 or 0) <= 5
    assert [each for each in later.points if each.at == at] == [point]
    assert (now.step_s, len(now.points), now.points[-1].at) == (60, 60, at)
    assert {name: (each.completed, each.failed) for name, each in by_task.items()} == {"send": (0, 2), "task": (3, 0)}
    assert (by_task["task"].points[-1], sum(by_task["task"].points)) == (3, 3)


def test_counting_again_changes_nothing(world: World) -> None:
    end(world, 3)
    to_next_minute(world)
    roll_up(world)
    before = raw.run(world.backend, "SELECT * FROM dray_rollups ORDER BY queue, task")
    raw.run(world.backend, "DELETE FROM dray_meta WHERE name = 'rollups'")

    roll_up(world)

    assert raw.run(world.backend, "SELECT * FROM dray_rollups ORDER BY queue, task") == before
    assert len(before) == 4


def test_jobs_that_are_removed_or_start_over_stay_counted(world: World) -> None:
    end(world, 2)
    end(world, 2, failed=True)
    world.clock.advance(HOUR)
    roll_up(world)
    ids = [row[0] for row in raw.run(world.backend, "SELECT CAST(id AS text) FROM dray_jobs ORDER BY id")]
    assert world.backend.jobs.retry(ids[-1:]) == ids[-1:]
    world.clock.advance(31 * DAY)
    for _ in world.backend.history.prune_steps(Retention()):
        pass
    raw.run(world.backend, "DELETE FROM dray_meta WHERE name = 'rollups'")

    roll_up(world)

    assert raw.run(world.backend, "SELECT CAST(id AS text) FROM dray_jobs") == [(ids[-1],)]
    assert counted(world, "hour") == [("completed", 2), ("failed", 2)]


def test_an_outcome_that_is_written_late_is_counted_ten_minutes_later(world: World) -> None:
    end(world)
    worker, _ = world.worker(), world.enqueue()
    claim, ended = world.claim_one(worker), world.clock.steady()
    to_next_minute(world)
    duty = RollUp(world.backend)
    duty.tick()
    world.clock.advance(3 * MINUTE)
    duty.tick()
    verbs.settle(world.backend, worker, [model.completed(claim, ended, ended)])
    before = counted(world, "minute")
    for _ in range(12):
        world.clock.advance(MINUTE)
        duty.tick()

    assert (before, counted(world, "minute")) == ([("completed", 1)], [("completed", 2)])


def test_an_hour_is_the_sum_of_its_minutes_although_nothing_follows(world: World) -> None:
    world.clock.advance(HOUR - world.clock.now() % HOUR)
    end(world, 2)
    world.clock.advance(10 * MINUTE)
    end(world, 3, queue="mail")
    to_next_minute(world)
    roll_up(world)
    before = counted(world, "hour")
    world.clock.advance(HOUR)
    roll_up(world)

    assert (before, counted(world, "hour")) == ([], [("completed", 5)])
    assert counted(world, "hour", queue="mail") == [("completed", 3)]
    assert counted(world, "hour", queue="mail", task="task") == [("completed", 3)]
    assert counted(world, "hour", task="task") == [("completed", 5)]


def test_a_late_outcome_gets_into_an_hour_that_was_made(world: World) -> None:
    world.clock.advance(HOUR - world.clock.now() % HOUR - 2 * MINUTE)
    end(world)
    worker, _ = world.worker(), world.enqueue()
    claim, ended = world.claim_one(worker), world.clock.steady()
    world.clock.advance(5 * MINUTE)
    duty = RollUp(world.backend)
    duty.tick()
    before = counted(world, "hour")
    verbs.settle(world.backend, worker, [model.completed(claim, ended, ended)])
    for _ in range(10):
        world.clock.advance(MINUTE)
        duty.tick()

    assert (before, counted(world, "hour")) == ([("completed", 1)], [("completed", 2)])


def test_after_a_day_without_the_duty_it_catches_up_in_bounded_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = world.clock.now()
    for _ in range(25):
        end(world)
        world.clock.advance(HOUR)
    written: list[int] = []
    write = world.backend.rollups.write

    def counting_write(minutes: dict[int, Tallies], hours: list[int], mark: int | None) -> bool:
        written.append(len(minutes))
        return write(minutes, hours, mark)

    monkeypatch.setattr(world.backend.rollups, "write", counting_write)

    steps = roll_up(world)

    assert counted(world, "minute") == [("completed", 1)] * 25
    assert counted(world, "hour") == [("completed", 1)] * 25
    assert (steps, written) == (3, [10, 10, 5])
    assert world.backend.rollups.mark() == floor(began, HOUR) + 25 * HOUR


def test_what_ends_after_the_clock_was_set_back_is_counted_too(world: World) -> None:
    end(world, 2)
    to_next_minute(world)
    end(world)
    to_next_minute(world)
    roll_up(world)
    world.clock.step(-MINUTE * 2)
    end(world, 3)
    to_next_minute(world)
    roll_up(world)
    chart = metrics.series(world.backend, "1h")

    assert sum(jobs for _, jobs in counted(world, "minute")) == 6
    assert sum(point.completed for point in chart.points) == 6


def test_minutes_are_kept_for_two_days_and_hours_for_ninety(world: World) -> None:
    end(world)
    to_next_minute(world)
    roll_up(world)
    world.clock.advance(KEPT["minute"] + HOUR)
    roll_up(world)
    after_two_days = counted(world, "minute"), counted(world, "hour")
    world.clock.advance(KEPT["hour"] - DAY)
    raw.run(world.backend, "DELETE FROM dray_jobs")
    roll_up(world)

    assert after_two_days == ([], [("completed", 1)])
    assert counted(world, "hour") == []


def test_where_nothing_happens_nothing_is_written(world: World, counts: Counts) -> None:
    end(world)
    to_next_minute(world)
    duty = RollUp(world.backend)
    duty.tick()
    world.clock.advance(20 * MINUTE)
    counts.clear()
    pause = duty.tick()

    assert counts.writes == 0
    assert 1 < pause <= 62


@pytest.mark.parametrize("ended", [False, True], ids=["empty", "nothing for 90 days"])
def test_where_nothing_is_to_be_counted_nothing_is_written(world: World, counts: Counts, ended: bool) -> None:
    if ended:
        end(world)
        to_next_minute(world)
        roll_up(world)
        world.clock.advance(KEPT["hour"] + DAY)
        roll_up(world)  # the hour of that minute, and the removal of what is old
    duty = RollUp(world.backend)
    counts.clear()
    for _ in range(4):
        world.clock.advance(25 * MINUTE)
        duty.tick()

    assert counts.writes == 0


# Keys of errors


def test_failures_of_an_earlier_release_get_their_keys_some_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollups, "_KEYS", 2)
    end(world, 5, failed=True)
    keys = raw.run(world.backend, "SELECT error_key FROM dray_jobs")
    raw.run(world.backend, "UPDATE dray_jobs SET error_key = NULL")
    to_next_minute(world)

    steps = roll_up(world)

    assert raw.run(world.backend, "SELECT error_key FROM dray_jobs") == keys
    assert keys == [(error_key("task", "ValueError: no"),)] * 5
    assert steps == 4
    assert counted(world, "minute") == [("failed", 5)]


def test_a_job_that_an_earlier_release_has_retried_loses_its_key_when_it_completes(world: World) -> None:
    end(world, 2)
    raw.run(world.backend, "UPDATE dray_jobs SET error_key = '0123456789abcdef'")
    to_next_minute(world)
    roll_up(world)

    assert raw.run(world.backend, "SELECT DISTINCT error_key FROM dray_jobs") == [(None,)]


# Charts


def test_a_minute_with_more_ends_than_are_read_is_estimated_from_the_newest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_SAMPLE", 4)
    end(world, 6, queue="mail")
    end(world, 2)

    point = metrics.series(world.backend, "1h").points[-1]
    by_queue = metrics.rates(world.backend, "1h", "queue")

    assert point.completed == 8
    assert {name: each.completed for name, each in by_queue.items()} == {"default": 4, "mail": 4}


def test_a_child_does_not_count_with_how_long_its_parents_took(world: World) -> None:
    parent, worker = world.enqueue(), world.worker()
    world.enqueue(parents=(parent,))
    world.complete(worker, world.claim_one(worker))
    world.clock.advance(HOUR)
    world.complete(worker, world.claim_one(worker))
    to_next_minute(world)
    roll_up(world)

    found = metrics.rates(world.backend, "24h", "task")["task"]

    assert found.completed == 2
    assert (found.waited_p95 or 0) <= 0.001


def test_a_job_that_seems_to_have_started_before_its_time_has_not_waited(world: World) -> None:
    end(world)
    raw.run(world.backend, "UPDATE dray_jobs SET run_at = finished_at")

    point = metrics.series(world.backend, "1h").points[-1]

    assert 0 <= (point.waited_p95 or 0) <= 0.001


@pytest.mark.parametrize(("span", "step_s", "points"), [("1h", 60, 60), ("24h", 3600, 24), ("7d", 3600, 168)])
def test_a_chart_of_each_span_has_everything_once(world: World, span: str, step_s: int, points: int) -> None:
    world.clock.advance(HOUR - world.clock.now() % HOUR + 30 * MINUTE)
    end(world, 2, queue="mail")
    world.clock.advance(10 * MINUTE)
    end(world, 1, failed=True)
    world.clock.advance(MINUTE)
    roll_up(world)
    end(world, 3)

    found = metrics.series(world.backend, span)
    mail = metrics.series(world.backend, span, queue="mail")
    none = metrics.series(world.backend, span, queue="mail", task="other")
    rates = metrics.rates(world.backend, span, "queue")

    assert (found.step_s, len(found.points)) == (step_s, points)
    assert [sum(getattr(p, state) for p in found.points) for state in ("completed", "failed")] == [5, 1]
    assert sum(point.completed for point in mail.points) == 2
    assert sum(point.completed for point in none.points) == 0
    assert {name: (each.completed, each.failed, sum(each.points)) for name, each in rates.items()} == {
        "default": (3, 1, 4),
        "mail": (2, 0, 2),
    }


def test_where_nothing_was_ever_rolled_up_the_jobs_are_read(world: World) -> None:
    end(world, 2)
    world.clock.advance(3 * HOUR)

    assert sum(point.completed for point in metrics.series(world.backend, "24h").points) == 2
    assert metrics.rates(world.backend, "7d", "task")["task"].completed == 2
    assert metrics.rates(world.backend, "1h", "task") == {}


def test_a_span_or_a_kind_that_is_not_there_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="no span '2h'; known are 1h, 24h, 7d"):
        metrics.series(world.backend, "2h")
    with pytest.raises(ConfigError, match='by "queue" or by "task", not by \'worker\''):
        metrics.rates(world.backend, "1h", "worker")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="queue"):
        metrics.series(world.backend, "1h", queue="no,queue")
