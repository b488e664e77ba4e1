"""A connection that listens and takes longer to make than a lease lasts: the database answers, so all goes on."""

from __future__ import annotations

from tests.processes.harness import APPS
from tests.processes.places import Places, Together

LEASE = 3.0
SLOW = 5.0  # seconds; bodies would be stopped after 2.4 without a beat


def test_a_slow_reconnect_stops_no_body_and_delays_no_outcome(together: Together) -> None:
    together.wait(slow)


def slow(places: Places) -> None:
    with places.postgres() as fleet:
        path = fleet.folder / "slow"
        worker = fleet.start(
            f"{APPS}_slow_listen", environment={"DRAY_TEST_SLOW": str(path)}, concurrency=4, lease=LEASE
        )
        its_id = fleet.worker_of(worker)
        long = fleet.enqueue("until_there", label="long", path=str(fleet.folder / "go"))
        fleet.until(lambda: fleet.ledger.starts("long"), "a body to run")
        path.write_text(str(SLOW))
        terminated = fleet.sql(
            "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a JOIN pg_locks AS l ON l.pid = a.pid"
            " WHERE a.application_name = 'dray listen' AND l.locktype = 'advisory'"
            f" AND l.objid = {lock_of(its_id)}::oid"
        )
        assert terminated == [(True,)]
        fleet.until(lambda: fleet.ledger.entries("connecting"), "it to connect again")

        job = fleet.enqueue("quick", label="quick")
        fleet.ended([job])
        assert fleet.ledger.entries("connected") == []  # claimed, run and written meanwhile
        fleet.until(lambda: fleet.ledger.entries("connected"), "it to be connected")
        path.unlink()
        (fleet.folder / "go.1").touch()
        fleet.ended([long])

        assert [entry.what for entry in fleet.ledger.entries(label="long")] == ["start", "end"]
        assert (fleet.outcomes(long), long.refresh().attempt) == (["completed"], 1)
        assert fleet.worker_of(worker) == its_id
        assert not [line for line in worker.lines("WARNING") if "cut off" in line], worker.said
        assert worker.end() == 0
        fleet.audit()


def lock_of(worker_id: str | None) -> int:
    from dray.backends.postgres.session import lock_key

    assert worker_id is not None
    return lock_key(worker_id) & 0xFFFFFFFF


TOGETHER = (slow,)
