"""Tasks of a shop, as a Django project has them."""

from __future__ import annotations

import os
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.tasks import TaskContext, task

from .models import Order


@task
def pay(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    order.is_paid = True
    order.save()
    return order.what


@task
async def apay(order_id: int) -> str:
    order = await Order.objects.aget(pk=order_id)
    order.is_paid = True
    await order.asave()
    return order.what


@task
def count_orders() -> int:
    return Order.objects.count()


@task
async def acount_orders() -> int:
    return await Order.objects.acount()


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [args, kwargs]


@task(takes_context=True)
def attempt(context: TaskContext, least: int = 1) -> int:
    if context.attempt < least:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task
def refuse(text: str = "no") -> None:
    raise ValueError(text)


class OutOfStock(Exception):
    pass


@task
def run_out() -> None:
    raise OutOfStock("tea")


@task
def order_twice(what: str) -> None:
    """Enqueues inside a body."""
    order = Order.objects.create(what=what)
    pay.enqueue(order.pk)


@task
def process_id() -> int:
    return os.getpid()


@task
async def connection_thread() -> bool:
    """Whether two queries of one body share a connection."""

    def look() -> int:
        connection.ensure_connection()
        return id(connection.connection)

    return await sync_to_async(look)() == await sync_to_async(look)()
