"""The Nth call into the driver fails, for every N, in every way, in every operation of the storage contract.

After each: nothing is lost, nothing is doubled, no transaction is open, no lock is held, the audit is clean, and the
next call works. `make soak` tries all of them: in each way N = 1, 2, 3 … until a run is clean. Otherwise a sample,
always the same, of DRAY_SOAK_FAULTS runs an operation; whose last call, mostly a COMMIT, always fails after it was done.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Generator
from typing import NamedTuple

import pytest

from dray.errors import DrayError
from dray.ops.audit import audit
from tests.faults.count import Fault, Figures
from tests.faults.operation import Operation
from tests.faults.places import Place, PostgresPlace, SqlitePlace, deadline, in_memory, soak
from tests.faults.postgres_proxy import FORGOTTEN
from tests.faults.producing import PRODUCING
from tests.faults.tending import TENDING, KeepingFile
from tests.faults.working import WORKING

ALL = 1_000_000
RUNS = soak("DRAY_SOAK_FAULTS", 16)  # of an operation
_LONGEST = 6.0  # seconds for one operation; only one that goes on for ever takes as long
_SHOWN = soak("DRAY_SHOWN", 12)


class Way(NamedTuple):
    """How calls fail."""

    fault: Fault
    is_lasting: bool

    def __str__(self) -> str:
        return f"{self.fault}, and all after it" if self.is_lasting else str(self.fault)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Generator[Place]:
    if request.param == "sqlite":
        with in_memory() as folder:
            made: Place = SqlitePlace(folder)
            yield made
            made.close()
        return
    schemas = request.getfixturevalue("schemas")
    schema = schemas.take()
    made = PostgresPlace(request.getfixturevalue("postgres_server"), schema)
    yield made
    made.close()
    schemas.give_back(schema)


@pytest.fixture(scope="module")
def figures(place: Place) -> Generator[Figures]:
    kept = Figures(f"faults in verbs, {type(place).__name__.removesuffix('Place')}")
    yield kept
    kept.print()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dray")


def ways(place: Place) -> list[Way]:
    return [Way(fault, False) for fault in place.faults] + [Way(fault, True) for fault in place.lasting]


def run(place: Place, kind: type[Operation], way: Way, at: int) -> int:
    """One run; how many faults befell it."""
    place.empty()
    if kind.is_cold:
        place.reopen()
    operation = kind(place)
    operation.prepare()
    error: DrayError | None = None
    place.count.arm(way.fault, at, lasting=way.is_lasting)
    try:
        with deadline(_LONGEST):
            operation.act(place.faulty)
    except DrayError as raised:
        error = raised.with_traceback(None)
        error.__cause__ = error.__context__ = None  # or its frames would keep cursors open
    finally:
        injected = place.disarm()
    try:
        with deadline(_LONGEST):
            look_after(place, operation, error)
    except BaseException as problem:
        problem.add_note(f"the operation {'returned' if error is None else f'raised {type(error).__name__}: {error}'}")
        raise
    assert error is None or injected, error
    return injected


def look_after(place: Place, operation: Operation, error: DrayError | None) -> None:
    assert not place.count.is_endless, "it tried again and again without an end"
    place.check_connections()
    operation.check(error)
    if error is not None:
        operation.recover(place.faulty)
    operation.verify(place.faulty)
    assert audit(place.world.backend, patience=0).broken == ()
    place.check_connections()


def fail_everywhere(place: Place, kind: type[Operation], figures: Figures) -> None:
    trial = Trial(place, kind, figures)
    if RUNS >= ALL:
        for way in ways(place):
            at = 1
            while trial.run(way, at):
                at += 1
    else:
        for way, at in trial.sample():
            trial.run(way, at)
    place.check_all_places()
    shown = "\n".join(trial.problems[:_SHOWN])
    assert not trial.problems, f"{len(trial.problems)} runs went wrong:\n{shown}"


class Trial:
    """All runs of one operation; what went wrong is kept, and the next run begins with a process that is well."""

    def __init__(self, place: Place, kind: type[Operation], figures: Figures) -> None:
        self.problems: list[str] = []
        self._place = place
        self._kind = kind
        self._figures = figures

    def sample(self) -> list[tuple[Way, int]]:
        """Some of all that can be tried, and what must be."""
        calls = self._calls()
        known = [(way, sum(calls[unit] for unit in way.fault.units)) for way in ways(self._place)]
        pairs = [(way, at) for way, last in known for at in range(1, last + 1)]
        musts = [(Way(FORGOTTEN, False), 1)] if FORGOTTEN in self._place.faults else []  # while they are prepared
        musts += [(way, last) for way, last in known if way.fault in self._place.worst and not way.is_lasting]
        chance = random.Random(self._kind.__name__)
        return musts + chance.sample(pairs, min(len(pairs), RUNS - len(musts)))

    def _calls(self) -> Counter[str]:
        """How many calls the operation makes, by their kind."""
        nothing = Fault("nothing", frozenset())
        for _ in range(self._place.warm_up):
            run(self._place, self._kind, Way(nothing, False), 1)
        return self._place.count.seen

    def run(self, way: Way, at: int) -> int:
        count = self._place.count
        try:
            injected = run(self._place, self._kind, way, at)
        except BaseException as problem:  # noqa: BLE001 - all that is wrong is told at once
            if isinstance(problem, KeyboardInterrupt):
                raise
            injected = count.injected
            notes = "; ".join(getattr(problem, "__notes__", []))
            said = f"{type(problem).__name__}: {problem}".replace("\n", " ")[:600]
            self.problems.append(f"- {way}, call {at} ({count.befell}): {said} [{notes[:250]}]")
            self._place.reopen()
        self._figures.add(self._kind.__name__, str(way), injected)
        return injected


@pytest.mark.parametrize("kind", [*PRODUCING, *WORKING, *TENDING], ids=lambda kind: kind.__name__)
def test_whichever_call_fails(place: Place, kind: type[Operation], figures: Figures) -> None:
    fail_everywhere(place, kind, figures)


def test_whichever_call_for_the_file_fails() -> None:
    with in_memory() as folder:
        place = SqlitePlace(folder)
        try:
            fail_everywhere(place, KeepingFile, Figures("the file"))
        finally:
            place.close()
