"""What the rules of the state machine draw: few names and short times, so that jobs meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import strategies as st

from dray.instants import HOUR, MINUTE, SECOND
from dray.model import settlement as model
from dray.model.job import Claim, Demand, Held, Outcome, Reason
from dray.model.retention import Retention
from dray.model.settlement import Settlement

QUEUES = ("mail", "bulk", "Default")
TASKS = ("send", "scan", "sync")
DUTIES = ("rescue", "prune")
SCHEDULES = ("nightly", "beat")
LEASE_US = 15 * SECOND
LARGE = "x" * 1500  # more than SQLite keeps in the job's row

# Options of a job, in parts that are combined. What is not a field of
# `NewJob` (`in`, `expires_in`, `is_large`) is computed when the job is built.
TIMES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {},
    {},
    {"delay_us": 5 * SECOND},
    {"delay_us": HOUR},
    {"in": -MINUTE},
    {"in": 20 * SECOND},
    {"expires_us": 10 * SECOND},
    {"delay_us": 20 * SECOND, "expires_us": 25 * SECOND},
    {"expires_in": MINUTE},
    {"in": -HOUR, "expires_in": -SECOND},
)
LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"max_attempts": 1},
    {"max_attempts": 2, "max_crashes": 1},
    {"max_crashes": 2, "timeout": 2.5},
    {"priority": 5},
    {"priority": -5, "max_attempts": 5},
)
LOOKS: tuple[dict[str, Any], ...] = (
    {},
    {"is_large": True},
    {"tags": ("x", "y"), "name": "one"},
    {"description": "words ü", "headers": '{"trace":"00-1-2-01"}', "tags": ("y",), "retry": "{}"},
    {"keep_us": 60_000_000},
)
KEYS: tuple[dict[str, Any], ...] = (*({} for _ in range(4)), {"key": "a"}, {"key": "Z"}, {"key": "ä"})
# What is said of a task or a queue.
BOUNDS: tuple[dict[str, Any], ...] = (
    {},
    {"limit": 0},
    {"limit": 1},
    {"limit": 3, "key_limit": 1},
    {"key_limit": 1},
    {"key_limit": 2, "key_rate": "3/10s"},
    {"rate": ["2/s", "5/min"]},
    {"key_rate": "1/s", "limit": 4},
)
UNIQUE: tuple[dict[str, Any], ...] = (
    *({} for _ in range(36)),
    *(
        {"unique_key": key, "unique_scope": scope, "unique_us": window, "on_conflict": on_conflict}
        for key in ("report", "bill")
        for scope in ("live", "queued")
        for window in (None, 15 * SECOND)
        for on_conflict in ("keep", "replace", "reschedule")
    ),
)


class Wish(NamedTuple):
    """A job to enqueue, before its parents and its time are known."""

    queue: str
    task: str
    options: dict[str, Any]
    outside: list[int]  # parents among existing jobs, newest first; 31 means a job that does not exist
    inside: list[int]  # parents in the same batch
    on_parent_failure: str


def options(*parts: Sequence[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def merge(chosen: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        return {name: value for part in chosen for name, value in part.items()}

    return st.tuples(*(st.sampled_from(part) for part in parts)).map(merge)


def rarely() -> st.SearchStrategy[bool]:
    return st.sampled_from((False, False, False, False, False, True))


some = st.integers(0, 31)  # an index into what exists, newest first
policies = st.sampled_from(("cancel", "run", "hold"))
queues = st.sampled_from(QUEUES)
limits = st.sampled_from((1, 2, 3, 1000))
single = st.builds(
    Wish,
    queues,
    st.sampled_from(TASKS),
    options(TIMES, LIMITS, LOOKS, KEYS, UNIQUE),
    st.just([]),
    st.just([]),
    policies,
)
wishes = st.builds(
    Wish,
    queues,
    st.sampled_from(TASKS),
    options(TIMES, LIMITS, KEYS, UNIQUE),
    st.lists(some, max_size=2),
    st.lists(st.integers(0, 3), max_size=2),
    policies,
)
demands = st.builds(
    Demand,
    st.sampled_from((QUEUES, QUEUES[::-1], QUEUES[:1], (*QUEUES[1:], "unused"), ())),
    st.sampled_from((TASKS, TASKS, TASKS[:1], TASKS[:2], ())),
    st.integers(0, 4),
    st.sampled_from((0, 0, 1, 3)),
    st.sampled_from((True, True, False)),
).map(lambda demand: demand._replace(ahead_in_turn=(demand.ahead + 1) // 2))
EVERYTHING = Demand(QUEUES, TASKS, 2)
moments = st.tuples(st.sampled_from((0, 1, 2 * SECOND)), st.sampled_from((0, 3, SECOND)))  # body's end, its length

Ending = Callable[[Claim, int, int], Settlement]
ENDINGS: dict[str, Ending] = {
    "completed": lambda c, s, f: model.completed(c, s, f, '{"n": 1}'),
    "completed large": lambda c, s, f: model.completed(c, s, f, f'"{LARGE}"'),
    "completed, args dropped": lambda c, s, f: model.completed(c, s, f, keep_args=False),
    "failed": lambda c, s, f: model.failed(c, s, f, Reason.ARGUMENTS, "TypeError", "no such argument", "trace"),
    "error": lambda c, s, f: model.errored(c, s, f, Outcome.ERROR, 0, "ValueError", "no", "trace"),
    "error, later": lambda c, s, f: model.errored(c, s, f, Outcome.ERROR, 3 * SECOND, "ValueError", "no", None),
    "timeout": lambda c, s, f: model.errored(c, s, f, Outcome.TIMEOUT, 0, "Timeout", "2.5 s are over", None),
    "retry": lambda c, s, f: model.errored(c, s, f, Outcome.RETRY, 9 * SECOND, "Retry", "", None),
    "cancelled": lambda c, s, f: model.cancelled(c, s, f, "not needed"),
    "snoozed": lambda c, s, f: model.snoozed(c, s, f, 7 * SECOND),
    "snoozed for nothing": lambda c, s, f: model.snoozed(c, s, f, 0),
    "released": lambda c, _, f: model.released(c, f),
    "released as held": lambda c, _, f: model.released(Held(c.id, c.claim, cancel_requested=False), f),
    "released with its key": lambda c, _, f: model.released(c, f, "a"),
    # The tables refuse a failure without a reason; the outcome written instead contains the database's own message.
    "refused": lambda c, s, f: model.failed(c, s, f, Reason.ERROR, "E", "m", None)._replace(reason=None),
}
endings = st.lists(st.tuples(some, st.sampled_from(tuple(ENDINGS)), moments), min_size=1, max_size=4)

RETENTIONS = (
    Retention(0, 0, 0),
    Retention(10 * SECOND, 10 * SECOND, HOUR),
    Retention(MINUTE, MINUTE, None),
    Retention(None, 0, 0),
    Retention(0, MINUTE, 0),
    Retention(),
)


@dataclass
class Chance:
    """Returns the same for every job, because the order of the jobs is open."""

    value: float

    def random(self) -> float:
        return self.value
