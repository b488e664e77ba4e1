"""The shop with SQLAlchemy's AsyncSession: aiosqlite, psycopg or asyncpg.

    pip install '.[fastapi]' 'sqlalchemy[asyncio]' aiosqlite uvicorn
    cd examples/fastapi
    uvicorn shop_async:web

SHOP_URL names another database than shop.db: postgresql://user:password@host/shop for asyncpg, or
postgresql+psycopg://… for psycopg. Dray's own connections are psycopg's with both.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import NullPool

import dray
from dray.integrations.fastapi import transaction

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")

jobs = dray.App(URL, migrate=True)
ENGINE_URL = URL.replace("sqlite://", "sqlite+aiosqlite://").replace("postgresql://", "postgresql+asyncpg://")
engine = create_async_engine(ENGINE_URL)
sessions = async_sessionmaker(engine)

# Tasks run on the worker's own event loop. Pooled connections belong to one loop, so tasks use none.
engine_of_tasks = create_async_engine(ENGINE_URL, poolclass=NullPool)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    pieces: Mapped[int]


@jobs.task(name="orders.confirm")
async def confirm(order_id: int) -> str:
    """Runs in a worker, after the request has committed."""
    async with AsyncSession(engine_of_tasks) as session:
        order = await session.get_one(Order, order_id)
        return f"{order.pieces} pieces for {order.customer}"


@asynccontextmanager
async def start(_: FastAPI) -> AsyncGenerator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with jobs.lifespan(worker=True):
        yield
    await engine.dispose()


web = FastAPI(lifespan=start)

InTransaction = Annotated[AsyncSession, transaction(sessions)]  # committed before the response is sent


@web.post("/orders", status_code=201)
async def place_order(customer: str, pieces: int, session: InTransaction) -> dict[str, Any]:
    order = Order(customer=customer, pieces=pieces)
    session.add(order)
    await session.flush()  # the order has its id from here on
    job = await confirm.using(connection=session).aenqueue(order.id)
    if pieces > 100:
        raise HTTPException(409, "there are not enough of it in stock")  # neither the order nor its job is written
    return {"order": order.id, "job": job.id}


@web.get("/orders/{order_id}")
async def show_order(order_id: int, session: InTransaction) -> dict[str, Any]:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "there is no such order")
    return {"customer": order.customer, "pieces": order.pieces}
