"""What coalitions learn of averaged releases: which coalitions decide, and which share they learn.

On one tree the worst coalition of a member u has a closed form, whatever the noise. The parts of the tree
without u are its sides. c colluders learn most of u if they are neighbors of u, on the c sides with the most
noise: a colluder that moves along its side to the neighbor of u removes all the noise of that side instead of
a part, and no other side changes. So u is hidden by all the noise but that of these c sides, and coalitions
need not be tried.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.accounting.exact import exact_loss
from sottovoce.accounting.question import AccountablePlan, Coalition, PrivacyQuestion
from sottovoce.accounting.wording import OTHERS_ADD_NOISE
from sottovoce.leakage.view import GaussianView
from sottovoce.protocols import Protocol, Tree

NO_OTHER_OUTPUT = "other outputs of the protocol are not published"
AVERAGING_ASSUMPTIONS = (
    "observers are honest but curious and share what they see",
    "the schedule is public and is the one that ran",
    NO_OTHER_OUTPUT,
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


def tree_hiding(tree: Tree, variances: ArrayLike, colluders: int = 1) -> np.ndarray:
    """Return (n,) the noise that hides each member from the worst coalition of ``colluders`` others.

    It is the least, over every coalition of at most ``colluders`` other members, of the noise in the sum that
    the member's row is part of; its loss against the worst of them is ``Delta**2`` over this.
    """
    own = np.asarray(variances, float).ravel()
    # added up, not subtracted from the whole: a quiet end must not drown in the rounding of loud others
    hidden_by = ([weight for weight, _ in sides[colluders:]] for sides in _sides(tree, own))
    return np.array([math.fsum([noise, *others]) for noise, others in zip(own, hidden_by, strict=True)])


def worst_tree_coalitions(tree: Tree, variances: ArrayLike, colluders: int = 1) -> list[tuple[int, ...]]:
    """Return, for each member, the coalition of at most ``colluders`` others that learns most of it."""
    own = np.asarray(variances, float).ravel()
    return [tuple(sorted(w for _, w in sides[:colluders])) for sides in _sides(tree, own)]


def _sides(tree: Tree, variances: np.ndarray) -> list[list[tuple[float, int]]]:
    """Return, per member, the sides of the tree, loudest first: their noise, and the neighbor there."""
    order = np.argsort(-tree.depths, kind="stable").tolist()
    parents, under = tree.parents.tolist(), variances.tolist()
    below: list[list[tuple[float, int]]] = [[] for _ in range(tree.n)]
    for u in order:
        if parents[u] >= 0:
            under[parents[u]] += under[u]
            below[parents[u]].append((under[u], u))
    above = [0.0] * tree.n  # added up from the top, so that no weight is the difference of larger ones
    for u in reversed(order):
        for _, child in below[u]:
            others = (weight for weight, w in below[u] if w != child)
            above[child] = math.fsum([variances[u], above[u], *others])
    sides = [[*below[u], (above[u], parents[u])] if parents[u] >= 0 else below[u] for u in range(tree.n)]
    return [sorted(beside, key=lambda side: (-side[0], side[1])) for beside in sides]


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
    return (*masked, OTHERS_ADD_NOISE, *(sentence for sentence in unmasked if sentence in _ALSO_MASKED))


def leakage_with_noise(view: GaussianView, stds: np.ndarray) -> np.ndarray:
    """Return h in units of each user's own noise; all of it where a user in the view has no noise."""
    inside = np.array([v for v in np.flatnonzero(view.contributions) if v not in view.observers], dtype=int)
    if not len(inside) or all_equal(stds[inside]):
        return view.leakage()
    if not (stds[inside] > 0).all():
        return np.where(view.leakage() > 0, view.contributions, 0).astype(float)
    weights = np.full(view.n, stds[inside].min())  # the noise of the other users is not in the view
    weights[inside] = stds[inside]
    return view.with_noise(weights).leakage()


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
    return leakage_with_noise(protocol.view(observers), stds)


def all_equal(stds: np.ndarray) -> bool:
    return bool(np.ptp(stds) <= 1e-12 * stds.max())
