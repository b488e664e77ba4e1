"""The code in the Python API reference runs as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "python.md"


def test_the_code_of_the_reference_runs_on_both_databases(tmp_path: Path, url: str) -> None:
    blocks = re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.S)
    assert len(blocks) >= 5
    script = tmp_path / "page.py"
    script.write_text("".join(blocks).replace('"sqlite:///jobs.db"', repr(url)) + "app.close()\nprint('done')\n")

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("done\n", "")


def test_every_option_of_an_app_is_in_the_reference() -> None:
    from dray.settings import Settings

    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text().partition("## Enqueue")[0], re.M)
    assert listed == [name for name in Settings.__dataclass_fields__ if name != "origin"]  # not an option
