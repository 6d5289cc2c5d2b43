"""Draw the pictures of README and site from the library's own numbers.

    python scripts/draw_pictures.py
    python scripts/draw_pictures.py --browser      screenshots of the explorer and a page

The screenshots need Chromium and the extras explore and pages; each is a PNG of at most 150 kB.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import sottovoce as sv
from sottovoce.report import drawing

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
            "share of local privacy lost", xticks=range(1, 7), ylim=(0, 1.08),
        )  # fmt: skip
    figure.patch.set_facecolor("white")
    return drawing.save(figure, path)


# floors from the roof down: a module imports only from floors below its own
FLOORS = (
    ("cli", "arguments in, one call, text out; plan files"),
    ("fitting, sklearn", "a model and its price come home"),
    ("report", "pages, pictures, notebooks: reads records only"),
    ("experiments", "one file per table or figure of a paper"),
    ("peers", "one organization, one process: agreement, ledger, wire"),
    ("advice", "which plan to take"),
    ("attacks", "what an observer computes; audits"),
    ("algorithms", "one file per algorithm, and the plan that prices it"),
    ("runners", "one process, ranks of a cluster, sweeps, checkpoints"),
    ("objectives", "what is minimized; the gate: clip, lot, noise, charge"),
    ("data", "records, partitions, lots, randomness"),
    ("privacy", "accountant, guarantees, noise"),
    ("protocols", "who sends which sum to whom"),
    ("graphs", "who can talk"),
)
# one number on its way: the floor, and what happens there
WALK = (
    ("data", "a record"), ("objectives", "clipped, summed, noised, compared"),
    ("algorithms", "a row to send"), ("protocols", "a part of a sum"),
    ("peers", "in the ledger, then on the wire"), ("privacy", "its price"),
    ("report", "the page"),
)  # fmt: skip


def house(path: Path) -> Path:
    """Draw the floors of the package, and the walk of one number through them."""
    from matplotlib.patches import FancyBboxPatch, Polygon

    with drawing.figure_of(width=9.2, height=6.6) as (figure, panels):
        ax = panels[0]
        top = len(FLOORS)
        place = {name: top - k - 1 for k, (name, _) in enumerate(FLOORS)}
        ax.add_patch(
            Polygon(
                [(-0.15, top + 0.08), (3.05, top + 1.25), (6.25, top + 0.08)], fc="#e9eef2", ec=drawing.INK
            )
        )
        ax.text(3.05, top + 0.4, "sottovoce", ha="center", weight="bold", size=12)
        for name, about in FLOORS:
            y = place[name]
            strong = name in ("objectives", "protocols", "algorithms")
            shape, fill = "round,pad=0.0,rounding_size=0.08", "#dcebf5" if strong else "#f5f7f9"
            ax.add_patch(
                FancyBboxPatch((0, y + 0.06), 6.1, 0.84, shape, fc=fill, ec=drawing.COLOURS[6], lw=0.8)
            )
            ax.text(0.12, y + 0.48, name, va="center", weight="bold", size=9.5)
            ax.text(1.75, y + 0.48, about, va="center", size=8.8)
        for k, (name, what) in enumerate(WALK, start=1):
            y = place[name] + 0.48
            ax.plot([6.1, 6.62], [y, y], color=drawing.COLOURS[1], lw=1.2)
            ax.scatter([6.8], [y], s=210, color=drawing.COLOURS[1], zorder=3)
            ax.text(6.8, y, str(k), ha="center", va="center", color="white", weight="bold", size=9, zorder=4)
            ax.text(7.08, y, what, va="center", size=9)
        ax.text(6.62, top + 0.55, "the walk of one number", size=10, weight="bold", color=drawing.COLOURS[1])
        ax.set(xlim=(-0.3, 9.9), ylim=(-0.2, top + 1.35))
        ax.set_axis_off()
    figure.patch.set_facecolor("white")
    return drawing.save(figure, path)


# ---- terminal --------------------------------------------------------------------------------------------

SCREENS = {
    "account": "account --graph florentine --rounds 5 --observer 1",
    "advise": "advise 12 --epsilon 2 --records 200",
    "attack": "attack gossip --graph florentine --attackers 1 --rounds 5",
    "audit": "audit --graph path:3 --rounds 2 --user 2 --observers 0 --claim published",
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
    """Return a PNG in few colors, which screenshots do not need more of."""
    from PIL import Image

    picture = Image.open(io.BytesIO(raw)).convert("RGB").quantize(192)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    if buffer.tell() > most:
        raise SystemExit(f"A picture of {buffer.tell():,} bytes is too large, at most {most:,}.")
    return buffer.getvalue()


def screenshots() -> None:
    """Write explorer.png and page-one.png as a browser shows them."""
    from playwright.sync_api import sync_playwright

    from sottovoce.cli.report import report
    from sottovoce.report.explorer.model import ExplorerModel, ExplorerSettings
    from sottovoce.report.explorer.server import ExplorerServer

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("There is no chromium on this machine; apt-get install chromium.")
        study = ExplorerModel(ExplorerSettings(graph="florentine"))
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
        (FOLDER / "explorer.png").write_bytes(small(page.screenshot()))
        page.goto((folder / "plan.html").as_uri())
        front = page.locator(".front").first
        (FOLDER / "page-one.png").write_bytes(small(front.screenshot()))
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--browser", action="store_true", help="the screenshots instead; needs Chromium")
    FOLDER.mkdir(exist_ok=True)
    if parser.parse_args().browser:
        screenshots()
        return
    for name in SCREENS:
        print(screen(name, FOLDER / f"terminal-{name}.svg"))
    print(house(FOLDER / "house.svg"))
    for suffix in (".svg", ".png"):
        print(loss_by_distance(FOLDER / f"loss-by-distance{suffix}"))


if __name__ == "__main__":
    main()
