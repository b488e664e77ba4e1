"""The engine sees what other threads put into its inbox, at any moment, and wakes up for it."""

from __future__ import annotations

import threading
import time

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
