"""Checks the lazy seams: `make check` runs it; run it by hand with --list to see them.

An import inside a function is a lazy seam. It keeps a library or a part of Dray out of programs that do not use it,
or breaks a cycle, and a comment on its line says which. There are at most `MOST` of them: more would hide what
depends on what.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
MOST = 60
_MARK = "# noqa: PLC0415 - "


def seams() -> Iterator[tuple[str, str, str]]:
    """Yields the place, the module and the reason of each."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in _inside_functions(ast.parse(text)):
            module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            reason = lines[node.lineno - 1].partition(_MARK)[2]
            yield f"{path.relative_to(SOURCE)}:{node.lineno}", module or "", reason


def _inside_functions(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    found = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return iter(sorted(found, key=lambda node: node.lineno))


def main() -> int:
    found = list(seams())
    if "--list" in sys.argv:
        sys.stdout.writelines(f"{place:<48} {module:<32} {reason}\n" for place, module, reason in found)
    problems = [f"{place}: say why {module} is imported here: {_MARK}…" for place, module, why in found if not why]
    if len(found) > MOST:
        problems.append(f"{len(found)} imports inside functions, at most {MOST}")
    sys.stdout.write("\n".join(problems or [f"{len(found)} lazy imports checked"]) + "\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
