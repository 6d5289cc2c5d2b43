"""Every table and figure of the five sources, and what this library has of it.

The sources are Bayrooti, Gao, Prorok 2023 (private decentralized deep learning), Cyffers, Even, Bellet,
Massoulié 2022 (Muffliato), and three talks by Bellet: 2023 on private decentralized learning, 2024 on attacks
and random walks, 2024 on private optimization. Talks print pictures without numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.report.result_files import read_result
from sottovoce_papers.bayrooti2023.tables import figure1_of
from sottovoce_papers.registry import texts


@dataclass(frozen=True)
class Item:
    """One table or figure of a source, the experiment that makes it, or why there is none."""

    source: str
    number: str
    what: str
    experiment: str | None = None
    missing: str = ""

    def state(self, results: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
        """Return a word (done, partly, runnable, cannot be drawn) and a sentence."""
        if self.experiment is None:
            return "cannot be drawn", self.missing
        result = results.get(self.experiment)
        if result is None:
            return "runnable", self.missing or "no stored result"
        provenance, metrics = result["provenance"], result["metrics"]
        cells, of = metrics.get("cells"), metrics.get("cells_in_the_paper")
        if cells is not None and of is not None and cells < of:
            return "partly", f"{cells} of {of} cells; python -m sottovoce_papers.trials runs the rest"
        return "done", lasted(provenance.get("trial_seconds", provenance.get("seconds", 0.0)))


def lasted(seconds: float) -> str:
    """Return a time as a person says it."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def stored_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of experiments in a folder by name, in the order of `ITEMS`."""
    names = dict.fromkeys(item.experiment for item in ITEMS if item.experiment is not None)
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        path = folder / f"{name}.json"
        if path.is_file():
            results[name] = read_result(path)
        elif name == "figure1" and "table1" in results:
            results[name] = figure1_of(results["table1"])
    return results


ITEMS = tuple(Item(source["name"], *row) for source in texts()["sources"] for row in source["items"])
