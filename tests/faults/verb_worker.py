"""A worker one verb at a time: it does what the engine does with what the verbs return, and counts bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dray.backends import Backend
from dray.backends.store.work import NOTHING, SILENCE, Notes
from dray.model.job import Claim, Demand
from dray.model.settlement import Settled, Settlement, completed, released
from tests import verbs
from tests.backends.world import LEASE_US, World

QUEUES = ("default", "later", "steps")


class VerbWorker:
    """Claims, runs bodies that do nothing but count, and writes outcomes until they are written."""

    def __init__(self, world: World) -> None:
        self.id = world.worker()
        self.ran: Counter[str] = Counter()
        self.outcomes: dict[str, Settlement] = {}
        self.lost: list[str] = []  # outcomes of bodies that ran, and that were not written
        self._held: dict[str, Claim] = {}
        self._world = world

    def demand(self, limit: int) -> Demand:
        return Demand(QUEUES, ("task",), limit) if limit else NOTHING

    def run(self, claims: Sequence[Claim]) -> None:
        now = self._world.clock.steady()
        for claim in claims:
            self._held[claim.id] = claim
            self.ran[claim.id] += 1
            self.outcomes[claim.id] = completed(claim, now, now, '"done"')

    def claim(self, backend: Backend, limit: int) -> None:
        self.run(verbs.claim(backend, self.id, self.demand(limit)))

    def exchange(self, backend: Backend, limit: int = 0, notes: Notes = SILENCE) -> None:
        batch = list(self.outcomes.values())
        exchange = backend.work.exchange(self.id, batch, self.demand(limit), notes)
        self.wrote(batch, exchange.settled)
        self.run(exchange.claims)

    def wrote(self, batch: Sequence[Settlement], settled: Settled) -> None:
        for settlement in batch:
            if settlement.id in settled.locked:
                continue
            del self.outcomes[settlement.id]
            self._held.pop(settlement.id, None)
            if settlement.id in settled.stale and not settlement.gives_back:
                self.lost.append(settlement.id)

    def reread(self, backend: Backend) -> None:
        """After an error: what was claimed without the answer having arrived goes back."""
        beat = backend.workers.beat(self.id, LEASE_US)
        assert beat.alive
        for row in beat.held:
            known = self._held.get(row.id)
            if known is None or known.claim < row.claim:
                self.outcomes.setdefault(row.id, released(row, self._world.clock.steady()))

    def work_off(self, backend: Backend) -> None:
        """Until nothing is left to claim or to write."""
        self.reread(backend)
        for _ in range(20):
            self.exchange(backend, limit=20)
            while backend.graph.fan_out().left:
                continue
            if not self.outcomes and not verbs.probe(backend, self.demand(20)):
                return
        raise AssertionError(f"it does not come to an end: {self.outcomes}")
