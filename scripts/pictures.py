"""Draw the pictures of the documents: the explorer and a page one, as a browser shows them.

    python scripts/pictures.py [--out docs/pictures]

Needs Chromium and the extras explore and pages (`make pages` installs the latter). Every picture is a PNG of
at most 150 kB.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from pathlib import Path

LARGEST = 150_000
PLAN = """version = 1
title = "Mean waiting time of eight clinics"
[network]
graph = "hypercube:3"
names = ["Aachen", "Bonn", "Celle", "Düren", "Essen", "Fulda", "Gera", "Hagen"]
[protocol]
name = "exchange"
[average]
radius = 0.5
adjacency = "user"
[budget]
epsilon = 8.0
delta = 1e-5
"""


def small(raw: bytes, most: int = LARGEST) -> bytes:
    """Return a PNG in few colours, which screenshots do not need more of."""
    from PIL import Image

    picture = Image.open(io.BytesIO(raw)).convert("RGB").quantize(192)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    if buffer.tell() > most:
        raise SystemExit(f"A picture of {buffer.tell():,} bytes is too large, at most {most:,}.")
    return buffer.getvalue()


def main() -> int:
    """Write explorer.png and page-one.png."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from sottovoce.cli.report import report
    from sottovoce.report.explorer import Setting, Study
    from sottovoce.report.explorer_server import ExplorerServer

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("There is no chromium on this machine; apt-get install chromium.")
    options.out.mkdir(parents=True, exist_ok=True)
    study = Study(Setting(graph="florentine"))
    with tempfile.TemporaryDirectory() as name, ExplorerServer(study) as server, sync_playwright() as driver:
        folder = Path(name)
        (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
        report([folder / "plan.toml"], out=folder / "plan.html", json=True)
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 860}, color_scheme="light")
        page.set_default_timeout(300_000)  # a busy machine is slow, not broken
        page.goto(server.address)
        page.wait_for_selector("body[data-course]")
        page.wait_for_timeout(500)  # the first observer is shown; the fonts have come
        page.evaluate("window.scrollTo(0, document.querySelector('.columns').offsetTop - 16)")
        (options.out / "explorer.png").write_bytes(small(page.screenshot()))
        page.goto((folder / "plan.html").as_uri())
        front = page.locator(".front").first
        (options.out / "page-one.png").write_bytes(small(front.screenshot()))
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
