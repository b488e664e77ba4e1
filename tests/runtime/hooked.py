"""An App with middleware whose tasks child processes can import. `hooked_more` registers one more on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dray

app = dray.App("sqlite:///hooked.db")


@app.middleware
def outer(ctx: dray.Context, call: Callable[[], Any]) -> Any:
    return [f"outer {ctx.task} {ctx.headers.get('request_id')}", call()]


@app.task(runner="process")
def add(a: int, b: int = 2) -> int:
    return a + b


@app.task(runner="process", max_attempts=1)
def fail(a: int) -> None:
    raise ValueError(a)


@app.middleware
async def around(ctx: dray.Context, call: Callable[[], Any]) -> Any:
    return ["around", await call(), dict(ctx.args)]


@app.task(runner="process")
async def fetch(url: str) -> str:
    return url
