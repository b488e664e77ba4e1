"""Limits of tasks and queues: what is in force, who said so, and how much of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dray.model import limit as model
from dray.model.limit import RATE_KINDS, Bound, Bounds, Kind, Scope, Source, StoredRule, said_by

if TYPE_CHECKING:
    from dray.backends.base import Backend
    from dray.backends.store.limits import Use


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """The limits of one task or queue.

    Example:

        >>> queue = app.queue("api", limit=2)
        >>> info = app.limits()[0]
        >>> info.scope, info.name, info.limit, info.running
        ('queue', 'api', 2, 0)
    """

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


def limits(backend: Backend) -> list[LimitInfo]:
    """Those of queues, then those of tasks, by name."""
    use = backend.limits.use()
    by_name = groupby(use.rules, lambda rule: (rule.scope, rule.name))
    return [_info(use, scope, name, list(rules)) for (scope, name), rules in by_name]


def _info(use: Use, scope: str, name: str, rules: list[StoredRule]) -> LimitInfo:
    counting = model.in_force(rules)
    rates = counting.get(Kind.RATE, ())
    return LimitInfo(
        scope,
        name,
        limit=_most(counting, Kind.LIMIT),
        rate=tuple(map(str, rates)),
        key_limit=_most(counting, Kind.KEY_LIMIT),
        key_rate=tuple(map(str, counting.get(Kind.KEY_RATE, ()))),
        declared=options_of(said_by(rules, Source.DECLARED)),
        override=options_of(said_by(rules, Source.OVERRIDE)),
        running=use.running.get((scope, name), 0),
        started={str(rate): use.started.get((scope, name, rate.period_us), 0) for rate in rates},
    )


def _most(bounds: Bounds, kind: Kind) -> int | None:
    return next((bound.most for bound in bounds.get(kind, ())), None)


def in_force(backend: Backend, scope: Scope) -> dict[str, dict[str, Any]]:
    """The options in force, by the names of queues or of tasks; in one read."""
    counting = [rule for rule in backend.limits.all() if rule.scope == scope and rule.in_force]
    by_name = groupby(counting, lambda rule: rule.name)
    return {name: options_of(model.in_force(rules)) for name, rules in by_name}


def options_of(bounds: Bounds) -> dict[str, Any]:
    """Bounds as the options that name them; None: lifted."""
    return {kind.value: _option(kind, bounds[kind]) for kind in Kind if kind in bounds}


def _option(kind: Kind, some: tuple[Bound, ...]) -> int | list[str] | None:
    if not some:
        return None
    return [str(bound) for bound in some] if kind in RATE_KINDS else some[0].most


def in_words(bounds: Bounds) -> str:
    """Bounds on one line: ``limit 5, rate 10/s and 1000/day, key_limit none``."""
    return words(options_of(bounds))


def words(options: Mapping[str, Any] | None) -> str:
    """Options on one line; empty: none."""
    return "" if options is None else ", ".join(f"{name} {_word(value)}" for name, value in options.items())


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return str(value) if isinstance(value, int) else " and ".join(value)
