"""Every list, count and operator action, for the App and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.handle.job import cancel, retry
    from dray.ops.listing import (
        MAX_LIMIT,
        QueueInfo,
        Stats,
        StepInfo,
        WorkerInfo,
        WorkflowInfo,
        check_limit,
        job_filter,
        job_named,
        moment,
        queues,
        stats,
        workers,
        workflow,
        workflow_named,
        workflows,
    )
    from dray.ops.pruning import prune

__getattr__ = loader(
    __name__,
    {
        "dray.handle.job": "cancel retry",
        "dray.ops.pruning": "prune",
        "dray.ops.listing": """
            MAX_LIMIT check_limit job_filter job_named workflow_named
            QueueInfo Stats StepInfo WorkerInfo WorkflowInfo moment queues stats workers workflow workflows""",
    },
)

__all__ = [
    "MAX_LIMIT",
    "QueueInfo",
    "Stats",
    "StepInfo",
    "WorkerInfo",
    "WorkflowInfo",
    "cancel",
    "check_limit",
    "job_filter",
    "job_named",
    "moment",
    "prune",
    "queues",
    "retry",
    "stats",
    "workers",
    "workflow",
    "workflow_named",
    "workflows",
]
