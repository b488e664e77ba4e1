"""Plays a page of the documentation: runs its blocks from top to bottom in one folder, as a reader would.

- A ``python`` block with a title is a file: it is written, or added to one (``title="tasks.py (added at its end)"``).
  Without a title it runs, in names that all of them share.
- A ``console`` block has commands after ``$``, and what they print, on a terminal of 100 columns. That is compared,
  except for ids, times, durations, process ids and spaces. A line ``…`` stands for any number of lines. Ids are those
  that the page has shown before: a command gets the real one.
- ``dray worker`` runs until the text says "Stop the worker … with Ctrl-C", or until the last page has ended; what the
  page shows of it has to be in what it has said by then, in this order. So do the commands that `serves` names, once
  they have printed the first line that is shown. What installs or needs a person is not run.
- ``toml`` and ``ini`` blocks with a title are files too. Everything else is to be read.

``DRAY_WRITE_DOCS=1 pytest tests/docs`` puts what commands print into the pages.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyte

from tests.cli.shell import PATIENCE, Shell, until
from tests.forks import Forked

ROOT = Path(__file__).parents[2]
SHOWN_FOLDER = "/srv/shop"  # what pages show for the folder in which they are played
SHOWN_USER = "anna"  # and for the person who plays them
WRITES = bool(os.environ.get("DRAY_WRITE_DOCS"))

_BLOCK = re.compile(r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.M | re.S)
_STOP = re.compile(r"\b[Ss]top the worker\b[^.:]*\bCtrl-C\b")
NOT_PLAYED = ("web", "mcp", "top", "dev", "demo", "bench", "import")  # but in test_long_commands.py
ELSEWHERE = "db.example.com"  # what pages show for a server; a command is run if `replace` has another for it
_NOT_RUN = (  # they need a network, a port, a person, another system, or much time
    *("pip install", "export", "make", "systemctl", "docker"),
    *(f"dray {name}" for name in NOT_PLAYED),
)
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_ID = re.compile(rf"\b(?:{_UUID}|[0-9a-f]{{8}})\b")
_VARYING = (
    (_ID, "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:\.\d+)?"), "TIME"),
    (re.compile(r"<?\b\d+(?:\.\d+)?(?:ms|µs|s|m|h|d)(?:\d\d[ms])?\b"), "SPAN"),
    (re.compile(r"\bnow\b|(?:in )?SPAN(?: SPAN)*(?: ago)?"), "WHEN"),
    (re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) TIME (?:CES?T|UTC)"), "TIME"),
    (re.compile(r"\bworker \d+\b"), "worker PID"),
    (re.compile(r"\d+(?= rules| KB| KiB)"), "N"),
    (re.compile(r"\s+"), " "),
)


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks_of(page: str, language: str) -> list[str]:
    return [block[4] for block in _BLOCK.finditer(text_of(page)) if block[2] == language]


@dataclass
class Player:
    """One page in one folder."""

    page: str
    shell: Shell
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "shop"})
    replace: tuple[tuple[str, str], ...] = ()  # in the page's code: an address, mostly
    ids: dict[str, str] = field(default_factory=dict[str, str])  # as pages show them, and as they are
    serves: tuple[str, ...] = ()  # commands that run until the page ends
    _running: list[tuple[Forked, list[str]]] = field(default_factory=list[tuple[Forked, list[str]]])
    _read_to: int = 0

    def play(self) -> None:
        self.play_all(self.page)

    def play_all(self, *pages: str) -> None:
        """Plays pages that a reader reads one after the other: a worker runs on from page to page."""
        with ExitStack() as stack:
            for page in pages:
                self.page, self._read_to = page, 0
                played = _BLOCK.sub(lambda block: self._block(block, stack), text_of(page))
                if WRITES:
                    (ROOT / page).write_text(self._real_ids(played))
            self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """Stops the workers, and compares what they have said."""
        for process, shown in self._running:
            os.kill(process.pid, number)
            process.wait(PATIENCE)
            said = (process.stderr.read() if process.stderr else "").splitlines()
            assert _is_within(shown, self._seen("\n".join(said)).splitlines()), (shown, said)
        self._running.clear()

    def _block(self, block: re.Match[str], stack: ExitStack) -> str:
        if _STOP.search(" ".join(block.string[self._read_to : block.start()].split())):
            self._stop(signal.SIGINT)
        self._read_to = block.end()
        indent, language, title, body = block.groups()
        code = re.sub(f"^{indent}", "", body, flags=re.M)
        for old, new in self.replace:
            code = code.replace(old, new)
        if title is not None:
            self._write(title, code)
        elif language == "python":
            self._run_code(code)
        elif language == "console":
            played = self._commands(code, stack)
            for old, new in self.replace:
                played = played.replace(new, old)
            return block[0].replace(body, re.sub(r"^(?=.)", indent, played, flags=re.M))
        return block[0]

    def _write(self, title: str, code: str) -> None:
        name, _, is_added = title.partition(" (added")
        before = f"{(self.shell.folder / name).read_text()}\n\n" if is_added else ""
        self.shell.write(name, before + code)

    def _run_code(self, code: str) -> None:
        exec(compile(code, self.page, "exec"), self.names)

    def _commands(self, text: str, stack: ExitStack) -> str:
        """Runs the commands of a block; returns the block with what they have printed."""
        played = ""
        for typed, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.M):
            command = typed.split("  #")[0].strip()
            real = self._real_ids(command)
            if command.startswith(_NOT_RUN) or ELSEWHERE in command:
                played += f"$ {typed}\n{shown}"
                continue
            if command in self.serves:
                self._serve(command, shown.splitlines()[0], stack)
                played += f"$ {typed}\n{shown}"
                continue
            if re.match(r"dray worker\b(?!.*--(burst|once|help))", real):
                self._start(real.split()[1:], shown.splitlines(), stack)
                played += f"$ {typed}\n{self._real_ids(shown) if WRITES else shown}"
                continue
            printed = self._seen(self._printed(real, must_succeed=not shown))
            if shown or WRITES:
                printed = self._compared(typed, shown, printed)
            played += f"$ {typed.replace(command, real) if WRITES else typed}\n{printed}"
        return played

    def _compared(self, typed: str, shown: str, printed: str) -> str:
        self._learn(shown, printed)
        if WRITES and "…\n" not in shown:
            return printed
        assert is_as_shown(shown, printed), f"{self.page}: $ {typed}\nshown:\n{shown}\nprinted:\n{printed}"
        return shown

    def _printed(self, command: str, *, must_succeed: bool) -> str:
        words = _words(command)
        if words and words[0] == "dray":
            ended = self.shell.on_terminal(*words[1:])
            assert ended.code == 0 or not must_succeed, f"{self.page}: $ {command}\n{ended.out}"
            return _left_on_screen(ended.out)
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.shell.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0 or not must_succeed, f"{self.page}: $ {command}\n{done.stdout}"
        return done.stdout

    @property
    def _environment(self) -> dict[str, str]:
        """A reader's program may leave its own connection to its end, which Python by itself does not mention."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**self.shell.environment, "PATH": path, "PYTHONWARNINGS": "error,ignore::ResourceWarning"}

    def _serve(self, command: str, first: str, stack: ExitStack) -> None:
        """Starts a server, and waits until it says that it listens."""
        words = [sys.executable, *shlex.split(command)[1:]] if command.startswith("python ") else shlex.split(command)
        with (self.shell.folder.parent / "served").open("w") as said:
            process = subprocess.Popen(words, cwd=self.shell.folder, env=self._environment, stdout=said, stderr=said)
        stack.callback(process.wait, PATIENCE)
        stack.callback(process.kill)
        until(lambda: normal(first) in map(normal, Path(said.name).read_text().splitlines()))

    def _start(self, words: list[str], shown: list[str], stack: ExitStack) -> None:
        process = stack.enter_context(self.shell.background(*words))
        self._running.append((process, shown))
        expected = int((re.findall(r"--processes (\d+)", " ".join(words)) or ["1"])[0])
        until(lambda: len(self.shell.try_("workers").rows) >= expected)

    def _seen(self, text: str) -> str:
        """What was printed, as a page shows it."""
        text = text.replace(str(self.shell.folder), SHOWN_FOLDER)
        text = re.sub(rf"\b{getpass.getuser()}\b(?=  cli)", SHOWN_USER, text)
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())

    def _real_ids(self, text: str) -> str:
        return _ID.sub(lambda found: self.ids.get(found[0], found[0]), text)

    def _learn(self, shown: str, printed: str) -> None:
        """An id that is known and printed stays: a worker may print the ends of two jobs in another order."""
        real = _ID.findall(printed)
        ends = {each[-8:] for each in real}
        for theirs, ours in zip(_ID.findall(shown), real, strict=False):
            if self.ids.get(theirs[-8:]) not in ends - {ours[-8:]}:
                self.ids |= {theirs: ours, theirs[-8:]: ours[-8:]}


def _left_on_screen(written: str) -> str:
    """What a terminal shows at the end: without progress bars that were drawn and removed."""
    # No higher than needed: to read 200 lines took longer than most commands.
    screen = pyte.Screen(400, min(200, written.count("\n") + 1))
    pyte.Stream(screen).feed(written.replace("\n", "\r\n"))
    return "\n".join(line.rstrip() for line in screen.display).rstrip("\n")


def is_as_shown(shown: str, printed: str) -> bool:
    return _fits([normal(line) for line in shown.splitlines()], [normal(line) for line in printed.splitlines()])


def normal(line: str) -> str:
    for pattern, word in _VARYING:
        line = pattern.sub(word, line)
    return line.strip()


def _fits(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0] == "…":
        return any(_fits(shown[1:], printed[n:]) for n in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and _fits(shown[1:], printed[1:])


def _is_within(shown: list[str], said: list[str]) -> bool:
    rest = iter([normal(line) for line in said])
    return all(line == "…" or normal(line) in rest for line in shown)


def _words(command: str) -> list[str]:
    """The words of a simple command; none, if a shell has to read it."""
    if re.search(r"[|<>&;$`*]", re.sub(r"""'[^']*'|"[^"]*\"""", "", command)):
        return []
    return shlex.split(command)
