"""A web application (WSGI, standard library) that places orders and enqueues their mails in one transaction.

Orders and jobs are in one database: shop.db in the current folder. PORT is the port it listens on, 8000 by default.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING
from wsgiref.simple_server import make_server

import dray

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

PATH = "shop.db"
app = dray.App(f"sqlite:///{PATH}")


@app.task(queue="mail", max_attempts=5)
def confirm(ctx: dray.Context, order: int, to: str) -> str:
    ctx.log.info("writing to %s", to)
    return f"order {order} confirmed to {to}"


def place(item: str, mail: str) -> tuple[int, str]:
    """Writes an order and its job: both are there after the commit, or neither."""
    with closing(sqlite3.connect(PATH)) as connection, connection:
        order = connection.execute("INSERT INTO orders (item, mail) VALUES (?, ?)", (item, mail)).lastrowid or 0
        job = confirm.using(connection=connection).enqueue(order, to=mail)
    return order, job.id


def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """POST /orders with {"item": …, "mail": …}."""
    size = int(environ.get("CONTENT_LENGTH") or 0)
    try:
        asked = json.loads(environ["wsgi.input"].read(size))
        order, job = place(asked["item"], asked["mail"])
    except (ValueError, KeyError, sqlite3.IntegrityError) as error:
        start_response("400 Bad Request", [("Content-Type", "text/plain")])
        return [f"{type(error).__name__}: {error}\n".encode()]
    start_response("201 Created", [("Content-Type", "application/json")])
    return [json.dumps({"order": order, "job": job}).encode(), b"\n"]


def make_tables() -> None:
    app.init()
    with closing(sqlite3.connect(PATH)) as connection, connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT UNIQUE, mail TEXT NOT NULL)"
        )


if __name__ == "__main__":
    make_tables()
    with make_server("127.0.0.1", int(os.environ.get("PORT", "8000")), serve) as server:
        print(f"orders: http://127.0.0.1:{server.server_port}/orders", flush=True)
        server.serve_forever()
