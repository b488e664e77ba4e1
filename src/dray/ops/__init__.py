"""Every list, count and operator action, for the App and the command line.

The names that an App uses are loaded when it uses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.ops.listing import QueueInfo, Stats, WorkerInfo, check_limit, job_filter, queues, stats, workers
    from dray.ops.pruning import prune

__getattr__ = loader(
    __name__,
    {
        "dray.ops.listing": "QueueInfo Stats WorkerInfo check_limit job_filter queues stats workers",
        "dray.ops.pruning": "prune",
    },
)

__all__ = ["QueueInfo", "Stats", "WorkerInfo", "check_limit", "job_filter", "prune", "queues", "stats", "workers"]
