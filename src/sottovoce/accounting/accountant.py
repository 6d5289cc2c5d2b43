"""The accountant: the privacy cost of a plan against one adversary, before anything runs.

A plan lists its releases and names its observation model (`sottovoce.accounting.observation`). `account`
validates the question and calls the model. It takes the structural type `AccountablePlan` and knows no plan
class.

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

from sottovoce.accounting.guarantee import Guarantee, Label, ViewName
from sottovoce.accounting.question import AccountablePlan, validated_question
from sottovoce.errors import InvalidInput

__all__ = ["AccountablePlan", "ViewName", "account", "account_each"]


def account(
    plan: AccountablePlan,
    view: ViewName | None = None,
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
    plan : anything with the attributes of `AccountablePlan`.
    view : see the table above; None takes the default of the observation model: ``"network"``, for masked
        plans as many colluders as they tolerate, for a trusted curator ``"central"``.
    observer : the member that observes (network, pairwise, colluders), or whose final row is released
        (central, where averaging leaves each with its own).
    user : the agent the guarantee is about; None for the agent that loses most.
    colluders : the coalition, or how many members may collude.
    participations : rounds in which the client took part, where that is known (federations, local view).
    label : None returns the best guarantee that is valid, ``ldp`` or ``exact``. ``"conditional"`` and
        ``"published"`` return those numbers; ``"ldp"`` and ``"exact"`` require one of the two.
    progress : called with the number of steps (or observers) finished.

    Guarantees
    ----------
    Without ``label`` the result is valid for the adversary it names (the one exception is a curator whose
    model says that its cost is a printed formula; its label is ``published``). An argument that has no
    meaning under a view is refused. Sampling of users amplifies only where participation stays hidden (a
    federation with a secure sum). An unknown observation model yields the local-DP guarantee.

    Examples
    --------
    >>> import sottovoce as sv
    >>> plan = sv.PrivateAveraging(sv.protocols.HypercubeExchange(8), noise_std=1.0, radius=0.5)
    >>> print(account(plan, "pairwise", observer=0, user=7))
    [exact] user, against node 0, about node 7: Gaussian, mu = 0.5
    >>> account(plan, "local").mu, round(account(plan, "central").mu, 6)
    (1.0, 0.353553)
    """
    question = validated_question(plan, view, observer, user, colluders, participations, label, progress)
    model = plan.observation
    if label == "ldp" and not model.central_only:
        return question.local_guarantee()
    if label is not None and label not in model.labels:
        raise question.unsupported_label()
    guarantee = model.guarantee(question)
    if label not in (None, guarantee.label):
        raise InvalidInput(
            f"A plan with observation model {type(model).__name__} has no {label} number for "
            f"view={question.view!r}, only {guarantee.label}; leave label out."
        )
    return guarantee


def account_each(plan: AccountablePlan, observers: Iterable[int]) -> dict[int, Guarantee]:
    """Return the privacy cost of ``plan`` to each agent outside one named coalition, from one view.

    Parameters
    ----------
    plan : anything with the attributes of `AccountablePlan`.
    observers : one agent, or several that share what they see.

    Returns
    -------
    For every agent outside the coalition the guarantee ``account(plan, colluders=observers, user=agent)``.

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
    question = validated_question(plan, "colluders", colluders=tuple(observers))
    return plan.observation.guarantee_each(question)
