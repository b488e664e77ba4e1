"""How long a failed job waits before its next attempt.

A policy maps the number of the attempt that just failed (1 is the first) to seconds. Jitter only ever adds,
so nothing is retried sooner than its policy says. `delay_us` is the one way from a policy to a delay: it
checks what a user's own function returns before it can reach a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from dray.errors import ConfigError
from dray.instants import SECOND
from dray.model.bounds import DELAY_US
from dray.model.values import shown

if TYPE_CHECKING:
    from dray.model.settlement import Rng

MAX_SECONDS = DELAY_US // SECOND


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same wait before every attempt."""

    seconds: float

    def __call__(self, attempt: int) -> float:  # noqa: ARG002 - a policy is called with the attempt
        return self.seconds


@dataclass(frozen=True, slots=True)
class Linear:
    """A wait that grows by the same step with each attempt, up to a cap."""

    seconds: float
    cap: float

    def __call__(self, attempt: int) -> float:
        return min(self.cap, self.seconds * attempt)


@dataclass(frozen=True, slots=True)
class Exponential:
    """A wait of base, base², base³ … seconds up to a cap; `delay_us` adds up to `jitter` times as much."""

    base: float
    cap: float
    jitter: float

    def __call__(self, attempt: int) -> float:
        # In logarithms, because the power itself overflows a float at about the 1,000th attempt.
        if attempt * math.log(self.base) >= math.log(self.cap):
            return self.cap
        return min(self.cap, self.base**attempt)


Policy: TypeAlias = Fixed | Linear | Exponential | float | Callable[[int], float]


def fixed(seconds: float) -> Fixed:
    """Wait `seconds` before every attempt.

    Example:

        >>> [dray.fixed(5)(attempt) for attempt in (1, 2, 3)]
        [5, 5, 5]
    """
    return Fixed(_checked("fixed", "seconds", seconds))


def linear(seconds: float, cap: float = 3600) -> Linear:
    """Wait `seconds`, twice that, three times that …, at most `cap` seconds.

    Example:

        >>> [dray.linear(30)(attempt) for attempt in (1, 2, 3)]
        [30, 60, 90]
    """
    return Linear(_checked("linear", "seconds", seconds), _checked("linear", "cap", cap))


def exponential(base: float = 2, cap: float = 3600, jitter: float = 1.0) -> Exponential:
    """Wait `base`, `base²`, `base³` … seconds, at most `cap`; then by chance up to `jitter` times as much.

    Example:

        >>> [dray.exponential()(attempt) for attempt in (1, 2, 3, 12)]  # a worker adds the jitter
        [2, 4, 8, 3600]
    """
    return Exponential(
        _checked("exponential", "base", base, low=1),
        _checked("exponential", "cap", cap, low=0.001),
        _checked("exponential", "jitter", jitter, high=1),
    )


DEFAULT = Exponential(base=2, cap=3600, jitter=1.0)


def delay_us(policy: Policy, attempt: int, rng: Rng) -> int:
    """Microseconds to wait after the given attempt failed; a user's function may raise what it likes."""
    given = policy(attempt) if callable(policy) else policy
    is_ours = isinstance(policy, Fixed | Linear | Exponential | int | float)
    name = shown(policy) if is_ours else getattr(policy, "__qualname__", type(policy).__name__)
    seconds = _checked("retry", f"{name} for attempt {attempt}", given)
    if isinstance(policy, Exponential):
        seconds += rng.random() * policy.jitter * seconds
    return round(min(seconds, MAX_SECONDS) * SECOND)


def _checked(what: str, name: str, value: object, low: float = 0, high: float = MAX_SECONDS) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{what}: {name} must be a number, not {type(value).__name__}")
    if not low <= value <= high:  # also false for nan
        raise ConfigError(f"{what}: {name} must be between {low:g} and {high}, not {shown(value)}")
    return value
