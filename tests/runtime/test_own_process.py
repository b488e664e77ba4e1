"""What a worker sets in a process of its own, seen from a process that does so."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, threading
from dray.runtime import own_process

how, blocks, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if how == "tuned":
    own_process.tune()

def use_and_free():
    used = [bytearray(size) for _ in range(blocks)]

def count():
    use_and_free()
    use_and_free()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(50):
        use_and_free()
    print((resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before) // 50, sys.getswitchinterval())

thread = threading.Thread(target=count)  # not the main one, whose memory is managed in another way
thread.start()
thread.join()
"""


def faults(how: str, blocks: int = 10, size: int = 40_000) -> tuple[int, float]:
    """The page faults of a thread each time it uses some blocks and frees them; and Python's switch interval."""
    command = [sys.executable, "-c", PROGRAM, how, str(blocks), str(size)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    count, interval = done.stdout.split()
    return int(count), float(interval)


def test_a_thread_keeps_what_a_transaction_frees_for_the_next_one() -> None:
    assert faults("tuned")[0] < 5 < 20 < faults("plain")[0]


@pytest.mark.parametrize("size", [2_000_000, 8_000_000, 24_000_000])
def test_large_blocks_of_a_body_are_kept_as_everywhere(size: int) -> None:
    assert faults("tuned", 1, size)[0] < 5


def test_threads_take_turns_ten_times_as_often() -> None:
    assert faults("tuned")[1] == pytest.approx(faults("plain")[1] / 10)
