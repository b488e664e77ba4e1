"""What workers do: register, claim, settle, grow, beat, take duties, run a body's own transaction, leave."""

from __future__ import annotations

import asyncio
from typing import Any

from dray.backends import Backend
from dray.backends.store.work import Notes, Report
from dray.errors import DrayError
from dray.instants import SECOND
from dray.model import settlement as model
from dray.model.job import Claim, LogLine, Outcome
from dray.model.new_job import NewJob
from dray.model.settlement import Settlement
from dray.model.worker import NewWorker
from dray.model.workflow import Workflow
from tests import verbs
from tests.backends.world import LEASE_US
from tests.faults.operation import LARGE, Operation
from tests.faults.producer_operations import Ledger
from tests.faults.verb_worker import VerbWorker


class Claiming(Operation):
    """What was claimed without an answer goes back unburned; everything runs once. What is due and what has expired
    is seen to on the way."""

    def prepare(self) -> None:
        world = self.world
        self.worker = VerbWorker(world)
        self.ids = [world.enqueue(), world.enqueue(queue="later"), world.enqueue(delay_us=SECOND, queue="later")]
        self.expired = world.enqueue(queue="steps", expires_us=SECOND)
        self.child = world.enqueue(parents=(self.expired,))
        world.clock.advance(2 * SECOND)

    def act(self, backend: Backend) -> None:
        self.worker.claim(backend, 2)

    def check(self, error: DrayError | None) -> None:
        # Fewer where a server's first answer was lost: the next beat brings those back.
        assert self.worker.ran.total() <= 2

    def recover(self, backend: Backend) -> None:
        """The worker rereads what it holds, in any case."""

    def verify(self, backend: Backend) -> None:
        self.completes(backend, self.ids, self.worker)
        assert (self.state(self.expired), self.state(self.child)) == ("cancelled(expired)", "cancelled(parent)")


class ClaimingAtStart(Claiming):
    """By a process that has just started."""

    is_cold = True


class Settling(Operation):
    """An outcome whose answer was lost is found to be there; no body runs again, no child is freed twice."""

    def prepare(self) -> None:
        world, self.worker = self.world, VerbWorker(self.world)
        self.plain, self.large = world.enqueue(), world.enqueue()
        self.raises, self.fails = world.enqueue(), world.enqueue(max_attempts=1)
        self.snoozes, self.stops = world.enqueue(), world.enqueue()
        self.worker.claim(self.direct, 6)
        claims = self.worker._held
        self.children = [
            world.enqueue(parents=(self.plain,), queue="steps"),
            world.enqueue(parents=(self.plain, self.large), queue="steps"),
        ]
        self.orphan = world.enqueue(parents=(self.fails,), queue="steps")
        self.next = world.enqueue()
        self.direct.jobs.cancel([self.stops])
        now = world.clock.steady()
        error = ("ValueError", "no", "trace")
        ends = [
            model.completed(claims[self.large], now, now, f'"{"x" * 3_000}"'),
            model.errored(claims[self.raises], now, now, Outcome.ERROR, 0, *error),
            model.errored(claims[self.fails], now, now, Outcome.ERROR, 0, *error),
            model.snoozed(claims[self.snoozes], now, now, 0),
            model.cancelled(claims[self.stops], now, now),
        ]
        self.worker.outcomes |= {end.id: end for end in ends}
        line = LogLine(self.plain, claims[self.plain].claim, now, "INFO", "app", "a line")
        self.notes = Notes([line], [Report(self.plain, claims[self.plain].claim, 50.0, "half")])

    def act(self, backend: Backend) -> None:
        self.worker.exchange(backend, limit=1, notes=self.notes)

    def recover(self, backend: Backend) -> None:
        self.worker.reread(backend)
        self.act(backend)

    def verify(self, backend: Backend) -> None:
        self.worker.work_off(backend)
        assert self.worker.lost == []
        once = [self.plain, self.large, *self.children, self.next]
        twice = [self.raises, self.snoozes]
        assert {i: self.state(i) for i in (*once, *twice)} == dict.fromkeys((*once, *twice), "completed")
        wanted = dict.fromkeys(once, 1) | dict.fromkeys(twice, 2) | {self.fails: 1, self.stops: 1}
        assert self.worker.ran == wanted
        assert (self.state(self.fails), self.state(self.orphan)) == ("failed(error)", "cancelled(parent)")
        assert self.state(self.stops) == "cancelled(user)"
        attempts = {i: (self.world.job(i).attempt, self.outcomes(i)) for i in (self.raises, self.fails, self.snoozes)}
        assert attempts == {
            self.raises: (2, ["error"]),
            self.fails: (1, ["error"]),
            self.snoozes: (1, []),
        }
        assert self.world.job(self.plain).progress == 50.0
        assert {line.message for _, line in self.direct.history.log_lines(self.plain)} == {"a line"}


