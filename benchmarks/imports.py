"""What ``import dray`` and ``dray --help`` take over bare Python."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.arena import Arena
from benchmarks.figures import Figures
from benchmarks.processes import ROOT, environment

_BARS = {"import dray": 45.0, "dray --help": 90.0}  # ms over bare Python
_COMMANDS = {"bare": ("-c", "pass"), "import dray": ("-c", "import dray"), "dray --help": ("-m", "dray", "--help")}
_FOREIGN = """
import sys
before = set(sys.modules)
import dray
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""


def measure(_: list[Arena], figures: Figures, *, quick: bool) -> None:
    rounds = 3 if quick else 15
    figures.heading(f"Start-up, ms, medians of {rounds} in turn")
    taken = [[_milliseconds(command) for command in _COMMANDS.values()] for _ in range(rounds)]
    bare, *rest = (statistics.median(column) for column in zip(*taken, strict=True))
    figures.say("bare Python", f"{bare:.1f}")
    for (name, bar), found in zip(_BARS.items(), rest, strict=True):
        figures.say(name, f"{found:.1f}, {found - bare:.1f} over bare Python")
        figures.at_most(f"{name}, over bare Python", found - bare, bar, " ms")
    figures.say("packages it loads beside Python's own", _run(("-c", _FOREIGN)).strip())


def _milliseconds(arguments: Sequence[str]) -> float:
    started = time.perf_counter()
    _run(arguments)
    return 1_000 * (time.perf_counter() - started)


def _run(arguments: Sequence[str]) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment("sqlite://"), stdout=subprocess.PIPE, check=True, text=True
    ).stdout
