"""Schedules through an App: declare, check before anything is written, list, pause, run and remove."""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Callable, Generator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError, DrayError, InvalidName, PayloadError, UnknownSchedule
from dray.instants import HOUR, MINUTE, SECOND, to_datetime
from dray.maintenance import Scheduler
from dray.maintenance.duty_runner import Agenda
from dray.schedules import ScheduleInfo
from tests.manual_clock import ManualClock
from tests.runtime.watching import LONG, until


def report(team: int, day: date | None = None) -> str:
    return f"{team} {day}"


def tick(app: App) -> None:
    """Runs the worker's schedule duty once."""
    tasks = {task.name: task.options for task in core_of(app).registry}
    Scheduler(
        core_of(app).backend, core_of(app).clock, core_of(app).ids, tasks, None, Agenda(core_of(app).backend)
    ).tick()


def the_only(app: App) -> ScheduleInfo:
    (info,) = app.schedules()
    return info


@pytest.fixture
def task(app: App) -> dray.Task[..., str]:
    return app.task(name="report", queue="slow", priority=3)(report)


# Declaring


def test_a_schedule_is_written_at_once_with_what_was_said(app: App, task: Any, clock: ManualClock) -> None:
    app.schedule(
        "nightly",
        task,
        cron="0 3 * * *",
        tz="Europe/Berlin",
        args={"team": 7, "day": date(2026, 3, 29)},
        misfire="all",
        misfire_limit=3,
        overlap="skip",
        queue="night",
        priority=0,
    )

    found = the_only(app)
    assert (found.name, found.task, found.queue, found.args) == (
        "nightly", "report", "night", {"team": 7, "day": "2026-03-29"},
    )  # fmt: skip
    assert (found.cron, found.every, found.tz) == ("0 3 * * *", None, "Europe/Berlin")
    assert (found.misfire, found.misfire_limit, found.overlap) == ("all", 3, "skip")
    assert (found.priority, app.run_schedule("nightly").priority) == (0, 0)  # not the task's priority, which is 3
    assert (found.last_at, found.paused_at, found.is_paused) == (None, None, False)
    assert found.created_at == to_datetime(clock.now())
    assert found.rule == "0 3 * * * Europe/Berlin"


def test_what_is_not_said_is_last_and_allow(app: App, task: Any) -> None:
    app.schedule("beat", task, every=timedelta(seconds=30), args={"team": 1})

    found = the_only(app)
    assert (found.misfire, found.overlap, found.queue, found.priority, found.every) == (
        "last",
        "allow",
        None,
        None,
        30.0,
    )
    assert app.run_schedule("beat").priority == 3
    assert found.rule == "every 30 seconds"
    assert found.next_at == found.created_at + timedelta(seconds=30)


def test_a_task_may_be_named_whose_code_is_elsewhere(app: App) -> None:
    app.schedule("beat", "billing.run", every=30, args={"any": [1]})

    assert (the_only(app).task, the_only(app).args) == ("billing.run", {"any": [1]})


