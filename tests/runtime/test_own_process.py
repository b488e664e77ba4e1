"""What a worker sets in a process of its own, seen from a process that does so."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, threading
from dray.runtime import own_process

if sys.argv[1] == "tuned":
    own_process.tune()

def use_and_free():
    blocks = [bytearray(40_000) for _ in range(10)]

def count():
    use_and_free()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(50):
        use_and_free()
    print((resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before) // 50, sys.getswitchinterval())

thread = threading.Thread(target=count)  # not the main one, whose memory is managed in another way
thread.start()
thread.join()
"""


def faults(how: str) -> tuple[int, float]:
    """The page faults of a thread each time it uses 400 KB and frees them; and Python's switch interval."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, check=True, text=True)
    count, interval = done.stdout.split()
    return int(count), float(interval)


def test_a_thread_keeps_what_a_transaction_frees_for_the_next_one() -> None:
    assert faults("tuned")[0] < 5 < 20 < faults("plain")[0]


def test_threads_take_turns_ten_times_as_often() -> None:
    assert faults("tuned")[1] == pytest.approx(faults("plain")[1] / 10)
