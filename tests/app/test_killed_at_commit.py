"""A program that is killed beside its commit: its job stands or falls with its row, on every kind of connection."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from typing import Literal

import pytest

from dray import App
from tests.backends import beside, users
from tests.forks import Forked

Moment = Literal["before", "after"]


def order_and_die(url: str, kind: str, moment: Moment) -> None:
    """In a process of its own. The commit has returned, and nothing has been told of it; or it was not asked for."""

    async def program() -> None:
        with App(url) as app:
            async with users.ALL[kind](url) as user:
                await user.order(1)
                await app.aenqueue("mail.confirm", {"order": 1}, connection=user.connection)
                if moment == "after":
                    await user.commit()
                os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(program())


@pytest.fixture
def app(url: str) -> Generator[App]:
    with App(url) as opened:
        opened.init()
        beside.rows(url, "CREATE TABLE orders (n integer)")
        yield opened


@pytest.mark.parametrize("kind", users.ALL)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_job_is_there_if_and_only_if_the_row_is(app: App, url: str, kind: str, moment: Moment) -> None:
    confirmed: list[int] = []

    @app.task(name="mail.confirm")
    def confirm(order: int) -> None:
        confirmed.append(order)

    assert Forked(order_and_die, (url, kind, moment)).wait() == -signal.SIGKILL

    committed = [1] if moment == "after" else []
    assert app.worker().run_until_idle() == len(committed)
    assert confirmed == committed
    assert [row[0] for row in beside.rows(url, "SELECT n FROM orders")] == committed
