"""Workflows: parents come before children, cycles are refused, and the run has one state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import GraphError
from dray.model.workflow import Edge, ParentPolicy, Tally, decide_edge, order, workflow_state

Graph = dict[str, list[str]]


@st.composite
def acyclic_graphs(draw: st.DrawFn) -> Graph:
    """Generates steps in random order. Each step has parents that precede it in a hidden order."""
    names = draw(st.lists(st.text(min_size=1, max_size=3), unique=True, max_size=25))
    parents = {
        name: draw(st.lists(st.sampled_from(names[:n]), max_size=5)) if n else [] for n, name in enumerate(names)
    }
    return {name: parents[name] for name in draw(st.permutations(names))}


@st.composite
def any_graphs(draw: st.DrawFn) -> Graph:
    names = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1))
    return {name: draw(st.lists(st.sampled_from(names), max_size=2)) for name in names}


def parents_come_first(ordered: Sequence[str], steps: Mapping[str, Sequence[str]]) -> bool:
    place = {name: n for n, name in enumerate(ordered)}
    return all(place[parent] < place[name] for name, parents in steps.items() for parent in parents)


def a_step_can_be_reached_from_itself(steps: Graph) -> bool:
    """Repeatedly removes steps without parents. Any step that is left is part of a cycle or behind one."""
    left = {name: set(parents) for name, parents in steps.items()}
    while free := {name for name, parents in left.items() if not parents & left.keys()}:
        left = {name: parents for name, parents in left.items() if name not in free}
    return bool(left)


@given(acyclic_graphs())
def test_every_step_comes_once_and_after_its_parents(steps: Graph) -> None:
    ordered = order(steps)

    assert sorted(ordered) == sorted(steps)
    assert parents_come_first(ordered, steps)


@given(acyclic_graphs())
def test_a_good_order_is_left_as_it_is(steps: Graph) -> None:
    good = {name: steps[name] for name in order(steps)}

    assert order(good) == list(good)


@given(any_graphs())
def test_exactly_the_graphs_with_a_circle_are_refused(steps: Graph) -> None:
    if a_step_can_be_reached_from_itself(steps):
        with pytest.raises(GraphError):
            order(steps)
    else:
        assert parents_come_first(order(steps), steps)


@given(any_graphs())
def test_the_circle_that_is_named_is_there(steps: Graph) -> None:
    try:
        order(steps)
    except GraphError as error:
        if "circle" not in str(error):
            return
        circle = str(error).split(": ")[1].split(" -> ")
        assert circle[0] == circle[-1]
        assert all(parent in steps[name] for name, parent in pairwise(circle))


def test_a_circle_is_named_step_by_step() -> None:
    with pytest.raises(GraphError) as caught:
        order({"start": [], "a": ["start", "b"], "b": ["c"], "c": ["a"]})

    assert str(caught.value) == "steps wait for each other in a circle: a -> b -> c -> a"


def test_a_long_circle_is_named_in_short() -> None:
    with pytest.raises(GraphError) as caught:
        order({str(n): [str((n + 1) % 1_000)] for n in range(1_000)})

    assert "0 -> 1 -> 2" in str(caught.value)
    assert "991 more" in str(caught.value)
    assert str(caught.value).endswith("999 -> 0")
    assert len(str(caught.value)) < 200


def test_a_step_that_waits_for_itself_is_refused() -> None:
    with pytest.raises(GraphError, match="step 'a' waits for itself"):
        order({"a": ["a"]})


def test_a_parent_that_is_not_there_is_refused() -> None:
    with pytest.raises(GraphError, match="step 'a' waits for 'x', which is not a step of this workflow"):
        order({"a": ["x"]})


def test_a_parent_named_twice_is_one_parent() -> None:
    assert order({"b": ["a", "a"], "a": []}) == ["a", "b"]


def test_nothing_is_in_order() -> None:
    assert order({}) == []


def test_a_chain_of_a_hundred_thousand_steps_given_last_first() -> None:
    length = 100_000
    chain: Graph = {str(n): [str(n - 1)] if n else [] for n in reversed(range(length))}

    assert order(chain) == [str(n) for n in range(length)]


def test_a_fan_of_a_hundred_thousand_children_with_one_heir() -> None:
    children = [f"child{n}" for n in range(100_000)]
    fan: Graph = {"successor": children, **{child: ["root"] for child in children}, "root": []}

    assert order(fan) == ["root", *children, "successor"]


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({"queued": 1, "completed": 5, "failed": 1}, "running"),
        ({"scheduled": 1}, "running"),
        ({"running": 1, "cancelled": 1}, "running"),
        ({"waiting": 3, "queued": 1}, "running"),
        ({"waiting": 1, "failed": 1, "completed": 1}, "waiting"),
        ({"failed": 1, "cancelled": 4, "completed": 2}, "failed"),
        ({"cancelled": 1, "completed": 9}, "cancelled"),
        ({"completed": 9}, "completed"),
        ({"completed": 9, "failed": 0, "running": 0}, "completed"),
        ({}, "completed"),
    ],
)
def test_the_state_of_the_whole(counts: dict[str, int], state: str) -> None:
    assert workflow_state(Tally(counts, {})) == state


@pytest.mark.parametrize(
    ("counts", "tolerated", "state"),
    [
        ({"completed": 50, "failed": 1}, {"failed": 1}, "completed"),
        ({"completed": 50, "failed": 2}, {"failed": 1}, "failed"),
        ({"completed": 50, "cancelled": 2}, {"cancelled": 2}, "completed"),
        ({"failed": 1, "cancelled": 2}, {"failed": 1}, "cancelled"),
        ({"queued": 1, "failed": 1}, {"failed": 1}, "running"),
        ({"waiting": 1, "failed": 1}, {"failed": 1}, "waiting"),
    ],
)
def test_what_every_child_tolerates_does_not_fail_the_whole(
    counts: dict[str, int], tolerated: dict[str, int], state: str
) -> None:
    assert workflow_state(Tally(counts, tolerated)) == state


@pytest.mark.parametrize("policy", ParentPolicy)
def test_a_child_waits_while_its_parent_is_live_and_is_free_when_it_completed(policy: ParentPolicy) -> None:
    for live in ("waiting", "scheduled", "queued", "running"):
        assert decide_edge(live, policy) is Edge.OPEN
    assert decide_edge("completed", policy) is Edge.FREE


@pytest.mark.parametrize("ended", ["failed", "cancelled"])
@pytest.mark.parametrize(
    ("policy", "edge", "satisfied"),
    [("cancel", Edge.CANCEL, -1), ("run", Edge.FREE, 1), ("hold", Edge.HOLD, -1), ("newer", Edge.HOLD, -1)],
)
def test_the_child_decides_what_a_lost_parent_means(ended: str, policy: str, edge: Edge, satisfied: int) -> None:
    assert decide_edge(ended, policy) is edge
    assert edge.satisfied == satisfied
