"""Draw the pictures of README and site from the library's own numbers.

    python scripts/draw_pictures.py
    python scripts/draw_pictures.py --browser      a screenshot of the explorer

The screenshot needs Chromium and the extras explore and pages; it is a PNG of at most 150 kB.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce_papers import drawing

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"


def by_distance() -> dict[str, list[float]]:
    """Return name -> mean loss over the pairs of a 4 x 4 grid that are 1, 2, ... hops apart."""
    grid = sv.graphs.grid(4, 4)
    rounds = sv.protocols.rounds_for(grid)
    place = np.array([divmod(v, 4) for v in range(16)])
    hops = np.abs(place[:, None] - place[None]).sum(axis=2)
    losses = {
        "gossip, published formula": sv.privacy.published_loss(grid, rounds=rounds),
        "gossip, exact": sv.privacy.exact_loss(grid, rounds=rounds),
        "sums along a tree, exact": sv.privacy.exact_loss(sv.protocols.Tree(grid)),
        "masked sums, exact": sv.privacy.exact_loss(sv.protocols.Masked(grid)),
    }
    return {
        name: [float(np.minimum(h, 1)[hops == d].mean()) for d in range(1, 7)] for name, h in losses.items()
    }


def loss_by_distance(path: Path) -> Path:
    """Draw what clinics learn of one another, published beside exact."""
    with drawing.figure_of(width=7.2, height=3.6) as (figure, panels):
        for k, (name, values) in enumerate(by_distance().items()):
            drawing.error_bars(panels[0], range(1, 7), values, None, k, name, paper="published" in name)
        drawing.names(
            panels[0], "hops between two clinics (4 x 4 grid, 8 rounds, mean over pairs)",
            "share of the squared loss (mu²)", xticks=range(1, 7), ylim=(0, 1.08),
        )  # fmt: skip
    figure.patch.set_facecolor("white")
    return drawing.save(figure, path)


# packages in the order in which they may import from one another, and what each is for
PACKAGES = (
    ("graphs", "networks and gossip weights"),
    ("noise", "samplers for simulation and protection"),
    ("leakage", "exact linear algebra of what is observed"),
    ("protocols", "schedules of linear messages"),
    ("secure_sum", "keys and masks"),
    ("accounting, privacy", "releases, observation models, guarantees"),
    ("ledger", "durable records of what was released"),
    ("data", "data sets, tables, Poisson sampling"),
    ("objectives", "models and per-example gradients"),
    ("mechanisms", "sample, clip, add noise, check, record"),
    ("runners", "one process, several ranks, checkpoints"),
    ("algorithms", "plans, one file per published algorithm"),
    ("attacks", "reconstruction, membership, audits"),
    ("models, planfile", "saved models, plan files"),
    ("advice, estimators", "recommendations, fit, scikit-learn"),
    ("peers", "the runtime of one member"),
    ("report, cli", "pages, command line"),
)
# the way of one record: the package, and what happens there
STATIONS = (
    ("data", "a record is sampled"), ("objectives", "its gradient is clipped"),
    ("mechanisms", "a noisy sum, checked against the plan"), ("algorithms", "a row to send"),
    ("protocols", "part of a sum"), ("ledger", "on the disk before it leaves"),
    ("accounting, privacy", "its guarantee"), ("report, cli", "the page"),
)  # fmt: skip


def architecture(path: Path) -> Path:
    """Draw the packages in layers, and the way of one record through them."""
    from matplotlib.patches import FancyBboxPatch

    order = {name: k for k, (name, _) in enumerate(STATIONS, start=1)}
    with drawing.figure_of(width=9.2, height=6.6) as (figure, panels):
        ax = panels[0]
        for k, (name, purpose) in enumerate(PACKAGES):
            y = len(PACKAGES) - 1 - k
            fill = "#dcebf5" if name in order else "#f5f7f9"
            shape = "round,pad=0.0,rounding_size=0.08"
            ax.add_patch(
                FancyBboxPatch((0, y + 0.06), 6.1, 0.84, shape, fc=fill, ec=drawing.COLORS[6], lw=0.8)
            )
            ax.text(0.12, y + 0.48, name, va="center", weight="bold", size=9)
            ax.text(2.05, y + 0.48, purpose, va="center", size=8.5)
            if name in order:
                ax.scatter([6.6], [y + 0.48], s=190, color=drawing.COLORS[1], zorder=3)
                middle = {"ha": "center", "va": "center", "color": "white", "weight": "bold", "size": 8}
                ax.text(6.6, y + 0.48, str(order[name]), **middle)
                ax.text(6.95, y + 0.48, dict(STATIONS)[name], va="center", size=8.8)
        ax.set(xlim=(-0.2, 10.4), ylim=(-0.2, len(PACKAGES) + 0.1))
        ax.set_axis_off()
    figure.patch.set_facecolor("white")
    return drawing.save(figure, path)


# ---- terminal --------------------------------------------------------------------------------------------

SCREENS = {
    "account": "account --graph florentine --rounds 5 --observer 1",
    "advise": "advise 12 --epsilon 2 --records 200",
}


def screen(name: str, path: Path) -> Path:
    """Draw a command and what it prints as a picture of a terminal, without fonts from elsewhere."""
    from rich.console import Console
    from rich.text import Text

    words = SCREENS[name].split()
    settings = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "110", "TERM": "xterm-256color"}
    done = subprocess.run(
        [sys.executable, "-m", "sottovoce.cli.main", *words],
        env=settings, capture_output=True, text=True, check=True,
    )  # fmt: skip
    console = Console(record=True, width=110, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), ("sottovoce " + SCREENS[name], "bold")))
    console.print(Text.from_ansi(done.stdout))
    drawn = console.export_svg(title="sottovoce", unique_id=f"sottovoce-{name}")
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.S), encoding="utf-8")
    return path


# ---- screenshots -----------------------------------------------------------------------------------------

LARGEST = 150_000


def small(raw: bytes, most: int = LARGEST) -> bytes:
    """Return a PNG in few colors, which screenshots do not need more of."""
    from PIL import Image

    picture = Image.open(io.BytesIO(raw)).convert("RGB").quantize(192)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    if buffer.tell() > most:
        raise SystemExit(f"A picture of {buffer.tell():,} bytes is too large, at most {most:,}.")
    return buffer.getvalue()


def screenshot() -> None:
    """Write explorer.png as a browser shows the page."""
    from playwright.sync_api import sync_playwright

    from sottovoce.report.explorer.model import ExplorerModel, ExplorerSettings
    from sottovoce.report.explorer.page import ExplorerServer

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("There is no chromium on this machine; apt-get install chromium.")
    model = ExplorerModel(ExplorerSettings(graph="florentine"))
    with ExplorerServer(model) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 860}, color_scheme="light")
        page.set_default_timeout(300_000)  # a busy machine is slow, not broken
        page.goto(server.address)
        page.wait_for_selector("body[data-ready]")
        page.wait_for_timeout(500)  # the first observer is shown; the fonts have come
        page.evaluate("window.scrollTo(0, document.querySelector('.columns').offsetTop - 16)")
        (FOLDER / "explorer.png").write_bytes(small(page.screenshot()))
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--browser", action="store_true", help="the screenshot instead; needs Chromium")
    FOLDER.mkdir(exist_ok=True)
    if parser.parse_args().browser:
        screenshot()
        return
    for name in SCREENS:
        print(screen(name, FOLDER / f"terminal-{name}.svg"))
    print(architecture(FOLDER / "architecture.svg"))
    print(loss_by_distance(FOLDER / "loss-by-distance.png"))


if __name__ == "__main__":
    main()
