"""The dashboard: `dray web`, and `dray.dashboard(app, access=…)` to mount. Server-rendered pages over `ops/`.

`dashboard.py` is the way in; a page is a function in `pages/` and a template of the same name in `templates/`.
Names are loaded when they are first used, and the packages of the extra `web` with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.web.served import Served as Served

__getattr__ = loader("dray.web", {"dray.web.served": "Served"})
