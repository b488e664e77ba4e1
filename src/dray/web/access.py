"""Who may do what: the three roles, and what `access=` may return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from dray.errors import ConfigError
from dray.model.values import check_name, shown

Role = Literal["viewer", "operator", "admin"]
_RANKS: dict[str, int] = {role: rank for rank, role in enumerate(get_args(Role))}

# What each verb takes at least: those of `dray_actions`, and to ask a worker where a body is.
_LEAST: dict[str, Role] = {
    "retry": "operator",
    "cancel": "operator",
    "pause": "operator",
    "resume": "operator",
    "run": "operator",
    "ask": "operator",
    "delete": "admin",
    "remove": "admin",
    "enqueue": "admin",
    "prune": "admin",
    "reveal": "admin",
}
OPERATORS_BULK = 1_000  # jobs that an operator may act on at once


@dataclass(frozen=True, slots=True)
class Access:
    """One visitor's rights. `user` is written with each action. `queues`: only jobs of these are shown; None: all.

    Example:

        >>> dray.Access("operator", user="ann", queues=["mail"]).role
        'operator'
    """

    role: Role
    user: str = ""
    queues: frozenset[str] | None = None

    def __init__(self, role: Role, user: str = "", queues: Iterable[str] | None = None) -> None:
        if role not in _RANKS:
            raise ConfigError(f"role must be one of {', '.join(_RANKS)}, not {shown(role)}")
        if not isinstance(user, str):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass
            raise TypeError(f"user must be a string, not {type(user).__name__}")
        if isinstance(queues, str):
            raise TypeError("queues must be several names, not one string: queues=['mail']")
        object.__setattr__(self, "role", role)
        object.__setattr__(self, "user", user)
        seen = None if queues is None else frozenset(check_name("queue", each) for each in queues)
        object.__setattr__(self, "queues", seen)

    def may(self, verb: str) -> bool:
        """Whether the role allows an action: ``dray.Access("viewer").may("cancel")  # False``."""
        return _RANKS[self.role] >= _RANKS[_LEAST[verb]]

    def sees(self, queue: str) -> bool:
        """Whether jobs of a queue are shown: ``dray.Access("viewer", queues=["mail"]).sees("slow")  # False``."""
        return self.queues is None or queue in self.queues


Granted: TypeAlias = Access | Role | None
AccessRule: TypeAlias = Callable[[Any], Granted | Awaitable[Granted]]


def granted(answer: object) -> Access | None:
    """What an access rule has returned, checked: anything but a role, an Access or None is an error, not a right."""
    if answer is None or isinstance(answer, Access):
        return answer
    if isinstance(answer, str) and answer in _RANKS:
        return Access(answer)  # pyright: ignore[reportArgumentType] - it is one of the roles
    raise ConfigError(
        f"access= returned {shown(answer)}; return 'viewer', 'operator', 'admin', dray.Access(…), or None to refuse"
    )
