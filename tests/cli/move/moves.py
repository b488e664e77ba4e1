"""Moves by the command, and moves that are cut off."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from dray.backends import open_backend
from dray.backends.tables import Portion
from dray.ops import move, move_plan
from dray.settings import Settings
from tests.backends.whole import sql
from tests.cli.shell import Done, Shell


def moved(shell: Shell, source: str, target: str, *words: str) -> Done:
    return shell.try_("db", "move", *words, DRAY_DB_MOVE_SOURCE=source, DRAY_DB_MOVE_TARGET=target)


def states(url: str) -> dict[str, int]:
    return dict(sql(url, "SELECT state, count(*) FROM dray_v_jobs GROUP BY state"))  # pyright: ignore[reportArgumentType]


def is_closed(url: str) -> bool:
    return bool(sql(url, "SELECT value FROM dray_meta WHERE name = 'closed'"))


@contextmanager
def sides(source: str, target: str) -> Generator[tuple[move.Side, move.Side]]:
    """Both databases, as the command opens them."""
    opened = [open_backend(url, create=False) for url in (source, target)]
    here, there = (
        move.Side(side, Settings.of(url).place) for side, url in zip(opened, (source, target), strict=True)
    )
    try:
        yield here, there
    finally:
        for backend in opened:
            backend.close()


class Cut(Exception):
    """The power is off."""


def half_fill(source: str, target: str, *, steps: int = 8) -> None:
    """A move that is cut off after a few portions."""
    count = 0

    def tell(_: move.Progress) -> None:
        nonlocal count
        count += 1
        if count == steps:
            raise Cut

    with sides(source, target) as (here, there), pytest.raises(Cut):
        move.carry(move_plan.plan(here, there), portion=Portion(10), tell=tell)


def close_both(source: str, target: str) -> None:
    """A move that is cut off when the source is closed and the target not yet open."""

    def tell(step: move.Progress) -> None:
        if step.is_left:
            raise Cut

    with sides(source, target) as (here, there), pytest.raises(Cut):
        move.carry(move_plan.plan(here, there), tell=tell)
    assert is_closed(source)
    assert is_closed(target)
