"""What people do to jobs, queues and schedules, kept as rows: who, how, what, to what, and with what success.

Code that calls an App is not a person and leaves no row. `ops/acting.py` makes these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dray.errors import ConfigError
from dray.model.bounds import ACTION_NOTE_BYTES, ACTION_TARGET_BYTES, ACTION_WHO_BYTES
from dray.sanitize import bounded
from dray.wording import counted

Via = Literal["cli", "web", "mcp"]
Verb = Literal[
    "retry", "cancel", "delete", "pause", "resume", "run", "prune", "enqueue", "reveal", "remove", "move", "import"
]
Kind = Literal["job", "jobs", "queue", "schedule", "workflow", "database"]

_IDS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class By:
    """A person, and the way by which they act."""

    who: str
    via: Via

    def __post_init__(self) -> None:
        if not self.who.strip():
            raise ConfigError("an action needs the name of the person who does it; pass it as `who`")
        object.__setattr__(self, "who", bounded(self.who, ACTION_WHO_BYTES))


@dataclass(frozen=True, slots=True)
class NewAction:
    """An action that is about to be done. Its parts, if it is done in several transactions, share the id."""

    id: str
    who: str
    via: Via
    verb: Verb
    kind: Kind
    target: str  # an id, a name, or the words of a search
    note: str | None = None  # what a person wrote to it, or what it was done with

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", bounded(self.target, ACTION_TARGET_BYTES))
        if self.note is not None:
            object.__setattr__(self, "note", bounded(self.note, ACTION_NOTE_BYTES) or None)


@dataclass(frozen=True, slots=True)
class Action:
    """An action as it is stored. `done` and `refused` count jobs, or the one queue or schedule that it was about."""

    id: str
    at: int
    who: str
    via: str
    verb: str
    kind: str
    target: str
    note: str | None
    done: int
    refused: int


def ids_target(ids: Sequence[str]) -> tuple[Kind, str]:
    """What an action on these jobs is said to be about: the job, or the first of them and how many more there are."""
    shown = " ".join(ids[:_IDS_SHOWN])
    if len(ids) == 1:
        return "job", shown
    more = len(ids) - _IDS_SHOWN
    return "jobs", f"{shown} and {counted(more, 'more', 'more')}" if more > 0 else shown or "none"
