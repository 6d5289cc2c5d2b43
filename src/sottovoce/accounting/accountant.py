"""The one pricer: what a plan costs, against whoever is asked about, before anything runs.

A plan lists its releases and names the law under which they reach an observer
(`sottovoce.accounting.observation.models`); `account` turns the two into a `Guarantee`. It takes the
structural type `AccountablePlan` and knows no plan class, so that everything which lists its releases is
priced the same way.

Views have one meaning in every plan:

=========  ==========================================================================================
local      the agent's own noise is all that protects it, whatever all others see or do (label ldp)
outsider   somebody who taps every link and holds no key
network    one member: the worst, or the one named as observer
pairwise   one named member about one named user
colluders  a named coalition, or any so many members
central    somebody who sees only the released output
=========  ==========================================================================================

What is not known better is bounded by the local number, restated: it holds against everybody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np

from sottovoce.accounting.correlated import decor_variances
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.disclosure import (
    assumed,
    averaging,
    averaging_each,
    charge,
    consensus,
    consensus_each,
    worst_coalitions,
)
from sottovoce.accounting.exact import learning_guarantee, learning_view
from sottovoce.accounting.guarantee import Guarantee, Label
from sottovoce.accounting.observation.models import (
    Averaging,
    Consensus,
    Curator,
    Federation,
    LinearGossip,
    LocalOnly,
    ObservationModel,
    PairCorrelated,
    TokenWalk,
)
from sottovoce.accounting.query import (
    AccountablePlan,
    Query,
    View,
    local_statement,
    loudest,
    named,
    noise_stds,
    question,
    refused,
)
from sottovoce.accounting.release import MechanismKey
from sottovoce.accounting.walks import WALK_ORDERS, walk_guarantee
from sottovoce.errors import InvalidInput

__all__ = ["AccountablePlan", "View", "account", "account_each"]

_WALK_WORK = 4e9  # elementary steps of walk accounting spent on one answer


def account(
    plan: AccountablePlan,
    view: View | None = None,
    *,
    observer: int | None = None,
    user: int | None = None,
    colluders: Iterable[int] | int = (),
    participations: int | None = None,
    label: Label | None = None,
    progress: Callable[[int], None] | None = None,
) -> Guarantee:
    """Return what ``plan`` costs against one kind of adversary.

    Parameters
    ----------
    plan : anything with the attributes of `AccountablePlan`.
    view : see the table above; None takes the default of the plan's law: ``"network"``, for masked plans
        as many colluders as they tolerate, for a trusted curator ``"central"``.
    observer : the member that looks (network, pairwise, colluders), or whose final row is released (central,
        where averaging leaves each with its own).
    user : the agent the statement is about; None for whichever loses most.
    colluders : the coalition, or how many members may collude, whoever they are.
    participations : rounds in which the client took part, where that is known (federations, local view).
    label : None returns the best statement that is valid, ``ldp`` or ``exact``. ``"conditional"`` and
        ``"published"`` ask for those numbers by name; ``"ldp"`` and ``"exact"`` insist on one of the two.
    progress : called with the number of steps (or observers) finished.

    Guarantees
    ----------
    Without ``label`` the statement is valid for the adversary it names (the one exception is a curator whose
    law says that its price is a printed formula: that is labeled so). Whoever was asked about is named in
    it, and an argument that has no meaning under a view is refused. User sampling amplifies only where who
    took part stays hidden (a federation with a secure sum). An unknown law yields the local number.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> import sottovoce as sv
    >>> from sottovoce.accounting.observation.models import Averaging
    >>> plan = SimpleNamespace(
    ...     n=8, steps=1, observation=Averaging(), adjacency="user", assumptions=(),
    ...     schedule=lambda k: sv.protocols.HypercubeExchange(8),
    ...     releases=lambda agent: [sv.privacy.Release(agent, 0, sensitivity=1.0, noise_std=1.0)],
    ... )
    >>> print(account(plan, "pairwise", observer=0, user=7))
    [exact] user, against node 0, about node 7: Gaussian, mu = 0.5
    >>> account(plan, "local").mu, round(account(plan, "central").mu, 6)
    (1.0, 0.353553)
    """
    asked = question(plan, view, observer, user, colluders, participations, label, progress)
    if asked.label == "ldp" and not isinstance(plan.observation, Curator):
        return local_statement(asked)
    found = _price(plan.observation, asked)
    if asked.label not in (None, found.label):
        raise InvalidInput(
            f"{named(plan.observation)} has no {asked.label} number for the {asked.view} view, only "
            f"{found.label}; leave label out."
        )
    return found


def account_each(plan: AccountablePlan, observers: Iterable[int]) -> dict[int, Guarantee]:
    """Return what ``plan`` costs each other agent against one named coalition, the view computed once.

    Parameters
    ----------
    plan : anything with the attributes of `AccountablePlan`.
    observers : one agent, or several that share what they see.

    Returns
    -------
    For every agent outside the coalition the guarantee that ``account(plan, colluders=observers, user=u)``
    gives one by one: pages show all of them at a click.

    Guarantees
    ----------
    Those of `account`, without ``label``.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(8), noise_std=1.0, radius=0.5)
    >>> each = account_each(plan, [0])
    >>> each[7].mu, each[7] == plan.privacy("pairwise", observer=0, user=7), len(each)
    (0.5, True, 7)
    """
    asked = question(plan, "colluders", None, None, tuple(observers), None, None, None)
    known: dict[int, Guarantee] | None = None
    if isinstance(plan.observation, Averaging):
        known = averaging_each(asked)
    elif isinstance(plan.observation, Consensus):
        known = consensus_each(asked)
    elif isinstance(plan.observation, LinearGossip) and _once(asked):
        known = averaging_each(asked)
    if known is not None:
        return known
    found: dict[int, Guarantee] = {}
    local: dict[Any, Guarantee] = {}
    for u in asked.users(asked.observers):
        key = frozenset(asked.counts(u).items())
        one = replace(asked, user=u, view="colluders" if len(asked.observers) > 1 else "network")
        if key in local:  # what own noise alone protects is the same for equal releases
            found[u] = one.answer("ldp", local[key].curve)
            continue
        found[u] = _price(plan.observation, one)
        if found[u].label == "ldp" and found[u] == one.answer("ldp", found[u].curve):
            local[key] = found[u]
    return found


# ---- one function per law ------------------------------------------------------------------------------


@singledispatch
def _price(law: ObservationModel, asked: Query) -> Guarantee:
    """An unknown law, and noise correlated over time, say nothing beyond the local number."""
    if asked.label in ("conditional", "published", "exact"):
        raise refused(asked, asked.label)
    return local_statement(asked)


@_price.register
def _(law: LocalOnly, asked: Query) -> Guarantee:
    if asked.label == "published" and law.published is not None and asked.view in ("network", "pairwise"):
        curve, sentence = law.published
        return asked.answer("published", curve, (sentence,))
    if asked.label is not None:
        raise refused(asked, asked.label)
    return local_statement(asked)


@_price.register
def _(law: Averaging, asked: Query) -> Guarantee:
    if asked.label in ("conditional", "published"):
        raise refused(asked, asked.label)
    return averaging(asked)


@_price.register
def _(law: Consensus, asked: Query) -> Guarantee:
    if asked.label in ("conditional", "published"):
        raise refused(asked, asked.label)
    return consensus(asked)


# ---- gossip without consensus -------------------------------------------------------------------------


@_price.register
def _(law: LinearGossip, asked: Query) -> Guarantee:
    if asked.label == "conditional":
        return _conditional(asked)
    if asked.label == "published":
        raise refused(asked, asked.label)
    if _once(asked) and asked.view in ("network", "pairwise", "colluders"):
        return averaging(asked)  # one step is one averaging
    if asked.label == "exact":
        raise refused(asked, asked.label)
    return local_statement(asked)


def _once(asked: Query) -> bool:
    """Whether everybody publishes once, in one step: then gossip is one averaging."""
    return asked.plan.steps == 1 and all(
        sum(r.draws for r in asked.releases(u)) == 1 for u in range(asked.plan.n)
    )


def _conditional(asked: Query) -> Guarantee:
    if asked.view not in ("network", "pairwise", "colluders"):
        raise refused(asked, "conditional")
    plan = asked.plan
    listed = [r for u in range(plan.n) for r in asked.releases(u)]
    single = {MechanismKey.of(r) for r in listed}
    whole = all(r.draws == plan.steps and r.count == 1 and not r.joint for r in listed)
    gaussian = all(kind.mechanism == "gaussian" for kind in single)
    if len(single) != 1 or not whole or not gaussian or plan.adjacency != "user":
        raise InvalidInput(
            "The linear formula is for user level and the same Gaussian noise of every agent in every step; "
            "leave label out for the local guarantee."
        )
    protocols: Any = [plan.schedule(k) for k in range(plan.steps)]
    for protocol in protocols:
        if not protocol.plain:
            raise InvalidInput(
                f"The linear formula takes protocols without memory or fresh noise, got {protocol!r}; leave "
                "label out for the local guarantee."
            )
    coalitions = asked.coalitions
    if coalitions is None:
        raise InvalidInput(f"Coalitions of {asked.count} are too many to try; name one, or take fewer.")
    size = {"sensitivity": listed[0].sensitivity, "noise_std": listed[0].noise_std}
    if not size["noise_std"]:
        raise InvalidInput("The linear formula needs noise, got none.")
    found = []
    for done, who in enumerate(coalitions, 1):
        seen = learning_view(protocols, plan.steps, who)
        found.append(learning_guarantee(seen, asked.user, **size))
        if asked.progress is not None:
            asked.progress(done)
    return asked.answer("conditional", Curve.worst(g.curve for g in found), found[0].assumptions)


# ---- walks --------------------------------------------------------------------------------------------


@_price.register
def _(law: TokenWalk, asked: Query) -> Guarantee:
    if asked.label in ("conditional", "published"):
        raise refused(asked, asked.label)
    local = local_statement(asked)
    pairs = _walk_pairs(law, asked)
    if pairs is None:
        if asked.label == "exact":
            raise refused(asked, asked.label)
        return local
    curves: list[Curve] = []
    said: tuple[str, ...] = ()
    for done, (v, u) in enumerate(pairs, 1):
        (kind,) = asked.counts(u)
        along = walk_guarantee(
            law.network,
            law.steps,
            user=u,
            observer=v,
            noise_multiplier=kind.ratio,
            tokens=law.tokens,
            cap=law.cap,
            final_public=law.final_public,
            contractive=law.contractive,
        )
        curves.append(along.curve)
        said = along.assumptions
        if asked.progress is not None:
            asked.progress(done)
    if not law.final_public:
        said = (*said, "the final model stays hidden")
    return asked.answer("exact", Curve.least([Curve.worst(curves), local.curve]), said)


def _walk_pairs(law: TokenWalk, asked: Query) -> list[tuple[int, int]] | None:
    """Return the (observer, user) pairs whose worst is the answer; None where only local is known.

    A coalition, or somebody who taps every link, sees more than one node does, and sampled lots are not
    covered by the law of the path.
    """
    n = asked.plan.n
    if asked.view not in ("network", "pairwise") or n < 2:
        return None
    watchers = asked.observers or tuple(range(n))
    pairs = [(v, u) for v in watchers for u in asked.users([v]) if u != v]
    for u in {u for _, u in pairs}:
        counts = asked.counts(u)
        plain = all(
            k.mechanism == "gaussian" and 0 < k.ratio and (k.sample_rate == 1 or k.adjacency == "user")
            for k in counts
        )
        if len(counts) != 1 or not plain:
            return None
    W = law.network.W
    if W.nnz == n * n and np.ptp(W.data) < 1e-12 and len({_only_kind(asked, u) for _, u in pairs}) == 1:
        pairs = pairs[:1]  # on the complete graph every pair is like every other
    levels = 1 if law.cap is None or law.cap >= law.steps else law.cap
    if len(pairs) > 1 and len(pairs) * levels * law.steps**2 * len(WALK_ORDERS) > _WALK_WORK:
        return None
    return pairs


def _only_kind(asked: Query, user: int) -> MechanismKey:
    return next(iter(asked.counts(user)))


# ---- noise shared by pairs ----------------------------------------------------------------------------


@_price.register
def _(law: PairCorrelated, asked: Query) -> Guarantee:
    if asked.label in ("conditional", "published"):
        raise refused(asked, asked.label)
    if asked.view == "local" or not law.own_std:
        return local_statement(asked)
    coalitions = asked.coalitions
    if coalitions is None:
        return local_statement(asked)
    curves: dict[Any, Curve] = {}
    for done, who in enumerate(coalitions, 1):
        # in units of the own noise: what an observer who lacks the honest pairs' seeds gets of it
        h = law.own_std**2 * decor_variances(law.network, law.own_std, law.pair_std, who)
        for u in asked.users(who):
            for release in asked.releases(u):
                if release.sensitivity and not math.isclose(release.noise_std, law.own_std, rel_tol=1e-9):
                    raise InvalidInput(
                        f"agent {u} lists noise {release.noise_std:g}, but the law says its own noise is "
                        f"{law.own_std:g}; they must be the same."
                    )
            charge(curves, asked.counts(u), h[u], 1, asked.method)
        if asked.progress is not None:
            asked.progress(done)
    said = (
        "all messages may be seen; the seeds that honest neighbors share stay secret",
        "honest pairs draw their shared noise afresh in every step",
    )
    return asked.answer("exact", Curve.worst(curves.values()), said)


# ---- one holder, or a server --------------------------------------------------------------------------


@_price.register
def _(law: Curator, asked: Query) -> Guarantee:
    if asked.user is not None:
        raise InvalidInput(f"The curator holds all records, so no user can be named, got user={asked.user}.")
    said: tuple[str, ...] = ("the curator who holds the records is trusted",)
    label: Label = "exact"
    if law.published is not None:
        label, said = "published", (*said, law.published)
    if asked.label not in (None, label):
        raise refused(asked, asked.label)
    return asked.answer(label, local_statement(asked).curve, said)


@_price.register
def _(law: Federation, asked: Query) -> Guarantee:
    if asked.label in ("conditional", "published"):
        raise refused(asked, asked.label)
    if law.users != asked.plan.n:
        raise InvalidInput(f"The law is for {law.users} users, the plan has {asked.plan.n} agents.")
    stds = noise_stds(asked)
    if asked.view == "local" or not law.secure_sum or stds is None:
        return local_statement(asked)
    protocol: Any = asked.plan.schedule(0)
    if protocol.masked:
        coalitions = worst_coalitions(asked, protocol)
        if coalitions is None:
            return local_statement(asked)
        said = list(assumed(asked, protocol, coalitions, ()))
    else:
        anyone = asked.view in ("network", "colluders") and not asked.observers
        coalitions = loudest(asked, stds) if anyone else (asked.coalitions or [])
        said = ["a secure sum hides single messages"]
    curves: dict[Any, Curve] = {}
    present = law.users
    for who in coalitions:
        # masks hide a client among those still joined to it by keys, an assumed sum among all others
        groups = protocol.blocks(who) if protocol.masked else [[v for v in range(law.users) if v not in who]]
        around = {int(u): math.fsum(stds[v] ** 2 for v in group) for group in groups for u in group}
        present = min(present, *map(len, groups))
        for u in asked.users(who):
            share = stds[u] ** 2 / around[u] if stds[u] else 1.0
            charge(curves, asked.counts(u, hidden=True), share, 1, asked.method)
    said.append(f"{present} clients add their noise in every round, sampled or not")
    if asked.plan.adjacency == "user" and any(
        r.user_rate < 1 for u in range(law.users) for r in asked.releases(u)
    ):
        said.append("Poisson sampling: every client takes part in every round independently")
    return asked.answer("exact", Curve.worst(curves.values()), said)
