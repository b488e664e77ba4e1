"""Forks: the parent's connections, the child's locks and all jobs survive."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dray.address import SqliteAddress, parse_address
from tests.backends.processes import (
    Process,
    ask,
    enqueue_in_a_pool,
    enqueue_some,
    exit_of_a_child,
    fork_and_use,
    fork_at_each_call,
    fork_beside_threads,
    fork_inside_a_read,
    fork_inside_a_write,
    fork_many,
    integrity,
    job_ids,
    leave_a_child_behind,
    locks_after_fork,
)
from tests.polling import pause

FORKS = int(os.environ.get("DRAY_SOAK_ROUNDS", "1000"))


def is_whole(url: str) -> bool:
    address = parse_address(url)
    return not isinstance(address, SqliteAddress) or integrity(address.path) == "ok"


def test_children_and_grandchildren_work_on_connections_of_their_own(url: str) -> None:
    parent, child, grandchild, child_again, parent_again = (found := ask(fork_and_use, url))["connections"]

    assert len({tuple(each) for each in (parent, child, grandchild)}) == 3
    assert (parent_again, child_again) == (parent, child)
    assert found["seen"] == 4
    assert job_ids(url) == sorted(found["made"])
    assert len(found["made"]) == 5
    assert is_whole(url)


def test_a_forked_pool_enqueues_through_its_parents_backend(url: str) -> None:
    made = ask(enqueue_in_a_pool, url)

    assert job_ids(url) == sorted(made)
    assert len(made) == 32
    assert is_whole(url)


def test_a_thousand_forks_amid_writes_lose_no_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    acknowledged = ask(fork_many, str(path), FORKS, 20, is_fresh=True)  # a smaller process forks in less time

    assert "failed" not in acknowledged
    assert len(acknowledged) == 1 + FORKS + FORKS // 20
    assert job_ids(str(path)) == sorted(acknowledged)
    assert integrity(path) == "ok"


def test_a_child_holds_the_locks_that_sqlite_believes_it_to_hold(tmp_path: Path) -> None:
    found = ask(locks_after_fork, str(tmp_path / "jobs.db"))

    both = ["jobs.db", "jobs.db-shm"]
    assert found == {"parent": both, "child": both, "grandchild": both, "used": both, "closed": both}


@pytest.mark.parametrize("exits", ["_exit", "exit"])
@pytest.mark.parametrize("generations", [["busy"], ["busy", "busy"], ["idle", "busy"], ["idle", "idle"]], ids=str)
def test_what_a_child_enqueues_survives_its_parents_end_and_a_strangers_visit(
    tmp_path: Path, generations: list[str], exits: str
) -> None:
    # If the child held no locks, the other process would consider itself the last one and delete the -wal.
    path = tmp_path / "jobs.db"
    with Process(leave_a_child_behind, str(path), generations, exits, is_fresh=True) as family:
        made = [family.hear() for _ in range(1 + generations.count("busy"))]
        assert family.ended() == 0

        with Process(enqueue_some, str(path), 1) as stranger:
            assert stranger.hear() == "ready"
            stranger.say()
            made += stranger.answer()

        family.say()
        made.append(family.hear())
        assert job_ids(str(path)) == sorted(made)
        family.say()
        assert family.hear() == sorted(made)
        wait_until_gone(family.pid)

    assert job_ids(str(path)) == sorted(made)
    assert integrity(path) == "ok"


def wait_until_gone(group: int) -> None:
    """Waits, by its process group, for the end of a process that is not our child."""
    began = looked_at = time.monotonic()
    while any(_group_of(process) == group for process in Path("/proc").glob("[0-9]*")):
        assert looked_at < began + 10, f"a process of group {group} goes on"
        pause(began, looked_at)
        looked_at = time.monotonic()


def _group_of(process: Path) -> int | None:
    try:
        fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, group = fields[0], int(fields[2])
    return None if state == "Z" else group


def test_the_normal_exit_of_a_child_harms_nothing(url: str) -> None:
    found = ask(exit_of_a_child, url, is_fresh=True)  # only there a normal exit tidies up

    assert found["codes"] == [7, 7, 7]
    assert found["after"] == found["before"], "the parent is still on its own connection"
    assert job_ids(url) == sorted(found["made"])
    assert len(found["made"]) == 6
    assert is_whole(url)


def test_a_child_forked_inside_a_write_is_told_so_when_it_uses_the_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    found = ask(fork_inside_a_write, str(path), "by using the backend")

    kind, message = found["child"]
    assert kind == "ForkedConnection"
    assert str(path) in message
    assert "fork outside transactions" in message
    assert "\n" not in message
    assert set(found["made"]) < set(job_ids(str(path)))
    assert integrity(path) == "ok"


@pytest.mark.parametrize("leaves", ["by returning", "by an exception"])
def test_a_child_that_leaves_its_parents_transaction_neither_commits_nor_rolls_it_back(url: str, leaves: str) -> None:
    found = ask(fork_inside_a_write, url, leaves)

    assert found["early"] == [], "the child committed its parent's transaction"
    kind, message = found["child"]
    if leaves == "by an exception" and kind == "ValueError":
        assert message == "the child's own"
    else:
        assert kind == "ForkedConnection", message
        assert "fork outside transactions" in message
    assert len(job_ids(url)) == 3
    assert set(found["made"]) < set(job_ids(url))
    assert is_whole(url)


def test_a_child_forked_at_any_call_of_an_enqueue_goes_on_by_itself_or_is_told_so(url: str) -> None:
    found = ask(fork_at_each_call, url)

    assert len(found["told"]) > 20
    assert {said for said, _, _ in found["told"]} == {"fine"}
    assert {said.partition(":")[0] for _, said, _ in found["told"]} == {"fine", "ForkedConnection"}
    assert [used for _, _, used in found["told"] if used] == [], "on the parent's connection"
    assert found["lost"] == []
    assert is_whole(url)


def test_a_child_forked_inside_a_read_is_told_so_and_the_read_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    found = ask(fork_inside_a_read, str(path))

    assert found["child"][0] == "ForkedConnection"
    assert found["seen"] == [found["made"][0]] * 2
    assert job_ids(str(path)) == sorted(found["made"])
    assert integrity(path) == "ok"
    assert found["waited"] < 1, "a fork does not wait for the thread that forks"


@pytest.mark.parametrize("kind", ["write", "read"])
def test_children_forked_while_other_threads_are_busy_are_fine(url: str, kind: str) -> None:
    found = ask(fork_beside_threads, url, kind, 5)

    assert found["problems"] == []
    assert [len(child) for child in found["children"]] == [1] * 5, found["children"]
    made = [*found["made"], *(child[0] for child in found["children"])]
    assert job_ids(url) == sorted(made)
    assert is_whole(url)
