"""First contact, as a new user: a clone and `make demo`; then wheel, demo, explorer, an own CSV, a page.

    python -m verification.first_contact --out docs/results/verification.json

Everything happens in an empty temporary folder. The commands and blocks are copied from the site's pages
(docs/tutorials/own-csv.md), so what is timed is what a reader would do. Times include installing.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from verification import store

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(`{3,})(\{code-block\} )?([\w-]*)\n(.*?)^\1$", re.M | re.S)


class Visitor:
    """Runs commands in a folder and notes how long each took and whether it worked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.steps = folder, []
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}

    def run(self, what: str, words: list[str], shown: str = "") -> str:
        started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        took = round(time.perf_counter() - started, 1)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = round(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, 1)
        step: dict[str, Any] = {
            "step": what, "command": shown or shlex.join(words), "seconds": took, "cpu_seconds": cpu,
        }  # fmt: skip
        if done.returncode:
            step["failed"] = (done.stderr or done.stdout)[-600:]
        self.steps.append(step)
        print(f"{took:7.1f} s  {'FAILED' if done.returncode else 'ok':6}  {what}", flush=True)
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
        return done.stdout

    def follow(self, page: Path, until: str, binary: Path) -> None:
        """Do what a page shows, up to a heading."""
        for _, directive, kind, inside in FENCE.findall(page.read_text().split(until)[0]):
            caption = re.match(r":caption: (\S+)\n", inside)
            if directive and caption:
                (self.folder / caption[1]).write_text(inside[caption.end() :])
            elif kind == "python":
                (self.folder / "block.py").write_text(inside)
                self.run("own CSV: python block", [str(binary / "python"), "block.py"], "python block.py")
            elif kind == "console":
                for line in re.findall(r"^\$ (.*)$", inside, re.M):
                    name, *words = shlex.split(line)
                    self.run(f"own CSV: {name} {words[0]}", [str(binary / name), *words], line)


def main() -> None:
    """Visit, and write what was seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--skip-clone", action="store_true", help="leave out the clone and make demo")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="first-contact-"))
    visitor = Visitor(folder)
    python = sys.executable if Path("/usr/bin/python3.11").exists() is False else "python3.11"
    try:
        if not chosen.skip_clone:
            visitor.run("clone", ["git", "clone", "--quiet", str(ROOT), "clone"], "git clone ...")
            visitor.run("make demo", ["make", "-C", "clone", "demo"])
        source = folder / "source"
        shutil.copytree(
            ROOT, source, ignore=shutil.ignore_patterns(".git", ".venv*", "build", "_generated", "*.egg-info")
        )
        visitor.run(
            "build the wheel", [python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "wheels", "./source"]
        )
        shutil.rmtree(source)
        (wheel,) = (folder / "wheels").glob("*.whl")
        visitor.run("a new environment", [python, "-m", "venv", "own"])
        binary = folder / "own" / "bin"
        visitor.run(
            "install from the wheel",
            [str(binary / "pip"), "install", "-q", "-c", str(ROOT / "constraints.txt"), f"{wheel}[explore]"],
            "pip install 'sottovoce[explore]'",
        )
        visitor.run("doctor", [str(binary / "sottovoce"), "doctor"], "sottovoce doctor")
        visitor.run("demo", [str(binary / "sottovoce"), "demo"], "sottovoce demo")
        visitor.run(
            "explorer, one offline page",
            [str(binary / "sottovoce"), "explore", "florentine", "--out", "page.html"],
            "sottovoce explore florentine --out page.html",
        )
        visitor.follow(ROOT / "docs" / "tutorials" / "own-csv.md", "## What next", binary)
        written = {
            name: (folder / name).stat().st_size
            for name in ("page.html", "report.html", "sottovoce-demo/report.html")
            if (folder / name).exists()
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failed = [step["step"] for step in visitor.steps if "failed" in step]
    record: dict[str, Any] = {
        "command": "python -m verification.first_contact --out docs/results/verification.json",
        "python": platform.python_version(),
        "load_at_the_end": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
        "steps": visitor.steps,
        "bytes_of_pages": written,
        "failed": failed,
    }
    before = ("clone", "make demo", "build the wheel")
    for key in ("seconds", "cpu_seconds"):
        record[f"{key}_from_the_wheel"] = round(
            sum(step[key] for step in visitor.steps if step["step"] not in before), 1
        )
    if chosen.out:
        store(chosen.out, "first-contact", record)
    print(f"{record['seconds_from_the_wheel']} s from the wheel to the page; failed: {failed or 'nothing'}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
