"""The nouns of the storage contract, written once for every database, each loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.backends.store.audit import Audit
    from dray.backends.store.block import Fence, Transaction, atransaction
    from dray.backends.store.doctor import Examination
    from dray.backends.store.graph import Graph
    from dray.backends.store.history import History
    from dray.backends.store.jobs import Jobs, Queues
    from dray.backends.store.live import Live
    from dray.backends.store.outcomes import Outcomes
    from dray.backends.store.schedules import Schedules
    from dray.backends.store.transfer import Transfer
    from dray.backends.store.why import Stacks, Why
    from dray.backends.store.work import Work
    from dray.backends.store.workers import Leases, Workers
    from dray.backends.store.workflows import Workflows

__all__ = [
    "Audit",
    "Examination",
    "Fence",
    "Graph",
    "History",
    "Jobs",
    "Leases",
    "Live",
    "Outcomes",
    "Queues",
    "Schedules",
    "Stacks",
    "Transaction",
    "Transfer",
    "Why",
    "Work",
    "Workers",
    "Workflows",
    "atransaction",
]

__getattr__ = loader(
    __name__,
    {
        "dray.backends.store.audit": "Audit",
        "dray.backends.store.block": "Fence Transaction atransaction",
        "dray.backends.store.doctor": "Examination",
        "dray.backends.store.graph": "Graph",
        "dray.backends.store.history": "History",
        "dray.backends.store.jobs": "Jobs Queues",
        "dray.backends.store.live": "Live",
        "dray.backends.store.outcomes": "Outcomes",
        "dray.backends.store.schedules": "Schedules",
        "dray.backends.store.transfer": "Transfer",
        "dray.backends.store.why": "Stacks Why",
        "dray.backends.store.work": "Work",
        "dray.backends.store.workers": "Leases Workers",
        "dray.backends.store.workflows": "Workflows",
    },
)
