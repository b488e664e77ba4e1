"""The files in deploy/ say what the program does. Those in YAML are checked in tests_integrations/deploy."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template
from typing import Any

import pytest

from dray.ops.exposition import METRICS
from tests.deploying import DEPLOY, check_query, parsed

UNIT = DEPLOY / "dray-worker.service"
ROOT = DEPLOY.parent


def section(name: str) -> dict[str, str]:
    reader = configparser.ConfigParser(interpolation=None, strict=True)
    reader.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    reader.read_string(UNIT.read_text())
    return dict(reader[name])


@pytest.fixture
def unit() -> dict[str, str]:
    return section("Service")


def test_the_unit_starts_a_worker_and_lets_it_end(unit: dict[str, str]) -> None:
    program, *words = shlex.split(unit["ExecStart"])
    given = parsed(words)

    assert program.endswith("/bin/dray")
    assert given["health_port"] == 8080
    assert int(unit["TimeoutStopSec"]) > given["grace"] + 15  # what a supervisor adds
    assert int(unit["TimeoutStartSec"]) > given["grace"] + 15
    assert (unit["Type"], unit["NotifyAccess"], unit["KillMode"]) == ("notify", "main", "mixed")
    assert int(unit["WatchdogSec"]) >= 30


def test_a_worker_that_fails_is_never_given_up(unit: dict[str, str]) -> None:
    assert (unit["Restart"], int(unit["RestartSec"])) == ("always", 2)
    assert section("Unit")["StartLimitIntervalSec"] == "0"


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    program = Path(sys.executable).parent / "dray"  # verify wants one that exists
    (tmp_path / UNIT.name).write_text(UNIT.read_text().replace("/srv/shop/.venv/bin/dray", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, about_it) == (0, [])


def _instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def test_the_image_runs_a_worker_that_is_not_root_and_hears_signals() -> None:
    found = _instructions()
    last = dict(found)
    entry, command = json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"])  # lists: no shell in between
    given = parsed(command)

    assert {word for word, _ in found} <= {
        *("FROM", "COPY", "RUN", "WORKDIR", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD")
    }
    assert entry == ["dray"]
    assert (given["health_port"], given["health_host"]) == (int(last["EXPOSE"]), "0.0.0.0")
    assert int(last["USER"]) > 0
    assert [word for word, _ in found].index("USER") > max(n for n, (word, _) in enumerate(found) if word == "RUN")
    check = json.loads(last["HEALTHCHECK"].partition("CMD")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "HEALTHCHECK", "exec")
    assert f"127.0.0.1:{given['health_port']}/health" in check[2]


def test_the_procfile_names_commands_that_there_are() -> None:
    written = (DEPLOY / "Procfile").read_text()
    given = {"PORT": "8000", "PUBLIC_HOST": "shop.example.com"}
    lines = dict(line.split(": ", 1) for line in Template(written).substitute(given).splitlines())
    found: dict[str, dict[str, Any]] = {}
    for name, line in lines.items():
        program, *words = shlex.split(line)
        assert program == "dray"
        found[name] = parsed(words)

    assert set(found) == {"release", "web", "worker"}
    assert (found["web"]["port"], found["web"]["allow_host"]) == (8000, ("shop.example.com",))
    assert written in (ROOT / "docs" / "how-to" / "deploy.md").read_text()


def _targets(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_grafana_asks_for_metrics_that_there_are() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    queries = _targets(board)

    for query in queries:
        check_query(query)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    (asked,) = [each["definition"] for each in board["templating"]["list"] if each["name"] == "queue"]
    assert asked == "label_values(dray_queue_jobs, queue)"


def test_the_page_lists_every_metric() -> None:
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    listed = re.findall(r"^\| `(dray_\w+)", page, re.M)

    assert listed == list(METRICS)
    for query in re.findall(r"```promql\n(.+?)```", page, re.S):
        for line in query.splitlines():
            check_query(line.partition("#")[0])


@pytest.mark.parametrize("page", ["monitor.md", "deploy.md"])
def test_the_commands_of_a_page_are_read_by_the_program(page: str) -> None:
    text = (ROOT / "docs" / "how-to" / page).read_text()
    lines = re.findall(r"^(?:\$|ExecStart=\S*/bin/dray\b|CMD) ?(dray .+|worker .+)?$", text, re.M)
    commands = [shlex.split(line, comments=True) for line in lines if line]

    assert commands
    for words in commands:
        parsed(words[1:] if words[0] == "dray" else words)


def test_what_the_pages_link_to_is_there() -> None:
    for page in ("monitor.md", "deploy.md"):
        folder = ROOT / "docs" / "how-to"
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (folder / page).read_text()):
            assert (folder / link).exists(), link
