"""`sottovoce doctor`: what is installed, what is missing, and what to do about it. No network."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sottovoce import __version__
from sottovoce.cli.output import Json, emit, safe, table

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["doctor"]


class Package(NamedTuple):
    """A package, what it serves, and how one gets it (None: it comes with sottovoce)."""

    name: str
    serves: str
    get: str | None = None


PACKAGES = (
    Package("numpy", "arrays"),
    Package("scipy", "sparse matrices, spectra"),
    Package("networkx", "graph families"),
    Package("numba", "compiled convex algorithms"),
    Package("dp-accounting", "sampled Gaussian accounting"),
    Package("scikit-learn", "estimators, embedded data"),
    Package("typer", "this command line"),
    Package("rich", "this command line"),
    Package("pydantic", "plan files"),
    Package("jinja2", "reports"),
    Package("matplotlib", "figures"),
    Package("cryptography", "protective noise, certificates"),
    Package("tomli-w", "plan files, agreements"),
    Package("torch", "neural networks", "pip install 'sottovoce[deep]'"),
    Package("safetensors", "model files", "pip install 'sottovoce[deep]'"),
    Package("tensorboard", "logs of training", "pip install 'sottovoce[tensorboard]'"),
    Package("bokeh", "the explorer's page", "pip install 'sottovoce[explore]'"),
)


def doctor(json: Json = False) -> None:
    """Say what is installed, what is missing, and what to do about it.

    Looks at this machine only; nothing is downloaded or sent.

    \b
    Example:
        sottovoce doctor
    """
    report = diagnosis()
    emit(report, json, lambda out: _show(out, report))


def diagnosis() -> dict[str, Any]:
    """Return versions, missing packages with their remedy, and the data folders that exist.

    Examples
    --------
    >>> report = diagnosis()
    >>> report["packages"]["numpy"]["installed"] is not None
    True
    """
    packages = {p.name: {"installed": _version(p.name), "serves": p.serves, "get": p.get} for p in PACKAGES}
    missing = [p for p in PACKAGES if packages[p.name]["installed"] is None]
    advice = [f"{p.name} is not installed ({p.serves}): {p.get or 'pip install sottovoce'}" for p in missing]
    data = _data()
    if not any(folder["exists"] for folder in data):
        advice.append("No data folder was found; set SOTTOVOCE_DATA for data sets beyond scikit-learn's own")
    return {
        "sottovoce": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": _cores(),
        "ready": all(p.get is not None for p in missing),
        "packages": packages,
        "data": data,
        "advice": advice,
    }


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _data() -> list[dict[str, Any]]:
    """List the folders data sets are looked for in, and what each holds."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sottovoce"
    named = os.environ.get("SOTTOVOCE_DATA")
    folders = [("SOTTOVOCE_DATA", Path(named))] if named else []
    folders.append(("per-user cache", cache))
    return [
        {
            "source": source,
            "path": str(path),
            "exists": path.is_dir(),
            "holds": sorted(p.name for p in path.iterdir() if p.is_dir()) if path.is_dir() else [],
        }
        for source, path in folders
    ]


def _show(out: Console, report: dict[str, Any]) -> None:
    out.print(
        f"[bold]sottovoce {report['sottovoce']}[/bold] on Python {report['python']}, {report['platform']}, "
        f"{report['cores']} cores"
    )
    rows = [
        [
            "[green]ok[/green]" if p["installed"] else "[yellow]–[/yellow]",
            name,
            p["installed"] or "",
            p["serves"],
        ]
        for name, p in report["packages"].items()
    ]
    out.print(table(["", "package", "version", "serves"], rows))
    for folder in report["data"]:
        holds = ", ".join(folder["holds"]) or "nothing yet"
        state = f"holds {holds}" if folder["exists"] else "does not exist"
        out.print(f"data, {folder['source']}: {folder['path']} {state}")
    out.print()
    if report["advice"]:
        for line in report["advice"]:
            out.print(f"[yellow]•[/yellow] {safe(line)}.", soft_wrap=True)
    verdict = "Ready." if report["ready"] else "Not ready: install what is missing above."
    out.print(f"[bold]{verdict}[/bold]")
