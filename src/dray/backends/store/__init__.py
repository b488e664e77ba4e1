"""The nouns of the storage contract, written once for every database, each loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.backends.store.block import Fence, TransactionBlock, atransaction
    from dray.backends.store.doctor import AuditStore, Examination
    from dray.backends.store.graph import GraphStore
    from dray.backends.store.history import HistoryStore
    from dray.backends.store.jobs import JobStore, QueueStore, WorkflowStore
    from dray.backends.store.live import LiveStore
    from dray.backends.store.outcomes import OutcomeStore
    from dray.backends.store.schedules import ScheduleStore
    from dray.backends.store.transfer import Transfer
    from dray.backends.store.why import StackStore, WhyStore
    from dray.backends.store.work import WorkStore
    from dray.backends.store.workers import LeaseStore, WorkerStore

__all__ = [
    "AuditStore",
    "Examination",
    "Fence",
    "GraphStore",
    "HistoryStore",
    "JobStore",
    "LeaseStore",
    "LiveStore",
    "OutcomeStore",
    "QueueStore",
    "ScheduleStore",
    "StackStore",
    "TransactionBlock",
    "Transfer",
    "WhyStore",
    "WorkStore",
    "WorkerStore",
    "WorkflowStore",
    "atransaction",
]

__getattr__ = loader(
    __name__,
    {
        "dray.backends.store.block": "Fence TransactionBlock atransaction",
        "dray.backends.store.doctor": "AuditStore Examination",
        "dray.backends.store.graph": "GraphStore",
        "dray.backends.store.history": "HistoryStore",
        "dray.backends.store.jobs": "JobStore QueueStore WorkflowStore",
        "dray.backends.store.live": "LiveStore",
        "dray.backends.store.outcomes": "OutcomeStore",
        "dray.backends.store.schedules": "ScheduleStore",
        "dray.backends.store.transfer": "Transfer",
        "dray.backends.store.why": "StackStore WhyStore",
        "dray.backends.store.work": "WorkStore",
        "dray.backends.store.workers": "LeaseStore WorkerStore",
    },
)
