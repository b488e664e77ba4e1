"""Prometheus's text format (0.0.4), written by hand, and the metrics that there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from dray.instants import SECOND
from dray.model.rollup import THRESHOLDS

# Name -> type and help. What is in `deploy/grafana.json` and the documentation is checked against it.
METRICS = {
    "dray_up": ("gauge", "Whether the database could be read for this scrape."),
    "dray_jobs": ("gauge", "Jobs by state. Queued and running are counted up to 100000, other states up to 10000."),
    "dray_queue_jobs": ("gauge", "Queued and running jobs of a queue, counted up to 100000."),
    "dray_queue_oldest_ready_seconds": (
        "gauge",
        "How long a queue's oldest ready job has waited; 0: none does.",
    ),
    "dray_queue_paused": ("gauge", "Whether a queue is paused."),
    "dray_workers": ("gauge", "Live workers by state."),
    "dray_slots": ("gauge", "Jobs that all live workers can run at the same time."),
    "dray_slots_busy": ("gauge", "Jobs that run, in all workers."),
    "dray_duty_held": ("gauge", "Whether a live worker has a duty."),
    "dray_queue_finished_total": ("counter", "Jobs of a queue that ended, by outcome, in whole minutes."),
    "dray_task_finished_total": ("counter", "Jobs of a task that ended, by outcome, in whole minutes."),
    "dray_queue_wait_seconds": ("histogram", "How long jobs of a queue waited; without those that ran after others."),
    "dray_queue_run_seconds": ("histogram", "How long jobs of a queue ran, in their last attempt."),
    "dray_task_run_seconds": ("histogram", "How long jobs of a task ran, in their last attempt."),
    "dray_worker_slots": ("gauge", "Jobs that this worker can run at the same time."),
    "dray_worker_busy": ("gauge", "Jobs that run in this worker."),
    "dray_worker_healthy": ("gauge", "Whether this worker can claim, run and write, as /health says."),
    "dray_worker_ready": ("gauge", "Whether this worker claims jobs, as /ready says."),
    "dray_worker_attempts_total": ("counter", "Attempts that this worker has ended, by queue and how they ended."),
    "dray_worker_processes": ("gauge", "Worker processes that run here."),
}

Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]


def family(name: str, samples: Iterable[Sample]) -> str:
    """One metric with all its samples; nothing if there are none."""
    lines = [f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples]
    return "".join((_head(name), *lines)) if lines else ""


def histogram(name: str, label: str, counted: Mapping[str, Sequence[int]]) -> str:
    """Without the sum of all times, which rollups do not know. A time that is exactly a bound counts above it."""
    lines: list[str] = []
    for value, counts in sorted(counted.items()):
        bounds = [*(_number(each / SECOND) for each in THRESHOLDS), "+Inf"]
        for bound, number in zip(bounds, accumulate(counts), strict=True):
            lines.append(f"{name}_bucket{_labels(((label, value), ('le', bound)))} {number}\n")
        lines.append(f"{name}_count{_labels(((label, value),))} {sum(counts)}\n")
    return "".join((_head(name), *lines)) if lines else ""


def _head(name: str) -> str:
    kind, words = METRICS[name]
    return f"# HELP {name} {words}\n# TYPE {name} {kind}\n"


def by(label: str, values: Mapping[str, float]) -> list[Sample]:
    return [(((label, name),), value) for name, value in sorted(values.items())]


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    number = float(value)
    return str(int(number)) if number.is_integer() else repr(number)
