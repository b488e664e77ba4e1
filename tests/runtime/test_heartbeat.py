"""A worker whose network drops all packets stops its bodies before its lease expires."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dray.errors import StorageError, StorageLocked, StorageUnavailable
from dray.instants import SECOND
from dray.model.worker import Beat
from dray.runtime.execution import Execution
from dray.runtime.heartbeat import Heartbeat, WorkerLease
from dray.runtime.in_flight import InFlight
from dray.runtime.inbox import Inbox
from dray.runtime.stopper import Stopper
from tests.manual_clock import ManualClock

LEASE = 15 * SECOND
MARGIN = 3 * SECOND


class Far:
    """A server behind a broken network, as the worker sees it: the session of its proof still looks alive."""

    is_held, is_certain = True, False

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.workers = self
        self.error: StorageError | None = None
        self.took = 0  # with or without a response

        self.asked: list[str] = []

    def expect_own(self) -> None:
        self.asked.append("expect own")

    def check(self) -> bool:
        self.asked.append("check")
        return True

    def beat(self, *_: object, **__: object) -> Beat:
        self.asked.append("beat")
        self.clock.advance(self.took)
        if self.error is not None:
            raise self.error
        return Beat(alive=True, held=[])


class Bodies(Stopper):
    """Notes when the bodies of a worker were stopped, and by when they must have."""

    def __init__(self, clock: ManualClock, lease: WorkerLease) -> None:
        self.inbox = Inbox()
        self.stopped_at: int | None = None
        self.by: int | None = None
        self._now = clock.steady
        super().__init__(clock, list[Execution], lease, self.inbox, lambda _: None)

    def cut_off(self, by: int) -> None:
        self.stopped_at, self.by = self._now(), by
        super().cut_off(by)


def heartbeat_of(lease: WorkerLease, far: Far, bodies: Bodies) -> Heartbeat:
    """One that has beaten once."""
    made = Heartbeat(
        cast("Any", far), lease, bodies.inbox, InFlight(), bodies, far.clock, lambda: None, cast("Any", far)
    )
    made.tick()
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def far(clock: ManualClock) -> Far:
    return Far(clock)


@pytest.fixture
def lease(clock: ManualClock, far: Far) -> WorkerLease:
    return WorkerLease("w", cast("Any", far), clock, LEASE)


@pytest.fixture
def bodies(clock: ManualClock, lease: WorkerLease) -> Bodies:
    return Bodies(clock, lease)


@pytest.fixture
def heartbeat(lease: WorkerLease, far: Far, bodies: Bodies) -> Heartbeat:
    return heartbeat_of(lease, far, bodies)


def live_on(heartbeat: Heartbeat, clock: ManualClock, far: Far, bodies: Bodies, took: float) -> None:
    """Runs beats that take this long and fail, with checks of the stopper in between, for more than a lease."""
    far.took = int(took * SECOND)
    ends = clock.steady() + 2 * LEASE
    while clock.steady() < ends:
        pause = heartbeat.tick()
        heartbeat.lease.watch_over(clock.steady(), bodies.cut_off)
        clock.advance(max(1_000, int(pause * SECOND)))
        heartbeat.lease.watch_over(clock.steady(), bodies.cut_off)


def test_the_beat_comes_before_the_look_at_the_proof(heartbeat: Heartbeat, far: Far) -> None:
    """Whatever happens to the proof, the lease is renewed by then."""
    far.asked.clear()
    heartbeat.tick()

    assert far.asked == ["expect own", "beat", "check"]


@pytest.mark.parametrize("took", [0.0, 0.1, 1.0, 2.0])
def test_beats_that_fail_one_after_the_other_stop_the_bodies_in_time(
    heartbeat: Heartbeat, clock: ManualClock, far: Far, bodies: Bodies, took: float
) -> None:
    trusted_until = clock.steady() + LEASE
    far.error = StorageUnavailable("connection timeout expired")

    live_on(heartbeat, clock, far, bodies, took)

    assert bodies.stopped_at is not None
    assert trusted_until - MARGIN <= bodies.stopped_at <= trusted_until - SECOND // 2
    assert bodies.by == trusted_until - SECOND
    assert bodies.inbox.is_cut_off


def test_a_beat_that_hangs_is_seen_twice_before_bodies_stop(
    heartbeat: Heartbeat, clock: ManualClock, far: Far, bodies: Bodies
) -> None:
    """At the first check the process itself may have been stopped, with the beat still in progress."""
    clock.advance(LEASE - MARGIN)

    def look(*_: object, **__: object) -> Beat:
        again = heartbeat.lease.watch_over(clock.steady(), bodies.cut_off)
        assert bodies.stopped_at is None
        clock.advance(again - clock.steady())
        heartbeat.lease.watch_over(clock.steady(), bodies.cut_off)
        return Beat(alive=True, held=[])

    far.workers.beat = look  # type: ignore[method-assign]
    heartbeat.tick()

    assert bodies.stopped_at is not None


def test_a_row_that_others_hold_is_no_reason_to_stop(
    heartbeat: Heartbeat, clock: ManualClock, far: Far, bodies: Bodies
) -> None:
    """The server responds, and knows the session that proves this worker alive."""
    far.error = StorageLocked("locked")

    live_on(heartbeat, clock, far, bodies, 0.0)

    assert bodies.stopped_at is None


def test_a_proof_that_the_kernel_holds_needs_no_beat(
    heartbeat: Heartbeat, clock: ManualClock, far: Far, bodies: Bodies
) -> None:
    far.is_certain = True
    far.error = StorageUnavailable("the disk is full")

    live_on(heartbeat, clock, far, bodies, 0.0)

    assert bodies.stopped_at is None
