"""The grammar of searches for jobs: ``state:failed task:mail.* -tag:test since:1h "503"``.

One parser for the command line, the dashboard and agents. It is pure: what a search means at a moment is
decided in `sought.py`, and what is read for it in `backends/store/search.py`. docs/reference/search.md tells people.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, NoReturn

from dray.errors import ConfigError
from dray.instants import DAY, HOUR, MILLISECOND, MINUTE, SECOND, from_datetime
from dray.model.bounds import DELAY_US, KEY_CHARS, NAME_CHARS, TAG_CHARS
from dray.model.job import Reason, State, states_named
from dray.model.values import canonical_id, shown
from dray.wording import close_matches

Op = Literal[":", ">", ">=", "<", "<="]

TEXT_CHARS = 2_500  # of a whole search
TERMS = 60  # the ids of 50 ticked rows, and the states that an action means
ATTEMPT_MAX = 2_147_483_647
# As people write them before the colon; args with a path.
KEYS = tuple(
    "state queue task tag key worker workflow schedule reason error error_key attempt since until enqueued "  # noqa: SIM905
    "ran id args".split()
)
_COMPARED = {"attempt", "ran"}
_TAG = re.compile(rf"[A-Za-z0-9_.:-]{{0,{TAG_CHARS}}}[*]?")
_STEP = re.compile(r"[^\s.:\"*]{1,100}")
_OP = re.compile(r">=|<=|>|<")
_UNITS = {"ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_BREAK = re.compile("[\t\r\n\x0b\x0c\x1c-\x1f\x85\u2028\u2029]")
_UNSAFE = re.compile("[\x00-\x08\x0e-\x1b\x7f\ud800-\udfff]")
# A word as it is written: up to a space, with what is in quotes as one.
_WORD = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+', re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. `key` is one of `KEYS`, ``args.`` with a path, or ``text`` for words without a filter."""

    key: str
    value: str
    op: Op = ":"
    negated: bool = False
    quoted: bool = False  # in quotes * and > are characters like others
    start: int = 0  # where it stood in the text
    end: int = 0

    @property
    def path(self) -> tuple[str, ...]:
        """Where in the arguments to look: ``args.a.b`` is ("a", "b"); empty for other filters."""
        return tuple(self.key.split(".")[1:])

    @property
    def has_wildcard(self) -> bool:
        return "*" in self.value and not self.quoted

    def text(self) -> str:
        """The term as it can be parsed again."""
        value = self.value
        must_quote = not value or re.search(r'[\s"]', value) or (self.key == "text" and re.search(r"^-|:", value))
        if self.quoted or must_quote:
            value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        sign, op = "-" if self.negated else "", "" if self.op == ":" else self.op
        return f"{sign}{value}" if self.key == "text" else f"{sign}{self.key}:{op}{value}"


@dataclass(frozen=True, slots=True)
class Search:
    """What is asked of jobs. A filter that is there twice means either; all else must hold at once."""

    terms: tuple[Term, ...] = ()

    def text(self) -> str:
        """The search as people write it; `parse` makes the same of it."""
        return " ".join(term.text() for term in self.terms)

    def has(self, key: str) -> bool:
        """Whether a filter is used, as it is or negated."""
        return any(term.key == key for term in self.terms)

    def without(self, key: str) -> Search:
        """The same search without one filter."""
        return Search(tuple(term for term in self.terms if term.key != key))

    def plus(self, key: str, *values: str) -> Search:
        """The same search with these values of a filter as they are, each checked as `parse` does."""
        added = tuple(_checked(exact(key, value)) for value in values)
        if len(self.terms) + len(added) > TERMS:
            raise ConfigError(f"a search has at most {TERMS} terms")
        return Search(self.terms + added)


def exact(key: str, value: str) -> Term:
    """The term that finds this value and no other, also where there is a * in it."""
    return Term(key, value, quoted="*" in value)


def parse(text: str) -> Search:
    """Reads a search; the error says what cannot be meant, where it stands and what to write instead."""
    if len(text) > TEXT_CHARS:
        raise ConfigError(f"a search has at most {TEXT_CHARS:,} characters, not {len(text):,}")
    if found := _UNSAFE.search(text):
        raise ConfigError(f"{shown(found[0])} at character {found.start() + 1} cannot be searched for; leave it out")
    text = _BREAK.sub(" ", text)  # a term is on one line
    terms: list[Term] = []
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        word = _WORD.match(text, place)
        if word is None or text[word.end() : word.end() + 1] == '"':
            quote = text.index('"', place if word is None else word.end())
            raise ConfigError(
                f'the quote at character {quote + 1} is not closed; write " at its end, or \\" for a quote'
            )
        if len(terms) == TERMS:
            raise ConfigError(f"a search has at most {TERMS} terms; leave out what stands after character {place}")
        terms.append(_term(word[0], place))
        place = word.end()
    return Search(tuple(terms))


def _term(word: str, start: int) -> Term:
    end, negated = start + len(word), word.startswith("-")
    rest = word.removeprefix("-")
    if not rest:
        raise ConfigError(
            f"- at character {start + 1} stands alone; write it before a filter or a word, as in -state:failed"
        )
    colon = _colon(rest)
    if colon is None:
        value, quoted = _value(rest)
        return _checked(Term("text", value, ":", negated, quoted, start, end))
    key, written = _key(rest[:colon], start), rest[colon + 1 :]
    op: Op = ":"
    if (key in _COMPARED or key.startswith("args.")) and (found := _OP.match(written)):
        op = found[0]  # pyright: ignore[reportAssignmentType] - the pattern has no others
        written = written[found.end() :]
    value, quoted = _value(written)
    return _checked(Term(key, value, op, negated, quoted, start, end))


