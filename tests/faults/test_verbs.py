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
from tests.faults.databases import FaultyDatabase, FaultySqlite, deadline, in_memory
from tests.faults.duty_operations import DUTIES, FileUpkeep
from tests.faults.operation import Operation
from tests.faults.postgres_proxy import UNPREPARED
from tests.faults.producer_operations import PRODUCING, Enqueue, Look
from tests.faults.trial import Trial, Way
from tests.faults.worker_operations import WORKING, Settling

_UNTIL_PREPARED = 4  # runs
_LONGEST = 6.0  # seconds for one operation; only one that goes on for ever takes as long


@pytest.fixture(scope="module")
def figures(database: FaultyDatabase) -> Generator[Figures]:
    database.open()
    kept = Figures(f"faults in verbs, {database.name}")
    yield kept
    kept.print()


def run(database: FaultyDatabase, kind: type[Operation], way: Way, at: int) -> int:
    """One run; how many faults first_call it."""
    database.empty()
    if kind.is_cold:
        database.reopen()
    operation = kind(database)
    operation.prepare()
    error: DrayError | None = None
    database.count.arm(way.fault, at, lasting=way.is_lasting)
    try:
        with deadline(_LONGEST):
            operation.act(database.faulty)
    except DrayError as raised:
        error = raised.with_traceback(None)
        error.__cause__ = error.__context__ = None  # or its frames would keep cursors open
    finally:
        injected = database.count.disarm()
    try:
        with deadline(_LONGEST):
            look_after(database, operation, error)
    except BaseException as problem:
        problem.add_note(
            f"the operation {'returned' if error is None else f'raised {type(error).__name__}: {error}'}"
        )
        raise
    assert error is None or injected, error
    return injected


def look_after(database: FaultyDatabase, operation: Operation, error: DrayError | None) -> None:
    assert not database.count.is_endless, "it tried again and again without an end"
    database.check_connections()
    operation.check(error)
    if error is not None:
        operation.recover(database.faulty)
    operation.verify(database.faulty)
    assert audit(database.world.backend, patience=0).broken == ()
    database.check_connections()


def fail_everywhere(database: FaultyDatabase, kind: type[Operation], figures: Figures) -> None:
    trial = Trial(
        kind.__name__,
        lambda way, at: run(database, kind, way, at),
        database.count,
        figures,
        start_over=database.reopen,
    )
    prepares = UNPREPARED in database.faults and kind in {Enqueue, Look, Settling}
    trial.everywhere(
        [*map(Way, database.faults), *(Way(fault, is_lasting=True) for fault in database.lasting)],
        warm_up=_UNTIL_PREPARED if prepares else 1,
        first=[(Way(UNPREPARED), 1)] if prepares else [],
        worst=database.worst,
    )
    database.check_all_places()


@pytest.mark.parametrize("kind", [*PRODUCING, *WORKING, *DUTIES], ids=lambda kind: kind.__name__)
def test_whichever_call_fails(database: FaultyDatabase, kind: type[Operation], figures: Figures) -> None:
    fail_everywhere(database, kind, figures)


def test_whichever_call_for_the_file_fails() -> None:
    with in_memory() as folder:
        database, figures = FaultySqlite(folder), Figures("faults in the file's upkeep")
        database.open()
        try:
            fail_everywhere(database, FileUpkeep, figures)
        finally:
            database.close()
            figures.print()
