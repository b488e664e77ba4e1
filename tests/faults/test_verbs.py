"""The Nth call into the driver fails, for every N, in every way, in every operation of the storage contract.

After each: nothing is lost, nothing is doubled, no transaction is open, no lock is held, the audit is clean, and the
next call works.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from dray.errors import DrayError
from dray.ops.audit import audit
from tests.faults.count import Figures
from tests.faults.operation import Operation
from tests.faults.places import Place, SqlitePlace, deadline, in_memory
from tests.faults.postgres_proxy import FORGOTTEN
from tests.faults.producing import PRODUCING
from tests.faults.tending import TENDING, KeepingFile
from tests.faults.trial import Trial, Way
from tests.faults.working import WORKING

_LONGEST = 6.0  # seconds for one operation; only one that goes on for ever takes as long


@pytest.fixture(scope="module")
def figures(place: Place) -> Generator[Figures]:
    place.open()
    kept = Figures(f"faults in verbs, {place.name}")
    yield kept
    kept.print()


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
        injected = place.count.disarm()
    try:
        with deadline(_LONGEST):
            look_after(place, operation, error)
    except BaseException as problem:
        problem.add_note(
            f"the operation {'returned' if error is None else f'raised {type(error).__name__}: {error}'}"
        )
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
    trial = Trial(
        kind.__name__,
        lambda way, at: run(place, kind, way, at),
        place.count,
        figures,
        start_over=place.reopen,
    )
    trial.everywhere(
        [*map(Way, place.faults), *(Way(fault, is_lasting=True) for fault in place.lasting)],
        warm_up=place.warm_up,
        first=[(Way(FORGOTTEN), 1)] if FORGOTTEN in place.faults else [],  # while statements are prepared
        worst=place.worst,
    )
    place.check_all_places()


@pytest.mark.parametrize("kind", [*PRODUCING, *WORKING, *TENDING], ids=lambda kind: kind.__name__)
def test_whichever_call_fails(place: Place, kind: type[Operation], figures: Figures) -> None:
    fail_everywhere(place, kind, figures)


def test_whichever_call_for_the_file_fails() -> None:
    with in_memory() as folder:
        place, figures = SqlitePlace(folder), Figures("faults in the file's upkeep")
        place.open()
        try:
            fail_everywhere(place, KeepingFile, figures)
        finally:
            place.close()
            figures.print()