def _colon(word: str) -> int | None:
    """Where a filter's name ends; None: the word is text. A colon in quotes is text."""
    quote = word.find('"')
    colon = word.find(":")
    return None if colon < 0 or 0 <= quote < colon else colon


def _value(written: str) -> tuple[str, bool]:
    """A value without its quotes, and whether it had any."""
    bare = _QUOTED.sub(lambda found: re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL), written)
    return bare, '"' in written


def _key(written: str, start: int) -> str:
    head, _, path = written.partition(".")
    key = head.lower()
    if key == "args":
        steps = path.split(".")
        if not all(_STEP.fullmatch(step) for step in steps):
            raise ConfigError(
                f"{shown(f'{written}:')} at character {start + 1} names no argument; write args.NAME:VALUE, "
                "or args.NAME.KEY:VALUE for a part of it"
            )
        return f"args.{path}"
    if path or key not in KEYS:
        near = close_matches(key, KEYS)
        hint = f"did you mean {near[0]}:? " if near else ""
        raise ConfigError(
            f"{shown(f'{written}:')} at character {start + 1} is no filter; {hint}Filters are {', '.join(KEYS)}. "
            'Write text with a colon in quotes: "a: b"'
        )
    return key


def _checked(term: Term) -> Term:
    """The term, if it can be meant; an id in the form that is stored."""
    if not term.value:
        _refuse(term, "has no value")
    check = _CHECKS.get("args" if term.path else term.key)
    problem = check(term) if check else None
    if problem:
        _refuse(term, problem)
    if term.key == "attempt":
        return replace(term, value=str(int(term.value)))
    if term.key not in {"id", "worker", "workflow"}:
        return term
    stored = canonical_id(term.value) or (term.value.lower() if term.key == "id" else term.value)
    return replace(term, value=stored)


def _state_problem(term: Term) -> str | None:
    try:
        states_named(term.value)
    except ValueError as error:
        near = close_matches(term.value, State)
        return f"is no filter: {error}" + (f"; did you mean state:{near[0]}?" if near else "")
    return None


def _name_problem(term: Term) -> str | None:
    if len(term.value) > NAME_CHARS or not term.value.isprintable():
        return f"is no {term.key}'s name: a name is 1 to {NAME_CHARS} printable characters (and * for any text)"
    return None


def _key_problem(term: Term) -> str | None:
    if len(term.value) > KEY_CHARS:
        return f"is no key of a job: a key has 1 to {KEY_CHARS} characters (and * for any text)"
    return None


def _tag_problem(term: Term) -> str | None:
    if "*" in term.value[:-1]:
        return "has a * that is not at its end; a tag takes one only there"
    if not _TAG.fullmatch(term.value):
        return f"is no tag: a tag is 1 to {TAG_CHARS} of A-Z a-z 0-9 _ . : - (and * at its end for any text)"
    return None


def _attempt_problem(term: Term) -> str | None:
    if not re.fullmatch("[0-9]{1,10}", term.value):
        return "is no number of an attempt; write attempt:2, or attempt:>1"
    return f"is too large; the highest attempt is {ATTEMPT_MAX}" if int(term.value) > ATTEMPT_MAX else None


def _ran_problem(term: Term) -> str | None:
    if term.op == ":":
        return "needs a comparison; write ran:>30s, or ran:<1m"
    return None if duration_us(term.value) is not None else "is no duration; write ran:>500ms, ran:>30s, ran:<1h30m"


def _time_problem(term: Term) -> str | None:
    if instant_of(term, 0) is not None:
        return None
    return "is no time; write how long ago (30m, 1h, 7d; at most ten years), or 2026-11-15, 2026-11-15T08:00Z"


def _args_problem(term: Term) -> str | None:
    if term.op == ":":
        return None
    return f'cannot be compared: an argument is equal or not; write {term.key}:"{term.op}…" to look for that text'


def _is_part(pattern: str, why: str) -> Callable[[Term], str | None]:
    return lambda term: None if re.fullmatch(pattern, term.value) else why


_CHECKS: dict[str, Callable[[Term], str | None]] = {
    "state": _state_problem,
    "queue": _name_problem,
    "task": _name_problem,
    "tag": _tag_problem,
    "schedule": _name_problem,
    "reason": _is_part("|".join(Reason), f"is no reason; known are {', '.join(Reason)}"),
    "id": _is_part("[0-9a-fA-F-]{1,36}", "is no part of an id: an id has the characters 0-9 a-f and -"),
    "key": _key_problem,
    "error_key": _is_part("[0-9a-f]{16}", "is no key of an error: these have 16 of the characters 0-9 a-f"),
    "attempt": _attempt_problem,
    "ran": _ran_problem,
    "since": _time_problem,
    "until": _time_problem,
    "enqueued": _time_problem,
    "args": _args_problem,
}


def duration_us(text: str) -> int | None:
    """Microseconds of ``500ms``, ``90`` (seconds) or ``1h30m``, at most ten years; None: it is no duration."""
    text = text.lower()
    if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", text):
        us = float(text) * SECOND
    elif _DURATION.fullmatch(text):
        us = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    else:
        return None
    return round(us) if us <= DELAY_US else None


def instant_of(term: Term, now: int) -> int | None:
    """The instant that since:, until: or enqueued: names at a moment: how long ago, or a time. One without a zone is
    in UTC."""
    ago = duration_us(term.value)
    if ago is not None:
        return now - ago
    try:
        when = datetime.fromisoformat(term.value)
        return from_datetime(when if when.tzinfo else when.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def _refuse(term: Term, why: str) -> NoReturn:
    where = f" at character {term.start + 1}" if term.end else ""
    raise ConfigError(f"{shown(term.text())}{where} {why}")
