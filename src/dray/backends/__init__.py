"""The storage layer: the only place that speaks SQL. `open_backend` is the way in.

Its names are loaded when they are used, so that a module of this package can be had without a database driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.backends.base import Backend, open_backend

__getattr__ = loader(__name__, {"dray.backends.base": "Backend open_backend"})

__all__ = ["Backend", "open_backend"]
