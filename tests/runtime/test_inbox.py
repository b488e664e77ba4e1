"""The engine sees what other threads put into its inbox, at any moment, and wakes up for it."""

from __future__ import annotations

import threading
import time

import pytest

from dray.model.job import Held
from dray.model.worker import Beat
from dray.runtime.inbox import Inbox

LONG = 30.0


def ring_later(inbox: Inbox) -> threading.Timer:
    timer = threading.Timer(0.05, inbox.look_soon)
    timer.start()
    return timer


def test_a_ring_ends_a_doze() -> None:
    inbox = Inbox()
    inbox.open()
    timer = ring_later(inbox)
    began = time.monotonic()

    assert inbox.doze(LONG)
    assert time.monotonic() - began < LONG / 2
    timer.join()


def test_a_ring_before_the_sleep_is_not_lost() -> None:
    inbox = Inbox()
    inbox.open()
    inbox.hear("w", Beat(alive=True, held=[]))
    slept: list[bool] = []

    assert inbox.nap(lambda: None, lambda: bool(slept.append(True)))
    assert inbox.doze(LONG)
    assert slept == []


def test_what_was_seen_does_not_wake_again() -> None:
    """During an outage hundreds of outcomes wait here: only a new one ends the pause early."""
    inbox = Inbox()
    inbox.hear("w", Beat(alive=True, held=[]))
    inbox.open()

    assert inbox.beats
    assert not inbox.doze(0.01)


def test_a_ring_while_the_engine_works_ends_its_next_sleep_only() -> None:
    inbox = Inbox()
    inbox.open()
    inbox.drain()
    assert inbox.doze(LONG)
    inbox.open()

    assert not inbox.doze(0.01)


# Beats


QUIET = Beat(alive=True, held=[])
HOLDS = Beat(alive=True, held=[Held("job", 1, cancel_requested=False)])
DEAD = Beat(alive=False, held=[])


def test_a_beat_of_an_idle_worker_that_says_nothing_new_does_not_wake_the_engine() -> None:
    inbox = Inbox()

    inbox.hear("worker", QUIET, is_idle=True)

    assert not inbox.is_rung
    assert list(inbox.beats) == [("worker", QUIET, True)], "it hears it when it wakes"


@pytest.mark.parametrize(
    ("beat", "is_proven", "is_idle"),
    [(HOLDS, True, True), (DEAD, True, True), (QUIET, False, True), (QUIET, True, False)],
    ids=["it holds a job it does not know of", "declared dead", "its proof is lost", "it runs something"],
)
def test_every_other_beat_wakes_it(beat: Beat, *, is_proven: bool, is_idle: bool) -> None:
    inbox = Inbox()

    inbox.hear("worker", beat, is_proven=is_proven, is_idle=is_idle)

    assert inbox.is_rung


def test_the_first_beat_after_the_database_was_away_wakes_it() -> None:
    inbox = Inbox()
    inbox.cut_off()

    inbox.hear("worker", QUIET, is_idle=True)

    assert inbox.is_rung
    assert not inbox.is_cut_off
