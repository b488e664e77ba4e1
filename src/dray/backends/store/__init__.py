"""The verbs of the storage contract, one file a noun, written once for every database; loaded when they are used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.backends.store import (
        audit,
        block,
        circumstances,
        doctor,
        graph,
        history,
        jobs,
        live,
        outcomes,
        prune,
        queues,
        schedules,
        stacks,
        transfer,
        unique,
        work,
        workers,
        workflows,
    )

__all__ = [
    "audit",
    "block",
    "circumstances",
    "doctor",
    "graph",
    "history",
    "jobs",
    "live",
    "outcomes",
    "prune",
    "queues",
    "schedules",
    "stacks",
    "transfer",
    "unique",
    "work",
    "workers",
    "workflows",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
