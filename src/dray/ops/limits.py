"""Limits of tasks and queues: what is in force, who said so, and how much of it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dray.model.limit import RATE_KINDS, Bounds, Kind, Source, StoredRule, said_by

if TYPE_CHECKING:
    from dray.backends.base import Backend
    from dray.backends.store.limits import Use


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """The limits of one task or queue."""

    scope: str  # task or queue
    name: str
    limit: int | None  # in force, as the next three; None: any number
    rate: tuple[str, ...]  # as "10/s"; empty: any number
    key_limit: int | None
    key_rate: tuple[str, ...]
    declared: dict[str, Any]  # what code says, by option
    override: dict[str, Any]  # what an operator says, which wins; None lifts what code says
    running: int  # jobs of it at this moment
    started: dict[str, int]  # rate -> attempts that started within its period

    def words(self) -> str:
        """What is in force, on one line: ``limit 5, rate 10/s, key_limit 1``; empty: nothing."""
        in_force = {kind: getattr(self, kind) for kind in Kind}
        return _words({kind: value for kind, value in in_force.items() if value is not None and value != ()})


def limits(backend: Backend) -> list[LimitInfo]:
    """Those of queues, then those of tasks, by name."""
    use = backend.limits.use()
    by_name = groupby(use.rules, lambda rule: (rule.scope, rule.name))
    return [_info(use, scope, name, list(rules)) for (scope, name), rules in by_name]


def _info(use: Use, scope: str, name: str, rules: list[StoredRule]) -> LimitInfo:
    in_force: dict[Kind, list[StoredRule]] = {kind: [] for kind in Kind}
    for rule in rules:
        if rule.in_force:
            in_force[Kind(rule.kind)].append(rule)
    shown = {kind: tuple(str(rule.bound) for rule in some) for kind, some in in_force.items()}
    return LimitInfo(
        scope,
        name,
        limit=_most(in_force[Kind.LIMIT]),
        rate=shown[Kind.RATE],
        key_limit=_most(in_force[Kind.KEY_LIMIT]),
        key_rate=shown[Kind.KEY_RATE],
        declared=options_of(said_by(rules, Source.DECLARED)),
        override=options_of(said_by(rules, Source.OVERRIDE)),
        running=use.running.get((scope, name), 0),
        started={str(rule.bound): use.started.get((scope, name, rule.period_us), 0) for rule in in_force[Kind.RATE]},
    )


def _most(rules: Iterable[StoredRule]) -> int | None:
    return next((rule.most for rule in rules), None)


def options_of(bounds: Bounds) -> dict[str, Any]:
    """Bounds as the options that name them; None: lifted."""
    return {kind.value: _option(kind, some) if (some := bounds[kind]) else None for kind in Kind if kind in bounds}


def _option(kind: Kind, some: Iterable[Any]) -> int | list[str]:
    return [str(bound) for bound in some] if kind in RATE_KINDS else next(iter(some)).most


def in_words(bounds: Bounds) -> str:
    """Bounds on one line: ``limit 5, rate 10/s and 1000/day, key_limit none``."""
    return _words(options_of(bounds))


def _words(options: Mapping[Any, Any]) -> str:
    return ", ".join(f"{kind} {_word(value)}" for kind, value in options.items())


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return str(value) if isinstance(value, int) else " and ".join(value)
