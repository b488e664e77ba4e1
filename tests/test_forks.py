from __future__ import annotations

import gc
import sys
from multiprocessing.connection import Connection

from tests.forks import Forked, pipe


def test_the_server_of_forks_has_loaded_all_that_it_names() -> None:
    """multiprocessing hides a module that cannot be loaded, and everything after it was loaded by each process."""
    ours, theirs = pipe()
    forked = Forked(_report, (theirs,))

    assert ours.recv() == (True, True)
    assert forked.wait() == 0


def _report(connection: Connection) -> None:
    connection.send(("tests.preload" in sys.modules, gc.isenabled() and gc.get_freeze_count() > 0))
