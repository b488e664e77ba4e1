"""How many more jobs may start now under each rule of a queue and its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from dray.backends.database import Later, Row, Session
from dray.model.job import Claim
from dray.model.limit import KEY_KINDS, RATE_KINDS, Kind, Rule, opens_at


class Candidate(NamedTuple):
    """A job that could start, before the jobs that rank after it."""

    rank: tuple[int, int, str]  # its priority, negated; its time; its id
    task: str
    key: str | None
    has_wrapped: bool = False  # it was found after the claim had begun with the first key again

    @property
    def id(self) -> str:
        return self.rank[2]


class _Scopes(NamedTuple):
    """Whose rules count the jobs of a task in a queue: those of the task, of the queue, of both or of none."""

    together: list[tuple[str, str]]  # scope and name of rules for all jobs
    by_key: list[tuple[str, str]]  # and of those for each key
    key_locks: list[str]  # what the names of the latter's locks begin with; a key follows


@dataclass
class Rooms:
    """How many more jobs may start now under each rule of a queue and its tasks."""

    queue: str
    rules: Sequence[Rule]
    free: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    by_key: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict[tuple[str, str], dict[str, int]])
    opens_at: int | None = None  # the earliest time at which a rate lets something start

    def __post_init__(self) -> None:
        self._scopes = cache(self._find_scopes)  # asked several times for each job of a claim

    def count(self, tx: Session) -> Later[None]:
        """Asks what runs and what has started; what is returned notes it, and forgets what was noted before."""
        has_limits = any(rule.kind == Kind.LIMIT for rule in self.rules)
        held: Later[list[Row]] = tx.later("held_counts") if has_limits else list[Row]
        started = [
            (rule, tx.later("starts_list", scope=rule.scope, name=rule.name, period_us=rule.period_us, key=""))
            for rule in self.rules
            if rule.kind == Kind.RATE
        ]

        def note() -> None:
            self.free.clear()
            self.by_key.clear()
            running: Counter[tuple[str, str]] = Counter()
            for task, queue, n in held():
                running["task", task] += n
                running["queue", queue] += n
            for rule in self.rules:
                if rule.kind == Kind.LIMIT:
                    self._bound(rule, rule.most - running[rule.scope, rule.name])
            for rule, rows in started:
                self._note_starts(rule, rows())

        return note

    def _note_starts(self, rule: Rule, starts: list[Row]) -> None:
        self._bound(rule, rule.most - sum(n for _, n in starts))
        at = opens_at(starts, rule.most, rule.period_us)
        if at is not None:
            self.opens_at = at if self.opens_at is None else min(at, self.opens_at)

    def _bound(self, rule: Rule, room: int) -> None:
        scope = rule.scope, rule.name
        self.free[scope] = min(room, self.free.get(scope, room))

    def key_rules(self, task: str) -> dict[str, int | bool | None]:
        """What the jobs of each key are limited to, as the statements take it."""
        given: dict[str, int | bool | None] = {}
        for scope, name in (("task", task), ("queue", self.queue)):
            rules = [rule for rule in self.rules if (rule.scope, rule.name) == (scope, name)]
            given[f"{scope}_key_limit"] = next((rule.most for rule in rules if rule.kind == Kind.KEY_LIMIT), None)
            given[f"{scope}_has_key_rate"] = any(rule.kind == Kind.KEY_RATE for rule in rules)
        return given

    def note_keys(self, task: str, rows: Iterable[Row]) -> None:
        """What was read of keys: each with its room by the task's rules and by the queue's. What this claim has taken
        of them since is not forgotten."""
        for scope in self._scopes(task).by_key:
            rooms, column = self.by_key.setdefault(scope, {}), 1 if scope[0] == "task" else 2
            for row in rows:
                rooms.setdefault(row[0], row[column])

    def is_closed(self, task: str) -> bool:
        """Whether no job of a task may start, whatever its key."""
        return bool(self.free) and self.room(task, 1) <= 0

    def room(self, task: str, most: int) -> int:
        """How many of `most` jobs of a task may start, whatever their keys."""
        return max(0, min(most, self.free.get(("task", task), most), self.free.get(("queue", self.queue), most)))

    def fits(self, each: Candidate) -> bool:
        """Whether there is room for a job."""
        for scope in self._scopes(each.task).together:
            if self.free[scope] <= 0:
                return False
        if each.key is not None:
            for scope in self._scopes(each.task).by_key:
                if self.by_key[scope][each.key] <= 0:
                    return False
        return True

    def admit(self, each: Candidate) -> bool:
        """Takes the room that a job needs, if there is as much."""
        for scope in self._scopes(each.task).together:
            if self.free[scope] <= 0:
                return False
        if not self.admit_key(each):
            return False
        for scope in self._scopes(each.task).together:
            self.free[scope] -= 1
        return True

    def admit_key(self, each: Candidate) -> bool:
        """Takes the room that a job needs of its key, if there is as much."""
        if each.key is not None:
            by_key = self._scopes(each.task).by_key
            for scope in by_key:
                if self.by_key[scope][each.key] <= 0:
                    return False
            for scope in by_key:
                self.by_key[scope][each.key] -= 1
        return True

    def _find_scopes(self, task: str) -> _Scopes:
        both = ("task", task), ("queue", self.queue)
        rules = [rule for rule in self.rules if (rule.scope, rule.name) in both]
        by_key = sorted({(rule.scope, rule.name) for rule in rules if rule.kind in KEY_KINDS})
        together = sorted({(rule.scope, rule.name) for rule in rules if rule.kind not in KEY_KINDS})
        return _Scopes(together, by_key, [f"{scope}:{name}:" for scope, name in by_key])

    def is_limited(self, task: str) -> bool:
        """Whether a rule counts the jobs of a task."""
        scopes = self._scopes(task)
        return bool(scopes.together or scopes.by_key)

    def spans_queues(self, task: str) -> bool:
        """Whether jobs of a task count for a limit that holds in other queues too."""
        scopes = self._scopes(task)
        return ("task", task) in scopes.together or ("task", task) in scopes.by_key

    def locks(self, task: str) -> list[str]:
        """The names of what has to be counted under a lock for all jobs of a task together."""
        return [f"{scope}:{name}" for scope, name in self._scopes(task).together]

    def key_locks(self, each: Candidate) -> list[str]:
        """And of what has to be for the key of this job."""
        key = each.key
        return [] if key is None else [lock + key for lock in self._scopes(each.task).key_locks]

    def starts(self, claims: Iterable[Claim]) -> list[tuple[str, str, str, int, int]]:
        """What these claims spend: scope, name, key, period and number, as `starts_add` takes them."""
        spent = Counter(
            (rule.scope, rule.name, "" if rule.kind == Kind.RATE else claim.key or "", rule.period_us)
            for claim in claims
            for rule in self.rates(claim)
        )
        return [(*what, n) for what, n in sorted(spent.items())]

    def rates(self, claim: Claim) -> list[Rule]:
        """The rates that the start of this job counts for."""
        scopes = {("task", claim.task), ("queue", self.queue)}
        kinds = {Kind.RATE} if claim.key is None else RATE_KINDS
        return [rule for rule in self.rules if rule.kind in kinds and (rule.scope, rule.name) in scopes]
