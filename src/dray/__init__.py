"""Dray: a durable job queue that lives in your database.

    import dray

    app = dray.App("sqlite:///jobs.db")

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(1, 2)

Names are loaded when they are first used, so that ``import dray`` costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dray.app import App as App
    from dray.errors import *  # noqa: F403 - all of them are public
    from dray.handle.job import Job as Job
    from dray.handle.run import Run as Run
    from dray.job_control import Cancel as Cancel
    from dray.job_control import Fail as Fail
    from dray.job_control import Retry as Retry
    from dray.job_control import Snooze as Snooze
    from dray.job_control import Steering as Steering
    from dray.model.retry import exponential as exponential
    from dray.model.retry import fixed as fixed
    from dray.model.retry import linear as linear
    from dray.runtime.context import Context as Context
    from dray.task.task import Task as Task
    from dray.web.access import Access as Access
    from dray.web.dashboard import dashboard as dashboard
    from dray.workflow import Workflow as Workflow

__version__ = "0.1.0"

_PLACES = {
    "dray.app": "App",
    "dray.errors": """
        ConfigError DatabaseClosed DrayError FileMissing ForkedConnection GraphError InvalidName JobCancelled JobEnded
        JobFailed Misfit MoveError PayloadError PayloadTooLarge ProcessDied SchemaMissing SchemaTooNew StaleClaim
        StorageDamaged StorageError StorageFull StorageLocked StorageUnavailable Timeout UnknownJob UnknownSchedule
        UnknownTask UnknownWorkflow Unstorable WorkerDied""",
    "dray.workflow": "Workflow",
    "dray.handle.job": "Job",
    "dray.handle.run": "Run",
    "dray.model.retry": "exponential fixed linear",
    "dray.runtime.context": "Context",
    "dray.job_control": "Cancel Fail Retry Snooze Steering",
    "dray.task.task": "Task",
    "dray.web.access": "Access",
    "dray.web.dashboard": "dashboard",
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll] - the names of the table above


_WINDOWS = "Dray does not run on Windows yet: use WSL 2, a container, Linux or macOS"


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dray' has no attribute {name!r}")
    if sys.platform == "win32":  # the modules below need what only POSIX has, and would fail to say so
        raise ImportError(_WINDOWS)
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
