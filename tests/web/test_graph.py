"""Graphs as SVG: layers, few crossings, folded where they are large, safe whatever the labels are."""

from __future__ import annotations

import random
import re
from html import unescape
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from dray.web.svg.folding import MOST, WIDEST, fold, kind_of
from dray.web.svg.graph import Node, graph
from dray.web.svg.layout import lay_out, layers_of


def node(name: str, state: str = "completed", href: str | None = None) -> Node:
    return Node(name, name, state, state, href)


def fan(count: int, states: tuple[str, ...] = ("completed",)) -> tuple[list[Node], list[tuple[str, str]]]:
    """start -> load-0, load-1 … -> end"""
    middle = [node(f"load-{n}", states[n % len(states)]) for n in range(count)]
    edges = [("start", each.id) for each in middle] + [(each.id, "end") for each in middle]
    return [node("start"), *middle, node("end", "waiting")], edges


def test_parents_stand_above_their_children() -> None:
    edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d")]

    assert layers_of("abcd", edges) == {"a": 0, "b": 1, "c": 1, "d": 2}


def test_a_drawing_says_in_words_what_it_shows() -> None:
    drawn = graph(
        [node("extract", href="/jobs/1"), node("clean"), node("report", "running")],
        [("extract", "clean"), ("clean", "report")],
        marked="report",
        title="Workflow quarterly",
    )

    assert '<title id="dag-t">Workflow quarterly</title>' in drawn
    assert "extract (completed); then clean (completed); then report (running, this job)." in drawn
    assert '<a class="node completed" href="/jobs/1">' in drawn
    assert '<g class="node running marked">' in drawn
    assert 'role="group"' in drawn  # links in an image cannot be reached


def test_a_drawing_without_links_is_an_image() -> None:
    assert 'role="img"' in graph([node("a")], [], title="t")


def test_a_graph_without_nodes_can_be_drawn() -> None:
    assert "No steps." in graph([], [], title="nothing")


def test_crossings_are_taken_out() -> None:
    nodes = [node(name) for name in "abcxyz"]
    edges = [("a", "z"), ("b", "y"), ("c", "x")]

    layout = lay_out({each.id: 100.0 for each in nodes}, layers_of([each.id for each in nodes], edges), edges)

    assert [layout.x[parent] for parent in "abc"] == pytest.approx([layout.x[child] for child in "zyx"])


def test_nodes_never_overlap_and_edges_keep_clear_of_the_nodes_they_pass() -> None:
    chance = random.Random(5)
    names = [str(n) for n in range(60)]
    edges = [(str(chance.randrange(max(0, n - 9), n)), str(n)) for n in range(1, 60) for _ in range(2)]
    layers = layers_of(names, edges)
    layout = lay_out(dict.fromkeys(names, 120.0), layers, edges)

    for layer in range(max(layers.values()) + 1):
        places = sorted(layout.x[name] for name in names if layers[name] == layer)
        assert all(right - left >= 120 + 15.9 for left, right in pairwise(places))
        for path in layout.paths.values():
            for x, passed in path[1:-1]:
                assert passed != layer or all(abs(x - place) > 60 for place in places)


@pytest.mark.parametrize(
    ("label", "kind"),
    [("load-17", "load"), ("load 17", "load"), ("load17", "load"), ("load[3]", "load"), ("s3.put", "s3.put"),
     ("17", "17"), ("day 2026-11-17: load", "day: load")],
)  # fmt: skip
def test_the_kind_of_a_step_is_its_label_without_the_numbers(label: str, kind: str) -> None:
    assert kind_of(label) == kind


def test_ten_thousand_equal_steps_are_one_node_that_says_how_many() -> None:
    nodes, edges = fan(9_950, ("completed", "waiting", "failed"))

    folded = fold(nodes, edges)
    drawn = graph(nodes, edges, title="wide")

    assert folded.in_words == "1 node stands for 9,950 steps that are alike."
    assert "load · 9,950 steps" in drawn
    assert "3,316 failed, 3,317 completed, 3,317 waiting" in drawn
    assert '<g class="node failed">' in drawn  # what went wrong is not hidden among the rest
    assert len(drawn) < 3_000


def test_few_steps_are_drawn_one_by_one() -> None:
    nodes, edges = fan(WIDEST)

    assert fold(nodes, edges).in_words is None
    assert graph(nodes, edges, title="few").count("<rect") == WIDEST + 2


def test_equal_chains_side_by_side_become_one_chain() -> None:
    nodes, edges = [node("start")], list[tuple[str, str]]()
    for n in range(2_000):
        nodes += [node(f"fetch {n}"), node(f"parse {n}", "waiting")]
        edges += [("start", f"fetch {n}"), (f"fetch {n}", f"parse {n}")]

    folded = fold(nodes, edges)

    assert [each.label for each in folded.nodes] == ["start", "fetch · 2,000 steps", "parse · 2,000 steps"]
    assert [folded.layers[each.id] for each in folded.nodes] == [0, 1, 2]
    assert len(folded.edges) == 2


def test_the_marked_job_stays_by_itself() -> None:
    nodes, edges = fan(500)

    folded = fold(nodes, edges, marked="load-250")

    assert "load-250" in [each.label for each in folded.nodes]
    assert "load · 499 steps" in [each.label for each in folded.nodes]


@pytest.mark.parametrize("shape", ["chain", "loose", "dense", "random"])
def test_no_graph_is_drawn_with_more_nodes_than_one_can_look_at(shape: str) -> None:
    chance = random.Random(1)
    names = [f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}" for n in range(5_000)]
    pairs = {
        "chain": [(n - 1, n) for n in range(1, 5_000)],
        "loose": [],
        "dense": [(n - step, n) for n in range(100, 5_000) for step in (50, 75, 100)],
        "random": [(chance.randrange(n), n) for n in range(1, 5_000) for _ in range(2)],
    }[shape]

    folded = fold([node(name) for name in names], [(names[a], names[b]) for a, b in pairs])

    assert len(folded.nodes) <= MOST
    assert sum(each.steps for each in folded.nodes) == 5_000  # none is left out
    assert all(folded.layers[parent] < folded.layers[child] for parent, child in folded.edges)
    ET.fromstring(graph(folded.nodes, folded.edges, title=shape))


def test_an_edge_to_a_job_that_is_not_shown_is_left_out() -> None:
    assert "<path" not in graph([node("a")], [("a", "gone"), ("gone", "a")], title="t")


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", '"/><a href="javascript:alert(1)">', "\x1b[31mred\u202e", "x" * 100_000]
)
def test_hostile_labels_are_text(text: str) -> None:
    drawn = graph([Node("1", text, text, text, "/jobs/1")], [], title=text)

    root = ET.fromstring(drawn)
    assert {element.tag for element in root.iter()} <= {"svg", "title", "desc", "a", "rect", "circle", "text"}
    assert not re.search("[\x00-\x08\x1b\u202e]", unescape(drawn))
    assert len(drawn) < 30_000
