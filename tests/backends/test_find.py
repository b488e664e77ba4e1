"""Finding jobs by a part of their id."""

from __future__ import annotations

import pytest

from tests.backends.world import World


@pytest.mark.parametrize("part", [slice(None), slice(-8, None), slice(0, 20), slice(10, 30)], ids=str)
def test_a_part_that_only_one_id_has_finds_that_job(world: World, part: slice) -> None:
    ids = []
    for _ in range(3):
        ids.append(world.enqueue())
        world.clock.advance(3_600_000_000)  # ids start with their creation time

    assert [world.backend.jobs.find(each[part]) for each in ids] == [[each] for each in ids]


def test_a_part_of_many_ids_finds_the_newest_of_them_up_to_the_limit(world: World) -> None:
    ids = [world.enqueue() for _ in range(5)]

    assert world.backend.jobs.find(ids[0][:8], limit=3) == ids[:1:-1]


@pytest.mark.parametrize("part", ["zzzz", "%", "_", "\\", "0' OR '1'='1", "\x00"])
def test_what_no_id_can_contain_finds_nothing(world: World, part: str) -> None:
    world.enqueue()

    assert world.backend.jobs.find(part) == []
