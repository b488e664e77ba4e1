"""An App that child processes find by its locator: a function makes it, in each process its own."""

from __future__ import annotations

import dray
from dray.app_interface import core_of
from tests.runtime import located_bodies as bodies

LOCATOR = "tests.runtime.located:make"


def make(locator: str = LOCATOR) -> dray.App:
    app = dray.App("sqlite:///unused.db", locator=locator)
    core_of(app).define(bodies.whoami, {"name": "who am I"})
    core_of(app).define(bodies.doubled, {"name": "located.doubled", "runner": "process"})
    return app


class Kept:
    app = make("tests.runtime.located:Kept.app")


nothing = None
