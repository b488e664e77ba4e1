"""All of Dray, imported: what a process that runs one command after another in forks of itself has ready."""

from __future__ import annotations

import gc
import pkgutil
from importlib import import_module

import dray

for _module in pkgutil.walk_packages(dray.__path__, "dray."):
    if not _module.name.endswith("__main__"):
        import_module(_module.name)
for _name in ("rich.table", "psycopg", "cronsim"):
    import_module(_name)
gc.freeze()  # what is loaded is not copied in each fork because a collection has looked at it
