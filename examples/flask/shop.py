"""A shop with Flask, made by a factory: bodies have its application context, and its command line runs Dray.

    pip install '.[flask,web]'
    cd examples/flask
    flask --app shop run                    # the application, with the dashboard at /ops/jobs
    flask --app shop dray worker            # in another terminal: runs the jobs
    flask --app shop dray jobs              # and all else that `dray` does

    curl -X POST -d customer=ann@example.com localhost:5000/orders

All of it is in one database: shop.db of the current directory, or what SHOP_URL names.
"""

from __future__ import annotations

import os
from typing import Any

import flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import dray
from dray.integrations.flask import init_app

jobs = dray.App(os.environ.get("SHOP_URL", "sqlite:///shop.db"), migrate=True)


@jobs.task(name="orders.confirm")
def confirm(customer: str) -> str:
    """Runs in a worker. `current_app` is the application that the factory has made there."""
    sender = flask.current_app.config["SENDER"]
    return f"mail from {sender} to {customer}"


@jobs.task(name="orders.label", runner="process")
def label(customer: str) -> str:
    """Runs in a child process of the worker."""
    return f"{flask.current_app.name}: for {customer}"


def create_app(**config: Any) -> flask.Flask:
    site = flask.Flask(__name__)
    site.config.update({"SENDER": "shop@example.com", "SECRET_KEY": "change me", **config})
    init_app(site, jobs)

    @site.post("/orders")
    def place_order() -> dict[str, str]:
        job = confirm.enqueue(flask.request.form["customer"])
        return {"job": job.id}

    def access(request: Any) -> Any:
        with site.request_context(request.scope["wsgi_environ"]):
            return flask.session.get("role")  # "viewer", "operator", "admin" or None

    board = dray.dashboard(jobs, access=access).wsgi()
    site.wsgi_app = DispatcherMiddleware(site.wsgi_app, {"/ops/jobs": board})
    return site
