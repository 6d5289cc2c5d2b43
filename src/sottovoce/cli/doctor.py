"""`sottovoce doctor`: what is installed, what is missing, and what to do about it. No network."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from sottovoce import __version__
from sottovoce.cli.options import Json
from sottovoce.cli.output import emit, safe, table

if TYPE_CHECKING:
    from rich.console import Console

REQUIRED = (
    "numpy scipy networkx numba dp-accounting scikit-learn threadpoolctl typer rich pydantic jinja2 "
    "matplotlib cryptography tomli-w"
).split()
# package: the extra that installs it
OPTIONAL = {"torch": "deep", "safetensors": "deep", "tensorboard": "tensorboard", "bokeh": "explore"}


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
    """Return versions, and missing packages with their remedy."""
    remedies = dict.fromkeys(REQUIRED, "pip install sottovoce")
    remedies |= {name: f"pip install 'sottovoce[{extra}]'" for name, extra in OPTIONAL.items()}
    packages = {name: {"installed": _version(name), "get": get} for name, get in remedies.items()}
    missing = [name for name, package in packages.items() if package["installed"] is None]
    return {
        "sottovoce": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "ready": set(REQUIRED).isdisjoint(missing),
        "packages": packages,
        "advice": [f"{name} is not installed: {remedies[name]}" for name in missing],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _show(screen: Console, report: dict[str, Any]) -> None:
    system = f"Python {report['python']}, {report['platform']}, {report['cores']} cores"
    screen.print(f"[bold]sottovoce {report['sottovoce']}[/bold] on {system}")
    rows = [[name, package["installed"] or "missing"] for name, package in report["packages"].items()]
    screen.print(table(["package", "version"], rows))
    for line in report["advice"]:
        screen.print(f"[yellow]•[/yellow] {safe(line)}.", soft_wrap=True)
    ready = "Ready: nothing required is missing."
    screen.print(f"[bold]{ready if report['ready'] else 'Not ready: install what is missing above.'}[/bold]")
