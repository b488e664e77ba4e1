"""What tests of tasks need: a database for each test, a clock to move, jobs that run in the calling thread.

    from dray.testing import assert_enqueued, database, drain

    with database(app):
        sign_up("ann@example.com")
        assert_enqueued(app, send, to="ann@example.com")
        assert drain(app) == 1

docs/how-to/test-your-tasks.md shows each need with its code. Names are loaded when they are first used: pytest loads
this package with its plugin, in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.runtime.execution import Interrupted as Interrupted
    from dray.testing.asserting import all_enqueued as all_enqueued
    from dray.testing.asserting import assert_enqueued as assert_enqueued
    from dray.testing.asserting import refute_enqueued as refute_enqueued
    from dray.testing.binding import database as database
    from dray.testing.contexts import HandContext as HandContext
    from dray.testing.contexts import context as context
    from dray.testing.crashing import crash as crash
    from dray.testing.draining import drain as drain
    from dray.testing.inlining import inline as inline
    from dray.testing.moving import ClockControl as ClockControl
    from dray.testing.moving import clock as clock

_PLACES = {
    "dray.runtime.execution": "Interrupted",
    "dray.testing.asserting": "all_enqueued assert_enqueued refute_enqueued",
    "dray.testing.binding": "database",
    "dray.testing.contexts": "HandContext context",
    "dray.testing.crashing": "crash",
    "dray.testing.draining": "drain",
    "dray.testing.inlining": "inline",
    "dray.testing.moving": "ClockControl clock",
}

__all__ = [name for names in _PLACES.values() for name in names.split()]  # pyright: ignore[reportUnsupportedDunderAll] - the names of the table above

__getattr__ = loader("dray.testing", _PLACES)
