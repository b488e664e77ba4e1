"""Middleware for the App of `hooked`, in a module that none of its tasks imports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dray
from tests.runtime.hooked import app


@app.middleware
def more(ctx: dray.Context, call: Callable[[], Any]) -> Any:
    return ["more", call()]
