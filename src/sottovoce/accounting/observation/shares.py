"""Shares of a step's squared loss that observers obtain, with each agent's own noise, for pages."""

from __future__ import annotations

import numpy as np

from sottovoce.accounting.exact import exact_loss
from sottovoce.accounting.observation.coalitions import all_equal, releases_are_alike
from sottovoce.accounting.question import AccountablePlan, Coalition, PrivacyQuestion
from sottovoce.protocols import Protocol


def pair_shares(plan: AccountablePlan, protocol: Protocol) -> np.ndarray | None:
    """Return (n, n) the share of an agent's loss that every other obtains in a step with this protocol.

    Rows are users, columns observers. The unit is the squared loss (mu squared) of the user's release under
    local privacy, with its own noise. None where that is not known: see `shares_to`.
    """
    stds = _noise_of_step(plan)
    if stds is None:
        return None
    if protocol.linear and all_equal(stds):
        return exact_loss(protocol)  # symmetric graphs need one observer only
    return np.stack([_shares_to((v,), protocol, stds) for v in range(plan.n)], axis=1)


def shares_to(plan: AccountablePlan, observers: Coalition, protocol: Protocol) -> np.ndarray | None:
    """Return (n,) the share of every agent's loss that observers obtain together in a step.

    The unit is that of `pair_shares`. None where the observation model does not say what a pair learns, or
    where the agents do not all release one Gaussian value at the same steps, with noise that stays the same.
    """
    stds = _noise_of_step(plan)
    return None if stds is None else _shares_to(observers, protocol, stds)


def _noise_of_step(plan: AccountablePlan) -> np.ndarray | None:
    """Return (n,) the noise of the one value that every agent releases in a step, if there is one."""
    if not plan.observation.exact_pairs:
        return None
    question = PrivacyQuestion(plan, "network")
    for releases in map(question.releases, range(plan.n)):
        plain = all(r.mechanism == "gaussian" and not r.joint and r.count == 1 for r in releases)
        if not plain or sum(r.steps for r in releases) != plan.steps:
            return None
    stds = question.noise_stds()
    return stds if stds is not None and stds.all() and releases_are_alike(question) else None


def _shares_to(observers: Coalition, protocol: Protocol, stds: np.ndarray) -> np.ndarray:
    if protocol.knows_coalitions or (protocol.reaches_consensus and len(observers) == 1):
        return protocol.shares(observers[0] if len(observers) == 1 else observers, stds)
    view = protocol.view(observers)
    if all_equal(stds):
        return view.leakage()
    weights = stds.copy()
    weights[list(observers)] = np.delete(stds, observers).min()  # they know their own noise
    return view.with_noise(weights).leakage()
