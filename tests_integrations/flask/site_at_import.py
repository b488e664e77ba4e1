"""A Flask application that is made when its module is imported, with tasks of all runners."""

from __future__ import annotations

import os

import flask

import dray
from dray.integrations.flask import init_app

jobs = dray.App(os.environ.get("SITE_URL", "sqlite:///unused.db"))
site = flask.Flask(__name__)
site.config["SENDER"] = "shop@example.com"
init_app(site, jobs)


def seen() -> list[str]:
    return [flask.current_app.name, flask.current_app.config["SENDER"]]


@jobs.task(name="in.a.thread")
def in_thread() -> list[str]:
    return seen()


@jobs.task(name="on.a.loop")
async def on_loop() -> list[str]:
    return seen()


@jobs.task(name="in.a.process", runner="process")
def in_process() -> list[str]:
    return [*seen(), str(os.getpid())]


@jobs.task(name="on.a.loop.in.a.process", runner="process")
async def on_loop_in_process() -> list[str]:
    return [*seen(), str(os.getpid())]
