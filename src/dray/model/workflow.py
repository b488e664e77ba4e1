"""Workflows: graphs of jobs, and what the jobs of one add up to.

A graph is checked before a row of it is written, so every stored graph can run to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Literal, NamedTuple, TypeAlias, cast

from dray.errors import GraphError
from dray.model.job import FINAL, State
from dray.model.values import shown

OnParentFailure: TypeAlias = Literal["cancel", "run", "hold"]  # `ParentPolicy`, as people write it
RunState: TypeAlias = Literal["running", "waiting", "failed", "cancelled", "completed"]

_CYCLE_SHOWN = 10
_NOT_DONE = (State.WAITING, State.FAILED, State.CANCELLED)


class ParentPolicy(StrEnum):
    """What becomes of a job when one of its parents failed or was cancelled."""

    CANCEL = "cancel"  # it is cancelled too, and so are its own children
    RUN = "run"  # it runs as if the parent had completed
    HOLD = "hold"  # it stays waiting until the parent is retried, or the job is cancelled


@dataclass(frozen=True, slots=True)
class Workflow:
    """One row of the table: a graph that was enqueued."""

    id: str
    name: str
    created_at: int


class Tally(NamedTuple):
    """The steps of a workflow by state; of these, those that failed or were cancelled and that every child tolerates:
    it has one at least in the workflow, and all run however their parents ended."""

    counts: dict[str, int]
    tolerated: dict[str, int]


def workflow_state(tally: Tally) -> RunState:
    """One word for the whole: live before failed before cancelled before completed. What is tolerated does not count.

    With nothing but waiting jobs left it is `waiting`: they are held, and nothing will move by itself.
    """
    present = {state for state, count in tally.counts.items() if count > tally.tolerated.get(state, 0)}
    if present - FINAL - {State.WAITING}:
        return "running"
    return cast("RunState", next((state for state in _NOT_DONE if state in present), State.COMPLETED))


class Done(NamedTuple):
    """How far a workflow is: steps that have ended, and steps in all."""

    done: int
    total: int


def done_of(counts: Mapping[str, int]) -> Done:
    return Done(sum(counts.get(state, 0) for state in FINAL), sum(counts.values()))


class Edge(Enum):
    """What a parent's state means for one of its children."""

    OPEN = "open"  # the parent has not ended
    FREE = "free"  # the child need not wait for it any more
    CANCEL = "cancel"
    HOLD = "hold"

    @property
    def satisfied(self) -> int:
        """As it is stored: 0 the parent has not ended, 1 nothing to wait for, -1 it ended otherwise."""
        return _SATISFIED[self]


_SATISFIED = {Edge.OPEN: 0, Edge.FREE: 1, Edge.CANCEL: -1, Edge.HOLD: -1}
_AFTER_FAILURE: dict[str, Edge] = {ParentPolicy.CANCEL: Edge.CANCEL, ParentPolicy.RUN: Edge.FREE}


def decide_edge(parent_state: str, policy: str) -> Edge:
    """What a parent in this state means for a child with this policy."""
    if parent_state not in FINAL:
        return Edge.OPEN
    if parent_state == State.COMPLETED:
        return Edge.FREE
    # A policy that only a newer release knows: hold, because nothing that is held is lost.
    return _AFTER_FAILURE.get(policy, Edge.HOLD)


def order(steps: Mapping[str, Sequence[str]]) -> list[str]:
    """The steps with parents before children, otherwise in the order given; `GraphError` if there is none.

    `steps` maps each step to its parents. A graph already in a good order comes back unchanged.
    """
    ordered: list[str] = []
    done: set[str] = set()
    for root in steps:
        if root not in done:
            _visit(root, steps, done, ordered)
    return ordered


def _visit(root: str, steps: Mapping[str, Sequence[str]], done: set[str], ordered: list[str]) -> None:
    # A depth-first walk with its own stack: a chain of 100,000 steps would exhaust Python's. `path` is the
    # way from the root to the step in hand, each with the parents it has still to look at.
    path: dict[str, Iterator[str]] = {root: iter(steps[root])}
    while path:
        step = next(reversed(path))
        parent = next((each for each in path[step] if each not in done), None)
        if parent is None:
            path.popitem()
            done.add(step)
            ordered.append(step)
        else:
            _check(step, parent, steps, path)
            path[parent] = iter(steps[parent])


def _check(step: str, parent: str, steps: Mapping[str, Sequence[str]], path: Mapping[str, object]) -> None:
    if parent == step:
        raise GraphError(f"step {shown(step)} waits for itself: take it out of its own parents")
    if parent not in steps:
        raise GraphError(
            f"step {shown(step)} waits for {shown(parent)}, which is not a step of this workflow; add that first"
        )
    if parent in path:
        raise GraphError(f"steps wait for each other in a circle: {_circle(list(path), parent)}")


def _circle(path: list[str], start: str) -> str:
    circle = path[path.index(start) :]
    if len(circle) > _CYCLE_SHOWN:
        left_out = len(circle) - _CYCLE_SHOWN + 1
        circle = [*circle[: _CYCLE_SHOWN - 2], f"… {left_out} more …", circle[-1]]
    return " -> ".join([*circle, start])
