"""Functions as users of GigQ have them."""

from __future__ import annotations

from typing import Any


def add(a: int, b: int) -> int:
    return a + b


def boom(word: str) -> None:
    raise ValueError(f"no {word}")


def total(parent_results: dict[str, Any]) -> list[Any]:
    return sorted(parent_results.values())
