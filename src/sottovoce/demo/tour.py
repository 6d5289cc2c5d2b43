"""The parts of the tour in order, and the files that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce.demo import clinics
from sottovoce.demo.clinics import Consortium, Tick
from sottovoce.protocols import Gossip, rounds_for
from sottovoce.runners import Result

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


class TourPart(NamedTuple):
    """One part of the tour: its name, a title and a number of ticks for the progress bar, and what runs."""

    name: str
    title: str
    ticks: int | None
    run: Callable[[Consortium, Tick], Result]


def parts(quick: bool = False) -> tuple[TourPart, ...]:
    """Return the parts of the tour."""
    runs, repeats, attacks = (200, 3, 8_000) if quick else (2000, 20, 60_000)
    return (
        TourPart("reconstruction", "reconstruction", None, lambda c, _: clinics.reconstruction(c)),
        TourPart("account", "account", None, lambda c, _: account(c)),
        TourPart("averages", "private averages", 4, partial(clinics.averages, runs=runs)),
        TourPart("training", "private training", 5, partial(clinics.training, repeats=repeats)),
        TourPart("audit", "attacking the claims", 7, partial(clinics.audit, runs=attacks)),
    )


def account(consortium: Consortium) -> Result:
    """Return what the first clinic learns from gossip with noise."""
    from sottovoce.accounting.published.assessment import compare_with_published
    from sottovoce.report.inputs import account_result

    network = consortium.network
    protocol = Gossip(network, rounds_for(network))
    assessment = compare_with_published(network, protocol, observer=0)
    assessment |= {"guarantees": clinics.promises(protocol, 0)}
    return Result(**account_result(network, protocol, assessment))


def write(out: Path, consortium: Consortium, results: Mapping[str, dict[str, Any]]) -> tuple[Path, Path]:
    """Write the results, the report and a plan file; return the paths of the last two."""
    from sottovoce._io import atomic_write
    from sottovoce.report.page import build
    from sottovoce.report.result_files import write_result

    page = build(results.values(), "Sixteen clinics, no server", LEAD)
    for name, result in results.items():
        write_result(out / "results" / f"{name}.json", result)
    report = atomic_write(out / "report.html", page)
    shares = [round(share, 4) for share in consortium.shares().tolist()]
    return report, atomic_write(out / "plan.toml", PLAN.format(values=shares))
