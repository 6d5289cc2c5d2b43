"""What coalitions learn of averaged releases: which coalitions decide, and which share they learn."""

from __future__ import annotations

import numpy as np

from sottovoce.accounting.question import Coalition, PrivacyQuestion
from sottovoce.accounting.tree_noise import worst_tree_coalitions
from sottovoce.leakage.view import GaussianView
from sottovoce.protocols import Protocol

AVERAGING_ASSUMPTIONS = (
    "observers are honest but curious and share what they see",
    "the schedule is public and is the one that ran",
    "other outputs of the protocol are not published",
)
CONSENSUS_ASSUMPTIONS = (
    "every step ends in exact consensus and all nodes apply the same update",
    "observers are honest but curious and share what they see",
    "the schedules are public and are the ones that ran",
)
ROUNDED_UP = "rounded up where floating point could not decide"
# those of the assumptions above that masks do not replace
_ALSO_MASKED = (AVERAGING_ASSUMPTIONS[1], CONSENSUS_ASSUMPTIONS[0], CONSENSUS_ASSUMPTIONS[2])


def worst_coalitions(question: PrivacyQuestion) -> list[Coalition] | None:
    """Return the coalitions that must be tried; None where they are too many.

    Under certified masks and on one tree the worst coalitions are known in closed form.
    """
    protocol, size = question.protocol, question.size
    stds = question.noise_stds() if question.any_members else None
    if stds is None:
        return question.coalitions
    if protocol.masked:
        if releases_are_alike(question) and all(one.hides_from(size) for one in _protocols(question)):
            # all others stay in one component, so the coalition with the largest noise removes most of it
            return question.largest_noise_coalitions(stds)
    elif protocol.sum_tree is not None and size > 1 and (stds > 0).all() and steps_are_alike(question):
        worst = worst_tree_coalitions(protocol.sum_tree, stds**2, size)
        return sorted(set(worst)) if question.user is None else [worst[question.user]]
    return question.coalitions


def _protocols(question: PrivacyQuestion) -> list[Protocol]:
    """Return the protocols of all steps, each once."""
    plan = question.plan
    if plan.is_stationary or plan.observation.single_averaging:
        return [question.protocol]
    return list({id(one): one for one in map(plan.schedule, range(plan.steps))}.values())


def steps_are_alike(question: PrivacyQuestion) -> bool:
    """Whether one protocol averages all steps and the releases of all agents are in the same steps."""
    plan = question.plan
    alike = plan.observation.single_averaging or plan.steps == 1 or plan.is_stationary
    return alike and releases_are_alike(question)


def releases_are_alike(question: PrivacyQuestion) -> bool:
    """Whether the releases of all agents are in the same steps, so that all noise is in every step."""
    shapes = {
        tuple((r.step, r.steps, r.count, r.joint) for r in question.releases(u) if r.mechanism == "gaussian")
        for u in range(question.plan.n)
    }
    return len(shapes) == 1


def coalition_assumptions(
    question: PrivacyQuestion, coalitions: list[Coalition], unmasked: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the assumptions of a guarantee: ``unmasked``, or those of masks, where observers may deviate."""
    protocol = question.protocol
    if not protocol.masked:
        return unmasked
    masked = protocol.assumptions(coalitions[0])
    if question.view != "outsider" and not question.observers:
        # the worst coalition stands for all of its size, so sentences about its own members are left out
        general = protocol.assumptions()
        masked = (
            *(sentence for sentence in masked if sentence in general),
            "the observers may tap every connection, pool their keys and break the rules",
        )
    return (*masked, *(sentence for sentence in unmasked if sentence in _ALSO_MASKED))


def leakage_with_noise(view: GaussianView, contributions: np.ndarray, stds: np.ndarray) -> np.ndarray:
    """Return h in units of each user's own noise; all of it where a user in the view has no noise."""
    inside = np.array([v for v in np.flatnonzero(contributions) if v not in view.observers], dtype=int)
    if not len(inside) or all_equal(stds[inside]):
        return view.leakage()
    if not (stds[inside] > 0).all():
        return np.where(view.leakage() > 0, contributions, 0).astype(float)
    weights = np.full(view.n, stds[inside].min())  # the noise of the other users is not in the view
    weights[inside] = stds[inside]
    return view.with_noise(weights).leakage()


def contributions_in(view: GaussianView) -> np.ndarray:
    """Return (n,): how many noise coordinates of the view carry each user's values."""
    return np.bincount(view.owners[view.owners >= 0], minlength=view.n)


def all_equal(stds: np.ndarray) -> bool:
    return bool(np.ptp(stds) <= 1e-12 * stds.max())
