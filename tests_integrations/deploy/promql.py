"""PromQL: parsed by a real parser, and evaluated as far as the scalers' queries need it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

Series = dict[frozenset[tuple[str, str]], float]  # by labels, without the name
_OPERATORS: dict[str, Callable[[float, float], float]] = {"*": operator.mul, "-": operator.sub}


def names(query: str) -> set[str]:
    """The metrics that a query reads; ValueError: it cannot be parsed."""
    return {each.name for each in _nodes(promql_parser.parse(query)) if hasattr(each, "matchers")}


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if getattr(node, part, None) is not None:
            yield from _nodes(getattr(node, part))
    for each in getattr(node, "args", ()):
        yield from _nodes(each)


def value(query: str, scraped: str) -> float:
    """The one number that a query returns for a scrape."""
    found = _value(promql_parser.parse(query), scraped)
    assert isinstance(found, dict)
    (number,) = found.values()
    return number


def _value(node: Any, scraped: str) -> Series | float:
    if isinstance(node, promql_parser.ParenExpr):
        return _value(node.expr, scraped)
    if isinstance(node, promql_parser.NumberLiteral):
        return node.val
    if isinstance(node, promql_parser.VectorSelector):
        assert not node.matchers.matchers, "labels are not matched here"
        return {
            frozenset(sample.labels.items()): sample.value
            for family in text_string_to_metric_families(scraped)
            for sample in family.samples
            if sample.name == node.name
        }
    if isinstance(node, promql_parser.AggregateExpr):
        assert str(node.op) == "max"
        return _largest(_value(node.expr, scraped), node.modifier.labels if node.modifier else [])
    assert isinstance(node, promql_parser.BinaryExpr), node
    act = _OPERATORS[str(node.op)]
    left, right = _value(node.lhs, scraped), _value(node.rhs, scraped)
    if isinstance(right, dict) and not isinstance(left, dict):
        return {labels: act(left, number) for labels, number in right.items()}
    assert isinstance(left, dict)
    assert isinstance(right, dict)
    return {labels: act(number, right[labels]) for labels, number in left.items() if labels in right}


def _largest(found: Series | float, by: list[str]) -> Series:
    assert isinstance(found, dict)
    groups: Series = {}
    for labels, number in found.items():
        group = frozenset(each for each in labels if each[0] in by)
        groups[group] = max(number, groups.get(group, number))
    return groups
