"""What a search means at a moment: which states, names, times and texts a job must have. Pure.

The statements of `sql/common/search.sql` take it as parameters; one that is None does not matter. Arguments are the
exception: the database only tells where they may fit, and `fits_args` decides, by what the person who searches may
see of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from dray.instants import FIRST_INSTANT, LAST_INSTANT
from dray.model.job import State, states_named
from dray.model.search import ATTEMPT_MAX, Search, Term, duration_us, instant_of
from dray.model.values import canonical_id

LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_REASONED = frozenset({State.FAILED, State.CANCELLED})
_PART_OF_ID = re.compile(r"[0-9a-f-]{8,36}")  # shorter ones are names
_PLAIN = re.compile(r"[A-Za-z0-9 _.:,@+-]+")  # characters that JSON text has as they are
_FOLDED = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")  # as both databases fold text
_MOST_US = LAST_INSTANT - FIRST_INSTANT


# The parameters, as they are for a search for everything. Lists: one of these; `not_`: none of these; `_like`: names
# with * for any text; `_part`: parts of ids.
ANYTHING: dict[str, Any] = {
    "states": sorted(State),  # with any reason
    "outcomes": None,  # as "failed/timeout"
    "not_outcomes": None,
    **dict.fromkeys(
        f"{no}{key}{kind}"
        for key in ("queue", "task", "schedule", "key", "worker", "workflow")
        for no in ("", "not_")
        for kind in ("", "_like")
    ),
    **dict.fromkeys(f"{no}{key}_part" for key in ("worker", "workflow") for no in ("", "not_")),
    **dict.fromkeys(f"{no}{key}" for key in ("reason", "error_key", "attempt", "id_part") for no in ("", "not_")),
    **dict.fromkeys(("tag", "not_tag")),  # as parts of the JSON that is stored
    **dict.fromkeys(("error", "not_error", "texts", "not_texts")),  # folded to lower case; all of the texts
    "attempt_low": 0,
    "attempt_high": ATTEMPT_MAX,
    "since": FIRST_INSTANT,
    "until": LAST_INSTANT,
    "enqueued_since": FIRST_INSTANT,
    "enqueued_until": LAST_INSTANT,
    "ran_low": None,  # microseconds
    "ran_high": None,
    "newest": LAST_ID,  # no job with a later id
    "allowed": None,  # queues that the person may see
    "args_has": None,  # texts that the stored arguments have
}


@dataclass(frozen=True, slots=True)
class Sought:
    """What jobs must have: the parameters of the statements, and what these cannot decide."""

    asked: Mapping[str, Any]
    args: tuple[Term, ...] = ()

    @property
    def possible(self) -> frozenset[State]:
        """The states that a job found can have."""
        outcomes: list[str] = self.asked["outcomes"] or []
        return frozenset(map(State, [*self.asked["states"], *(each.partition("/")[0] for each in outcomes)]))

    def frozen(self, newest: str, at: int) -> Sought:
        """The same, but for jobs with a later id, or that were enqueued or ended later."""
        return Sought({**self.asked, "newest": newest, "until": min(self.asked["until"], at + 1)}, self.args)


class Span(NamedTuple):
    low: int
    high: int


def sought(search: Search, now: int, *, queues: frozenset[str] | None = None) -> Sought:
    """What a search means now; `queues`: only jobs of these."""
    states, outcomes, not_outcomes = _states(search)
    by = _ByKey(search)
    attempts, ran = by.span("attempt", int, Span(0, ATTEMPT_MAX)), by.span("ran", _ran, Span(0, _MOST_US))
    # Not until then is since then, and the other way round.
    since = [*by.instants("since", now), *by.instants("until", now, negated=True)]
    until = [*by.instants("until", now), *by.instants("since", now, negated=True)]
    args = tuple(term for term in search.terms if term.path)
    named: dict[str, Any] = {
        k: v for key in ("queue", "task", "schedule", "key", "worker", "workflow") for k, v in by.names(key).items()
    }
    asked: dict[str, Any] = {
        "states": sorted(states),
        "outcomes": outcomes,
        "not_outcomes": not_outcomes,
        "worker_part": by.parts("worker"),
        "not_worker_part": by.parts("worker", negated=True),
        "workflow_part": by.parts("workflow"),
        "not_workflow_part": by.parts("workflow", negated=True),
        "reason": by.values("reason"),
        "not_reason": by.values("reason", negated=True),
        "error_key": by.values("error_key"),
        "not_error_key": by.values("error_key", negated=True),
        "tag": _needles(by.values("tag")),
        "not_tag": _needles(by.values("tag", negated=True)),
        "id_part": by.values("id"),
        "not_id_part": by.values("id", negated=True),
        "error": _folded(by.values("error")),
        "not_error": _folded(by.values("error", negated=True)),
        "texts": _folded(by.values("text")),
        "not_texts": _folded(by.values("text", negated=True)),
        "attempt": by.values("attempt", op=":"),
        "not_attempt": by.values("attempt", negated=True, op=":"),
        "attempt_low": attempts.low,
        "attempt_high": attempts.high,
        "since": _within(max(since, default=FIRST_INSTANT)),
        "until": _within(min(until, default=LAST_INSTANT)),
        "enqueued_since": _within(max(by.instants("enqueued", now), default=FIRST_INSTANT)),
        "enqueued_until": _within(min(by.instants("enqueued", now, negated=True), default=LAST_INSTANT)),
        "ran_low": ran.low if search.has("ran") else None,
        "ran_high": ran.high if search.has("ran") else None,
        "allowed": None if queues is None else sorted(queues),
        "args_has": _args_has(args),
    }
    assert asked.keys() <= ANYTHING.keys()
    return Sought({**ANYTHING, **named, **asked}, args)


class _ByKey:
    """The terms of a search, by filter."""

    def __init__(self, search: Search) -> None:
        self._terms = search.terms

    def terms(self, key: str, *, negated: bool = False) -> list[Term]:
        return [term for term in self._terms if term.key == key and term.negated is negated]

    def values(self, key: str, *, negated: bool = False, op: str = ":") -> list[str] | None:
        return [term.value for term in self.terms(key, negated=negated) if term.op == op] or None

    def names(self, key: str) -> dict[str, list[str] | None]:
        """Names as they are, and those with * in them; the former are there where either is."""
        found: dict[str, list[str] | None] = {}
        for name, negated in ((key, False), (f"not_{key}", True)):
            terms = self.terms(key, negated=negated)
            if terms:
                found[name] = [term.value for term in terms if not term.has_wildcard]
                found[f"{name}_like"] = [term.value for term in terms if term.has_wildcard] or None
        return found

    def parts(self, key: str, *, negated: bool = False) -> list[str] | None:
        """What may be a part of an id, but is not a whole one."""
        values = [value.lower() for value in self.values(key, negated=negated) or ()]
        return [each for each in values if _PART_OF_ID.fullmatch(each) and canonical_id(each) is None] or None

    def instants(self, key: str, now: int, *, negated: bool = False) -> list[int]:
        found = [instant_of(term, now) for term in self.terms(key, negated=negated)]
        return [at for at in found if at is not None]  # the parser has refused others

    def span(self, key: str, read: Callable[[str], int], all_of_it: Span) -> Span:
        """What all comparisons leave; a negated one is the opposite."""
        low, high = all_of_it
        for term in (term for term in self._terms if term.key == key and term.op != ":"):
            value, op = read(term.value), _OPPOSITE[term.op] if term.negated else term.op
            if op.startswith(">"):
                low = max(low, value + (op == ">"))
            else:
                high = min(high, value - (op == "<"))
        return Span(low, high)


_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


def _within(at: int) -> int:
    """An instant that both databases take."""
    return min(max(at, FIRST_INSTANT), LAST_INSTANT)


def _ran(text: str) -> int:
    us = duration_us(text)
    assert us is not None, "the parser has refused it"
    return us


def _states(search: Search) -> tuple[frozenset[State], list[str] | None, list[str] | None]:
    """States with any reason, outcomes (a state and its reason), and outcomes that are not meant."""
    named = [(states_named(term.value), term.negated) for term in search.terms if term.key == "state"]
    wanted = [found for found, negated in named if not negated]
    whole = [states for states, reason in wanted if reason is None]
    states = frozenset(State) if not wanted else frozenset(state for each in whole for state in each)
    gone = frozenset(state for (each, reason), negated in named if negated and reason is None for state in each)
    if any(term.key == "reason" and not term.negated for term in search.terms):
        gone |= frozenset(State) - _REASONED
    if any(term.key == "error_key" and not term.negated for term in search.terms):
        gone |= frozenset(State) - {State.FAILED}
    outcomes = [f"{s}/{reason}" for each, reason in wanted if reason is not None for s in each if s not in gone]
    not_outcomes = [f"{s}/{reason}" for (each, reason), negated in named if negated and reason for s in each]
    return states - gone, outcomes or None, not_outcomes or None


def _needles(tags: list[str] | None) -> list[str] | None:
    """Tags as the stored JSON array has them; with a * at the end, the beginning of one."""
    if tags is None:
        return None
    return [json.dumps(tag.removesuffix("*")).removesuffix('"' if tag.endswith("*") else "") for tag in tags]


def _folded(texts: list[str] | None) -> list[str] | None:
    return None if texts is None else [text.translate(_FOLDED) for text in texts]


def _args_has(terms: Sequence[Term]) -> list[str] | None:
    """For each path with one value: the longest part of it that stored JSON has as it is."""
    found: list[str] = []
    for path in dict.fromkeys(term.path for term in terms if not term.negated):
        values = [term.value for term in terms if term.path == path and not term.negated]
        plain = _PLAIN.findall(values[0])
        if len(values) == 1 and plain:
            found.append(max(plain, key=len))
    return found or None


def fits_args(terms: Sequence[Term], args: Any) -> bool:
    """Whether arguments, as they are shown to the person, are what is sought."""
    for path in dict.fromkeys((term.path, term.negated) for term in terms):
        here = [term for term in terms if (term.path, term.negated) == path]
        if any(_is(term, _at(args, term.path)) for term in here) is path[1]:
            return False
    return True


_NOTHING = object()


def _at(value: Any, path: Sequence[str]) -> Any:
    for step in path:
        if isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(step, _NOTHING)
        elif isinstance(value, list) and step.isdecimal() and len(step) < 10:
            items = cast("list[Any]", value)
            value = items[int(step)] if int(step) < len(items) else _NOTHING
        else:
            return _NOTHING
    return value


def _is(term: Term, value: Any) -> bool:
    if value is _NOTHING or isinstance(value, Mapping | list):
        return False
    text = value if isinstance(value, str) else json.dumps(value)
    return like(text, term.value) if term.has_wildcard else text == term.value


def like(text: str, pattern: str) -> bool:
    """Whether a text is a pattern with * for any text. Takes linear time on any of both."""
    if "*" not in pattern:
        return text == pattern
    first, *middle, last = pattern.split("*")
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    place, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True
