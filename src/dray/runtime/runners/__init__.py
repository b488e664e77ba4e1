"""How bodies are run: in a thread, on an event loop, in a child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dray.model.settlement import Settlement
from dray.runtime.execution import Execution
from dray.runtime.outage import Outage

Report = Callable[[Execution, Settlement | None], None]  # an execution is over; None: nothing is to be written
Refuse = Callable[[Sequence[Execution]], None]  # there is nothing to run them in: they go back unburned


class Runner(Protocol):
    """Takes executions and reports each exactly once when it is over, or refuses it. No verb blocks.

    A machine may have no thread or process left. What cannot be run then is refused, and what it lacks is made later,
    by `mend`: until that has succeeded `outage` is on, and `capacity` less than was asked for.
    """

    outage: Outage  # of what bodies run in

    @property
    def capacity(self) -> int:
        """How many bodies it can run at a time, with the threads and processes that it has or may have."""
        ...

    def start(self, executions: Sequence[Execution]) -> None:
        """Runs these as soon as it can, in this order. From the engine's thread."""
        ...

    def mend(self) -> None:
        """Makes what could not be made, if the pause since the last try is over. From the engine's thread."""
        ...

    def stop(self, execution: Execution) -> bool:
        """Has the body stop; `execution.stop` says why. From any thread, any number of times. False: not at this
        moment; try again soon."""
        ...

    def abandon(self, execution: Execution) -> None:
        """The body was told to stop and has not: whatever can be done without its help. From any thread."""
        ...

    def replace(self, execution: Execution) -> None:
        """Nothing stops the body: another gets its place, and what it runs in ends with it."""
        ...

    def take_back(self) -> list[Execution]:
        """Those whose body has not started, which now never will. They are not reported."""
        ...

    def stack(self, execution: Execution) -> str | None:
        """Where the body is at the moment, for people to read."""
        ...

    def join(self, timeout: float) -> bool:
        """After `close`: waits for what would outlive the worker; whether nothing is left of it."""
        ...

    def close(self) -> None:
        """No more executions come; ends what it has of threads and processes as soon as they are free."""
        ...
