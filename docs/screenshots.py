"""Takes the pictures of the documentation and the README: `python docs/screenshots.py`, in the environment of `make`.

Serves a seeded database and visits it with Debian's chromium. Run it when a page has changed its looks.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.web.browser.chrome import CHROMIUM, Theme, Visitor, launched, served  # noqa: E402
from tests.web.seeded import Seeded, seeded  # noqa: E402

IMAGES = ROOT / "docs" / "images"
SIZE = 100  # about 8,000 jobs
README = "dashboard.png"
_ADDRESS = "document.querySelector('.side .foot .mono').textContent = 'sqlite:///shop.db'"  # not of this machine


def pictures(seed: Seeded) -> list[tuple[str, str, Theme]]:
    job = f"/jobs/{seed.jobs['running']}"
    return [
        ("overview-light.png", "/", "light"),
        ("overview-dark.png", "/", "dark"),
        ("jobs-light.png", "/jobs?q=state%3Afailed+since%3A1h+-queue%3Awebhooks", "light"),
        ("job-light.png", job, "light"),
    ]


def main() -> None:
    if CHROMIUM is None:
        raise SystemExit("there is no chromium: apt-get install chromium-headless-shell")
    logging.lastResort = None  # the seed has failures, and says so
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        seeded(Path(folder, "shop.db"), SIZE) as seed,
        served(seed.app) as site,
        launched() as browser,
    ):
        for name, path, theme in pictures(seed):
            visitor = Visitor(browser, site, color_scheme=theme, timezone_id="Europe/Berlin", reduced_motion="reduce")
            page = visitor.open(path)
            page.wait_for_timeout(1500)  # what it fetches once its stream is open
            page.evaluate(_ADDRESS)
            page.screenshot(path=IMAGES / name, full_page=not name.startswith("jobs"))
            if name == "overview-light.png":
                page.screenshot(path=IMAGES / README)
            visitor.close()
            print(IMAGES / name)  # noqa: T201


if __name__ == "__main__":
    main()
