"""A Flask server that is killed beside a commit: the order and its job stand or fall together."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from sqlalchemy import create_engine, text

from dray import App
from tests_integrations.serving import served

SHOP = """
import os, signal
import flask
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
import dray
from dray.integrations.flask import init_app

jobs = dray.App(os.environ["SHOP_URL"])
engine = create_engine(os.environ["SHOP_URL"])
shop = flask.Flask(__name__)
init_app(shop, jobs)


@shop.post("/orders/<moment>")
def place_order(moment):
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders VALUES (7)"))
        job = jobs.enqueue("confirm", {"order": 7}, connection=session)
        if moment == "fail":
            raise ValueError("out of stock")
        if moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
    if moment == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"job": job.id}
"""
FLASK = ("flask", "--app", "shop", "run", "--port", "{port}")


@pytest.mark.parametrize(("moment", "committed"), [("before", 1), ("after", 2)])
def test_a_server_that_is_killed_beside_a_commit_loses_nothing(
    shop_url: str, tmp_path: Path, moment: str, committed: int
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    engine = create_engine(shop_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (n integer)"))
    with App(shop_url) as app:
        app.init()
        with served(*FLASK, folder=tmp_path, SHOP_URL=shop_url) as server:
            assert server.client.post("/orders/fail").status_code == 500
            assert app.jobs() == []
            assert app.job(server.client.post("/orders/well").json()["job"]).state == "queued"

            with pytest.raises(httpx2.TransportError):
                server.client.post(f"/orders/{moment}")

            assert server.wait() == -9
        with engine.begin() as connection:
            orders = connection.execute(text("SELECT n FROM orders")).all()
        assert (len(app.jobs(state="queued")), len(orders)) == (committed, committed)
    engine.dispose()
