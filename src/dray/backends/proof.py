"""Proofs of life: what a worker holds for as long as its process lives, and how others look at it.

A lease alone is no proof: a thread that renews it starves behind a C call which keeps the GIL, and a stopped or
suspended process renews nothing and is not dead. So beside its lease a worker holds a lock that the kernel or the
server frees when the process ends, and not before. A held proof means alive, whatever the lease says; a proof that
cannot be looked at means nothing, and only then the lease decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from dray.backends.watch import Watch
from dray.clock import UNKNOWN_BOOT

if TYPE_CHECKING:
    from dray.backends.database import Session
    from dray.model.worker import Signs


def are_comparable(boot: str | None, theirs: str) -> bool:
    """Whether a lease that was given in the boot `theirs` can be read by the clock of this one; None: the server's
    clock decides. One that the system does not name may be any boot, also an earlier one of this machine."""
    return boot is None or (boot == theirs and boot != UNKNOWN_BOOT)


class Proof(Protocol):
    """The proof of life of one worker, taken before its row is written and kept until its last outcome is."""

    @property
    def lock(self) -> str | None:
        """What the worker's row says of it, so that others know it from another; None where the id is enough."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether there is a proof beside the lease now. Never behind a pooler."""
        ...

    @property
    def is_certain(self) -> bool:
        """Whether it stands for as long as the process does. Otherwise a network is in between, and that it is held
        is only what this side believes."""
        ...

    def fileno(self) -> int | None:
        """The descriptor that child processes have to inherit, so that one which outlives its parent keeps the proof;
        None where a child cannot."""
        ...

    def check(self) -> bool:
        """Once a beat: sees to it that what was dropped is taken up again. False: somebody took it away for good, and
        this worker has to come back under a new id. Never waits for a network."""
        ...

    def close(self) -> None:
        """Gives the proof up: others may judge by the lease from here on. A second time does nothing."""
        ...


class Proofs(Protocol):
    """All proofs at one database: makes this process's, looks at everybody's."""

    def prove(self, worker_id: str, watch: Watch) -> Proof:
        """Takes the proof of life of a worker that is about to register."""
        ...

    def suspects(self) -> bool | None:
        """Whether a proof was let go, without asking the database; None: that cannot be told here."""
        ...

    def witness(self, tx: Session, workers: Sequence[Signs]) -> dict[str, bool]:
        """Who of these is proven alive (True) or dead (False); of the others nothing is known."""
        ...

    def forget(self, worker_ids: Collection[str]) -> None:
        """Removes what workers that were declared dead left behind."""
        ...

    def sweep(self, live_ids: Collection[str]) -> None:
        """Removes what was left behind by workers that nobody knows."""
        ...
