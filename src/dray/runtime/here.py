"""Runs a body in the calling thread, for tests (`dray.testing`)."""

from __future__ import annotations

import copy
from typing import Any

from dray.model.settlement import Settlement
from dray.runtime import body
from dray.runtime.execution import Execution, Interrupted

_OUTCOMES = (Exception, SystemExit, GeneratorExit, Interrupted)


def run_here(execution: Execution) -> Settlement | None:
    """As `body.run`. What ends the test and not the body is raised: Ctrl-C, a time limit, ``pytest.fail()``."""
    raised: list[BaseException] = []
    function = execution.task.function

    def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except _OUTCOMES:
            raise
        except BaseException as error:
            raised.append(error)
            raise

    execution.task = copy.copy(execution.task)
    execution.task.function = watched
    settlement = body.run(execution)
    execution.is_over = True
    if raised:
        raise raised[0]
    return settlement