def test_an_unchanged_schedule_writes_nothing(app: App, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app.schedule("beat", task, every=30, args={"team": 1})

    def write(*_: Any, **__: Any) -> None:
        pytest.fail("writes")

    monkeypatch.setattr(core_of(app).backend.db, "write", write)

    app.schedule("beat", task, every=30.0, args={"team": 1})
    core_of(app).declare_schedules(core_of(app).backend)


def test_a_changed_rule_counts_from_now_and_keeps_what_was(app: App, task: Any, clock: ManualClock) -> None:
    app.schedule("beat", task, every=30, args={"team": 1})
    before = the_only(app)
    clock.advance(40 * SECOND)
    tick(app)

    app.schedule("beat", task, every=25, args={"team": 1})

    after = the_only(app)
    assert (after.created_at, after.last_at) == (before.created_at, before.next_at)
    assert after.next_at == before.created_at + timedelta(seconds=50)  # the first new slot in the future


def test_a_rule_changed_on_a_machine_whose_clock_is_behind_fires_no_slot_again(
    app: App, task: Any, clock: ManualClock
) -> None:
    app.schedule("beat", task, every=60, args={"team": 1})
    clock.advance(MINUTE)
    tick(app)
    clock.step(-5 * SECOND)

    app.schedule("beat", task, every=30, args={"team": 1})
    clock.step(5 * SECOND)
    tick(app)

    assert len(app.jobs()) == 1


def test_a_missed_slot_is_still_owed_after_the_arguments_change(app: App, task: Any, clock: ManualClock) -> None:
    app.schedule("nightly", task, cron="0 3 * * *", args={"team": 1})
    owed = the_only(app).next_at
    clock.advance(23 * HOUR)

    app.schedule("nightly", task, cron="0 3 * * *", args={"team": 2})
    tick(app)

    (job,) = app.jobs()
    assert (job.args, job.schedule) == ({"team": 2}, "nightly")
    assert job.slot == owed


def test_a_change_does_not_resume_a_paused_schedule(app: App, task: Any) -> None:
    app.schedule("beat", task, every=30, args={"team": 1})
    app.pause_schedule("beat")

    app.schedule("beat", task, every=60, args={"team": 1})

    assert the_only(app).is_paused


# Declared with the task


def test_a_task_may_have_its_rule_with_it(app: App) -> None:
    @app.task(name="clean", cron="*/5 * * * *", tz="Asia/Tokyo")
    def clean(ctx: dray.Context, days: int = 3) -> None: ...

    assert app.schedules() == []  # a decorator opens no database
    core_of(app).declare_schedules(core_of(app).backend)

    found = the_only(app)
    assert (found.name, found.task, found.rule, found.args) == ("clean", "clean", "*/5 * * * * Asia/Tokyo", {})
    assert clean.options.name == "clean"


def test_a_rule_with_a_task_that_needs_arguments_is_refused_and_the_task_is_not_registered(app: App) -> None:
    with pytest.raises(ConfigError, match=r"report: missing 'team'.*use app\.schedule\(name, task, args=\.\.\.\)"):
        app.task(name="report", every=5)(report)

    assert len(core_of(app).registry) == 0


# While a module is imported

MODULE = """
import dray
app = dray.App({url!r})

@app.task(name="clean", every=60)
def clean() -> None: ...

def setup() -> None:
    app.schedule("beat", clean, every=30)

setup()
"""


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    def load(url: str) -> Any:
        (tmp_path / "shop_tasks.py").write_text(MODULE.format(url=url))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "shop_tasks", raising=False)
        return importlib.import_module("shop_tasks")

    return load


