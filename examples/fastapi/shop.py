"""A shop with FastAPI and SQLAlchemy: an order and the job that confirms it are one transaction.

    pip install '.[fastapi,web]' sqlalchemy
    cd examples/fastapi
    uvicorn shop:web                        # the application, with a worker inside and the dashboard at /ops/jobs
    SHOP_WORKER=0 uvicorn shop:web          # or without,
    dray worker shop:jobs                   # and the worker in another terminal

    curl -X POST 'localhost:8000/orders?customer=ann@example.com&pieces=2'
    curl localhost:8000/orders/1

All of it is in one database: shop.db of the current directory, or what SHOP_URL names, such as
postgresql+psycopg://user:password@host/shop.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import dray
from dray.integrations.fastapi import transaction

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")

jobs = dray.App(URL, migrate=True)
engine = create_engine(URL)
sessions = sessionmaker(engine)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    pieces: Mapped[int]
    is_confirmed: Mapped[bool] = mapped_column(default=False)


@jobs.task(name="orders.confirm")
def confirm(order_id: int) -> str:
    """Runs in a worker, after the request has committed."""
    with sessions.begin() as session:
        order = session.get_one(Order, order_id)
        order.is_confirmed = True
        return f"{order.pieces} pieces for {order.customer}"


@asynccontextmanager
async def start(_: FastAPI) -> AsyncGenerator[None]:
    Base.metadata.create_all(engine)
    async with jobs.lifespan(worker=os.environ.get("SHOP_WORKER") != "0"):
        yield
    engine.dispose()


web = FastAPI(lifespan=start)

InTransaction = Annotated[Session, transaction(sessions)]  # committed before the response is sent


@web.post("/orders", status_code=201)
def place_order(customer: str, pieces: int, session: InTransaction) -> dict[str, Any]:
    order = Order(customer=customer, pieces=pieces)
    session.add(order)
    session.flush()  # the order has its id from here on
    job = confirm.using(connection=session).enqueue(order.id)
    if pieces > 100:
        raise HTTPException(409, "there are not enough of it in stock")  # neither the order nor its job is written
    return {"order": order.id, "job": job.id}


@web.get("/orders/{order_id}")
def show_order(order_id: int, session: InTransaction) -> dict[str, Any]:
    order = session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "there is no such order")
    return {"customer": order.customer, "pieces": order.pieces, "is_confirmed": order.is_confirmed}


def access(request: Request) -> dray.Access | None:
    """Who may see the dashboard: here, the user that a proxy in front of this application has signed in."""
    user = request.headers.get("x-remote-user")
    return dray.Access("operator", user) if user else None


web.mount("/ops/jobs", dray.dashboard(jobs, access=access))
