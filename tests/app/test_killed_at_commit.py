"""A program that is killed beside its commit: its job stands or falls with its row, on every kind of connection."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from typing import Literal

import pytest

from dray import App
from tests.backends import beside, users
from tests.forks import Forked, pipe

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


def fork_programs(requests: Connection) -> None:
    """In a process that has loaded all kinds of connections: that takes 0.3 s of processor time."""
    while (given := requests.recv()) is not None:
        pid = os.fork()
        if pid == 0:
            order_and_die(*given)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        requests.send(os.waitstatus_to_exitcode(status))


@pytest.fixture(scope="module")
def exit_code_of_program() -> Generator[Callable[[str, str, Moment], int]]:
    ours, theirs = pipe()
    forker = Forked(fork_programs, (theirs,))

    def run(url: str, kind: str, moment: Moment) -> int:
        ours.send((url, kind, moment))
        assert ours.poll(60)
        return ours.recv()

    yield run
    ours.send(None)
    assert forker.wait() == 0
    ours.close()
    theirs.close()


@pytest.fixture
def app(url: str) -> Generator[App]:
    with App(url) as opened:
        opened.init()
        beside.rows(url, "CREATE TABLE orders (n integer)")
        yield opened


@pytest.mark.parametrize("kind", users.ALL)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_job_is_there_if_and_only_if_the_row_is(
    app: App, url: str, kind: str, moment: Moment, exit_code_of_program: Callable[[str, str, Moment], int]
) -> None:
    confirmed: list[int] = []

    @app.task(name="mail.confirm")
    def confirm(order: int) -> None:
        confirmed.append(order)

    assert exit_code_of_program(url, kind, moment) == -signal.SIGKILL

    committed = [1] if moment == "after" else []
    assert app.worker().run_until_idle() == len(committed)
    assert confirmed == committed
    assert [row[0] for row in beside.rows(url, "SELECT n FROM orders")] == committed
