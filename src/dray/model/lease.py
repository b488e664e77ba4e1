"""A duty's lease: which worker does the rescuing, promoting, pruning … so that not all of them do.

Holding it saves work; it is never needed for correctness. It has no clock: it is free as soon as its
holder is dead. `term` goes up at every change of hands, so a late holder can tell it was replaced.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    duty: str
    holder: str | None
    term: int
    taken_at: int
