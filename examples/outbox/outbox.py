"""An outbox with PostgreSQL: orders and the messages about them commit together, and each message is delivered.

Its database is the one that DRAY_URL names: postgresql://user@host/db.
"""

from __future__ import annotations

import os

import psycopg

import dray

app = dray.App(migrate=True)
delivered: dict[str, str] = {}  # stands for another service, which knows idempotency keys


@app.task(queue="outbox", max_attempts=20, retry=dray.exponential(base=2, cap=3600), keep_args=False)
def publish(ctx: dray.Context, topic: str, text: str) -> None:
    delivered.setdefault(ctx.idempotency_key, f"{topic}: {text}")


def place(connection: psycopg.Connection[tuple[int]], customer: str, *, cents: int) -> None:
    """Writes an order and its two messages, in one transaction."""
    with connection.transaction():
        connection.execute("INSERT INTO orders (customer, cents) VALUES (%s, %s)", (customer, cents))
        publish.using(connection=connection).enqueue("orders", text=f"{customer} pays {cents}")
        publish.using(connection=connection).enqueue("stock", text=f"one less for {customer}")


def main() -> None:
    with app, psycopg.connect(os.environ["DRAY_URL"].partition("&schema=")[0], autocommit=True) as connection:
        app.init()
        connection.execute("CREATE TEMPORARY TABLE orders (customer text, cents integer CHECK (cents > 0))")
        place(connection, "ann", cents=1250)
        try:
            place(connection, "bob", cents=-1)
        except psycopg.errors.CheckViolation:
            print("refused: no order, no message")
        app.worker(queues=["outbox"]).run_until_idle()
    for message in sorted(delivered.values()):
        print(message)


if __name__ == "__main__":
    main()
