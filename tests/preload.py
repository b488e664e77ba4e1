"""Loads in the server of forks all that a command or a worker may need: a process would take 0.2 s to load it."""

from __future__ import annotations

import gc
import pkgutil
from importlib import import_module

import dray

gc.disable()
for _module in pkgutil.walk_packages(dray.__path__, "dray."):
    if not _module.name.endswith(("__main__", ".tasks")):  # tasks: an App, whose address is that of the process
        import_module(_module.name)
for _name in ("asyncio", "psycopg", "rich.console", "rich.table", "rich.progress", "rich.markup"):
    import_module(_name)
gc.freeze()  # or each process would look through it all, and copy its memory
gc.enable()
