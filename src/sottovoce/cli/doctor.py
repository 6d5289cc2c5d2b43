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

# package: what it serves
REQUIRED = {
    "numpy": "arrays",
    "scipy": "sparse matrices, spectra",
    "networkx": "graph families",
    "numba": "compiled convex algorithms",
    "dp-accounting": "sampled Gaussian accounting",
    "scikit-learn": "estimators, embedded data",
    "typer": "this command line",
    "rich": "this command line",
    "pydantic": "plan files",
    "jinja2": "reports",
    "matplotlib": "figures",
    "cryptography": "protective noise, certificates",
    "tomli-w": "plan files, agreements",
}
# package: what it serves, and the extra that installs it
OPTIONAL = {
    "torch": ("neural networks", "deep"),
    "safetensors": ("model files", "deep"),
    "tensorboard": ("logs of training", "tensorboard"),
    "bokeh": ("the explorer's page", "explore"),
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
        name: {"installed": _version(name), "serves": serves, "get": None}
        for name, serves in REQUIRED.items()
    }
    for name, (serves, extra) in OPTIONAL.items():
        get = f"pip install 'sottovoce[{extra}]'"
        packages[name] = {"installed": _version(name), "serves": serves, "get": get}
    missing = {name: package for name, package in packages.items() if package["installed"] is None}
    advice = [
        f"{name} is not installed ({package['serves']}): {package['get'] or 'pip install sottovoce'}"
        for name, package in missing.items()
    ]
    data = _data_folders()
    if not any(folder["exists"] for folder in data):
        advice.append("No data folder was found; set SOTTOVOCE_DATA for data sets beyond scikit-learn's own")
    return {
        "sottovoce": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": _cores(),
        "ready": missing.keys().isdisjoint(REQUIRED),
        "packages": packages,
        "data": data,
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
    """List the folders data sets are looked for in, and what each holds."""
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
        rows.append([mark, name, package["installed"] or "", package["serves"]])
    screen.print(table(["", "package", "version", "serves"], rows))
    for folder in report["data"]:
        holds = ", ".join(folder["holds"]) or "nothing yet"
        state = f"holds {holds}" if folder["exists"] else "does not exist"
        screen.print(f"data, {folder['source']}: {folder['path']} {state}")
    screen.print()
    for line in report["advice"]:
        screen.print(f"[yellow]•[/yellow] {safe(line)}.", soft_wrap=True)
    verdict = "Ready." if report["ready"] else "Not ready: install what is missing above."
    screen.print(f"[bold]{verdict}[/bold]")
