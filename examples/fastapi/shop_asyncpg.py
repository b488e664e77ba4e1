"""The shop with asyncpg alone, on PostgreSQL.

    pip install '.[fastapi,postgres]' asyncpg uvicorn
    cd examples/fastapi
    SHOP_URL=postgresql://user:password@host/shop uvicorn shop_asyncpg:web

Dray's own connections are psycopg's; the job of a request is written on asyncpg's, in its transaction.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import asyncpg
from fastapi import FastAPI, HTTPException

import dray
from dray.integrations.fastapi import transaction

URL = os.environ.get("SHOP_URL", "postgresql:///shop")
TABLE = "CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, customer text, pieces int)"

jobs = dray.App(URL, migrate=True)


@jobs.task(name="orders.confirm")
async def confirm(order_id: int) -> str:
    """Runs in a worker, on its own event loop, after the request has committed."""
    connection = await asyncpg.connect(URL)
    try:
        order = await connection.fetchrow("SELECT * FROM orders WHERE id = $1", order_id)
        return f"{order['pieces']} pieces for {order['customer']}"
    finally:
        await connection.close()


@asynccontextmanager
async def start(application: FastAPI) -> AsyncGenerator[None]:
    async with asyncpg.create_pool(URL, min_size=1) as pool, jobs.lifespan(worker=True):
        await pool.execute(TABLE)
        application.state.pool = pool
        yield


web = FastAPI(lifespan=start)


def acquire() -> Any:
    return web.state.pool.acquire()  # made when the server started


InTransaction = Annotated[Any, transaction(acquire)]  # committed before the response is sent


@web.post("/orders", status_code=201)
async def place_order(customer: str, pieces: int, connection: InTransaction) -> dict[str, Any]:
    insert = "INSERT INTO orders (customer, pieces) VALUES ($1, $2) RETURNING id"
    order_id = await connection.fetchval(insert, customer, pieces)
    job = await confirm.using(connection=connection).aenqueue(order_id)
    if pieces > 100:
        raise HTTPException(409, "there are not enough of it in stock")  # neither the order nor its job is written
    return {"order": order_id, "job": job.id}


@web.get("/orders/{order_id}")
async def show_order(order_id: int, connection: InTransaction) -> dict[str, Any]:
    order = await connection.fetchrow("SELECT * FROM orders WHERE id = $1", order_id)
    if order is None:
        raise HTTPException(404, "there is no such order")
    return dict(order)
