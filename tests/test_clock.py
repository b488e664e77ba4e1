"""What names the boot: the same for every process of it, whatever the system shows. And ids, in order."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from uuid import RFC_4122, UUID

import pytest

from dray.clock import UNKNOWN_BOOT, Ids, SystemClock
from tests.manual_clock import ManualClock

HIDING = """
    import os, sys
    from pathlib import Path
    hidden = sys.argv[1:]
    stat, read_text = os.stat, Path.read_text

    def refuse(path):
        if any(str(path).startswith(each) for each in hidden):
            raise FileNotFoundError(2, "No such file or directory", str(path))

    def hiding_stat(path, *args, **options):
        refuse(path)
        return stat(path, *args, **options)

    def hiding_read(path, *args, **options):
        refuse(path)
        return read_text(path, *args, **options)

    os.stat, Path.read_text = hiding_stat, hiding_read
    from dray.clock import SystemClock
    print(SystemClock().boot)
"""


def boots(*hidden: str) -> set[str]:
    """How three processes name the boot that do not see some files."""
    command = [sys.executable, "-c", textwrap.dedent(HIDING), *hidden]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    return {process.communicate(timeout=30)[0].strip() for process in running}


def test_processes_of_one_boot_name_it_alike() -> None:
    assert boots() == {SystemClock().boot}


def test_a_kernel_without_time_namespaces_has_one_clock() -> None:
    (boot,) = boots("/proc/self/ns/time")

    kernel, _, namespace = SystemClock().boot.partition(":")
    assert boot == f"{kernel}:0"
    assert namespace != "0"


@pytest.mark.parametrize("hidden", ["/proc/sys/kernel/random/boot_id", "/proc"])
def test_where_the_boot_is_not_named_all_say_that_they_do_not_know_it(hidden: str) -> None:
    assert boots(hidden) == {UNKNOWN_BOOT}


def test_many_ids_follow_those_before_them_and_come_before_those_after_them() -> None:
    ids = Ids(SystemClock())
    made = [ids.new(), *ids.many(5_000), *ids.many(0), ids.new(), *ids.many(1), *ids.many(2)]

    assert made == sorted(set(made))
    assert {(len(each), UUID(each).version, UUID(each).variant) for each in made} == {(36, 7, RFC_4122)}


def test_ids_of_another_process_begin_elsewhere() -> None:
    here, there = Ids(ManualClock()).many(3), Ids(ManualClock()).many(3)

    assert not {*here} & {*there}
