"""What the files in deploy/ say, checked against the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dray.cli.root import root
from dray.ops.exposition import METRICS

DEPLOY = Path(__file__).parent.parent / "deploy"
_LABELS = {"queue", "task", "state", "outcome", "duty", "le"}


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """The options and arguments of a `dray` command line, as the program reads them; it is not run."""
    command: click.Command = root
    context = click.Context(root, info_name="dray")
    rest = list(words)
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command = found
    return command.make_context(command.name, rest, parent=context).params


def check_query(query: str) -> None:
    """A query uses metrics and labels that there are, and counters with `rate`."""
    names = re.findall(r"\bdray_[a-z_]+", query)
    assert names, query
    for name in names:
        base = re.sub(r"_(bucket|count)$", "", name)
        assert name in METRICS or METRICS.get(base, ("",))[0] == "histogram", f"{name} in {query}"
        if name.endswith(("_total", "_bucket", "_count")):
            assert re.search(rf"rate\({name}\b", query), f"{name} only grows: {query}"
    grouped = ",".join(re.findall(r"\bby \(([^)]*)\)", query))
    used = {label.strip() for label in grouped.split(",") if label.strip()}
    used |= set(re.findall(r'(\w+)=~?"', query))
    assert used <= _LABELS, query
