"""Checks the built site: no page loads anything from another host, so that it works without a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path

SITE = Path(__file__).parents[1] / "site"
_LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^>]*>""")
_IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//[^)\s]*""")


def main() -> None:
    found = [
        f"{file.relative_to(SITE)}: {loaded}"
        for pattern, kind in ((_LOADED, "*.html"), (_IN_STYLES, "*.css"))
        for file in sorted(SITE.rglob(kind))
        for loaded in pattern.findall(file.read_text())
    ]
    if found:
        sys.exit("The site loads from other hosts:\n" + "\n".join(found))


if __name__ == "__main__":
    main()
