"""What happens after an order. Dray's worker imports the `tasks` module of every installed app."""

import hashlib
import os

from django.tasks import task

from shop.models import Order


@task(queue_name="mail")
def send_receipt(order_id: int) -> str:
    """Writes the receipt of an order, and returns it."""
    order = Order.objects.get(pk=order_id)
    order.receipt = f"1 {order.what}"
    order.save()
    return order.receipt


@task
async def count_orders() -> int:
    """Counts all orders."""
    return await Order.objects.acount()


@task
def digest(text: str) -> list:
    """Needs a processor for itself: OPTIONS let it run in a child process."""
    return [hashlib.sha256(text.encode()).hexdigest(), os.getpid()]
