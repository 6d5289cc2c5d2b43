"""The parts of the tour in order, and the files that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce.demo import clinics as parts_of
from sottovoce.demo.clinics import Consortium, consortium
from sottovoce.protocols import Gossip, Protocol, rounds_for
from sottovoce.runners import Result

__all__ = ["LEAD", "PLAN", "TourPart", "account", "consortium", "parts", "write"]

LEAD = (
    "Sixteen clinics want a common answer and a common model, and no clinic may learn another's patients. "
    "There is "
    "no server. The clinics are invented; the patients are those of a public data set."
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


class TourPart(NamedTuple):
    """One part of the tour: its name, a title for the progress bar, its number of ticks, and what runs."""

    name: str
    title: str
    ticks: int | None
    run: Callable[[Consortium, Callable[[int], None]], Result]


def parts(quick: bool = False) -> tuple[TourPart, ...]:
    """Return the parts of the tour; ``account`` runs nothing, so its function is `account`."""
    runs, repeats, attacks = (200, 3, 8_000) if quick else (2000, 20, 60_000)
    return (
        TourPart("reconstruction", "reconstruction", None, lambda c, tick: parts_of.reconstruction(c)),
        TourPart("account", "account", None, lambda c, tick: Result("account")),
        TourPart(
            "averages", "private averages", 4, lambda c, tick: parts_of.averages(c, runs=runs, tick=tick)
        ),
        TourPart(
            "training",
            "private training",
            5,
            lambda c, tick: parts_of.training(c, repeats=repeats, tick=tick),
        ),
        TourPart(
            "audit", "attacking the claims", 7, lambda c, tick: parts_of.audit(c, runs=attacks, tick=tick)
        ),
    )


def account(clinics: Consortium) -> tuple[Protocol, dict[str, Any]]:
    """Return gossip with noise, and what the first clinic learns from it."""
    from sottovoce.accounting.published.assessment import assess

    network = clinics.network
    protocol = Gossip(network, rounds_for(network))
    guarantees = {"guarantees": parts_of.promises(protocol, 0)}
    return protocol, assess(network, protocol, observer=0) | guarantees


def write(out: Path, clinics: Consortium, records: Mapping[str, dict[str, Any]]) -> tuple[Path, Path]:
    """Write the results, the report and a plan file; return the paths of the last two."""
    from sottovoce._io import atomic_write
    from sottovoce.report.page import build
    from sottovoce.report.result_files import write_result

    page = build(records.values(), "Sixteen clinics, no server", LEAD)
    for name, record in records.items():
        write_result(out / "records" / f"{name}.json", record)
    report = atomic_write(out / "report.html", page)
    shares = [round(share, 4) for share in clinics.shares().tolist()]
    return report, atomic_write(out / "plan.toml", PLAN.format(values=shares))
