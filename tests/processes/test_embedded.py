"""A worker inside somebody else's program never ends that program, whatever its bodies do."""

from __future__ import annotations

import json
import os

from tests.processes.harness import Fleet, Process
from tests.processes.places import Together, on_both

STOP = "tests.processes.apps_stop"


def test_a_body_that_does_not_stop_keeps_its_claim_and_gives_up_its_slot(together: Together) -> None:
    together.wait(keeps_its_claim)


@on_both
def keeps_its_claim(fleet: Fleet) -> None:
    """The program goes on, the slot is replaced, and no retry starts before the body has ended, on any worker."""
    pipe = fleet.folder / "pipe"
    os.mkfifo(pipe)
    program = embed(fleet, concurrency=1, grace=0.3, lease=2)
    using = {"timeout": 1, "max_attempts": 2}
    deaf = fleet.enqueue(f"{STOP}.deaf_until", label="deaf", path=str(pipe), attempts=1, using=using)
    fleet.until(lambda: fleet.ledger.starts("deaf"))
    its_id = fleet.worker_of(program)
    assert its_id is not None

    # Its only slot is taken for the time that a body has to stop; then there is another one.
    assert fleet.enqueue(f"{STOP}.in_thread", label="next").result(timeout=30) == "next"
    assert (deaf.refresh().state, deaf.attempt) == ("running", 1)

    (fleet.folder / "leave").touch()
    fleet.until(lambda: [e.label for e in fleet.ledger.entries("program")] == ["begins", "has left"])
    witness = fleet.start(STOP, concurrency=2, lease=2)
    assert fleet.enqueue(f"{STOP}.in_thread", label="elsewhere").result(timeout=30) == "elsewhere"
    assert [entry.pid for entry in fleet.ledger.starts("elsewhere")] == [witness.pid], "it claims after it has left"
    beats = [last_seen(fleet, its_id)]
    for _ in range(4):  # more than a lease
        fleet.until(lambda: last_seen(fleet, its_id) != beats[-1], "another beat", seconds=10)
        beats.append(last_seen(fleet, its_id))
    assert (deaf.refresh().state, deaf.row.worker_id, len(fleet.ledger.starts("deaf"))) == ("running", its_id, 1)

    os.close(os.open(pipe, os.O_WRONLY))
    assert deaf.result(timeout=30) == "attempt 2"
    assert fleet.outcomes(deaf) == ["timeout", "completed"]
    assert fleet.ledger.entries("overlap") == []
    fleet.until(lambda: fleet.worker_state(its_id) == "stopped", "the worker to leave")
    (fleet.folder / "exit").touch()
    assert program.wait() == 0
    assert fleet.ledger.entries("program")[-1].label == "ends"
    assert witness.end() == 0
    fleet.audit()


def test_too_many_bodies_that_do_not_stop_end_the_claiming_and_nothing_else(together: Together) -> None:
    together.wait(too_many)


@on_both
def too_many(fleet: Fleet) -> None:
    pipe = fleet.folder / "pipe"
    os.mkfifo(pipe)
    program = embed(fleet, concurrency=2, grace=0.3)
    using = {"timeout": 1, "max_attempts": 1}
    deaf = [
        fleet.enqueue(f"{STOP}.deaf_until", label=f"deaf {number}", path=str(pipe), using=using)
        for number in range(3)
    ]
    fleet.ended(deaf)  # with their last attempt, nobody has to wait for them
    assert {(job.refresh().state, job.reason) for job in deaf} == {("failed", "timeout")}
    fleet.until(lambda: "claims nothing more" in program.said, "the worker to say so")
    left = fleet.enqueue(f"{STOP}.in_thread", label="left")
    assert program.is_alive

    fleet.start(STOP, concurrency=1)
    assert left.result(timeout=30) == "left"
    assert [entry.pid for entry in fleet.ledger.starts("left")] != [program.pid]
    (fleet.folder / "leave").touch()
    (fleet.folder / "exit").touch()
    assert program.wait() == 0
    assert [len(fleet.ledger.starts(f"deaf {number}")) for number in range(3)] == [1, 1, 1]


def test_a_program_that_ends_with_a_deaf_body_inside_ends(together: Together) -> None:
    together.wait(program_ends)


@on_both
def program_ends(fleet: Fleet) -> None:
    """Its threads are daemons: the job is found like that of any dead worker."""
    pipe = fleet.folder / "pipe"
    os.mkfifo(pipe)
    program = embed(fleet, concurrency=2, grace=0.1, lease=2)
    job = fleet.enqueue(f"{STOP}.deaf_until", label="deaf", path=str(pipe), attempts=1)
    fleet.until(lambda: fleet.ledger.starts("deaf"))
    (fleet.folder / "leave").touch()
    (fleet.folder / "exit").touch()
    assert program.wait() == 0
    fleet.start(STOP, concurrency=1, lease=2)
    assert job.result(timeout=30) == "attempt 2"
    assert fleet.outcomes(job) == ["crashed", "completed"]
    assert fleet.ledger.entries("overlap") == []


def embed(fleet: Fleet, **options: object) -> Process:
    program = fleet.run(["-m", "tests.processes.embed", STOP, json.dumps(options), str(fleet.folder)])
    fleet.until(lambda: fleet.worker_of(program), f"the worker in {program.pid} to register")
    return program


def last_seen(fleet: Fleet, worker_id: str) -> object:
    return fleet.sql(f"SELECT last_seen_at FROM dray_workers WHERE id = '{worker_id}'")[0][0]


TOGETHER = (too_many, keeps_its_claim, program_ends)