class Growing(Operation):
    """A body's end and the steps it has added: both or neither, and the steps once."""

    def prepare(self) -> None:
        world, self.worker = self.world, VerbWorker(self.world)
        self.workflow = Workflow(world.ids.new(), "grows", 0)
        first = self._step("first")
        after = self._step("after", parents=(first.id,))
        self.direct.jobs.enqueue([first, after], workflow=self.workflow)
        self.worker.claim(self.direct, 1)
        self.settlement = self.worker.outcomes[first.id]
        one = self._step("one", parents=(first.id,))
        two = self._step("two", parents=(one.id,), args=LARGE)
        self.new = [one, two]
        self.ids = [first.id, after.id, one.id, two.id]

    def _step(self, name: str, **options: Any) -> NewJob:
        return self.world.new(queue="steps", workflow_id=self.workflow.id, step=name, **options)

    def act(self, backend: Backend) -> None:
        settled = backend.work.grow(self.worker.id, self.settlement, self.new)
        self.worker.wrote([self.settlement], settled)

    def check(self, error: DrayError | None) -> None:
        has_ended = self.state(self.ids[0]) == "completed"
        assert self.total() == (4 if has_ended else 2)
        assert has_ended or error is not None

    def recover(self, backend: Backend) -> None:
        self.worker.reread(backend)
        self.act(backend)

    def verify(self, backend: Backend) -> None:
        self.completes(backend, self.ids, self.worker)


class Beating(Operation):
    """The lease is renewed, and the worker sees what it holds."""

    def prepare(self) -> None:
        self.worker = VerbWorker(self.world)
        self.ids = [self.world.enqueue(), self.world.enqueue()]
        self.worker.claim(self.direct, 2)
        self.direct.jobs.cancel(self.ids[:1])
        self.world.clock.advance(5 * SECOND)

    def act(self, backend: Backend) -> None:
        self.beat = backend.workers.beat(self.worker.id, LEASE_US, durable=True)

    def verify(self, backend: Backend) -> None:
        assert self.beat.alive
        assert [(row.id, row.cancel_requested) for row in self.beat.held] == [
            (self.ids[0], True),
            (self.ids[1], False),
        ]
        assert self.direct.workers.judge(self.worker.id).left_us == LEASE_US
        self.completes(backend, self.ids, self.worker)


class RegisteringAndLeaving(Operation):
    """A worker registers, takes a duty, gives it back and leaves."""

    def prepare(self) -> None:
        self.worker = NewWorker(
            id=self.world.ids.new(), name="w", host="here", pid=1, boot=self.world.clock.boot, queues=("default",)
        )

    def act(self, backend: Backend) -> None:
        backend.workers.register(self.worker, LEASE_US)
        term = backend.leases.take("prune", self.worker.id)
        assert term is not None, "the duty is free"
        assert verbs.is_held(backend, "prune", self.worker.id, term)
        self.results = [
            backend.leases.resign("prune", self.worker.id, term),
            backend.workers.deregister(self.worker.id),
        ]

    def check(self, error: DrayError | None) -> None:
        assert [each.id for each in self.direct.workers.all()] in (
            [self.worker.id],
            [] if error else [self.worker.id],
        )
        if error is None:
            assert self.results == [True, True]

    def recover(self, backend: Backend) -> None:
        """It comes back under another id."""
        backend.workers.deregister(self.worker.id)
        self.prepare()
        self.act(backend)

    def verify(self, backend: Backend) -> None:
        assert {each.state for each in self.direct.workers.all()} == {"stopped"}
        assert self.direct.leases.held() == []


class BodyTransaction(Operation):
    """A body's own writes and its job's end: both or neither, and once, however often it has to be run."""

    def prepare(self) -> None:
        self.worker = VerbWorker(self.world)
        self.job = self.world.enqueue()
        self.child = self.world.enqueue(parents=(self.job,))
        self.ledger = Ledger(self)
        (self.claim,) = verbs.claim(self.direct, self.worker.id, self.worker.demand(1))

    def act(self, backend: Backend) -> None:
        self._run(backend, self.claim)

    def _run(self, backend: Backend, claim: Claim) -> None:
        with backend.transaction(fence=(claim.id, self.worker.id, claim.claim)) as connection:
            self.ledger.note(connection, "paid")
            backend.work.complete(self.worker.id, self._end(claim), connection)

    def _end(self, claim: Claim) -> Settlement:
        now = self.world.clock.steady()
        return model.completed(claim, now, now, '"paid"')

    def check(self, error: DrayError | None) -> None:
        is_paid, is_done = self.ledger.count("paid") == 1, self.state(self.job) == "completed"
        assert is_paid == is_done
        assert is_done or error is not None

    def recover(self, backend: Backend) -> None:
        """The body has raised: its outcome is an error, unless the job has ended all the same."""
        now = self.world.clock.steady()
        error = model.errored(self.claim, now, now, Outcome.ERROR, 0, "StorageError", "lost", None)
        settled = verbs.settle(backend, self.worker.id, [error])
        if self.state(self.job) == "completed":
            assert settled.already == [self.job]
            return
        (again,) = verbs.claim(backend, self.worker.id, self.worker.demand(1))
        self._run(backend, again)

    def verify(self, backend: Backend) -> None:
        assert (self.state(self.job), self.ledger.count("paid")) == ("completed", 1)
        while backend.graph.fan_out().left:
            continue
        self.completes(backend, [self.child], self.worker)


class CoroutineTransaction(BodyTransaction):
    """The same on an event loop."""

    def _run(self, backend: Backend, claim: Claim) -> None:
        asyncio.run(self._await(backend, claim))

    async def _await(self, backend: Backend, claim: Claim) -> None:
        async with backend.atransaction(fence=(claim.id, self.worker.id, claim.claim)) as connection:
            await self.ledger.note_async(connection, "paid")
            await backend.work.complete_async(self.worker.id, self._end(claim), connection)


WORKING = (
    Claiming,
    ClaimingAtStart,
    Settling,
    Growing,
    Beating,
    RegisteringAndLeaving,
    BodyTransaction,
    CoroutineTransaction,
)