def test_importing_a_module_with_schedules_opens_nothing_and_a_worker_writes_them(
    imported: Callable[[str], Any], url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.db").unlink(missing_ok=True)
    module = imported(url)
    with module.app as app:
        assert vars(core_of(app))["_opened"] is None
        assert not (tmp_path / "jobs.db").exists()

        app.worker().run_until_idle()

        assert [info.name for info in app.schedules()] == ["beat", "clean"]
        module.setup()  # not during an import
        assert vars(core_of(app))["_opened"] is not None


def test_a_database_that_does_not_answer_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "later"
    with App(f"sqlite:///{folder}/jobs.db") as app, caplog.at_level(logging.WARNING, "dray"):
        app.schedule("beat", app.task(name="report")(report), every=30, args={"team": 1})
        assert ["schedule beat is not stored yet" in record.message for record in caplog.records] == [True]
        folder.mkdir()

        app.worker().run_until_idle()

        assert the_only(app).name == "beat"


# In a worker


@pytest.fixture
def live(url: str) -> Generator[App]:
    with App(url) as opened:
        yield opened


def test_a_worker_says_what_its_code_no_longer_declares_and_leaves_it(
    live: App, caplog: pytest.LogCaptureFixture
) -> None:
    live.task(name="report")(report)
    live.schedule("of-others", "somebody.elses", every=3600)
    with App(live.url) as earlier:
        earlier.schedule("removed", "report", every=3600, args={"team": 1})

    with caplog.at_level(logging.INFO, "dray"):
        live.worker().run_until_idle()

    told = [record.message for record in caplog.records if "not declared in this code" in record.message]
    assert [("removed" in line, "of-others" in line) for line in told] == [(True, False)]
    assert [info.name for info in live.schedules()] == ["of-others", "removed"]


def test_a_schedule_that_is_added_beside_a_worker_fires_at_once_and_tells_its_body(live: App) -> None:
    seen: list[tuple[str | None, datetime | None]] = []

    @live.task(name="note")
    def note(ctx: dray.Context) -> None:
        seen.append((ctx.schedule, ctx.slot))

    with live.worker():
        time.sleep(0.2)  # the duty runner sleeps
        began = time.monotonic()
        live.schedule("beat", note, every=0.1, misfire="all")
        until(lambda: len(seen) >= 3)
        took = time.monotonic() - began
    note.enqueue()
    live.pause_schedule("beat")
    live.worker().run_until_idle()

    created = the_only(live).created_at
    slots = sorted(slot for name, slot in seen if name == "beat" and slot is not None)
    assert slots[:3] == [created + timedelta(seconds=0.1 * k) for k in (1, 2, 3)]
    assert (None, None) in seen  # enqueued by hand
    assert took < LONG / 4


def test_what_is_due_is_fired_before_a_worker_runs_until_idle(live: App) -> None:
    task = live.task(name="report")(report)
    live.schedule("beat", task, every=0.01, args={"team": 4})
    time.sleep(0.02)

    live.worker().run_until_idle()

    (job, *_) = live.jobs(state="completed")
    assert (job.schedule, job.result()) == ("beat", "4 None")


# What is stored


def test_the_next_times_are_previewed_through_a_change_of_the_clocks(app: App, task: Any, clock: ManualClock) -> None:
    clock.step(int(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp()) * SECOND - clock.now())
    app.schedule("nightly", task, cron="30 2 * * *", tz="Europe/Berlin", args={"team": 1})

    assert [f"{when:%dT%H:%M}" for when in the_only(app).next(3)] == ["25T00:30", "26T01:30", "27T01:30"]
    assert the_only(app).next(1) == [the_only(app).next_at]
    assert the_only(app).next(0) == []


def test_a_paused_schedule_fires_nothing_and_goes_on_with_its_next_slot(
    app: App, task: Any, clock: ManualClock
) -> None:
    app.schedule("beat", task, every=60, args={"team": 1})
    assert (app.pause_schedule("beat"), app.pause_schedule("beat")) == (True, False)
    clock.advance(10 * MINUTE + SECOND)
    tick(app)
    assert app.jobs() == []

    assert (app.resume_schedule("beat"), app.resume_schedule("beat")) == (True, False)
    tick(app)
    assert app.jobs() == []
    clock.advance(MINUTE)
    tick(app)

    assert [job.slot for job in app.jobs()] == [the_only(app).created_at + timedelta(minutes=11)]


def test_one_resumed_on_a_machine_whose_clock_is_behind_fires_no_slot_again(
    app: App, task: Any, clock: ManualClock
) -> None:
    app.schedule("beat", task, every=60, args={"team": 1})
    clock.advance(MINUTE)
    tick(app)
    fired = the_only(app).last_at
    assert fired is not None
    app.pause_schedule("beat")
    clock.step(-5 * SECOND)

    app.resume_schedule("beat")
    assert the_only(app).next_at == fired + timedelta(minutes=1)
    clock.step(5 * SECOND)
    tick(app)

    assert len(app.jobs()) == 1


def test_running_one_now_makes_a_job_and_moves_nothing(app: App, task: Any) -> None:
    app.schedule("beat", task, every=60, args={"team": 5}, overlap="skip")
    before = the_only(app)

    first, second = app.run_schedule("beat"), app.run_schedule("beat")

    assert (first.state, first.schedule, first.slot, first.args) == ("queued", "beat", None, {"team": 5})
    assert (first.queue, first.row.priority, second.duplicate) == ("slow", 3, False)
    assert the_only(app) == before


def test_a_removed_schedule_is_gone_and_its_jobs_stay(app: App, task: Any) -> None:
    app.schedule("beat", task, every=60, args={"team": 5})
    job = app.run_schedule("beat")

    app.remove_schedule("beat")
    core_of(app).declare_schedules(core_of(app).backend)

    assert app.schedules() == []
    assert job.refresh().state == "queued"


@pytest.mark.parametrize("verb", ["pause_schedule", "resume_schedule", "run_schedule", "remove_schedule"])
def test_a_name_that_is_not_there_is_an_error(app: App, verb: str) -> None:
    with pytest.raises(UnknownSchedule, match="no schedule is named 'nigthly'"):
        getattr(app, verb)("nigthly")


def test_arguments_that_are_hidden_are_not_listed(app: App) -> None:
    task = app.task(name="login", redact=["token"])(lambda_free)
    app.schedule("beat", task, every=60, args={"token": "secret"})

    assert the_only(app).args == {"token": "***"}


def lambda_free(token: str) -> None: ...


# Refused

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"cron": "0 0 31 2 *"}, ConfigError, "cannot be used (bad day-of-month)"),
    ({"cron": "0 0 */31 * 1#5"}, ConfigError, "never comes: there is no such day"),
    ({"cron": "61 * * * *"}, ConfigError, "cannot be used"),
    ({"cron": ""}, ConfigError, "cannot be used"),
    ({"cron": "0 3 * * *", "tz": "Mars/Olympus"}, ConfigError, "is not known here"),
    ({"cron": NAIVE}, ConfigError, "cron and tz must be strings"),
    ({"every": 0}, ConfigError, "every must be between"),
    ({"every": -1}, ConfigError, "every must be between"),
    ({"every": float("nan")}, ConfigError, "every must be between"),
    ({"every": "30"}, ConfigError, "every must be a number"),
    ({"every": NAIVE}, ConfigError, "every must be a number"),
    ({}, ConfigError, "give cron="),
    ({"cron": "@daily", "every": 5}, ConfigError, "either cron or every"),
    ({"every": 5, "tz": "Europe/Berlin"}, ConfigError, "tz says where a cron line counts"),
    ({"every": 5, "misfire": "never"}, ConfigError, "misfire must be one of skip, last, all"),
    ({"every": 5, "misfire_limit": 3}, ConfigError, "means nothing without misfire"),
    ({"every": 5, "misfire": "all", "misfire_limit": 0}, ConfigError, "misfire_limit must be between 1 and 1,000"),
    ({"every": 5, "overlap": "maybe"}, ConfigError, "overlap must be one of allow, skip, queue"),
    ({"every": 5, "queue": "a,b"}, InvalidName, "queue name"),
    ({"every": 5, "priority": "high"}, TypeError, "priority must be"),
    ({"every": 5, "args": [7]}, TypeError, "by name, as a dict"),
    ({"every": 5, "args": {}}, TypeError, "missing 'team'"),
    ({"every": 5, "args": {"team": 7, "more": 1}}, TypeError, "unknown 'more'"),
    ({"every": 5, "args": {"team": "seven"}}, PayloadError, "args.team"),
    ({"every": 5, "args": {"team": object()}}, PayloadError, "args.team"),
    ({"every": 5, "args": {"team": 1, "day": "soon"}}, PayloadError, "args.day"),
]


