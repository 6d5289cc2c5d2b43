"""`sottovoce doctor`: what is installed, what is missing, and what to do about it. No network."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sottovoce import __version__
from sottovoce.cli.options import Json
from sottovoce.cli.output import emit, template

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
    versions = [[name, package["installed"] or "missing"] for name, package in report["packages"].items()]
    emit(report, json, template("doctor", report=report, versions=versions))


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
