"""What the page of the dashboard shows runs as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "dashboard.md"


def test_the_mounts_of_the_dashboard_run_as_shown(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.S))
    (tmp_path / "page.py").write_text(
        f"""
from django.conf import settings as configured
apps = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"]
configured.configure(INSTALLED_APPS=apps, SECRET_KEY="x", ROOT_URLCONF="page", USE_TZ=True)
{code}
from starlette.testclient import TestClient
from werkzeug.test import Client
app.init()
asgi = TestClient(site)
print([asgi.get("/ops/jobs/queues", headers=each).status_code for each in ({{}}, {{"x-remote-user": "ann"}})])
for wsgi in (shop.wsgi_app, application):
    print(Client(wsgi).get("/ops/jobs/queues").text)
"""
    )

    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[403, 200]", *["You may not see this dashboard."] * 2]
