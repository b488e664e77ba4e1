"""Which workers live, of those that have not stopped: the one place that reads their proofs and leases.

A proof that can be looked at decides. Otherwise the lease does, where its clock can be read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from dray.backends.database import Database, Row, Session, are_comparable
from dray.instants import SECOND
from dray.model.worker import Signs

_STRANGER_US = 60 * SECOND  # after which a worker that only its row tells of counts as gone


class Evidence(StrEnum):
    """What says that a worker lives, or does not."""

    PROVEN_ALIVE = "proven alive"
    PROVEN_DEAD = "proven dead"
    LEASE_HOLDS = "lease holds"
    LEASE_OVER = "lease over"
    NONE = "none"  # no proof can be looked at, and its lease is of another clock


class Life(StrEnum):
    """A worker as people are shown it. A rescuer is more careful: it waits before it calls a worker dead."""

    ALIVE = "alive"
    LATE = "late"  # it has not renewed its lease for two beats
    SILENT = "silent"  # its process is there, and does not renew its lease
    GONE = "gone"  # and no rescuer has declared it dead yet


class Liveness(NamedTuple):
    signs: Signs
    is_proven: bool | None  # None: no proof can be looked at
    is_comparable: bool  # the clock of its lease can be read here

    @property
    def left_us(self) -> int | None:
        """What is left of its lease; None: that cannot be told."""
        return self.signs.left_us if self.is_comparable else None

    @property
    def evidence(self) -> Evidence:
        if self.is_proven is not None:
            return Evidence.PROVEN_ALIVE if self.is_proven else Evidence.PROVEN_DEAD
        if not self.is_comparable:
            return Evidence.NONE
        return Evidence.LEASE_OVER if self.signs.left_us < 0 else Evidence.LEASE_HOLDS

    @property
    def life(self) -> Life:
        if self.is_proven is False:
            return Life.GONE
        signs = self.signs
        is_over = signs.left_us < 0 if self.is_comparable else signs.unseen_us > _STRANGER_US
        if not is_over:
            return Life.LATE if self.is_comparable and signs.has_missed_beats else Life.ALIVE
        return Life.SILENT if self.is_proven else Life.GONE


def liveness(
    db: Database, tx: Session, live: Sequence[Row] | None = None, asker: str | None = None
) -> list[Liveness]:
    """Every worker that has not stopped; `live`: the rows of `worker_live`, where they were read already. The worker
    that asks needs no proof that it lives."""
    signs = [Signs(*row) for row in (tx.rows("worker_live") if live is None else live)]
    proven = db.proofs.witness(tx, [each for each in signs if each.id != asker])
    return [Liveness(each, proven.get(each.id), are_comparable(db.boot, each.boot)) for each in signs]


def lives(db: Database, tx: Session) -> dict[str, Life]:
    return {each.signs.id: each.life for each in liveness(db, tx)}
