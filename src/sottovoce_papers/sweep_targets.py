"""What a sweep runs by name: experiments, and audits of averaging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sottovoce import graphs
from sottovoce.attacks.audit import audit_averaging
from sottovoce.protocols import Gossip
from sottovoce.runners import Result
from sottovoce_papers.registry import find


def target(what: str, quick: bool = False) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function that ``sottovoce sweep WHAT`` runs, and the options it always gets."""
    if what == "audit":
        return audit_trial, {}
    find(what)
    return experiment_trial, {"experiment": what, "quick": quick}


def experiment_trial(*, seed: int, experiment: str, quick: bool = False, **options: Any) -> Result:
    """Run one registered experiment with a derived seed; a job for `sweep`."""
    if takes_seed(experiment):
        options["seed"] = seed % 2**31
    return find(experiment).run(quick=quick, **options)


def takes_seed(experiment: str) -> bool:
    """Whether another seed makes the experiment another one; else repeating it would show nothing."""
    options = _options(experiment)
    return "seed" in options or any(option.kind is option.VAR_KEYWORD for option in options.values())


def has_trials(experiment: str) -> bool:
    """Whether the experiment is made of independent trials, which it then lets others run (``spread=``)."""
    return "spread" in _options(experiment)


def _options(experiment: str) -> Mapping[str, Any]:
    from inspect import signature

    return signature(find(experiment).run).parameters


def audit_trial(
    *,
    seed: int,
    graph: str,
    rounds: int = 3,
    user: int = 0,
    observer: int | None = None,
    noise_multiplier: float = 0.5,
    runs: int = 20_000,
    delta: float = 1e-2,
    level: float = 1e-3,
    repeat: int = 0,
) -> dict[str, Any]:
    """Audit what one node (the furthest by default) learns of ``user`` by gossip; a job for `sweep`."""
    network = graphs.parse(graph)
    who = int(np.argmax(network.distances_from(user))) if observer is None else observer
    audit = audit_averaging(
        Gossip(network, rounds), user=user, observers=(who,), sensitivity=1.0, noise_std=noise_multiplier,
        runs=runs, rng=np.random.default_rng(seed), delta=delta, level=level,
    )  # fmt: skip
    return {"observer": who, **audit.to_dict(), "refuted": audit.refuted}
