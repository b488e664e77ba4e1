"""An App as its dashboard sees it: arguments of tasks whose code is not here are hidden, as the command line does.

Only the code says which arguments are secret. In the process that a dashboard is mounted in, users' own handles keep
showing them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from dray.sanitize import HIDDEN

if TYPE_CHECKING:
    from dray.app_interface import AppCore


def hiding(core: AppCore) -> AppCore:
    return cast("AppCore", _Hiding(core))


class _Hiding:
    """All of an AppCore, but for what is shown of arguments."""

    def __init__(self, core: AppCore) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def shown_args(self, task: str, args: Mapping[str, Any]) -> dict[str, Any]:
        return self._core.shown_args(task, args) if task in self._core.registry else dict.fromkeys(args, HIDDEN)
