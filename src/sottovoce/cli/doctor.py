"""`sottovoce doctor`: what is installed, what is missing, and what to do about it. No network."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce import __version__
from sottovoce.cli.options import Json
from sottovoce.cli.output import emit, safe, table

if TYPE_CHECKING:
    from rich.console import Console

# package: what it is used for
REQUIRED = {
    "numpy": "arrays",
    "scipy": "large networks",
    "networkx": "networks by name",
    "numba": "fast training of linear models",
    "dp-accounting": "privacy accounting with batches",
    "scikit-learn": "models, example data",
    "typer": "this command line",
    "rich": "this command line",
    "pydantic": "plan files",
    "jinja2": "reports",
    "matplotlib": "figures",
    "cryptography": "protective noise, certificates",
    "tomli-w": "plan files, agreements",
}
# package: what it is used for, and the extra that installs it
OPTIONAL = {
    "torch": ("neural networks", "deep"),
    "safetensors": ("model files", "deep"),
    "tensorboard": ("curves during training", "tensorboard"),
    "bokeh": ("the page of sottovoce explore", "explore"),
}


def doctor(json: Json = False) -> None:
    """Say what is installed, what is missing, and what to do about it.

    Looks at this machine only; nothing is downloaded or sent.

    \b
    Example:
        sottovoce doctor
    """
    report = diagnosis()
    emit(report, json, lambda screen: _show(screen, report))


def diagnosis() -> dict[str, Any]:
    """Return versions, missing packages with their remedy, and the data folders that exist."""
    packages: dict[str, dict[str, str | None]] = {
        name: {"installed": _version(name), "used_for": use, "get": None} for name, use in REQUIRED.items()
    }
    for name, (use, extra) in OPTIONAL.items():
        get = f"pip install 'sottovoce[{extra}]'"
        packages[name] = {"installed": _version(name), "used_for": use, "get": get}
    missing = {name: package for name, package in packages.items() if package["installed"] is None}
    advice = [
        f"{name} is not installed ({package['used_for']}): {package['get'] or 'pip install sottovoce'}"
        for name, package in missing.items()
    ]
    return {
        "sottovoce": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": _cores(),
        "ready": missing.keys().isdisjoint(REQUIRED),
        "packages": packages,
        "data": _data_folders(),
        "advice": advice,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # a system that does not tell
        return os.cpu_count() or 1


def _data_folders() -> list[dict[str, Any]]:
    """List the folders where benchmark data sets are looked for, and what each holds."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = {"per-user cache": cache / "sottovoce"}
    if named := os.environ.get("SOTTOVOCE_DATA"):
        folders = {"SOTTOVOCE_DATA": Path(named), **folders}
    rows = []
    for source, path in folders.items():
        holds = sorted(p.name for p in path.iterdir() if p.is_dir()) if path.is_dir() else []
        rows.append({"source": source, "path": str(path), "exists": path.is_dir(), "holds": holds})
    return rows


def _show(screen: Console, report: dict[str, Any]) -> None:
    system = f"Python {report['python']}, {report['platform']}, {report['cores']} cores"
    screen.print(f"[bold]sottovoce {report['sottovoce']}[/bold] on {system}")
    rows = []
    for name, package in report["packages"].items():
        mark = "[green]ok[/green]" if package["installed"] else "[yellow]–[/yellow]"
        rows.append([mark, name, package["installed"] or "", package["used_for"]])
    screen.print(table(["", "package", "version", "used for"], rows))
    data = [f"{', '.join(f['holds'])} in {f['path']}" for f in report["data"] if f["holds"]]
    none = "none (not needed; SOTTOVOCE_DATA names a folder for them)"
    screen.print(f"Optional benchmark data: {safe('; '.join(data) or none)}")
    screen.print()
    for line in report["advice"]:
        screen.print(f"[yellow]•[/yellow] {safe(line)}.", soft_wrap=True)
    verdict = (
        "Ready: nothing required is missing."
        if report["ready"]
        else "Not ready: install what is missing above."
    )
    screen.print(f"[bold]{verdict}[/bold]")
