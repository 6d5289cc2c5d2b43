"""The accountant: the privacy cost of a plan against one adversary, before anything runs.

A plan lists its releases and names its observation model (`sottovoce.accounting.observation`). `account`
validates a question, a `PrivacyQuestion`, and calls the model with it. It takes the structural type
`AccountablePlan` and knows no plan class.

Views have one meaning in every plan:

=========  ==========================================================================================
local      everything others may see or do: only the agent's own noise protects it (label ldp)
outsider   taps every link and holds no key
network    the worst single member, or the one named as observer
pairwise   one named member about one named user
colluders  a named coalition, or any group of c members
central    sees only the published result
=========  ==========================================================================================

If no tighter bound is known, the local-DP guarantee is returned; it holds against any adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

from sottovoce import _validate
from sottovoce.accounting.guarantee import Adversary, Guarantee, Label, ViewName
from sottovoce.accounting.question import AccountablePlan, PrivacyQuestion
from sottovoce.errors import InvalidInput

__all__ = ["AccountablePlan", "ViewName", "account", "account_each"]


def account(
    plan: AccountablePlan,
    view: ViewName | Adversary | None = None,
    *,
    observer: int | None = None,
    user: int | None = None,
    colluders: Iterable[int] | int = (),
    participations: int | None = None,
    label: Label | None = None,
    progress: Callable[[int], None] | None = None,
) -> Guarantee:
    """Return the privacy cost of ``plan`` against one kind of adversary.

    Parameters
    ----------
    view : see the table above, or an `Adversary`, which names observers and user as well. None takes the
        default of the observation model: ``"network"``, for masked plans as many colluders as they tolerate,
        for a trusted curator ``"central"``.
    observer : the member that observes (network, pairwise, colluders), or whose final row is released
        (central, where averaging leaves each with its own).
    user : the agent the guarantee is about; None for the agent that loses most.
    colluders : the coalition, or how many members may collude.
    participations : rounds in which the client took part, where that is known (federations, local view).
    label : None returns the lowest valid guarantee known, labeled ``ldp`` or ``exact``. Any other value
        returns the number with this label, and raises an error if the plan has none for the view.
    progress : called with the number of steps (or observers) finished.

    Guarantees
    ----------
    Without ``label`` the result is valid for the adversary it names (except for a curator whose model says
    that its cost is a printed formula; its label is ``published``). An argument that has no meaning under a
    view is refused. An unknown observation model yields the local-DP guarantee.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(8), noise_std=1.0, radius=0.5)
    >>> print(account(plan, "pairwise", observer=0, user=7))
    [exact] user, against node 0, about node 7: Gaussian, mu = 0.5
    >>> account(plan, "local").mu, round(account(plan, "central").mu, 6)
    (1.0, 0.353553)
    """
    if isinstance(view, Adversary):
        if (observer, user, colluders) != (None, None, ()):
            raise InvalidInput("an Adversary names observers and user itself; leave the other arguments out.")
        adversary = view
        view, user = adversary.kind, adversary.user
        if view == "colluders":
            colluders = adversary.observers if adversary.count is None else adversary.count
        elif adversary.observers:
            (observer,) = adversary.observers
    n, model = _validate.count(plan.n, "the number of agents"), plan.observation
    if label is not None:
        _validate.choice(label, get_args(Label), "label")
    named = tuple(colluders) if isinstance(colluders, Iterable) else ()
    count = None if isinstance(colluders, Iterable) else _validate.count(colluders, "colluders")
    if view is None:
        if (named or count) and not model.central_only:
            view = "colluders"
        else:
            view, tolerated = model.default_view(plan, observer, user)
            count = tolerated if count is None else count
    _validate.choice(view, get_args(ViewName), "view")
    if participations is not None:
        participations = _validate.count(participations, "participations", minimum=0)
    if user is not None:
        (user,) = _validate.nodes(user, n, "user")
    released_row = view == "central" and model.single_averaging  # an observer is whose row is released
    may_observe = view in ("network", "pairwise", "colluders") or released_row
    counts_rounds = view == "local" and model.takes_participations
    colludes = bool(named) or count is not None
    _refuse_if(
        participations is not None and not counts_rounds,
        f"{participations=} is for view='local' of a federation.",
    )
    curator_only = model.central_only and view != "central"
    _refuse_if(curator_only, f"A trusted curator's only view is 'central', got {view=}.")
    _refuse_if(colludes and view != "colluders", f"{view=} takes no colluders; use view='colluders'.")
    _refuse_if(observer is not None and not may_observe, f"{view=} takes no observer, got {observer=}.")
    _refuse_if(
        view == "pairwise" and None in (observer, user), "view='pairwise' needs observer=... and user=...."
    )
    _refuse_if(
        view == "colluders" and not colludes, "view='colluders' needs colluders=[...] or colluders=<int>."
    )
    _refuse_if(None not in (count, observer), "Pass observer=... or colluders=<int>, not both.")
    named = named if observer is None else (*named, observer)
    observers = _validate.nodes(named, n, "observers") if named else ()
    if not released_row:
        if user in observers:
            raise InvalidInput(f"agent {user} knows its own records; name another observer or user.")
        _require_others(n, count or len(observers) or int(view in ("network", "pairwise")))
    if len(observers) == 1 and view == "colluders":
        view = "network"
    question = PrivacyQuestion(plan, view, observers, count, user, participations, label, progress)
    if label == "ldp" and not model.central_only:
        return question.local_guarantee()
    guarantee = model.guarantee(question)
    if label not in (None, guarantee.label):
        raise InvalidInput(
            f"A plan with observation model {type(model).__name__} has no {label} number for "
            f"view={view!r}; leave label out for a guarantee that holds."
        )
    return guarantee


def account_each(plan: AccountablePlan, observers: Iterable[int]) -> dict[int, Guarantee]:
    """Return the privacy cost of ``plan`` to each agent outside one named coalition, from one view.

    For every such agent it is the guarantee ``account(plan, colluders=observers, user=agent)``.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(8), noise_std=1.0, radius=0.5)
    >>> each = account_each(plan, [0])
    >>> each[7].mu, each[7] == plan.privacy("pairwise", observer=0, user=7), len(each)
    (0.5, True, 7)
    """
    named = _validate.nodes(observers, plan.n)
    _require_others(plan.n, len(named))  # of a curator's plan, too, whose one agent sees everything
    view: ViewName = "network" if len(named) == 1 else "colluders"
    return plan.observation.guarantee_each(PrivacyQuestion(plan, view, named))


def _refuse_if(applies: bool, sentence: str) -> None:
    if applies:
        raise InvalidInput(sentence)


def _require_others(n: int, observers: int) -> None:
    """Refuse a question in which all agents observe."""
    if observers >= n:
        raise InvalidInput(
            f"{observers} of {n} agents are observers, so no agent is left to protect; name fewer, or use "
            "view='local'."
        )