@pytest.mark.parametrize(
    ("given", "error", "message"), BAD, ids=lambda value: None if callable(value) else str(value)[:40]
)
def test_what_cannot_work_is_refused_in_one_sentence_and_at_once(
    app: App, task: Any, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    app.schedule("other", task, cron="0 3 * * *", tz="Europe/Berlin", args={"team": 1})  # loads all modules first
    given = {"args": {"team": 1}, **given}

    began = time.perf_counter()
    with pytest.raises(error) as caught:
        app.schedule("nightly", task, **given)
    took = time.perf_counter() - began

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert took < 0.050  # takes about 1 ms; the machine may be busy
    assert [info.name for info in app.schedules()] == ["other"]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, None, 5])
def test_a_name_that_cannot_be_used_is_refused(app: App, task: Any, name: Any) -> None:
    with pytest.raises(InvalidName):
        app.schedule(name, task, every=5, args={"team": 1})


def test_a_task_of_another_app_is_refused(app: App, task: Any, tmp_path: Path) -> None:
    other = App(tmp_path / "other.db").task(name="report")(report)

    with pytest.raises(ConfigError, match="belongs to another App"):
        app.schedule("beat", other, every=5, args={"team": 1})
    with pytest.raises(TypeError, match="is a task or its name"):
        app.schedule("beat", report, every=5)  # type: ignore[arg-type]


def test_times_of_single_jobs_are_taken_or_refused_as_documented(app: App, task: Any) -> None:
    with pytest.raises(ConfigError, match="run_at has no time zone"):
        task.using(run_at=NAIVE)
    past = task.using(run_at=datetime(2020, 1, 1, tzinfo=UTC)).enqueue(1)

    assert past.state == "queued"  # a time in the past is due


def test_every_refusal_is_of_one_tree() -> None:
    assert issubclass(UnknownSchedule, DrayError)
    assert issubclass(UnknownSchedule, LookupError)
