"""Repairs waiting jobs that nobody would ever free. There should be none: each is a defect, and is said loudly."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dray.maintenance.duty import jittered
from dray.model.limits import FANOUT_CHUNK
from dray.wording import counted

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.clock import Rng

log = logging.getLogger("dray")

_PAUSE = 60.0
_SOON = 0.05
_SHOWN = 10


class Reconciler:
    name = "reconcile"
    is_exclusive = True

    def __init__(self, backend: Backend, rng: Rng) -> None:
        self._backend = backend
        self._rng = rng

    def tick(self) -> float:
        found = self._backend.graph.reconcile()
        for ids, said in (
            (found.parents, "ended without telling the children"),
            (found.children, "waited for the wrong number of parents"),
        ):
            if ids:
                log.error(
                    "%s %s; repaired. This is a defect in Dray: please report it. %s",
                    counted(len(ids), "job"),
                    said,
                    ids[:_SHOWN],
                )
        is_all = max(len(found.parents), len(found.children)) < FANOUT_CHUNK
        return jittered(_PAUSE if is_all else _SOON, self._rng)
