"""The shop with SQLModel.

    pip install '.[fastapi]' sqlmodel uvicorn
    cd examples/fastapi
    uvicorn shop_sqlmodel:web

SHOP_URL names another database than shop.db; for PostgreSQL, postgresql+psycopg://user:password@host/shop.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException
from sqlmodel import Field, Session, SQLModel, create_engine

import dray
from dray.integrations.fastapi import transaction

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")

jobs = dray.App(URL, migrate=True)
engine = create_engine(URL)


class Order(SQLModel, table=True):
    __tablename__ = "orders"  # pyright: ignore[reportAssignmentType]

    id: int | None = Field(default=None, primary_key=True)
    customer: str
    pieces: int


@jobs.task(name="orders.confirm")
def confirm(order_id: int) -> str:
    """Runs in a worker, after the request has committed."""
    with Session(engine) as session:
        order = session.get_one(Order, order_id)
        return f"{order.pieces} pieces for {order.customer}"


@asynccontextmanager
async def start(_: FastAPI) -> AsyncGenerator[None]:
    SQLModel.metadata.create_all(engine)
    async with jobs.lifespan(worker=True):
        yield
    engine.dispose()


web = FastAPI(lifespan=start)

InTransaction = Annotated[Session, transaction(lambda: Session(engine))]  # committed before the response is sent


@web.post("/orders", status_code=201)
def place_order(customer: str, pieces: int, session: InTransaction) -> dict[str, Any]:
    order = Order(customer=customer, pieces=pieces)
    session.add(order)
    session.flush()  # the order has its id from here on
    assert order.id is not None
    job = confirm.using(connection=session).enqueue(order.id)
    if pieces > 100:
        raise HTTPException(409, "there are not enough of it in stock")  # neither the order nor its job is written
    return {"order": order.id, "job": job.id}


@web.get("/orders/{order_id}")
def show_order(order_id: int, session: InTransaction) -> Order:
    order = session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "there is no such order")
    return order
