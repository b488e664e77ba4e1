"""A database in which nothing changes any more, or not yet: its queue has moved, or is being moved into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Closed:
    """What for, read from what the tables note; addresses are fit to be shown."""

    sentence: str  # as whoever tries to change something is told
    target: str | None  # where the queue is now; None: it is being moved into this database

    @staticmethod
    def of(known: Mapping[str, str]) -> Closed | None:
        """None: it is open."""
        sentence = known.get("closed")
        return None if sentence is None else Closed(sentence, json.loads(known.get("move", "{}")).get("target"))

    @property
    def text(self) -> str:
        """A clause of its own."""
        if self.target is not None:
            return f"this queue has moved to {self.target}"
        return f"this database {self.sentence.partition(';')[0]}"

    @property
    def fix(self) -> str:
        if self.target is not None:
            return f"use that address: --url {self.target}"
        return "let `dray db move` end; if it was cut off, run it again"
