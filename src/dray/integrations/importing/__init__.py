"""Jobs of GigQ and lilota, brought over into Dray. Neither package is imported: their tables are read.

`snapshot.py` copies the source as it is at one moment, `gigq.py` and `lilota.py` read the copy, `entries.py` has what
both need, and `carrying.py` writes what they find. The names here are loaded when they are used: the help of
`dray import` needs no database driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.integrations.importing.carrying import Imported, Line, TasksHere, carry, look
    from dray.integrations.importing.entries import Running, Source, Wishes
    from dray.integrations.importing.gigq import GigQ
    from dray.integrations.importing.lilota import Lilota
    from dray.integrations.importing.snapshot import place
    from dray.model.cron import zone

__getattr__ = loader(
    __name__,
    {
        "dray.integrations.importing.carrying": "Imported Line TasksHere carry look",
        "dray.integrations.importing.entries": "Running Source Wishes",
        "dray.integrations.importing.gigq": "GigQ",
        "dray.integrations.importing.lilota": "Lilota",
        "dray.integrations.importing.snapshot": "place",
        "dray.model.cron": "zone",
    },
)

__all__ = [
    "GigQ",
    "Imported",
    "Lilota",
    "Line",
    "Running",
    "Source",
    "TasksHere",
    "Wishes",
    "carry",
    "look",
    "place",
    "zone",
]
