"""Tests of the shop's tasks, each on a database of its own: run them with ``pytest -n 2``.

They use a scratch SQLite file, or a new schema on the PostgreSQL that DRAY_TEST_URL names.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest
from shop.jobs import app, charge, nightly, outbox, remind, send, sign_up

from dray.testing import ClockControl, assert_enqueued, context, crash, inline, refute_enqueued


@pytest.fixture(autouse=True)
def empty_outbox() -> Generator[None]:
    yield
    outbox.clear()


@pytest.mark.usefixtures("dray_database")
def test_signing_up_enqueues_a_mail() -> None:
    sign_up("ann")
    assert_enqueued(app, send, to="ann@example.com", count=1)
    refute_enqueued(app, charge)


def test_the_mail_is_sent_although_the_server_is_away_for_minutes(dray_drain: Callable[..., int]) -> None:
    sign_up("ann")
    assert dray_drain() == 4  # three attempts, and the reminder a week later
    assert outbox == ["ann@example.com: Welcome", "ann@example.com: you have not paid yet"]


def test_the_reminder_comes_after_a_week(dray_drain: Callable[..., int], dray_clock: ClockControl) -> None:
    remind.using(delay=7 * 86_400).enqueue("ann")
    dray_clock.advance(6 * 86_400)
    dray_drain(delays=False)
    assert outbox == ["report"]  # only the nightly one
    dray_clock.advance(86_400)
    dray_drain(delays=False)
    assert "ann: you have not paid yet" in outbox


def test_the_report_runs_every_night(dray_drain: Callable[..., int], dray_clock: ClockControl) -> None:
    dray_drain()
    dray_clock.advance(86_400)
    assert dray_drain() == 1
    assert app.jobs(task=nightly)[0].state == "completed"


def test_a_payment_is_booked_once_although_the_worker_dies(dray_drain: Callable[..., int]) -> None:
    job = charge.enqueue(7, 1999)
    with crash(app, charge):
        assert dray_drain() == 2
    assert job.result(timeout=5) == 1


@pytest.mark.usefixtures("dray_database")
def test_a_handler_in_inline_mode_sees_the_result_at_once() -> None:
    with inline(app):
        sign_up("ann")
    assert len(outbox) == 2


def test_a_plain_call_with_a_context_made_by_hand() -> None:
    ctx = context(attempt=3)
    send(ctx, "ann@example.com", subject="Hi")
    assert list(ctx.logged) == ["sent to ann@example.com"]
    with pytest.raises(ConnectionError):
        send(context(attempt=1), "ann@example.com", subject="Hi")
