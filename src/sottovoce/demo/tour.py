"""The parts of the tour in order, and the files that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce.demo import clinics as tour_parts
from sottovoce.demo.clinics import Consortium, consortium
from sottovoce.protocols import Gossip, rounds_for

__all__ = ["consortium", "parts", "write"]

LEAD = (
    "Sixteen clinics want a common answer and a common model, and no clinic may learn another's patients. "
    "There is no server. The clinics are invented; the patients are those of a public data set."
)

# a plan of one's own to begin with: the clinics' first question, with nobody to trust
PLAN = """version = 1
title = "Sixteen clinics: share of malignant tumours"

[network]
graph = "hypercube:4"         # every clinic talks to four others

[protocol]
name = "masked"               # clinics learn the sum, and no single row

[average]
radius = 0.5                  # shares lie in [0, 1]: half a unit around
center = 0.5                  # one half
adjacency = "user"            # hide everything a clinic holds
values = {values}

[budget]
epsilon = 2.0
delta = 1e-5
"""


Tick = Callable[[int], None]


class TourPart(NamedTuple):
    """One part of the tour: its name, a title and a number of ticks for the progress bar, and what runs."""

    name: str
    title: str
    ticks: int | None
    run: Callable[[Consortium, Tick], dict[str, Any]]


def parts(quick: bool = False) -> tuple[TourPart, ...]:
    """Return the parts of the tour."""
    runs, repeats, attacks = (200, 3, 8_000) if quick else (2000, 20, 60_000)

    def averages(clinics: Consortium, tick: Tick) -> dict[str, Any]:
        return tour_parts.averages(clinics, runs=runs, tick=tick).to_dict()

    def training(clinics: Consortium, tick: Tick) -> dict[str, Any]:
        return tour_parts.training(clinics, repeats=repeats, tick=tick).to_dict()

    def audit(clinics: Consortium, tick: Tick) -> dict[str, Any]:
        return tour_parts.audit(clinics, runs=attacks, tick=tick).to_dict()

    return (
        TourPart(
            "reconstruction", "reconstruction", None, lambda c, _: tour_parts.reconstruction(c).to_dict()
        ),
        TourPart("account", "account", None, lambda c, _: account(c)),
        TourPart("averages", "private averages", 4, averages),
        TourPart("training", "private training", 5, training),
        TourPart("audit", "attacking the claims", 7, audit),
    )


def account(clinics: Consortium) -> dict[str, Any]:
    """Return what the first clinic learns from gossip with noise."""
    from sottovoce.accounting.published.assessment import compare_with_published
    from sottovoce.report.inputs import account_result

    network = clinics.network
    protocol = Gossip(network, rounds_for(network))
    assessment = compare_with_published(network, protocol, observer=0)
    return account_result(network, protocol, assessment | {"guarantees": tour_parts.promises(protocol, 0)})


def write(out: Path, clinics: Consortium, results: Mapping[str, dict[str, Any]]) -> tuple[Path, Path]:
    """Write the results, the report and a plan file; return the paths of the last two."""
    from sottovoce._io import atomic_write
    from sottovoce.report.page import build
    from sottovoce.report.result_files import write_result

    page = build(results.values(), "Sixteen clinics, no server", LEAD)
    for name, result in results.items():
        write_result(out / "results" / f"{name}.json", result)
    report = atomic_write(out / "report.html", page)
    shares = [round(share, 4) for share in clinics.shares().tolist()]
    return report, atomic_write(out / "plan.toml", PLAN.format(values=shares))
