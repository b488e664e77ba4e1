"""The retry options of one job: a policy, and the exception types that are retried, stored as names.

No type is imported by its name: a name is compared with those of the classes that the raised error is an instance of.
A row is data and may say anything; what cannot be read is as if it were not there.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, astuple
from typing import Any, NamedTuple

from dray.errors import ConfigError
from dray.model.bounds import RETRY_ON
from dray.model.retry import Exponential, Fixed, Linear, Policy, exponential, fixed, linear

_MAKERS = {"fixed": fixed, "linear": linear, "exponential": exponential}
_NAMES: dict[type, str] = {Fixed: "fixed", Linear: "linear", Exponential: "exponential"}
_NAME_CHARS = 300  # of an exception type


class JobRetry(NamedTuple):
    policy: Policy | None  # None: the task's
    names: frozenset[str]  # of the exception types that are retried; empty: as the task says


NO_RETRY = JobRetry(None, frozenset())


def policy_text(policy: Policy) -> str:
    """A stored policy as one would write it."""
    if not isinstance(policy, Fixed | Linear | Exponential):
        return str(policy)
    return f"{_NAMES[type(policy)]}({', '.join(f'{name}={value:g}' for name, value in asdict(policy).items())})"


def encode_retry(policy: Fixed | Linear | Exponential | None, names: Collection[str]) -> str | None:
    """The options as a row holds them; None: there are none."""
    if len(names) > RETRY_ON:
        raise ConfigError(f"retry_on: at most {RETRY_ON} exception types, not {len(names)}; name a base class")
    long = next((name for name in names if len(name) > _NAME_CHARS), None)
    if long is not None:
        raise ConfigError(f"retry_on: {long[:40]}… is longer than {_NAME_CHARS} characters; name a base class of it")
    said: dict[str, Any] = {}
    if policy is not None:
        said["policy"] = [_NAMES[type(policy)], *astuple(policy)]
    if names:
        said["on"] = sorted(names)
    return json.dumps(said, separators=(",", ":")) if said else None


def decode_retry(text: str | None) -> JobRetry:
    if text is None:
        return NO_RETRY
    try:
        said: Any = json.loads(text)
        given, names = said.get("policy"), said.get("on", [])
        policy = None if given is None else _MAKERS[given[0]](*given[1:])
        return JobRetry(policy, frozenset(map(str, names)))
    except (ValueError, TypeError, KeyError, LookupError, AttributeError, RecursionError):
        return NO_RETRY
