"""A worker inside somebody else's program never ends that program, whatever its bodies do."""

from __future__ import annotations

import json
import os

from tests.processes.harness import Process, Yard
from tests.processes.places import Together, on_both

STOP = "tests.processes.apps_stop"


def test_a_body_that_does_not_stop_keeps_its_claim_and_gives_up_its_slot(together: Together) -> None:
    together.wait(keeps_its_claim)


@on_both
def keeps_its_claim(yard: Yard) -> None:
    """The program goes on, the slot is replaced, and no retry starts before the body has ended, on any worker."""
    pipe = yard.folder / "pipe"
    os.mkfifo(pipe)
    program = embed(yard, concurrency=1, grace=0.3, lease=2)
    using = {"timeout": 1, "max_attempts": 2}
    deaf = yard.enqueue(f"{STOP}.deaf_until", label="deaf", path=str(pipe), attempts=1, using=using)
    yard.until(lambda: yard.ledger.starts("deaf"))
    its_id = yard.worker_of(program)
    assert its_id is not None

    # Its only slot is taken for the time that a body has to stop; then there is another one.
    assert yard.enqueue(f"{STOP}.in_thread", label="next").result(timeout=30) == "next"
    assert (deaf.refresh().state, deaf.attempt) == ("running", 1)

    (yard.folder / "leave").touch()
    yard.until(lambda: [e.label for e in yard.ledger.entries("program")] == ["begins", "has left"])
    witness = yard.start(STOP, concurrency=2, lease=2)
    assert yard.enqueue(f"{STOP}.in_thread", label="elsewhere").result(timeout=30) == "elsewhere"
    assert [entry.pid for entry in yard.ledger.starts("elsewhere")] == [witness.pid], "it claims after it has left"
    beats = [last_seen(yard, its_id)]
    for _ in range(4):  # more than a lease
        yard.until(lambda: last_seen(yard, its_id) != beats[-1], "another beat", seconds=10)
        beats.append(last_seen(yard, its_id))
    assert (deaf.refresh().state, deaf.row.worker_id, len(yard.ledger.starts("deaf"))) == ("running", its_id, 1)

    os.close(os.open(pipe, os.O_WRONLY))
    assert deaf.result(timeout=30) == "attempt 2"
    assert yard.outcomes(deaf) == ["timeout", "completed"]
    assert yard.ledger.entries("overlap") == []
    yard.until(lambda: yard.worker_state(its_id) == "stopped", "the worker to leave")
    (yard.folder / "exit").touch()
    assert program.wait() == 0
    assert yard.ledger.entries("program")[-1].label == "ends"
    assert witness.end() == 0
    yard.audit()


def test_too_many_bodies_that_do_not_stop_end_the_claiming_and_nothing_else(together: Together) -> None:
    together.wait(too_many)


@on_both
def too_many(yard: Yard) -> None:
    pipe = yard.folder / "pipe"
    os.mkfifo(pipe)
    program = embed(yard, concurrency=2, grace=0.3)
    using = {"timeout": 1, "max_attempts": 1}
    deaf = [
        yard.enqueue(f"{STOP}.deaf_until", label=f"deaf {number}", path=str(pipe), using=using) for number in range(3)
    ]
    yard.ended(deaf)  # with their last attempt, nobody has to wait for them
    assert {(job.refresh().state, job.reason) for job in deaf} == {("failed", "timeout")}
    yard.until(lambda: "claims nothing more" in program.said, "the worker to say so")
    left = yard.enqueue(f"{STOP}.in_thread", label="left")
    assert program.is_alive

    yard.start(STOP, concurrency=1)
    assert left.result(timeout=30) == "left"
    assert [entry.pid for entry in yard.ledger.starts("left")] != [program.pid]
    (yard.folder / "leave").touch()
    (yard.folder / "exit").touch()
    assert program.wait() == 0
    assert [len(yard.ledger.starts(f"deaf {number}")) for number in range(3)] == [1, 1, 1]


def test_a_program_that_ends_with_a_deaf_body_inside_ends(together: Together) -> None:
    together.wait(program_ends)


@on_both
def program_ends(yard: Yard) -> None:
    """Its threads are daemons: the job is found like that of any dead worker."""
    pipe = yard.folder / "pipe"
    os.mkfifo(pipe)
    program = embed(yard, concurrency=2, grace=0.1, lease=2)
    job = yard.enqueue(f"{STOP}.deaf_until", label="deaf", path=str(pipe), attempts=1)
    yard.until(lambda: yard.ledger.starts("deaf"))
    (yard.folder / "leave").touch()
    (yard.folder / "exit").touch()
    assert program.wait() == 0
    yard.start(STOP, concurrency=1, lease=2)
    assert job.result(timeout=30) == "attempt 2"
    assert yard.outcomes(job) == ["crashed", "completed"]
    assert yard.ledger.entries("overlap") == []


def embed(yard: Yard, **options: object) -> Process:
    program = yard.run(["-m", "tests.processes.embed", STOP, json.dumps(options), str(yard.folder)])
    yard.until(lambda: yard.worker_of(program), f"the worker in {program.pid} to register")
    return program


def last_seen(yard: Yard, worker_id: str) -> object:
    return yard.sql(f"SELECT last_seen_at FROM dray_workers WHERE id = '{worker_id}'")[0][0]


TOGETHER = (too_many, keeps_its_claim, program_ends)
