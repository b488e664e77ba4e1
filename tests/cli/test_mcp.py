"""``dray mcp`` where its extra is not installed. tests_integrations/mcp has the rest."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.cli.shell import Shell


@pytest.mark.skipif(find_spec("mcp") is not None, reason="the extra is installed here")
def test_without_its_extra_it_says_what_to_install(shell: Shell) -> None:
    done = shell.try_("mcp")
    assert done.code == 1
    assert done.out == ""
    assert done.err == "dray: the MCP server needs a package that is not installed here: pip install 'dray[mcp]'\n"
