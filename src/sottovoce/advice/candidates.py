"""The plans that are worth a look: for every way to average, the algorithm that uses it, at its least noise.

A *scheme* is a way to average (masked sums, trees, exchange, gossip) on the members' network; with the
number of steps and the rate it becomes a plan, whose noise is the least that meets the budget. Noise is found
by asking the plan itself: where its curve is Gaussian, mu falls as one over the noise, so one question is
enough and the answer is asked again; elsewhere the plan's own search is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from sottovoce.accounting.gaussian import gaussian_mu
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.tree_noise import least_tree_noise
from sottovoce.advice.requirements import Requirements
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import BudgetInfeasible, ConfigError, InvalidInput, MissingDependency
from sottovoce.graphs import Network
from sottovoce.protocols import Tree, parse

__all__ = ["STEPS", "AveragingCandidate", "calibrated", "each_scheme", "plan_for", "schemes", "statement"]

FLOOR = 0.1  # of the noise of local privacy, which nobody goes below on a tree with unequal noise
STALLS = "the step waits for it; if it stays away, the others agree on a run without it"
GOES_ON = "its exchanges are left out (late = drop), the others go on"
FEW_LEAVES = "tree:kind=few-leaves"
STEPS = {"logistic": (10, 40), "linear": (10, 40), "net": (30, 100)}
_PROGRAM_WORK = 30_000  # members x coalitions x steps for which uneven noise on fresh trees is worked out
_COALITION_WORK = 120_000  # coalitions x steps x members of fresh trees that are tried one by one


@dataclass(frozen=True)
class AveragingCandidate:
    """One way to average, by name, and what is to be known about it.

    ``noise`` is ``"equal"``, or ``"optimal"``: the least total on trees, with a floor for everybody.

    Examples
    --------
    >>> import sottovoce as sv
    >>> scheme = AveragingCandidate("tree:kind=uniform", sv.graphs.ring(5), "a fresh tree in every step")
    >>> scheme.exact, scheme.fresh, scheme.masked, scheme.goes_on
    (True, True, False, False)
    """

    protocol: str
    network: Network
    words: str
    silent: str = STALLS
    noise: Literal["equal", "optimal"] = "equal"

    @property
    def goes_on(self) -> bool:
        """Whether a member that falls silent is left out without a new agreement."""
        return self.silent == GOES_ON

    @property
    def exact(self) -> bool:
        """Whether it ends in exact consensus."""
        return parse(self.protocol).exact

    @property
    def masked(self) -> bool:
        """Whether rows travel under masks."""
        return self.protocol.startswith("masked")

    @property
    def fresh(self) -> bool:
        """Whether every step draws its own tree."""
        return parse(self.protocol).drawn


def schemes(wish: Requirements) -> list[AveragingCandidate]:
    """Return the ways to average that the members have, the most promising first.

    Examples
    --------
    >>> [scheme.protocol for scheme in schemes(Requirements.of(8, epsilon=1.0, delta=1e-5))]
    ['masked', 'tree', 'tree:kind=few-leaves', 'tree', 'exchange', 'gossip', 'chebyshev']
    """
    return list(each_scheme(wish))


def each_scheme(wish: Requirements) -> Iterator[AveragingCandidate]:
    """Yield what `schemes` lists, one after the other: some take a search for a tree.

    >>> next(each_scheme(Requirements.of(8, epsilon=1.0, delta=1e-5))).protocol
    'masked'
    """
    n, network, c = wish.n, wish.network, wish.colluders
    shallow = Tree(network)
    if wish.masks and n >= 3 and c <= n - 2:
        partners = "everybody shares keys with everybody" if n <= 64 else "partners on a circle"
        name = "masked" if c == 1 else f"masked:tolerate={c}"
        yield AveragingCandidate(
            name, network, f"sums under masks up a tree of depth {shallow.depth}; {partners}"
        )
    yield AveragingCandidate("tree", network, f"one tree of depth {shallow.depth}, {_leaves(shallow)} leaves")
    if wish.training:
        yield AveragingCandidate("tree:kind=uniform", network, "a fresh random tree in every step")
    if n >= 3 and wish.against not in ("outsiders", "everyone"):
        yield from _uneven_trees(wish, shallow)
    if n & (n - 1) == 0 and (wish.reachable or network.name.startswith("hypercube")):
        yield AveragingCandidate("exchange", network, "pairs swap along the dimensions of a hypercube")
    steps = ":1" if wish.training else ""
    yield AveragingCandidate(f"gossip{steps}", network, "neighbors average again and again", GOES_ON)
    if not wish.training:
        yield AveragingCandidate("chebyshev", network, "neighbors average, accelerated")


def _uneven_trees(wish: Requirements, shallow: Tree) -> Iterator[AveragingCandidate]:
    """Trees whose ends carry the noise: the shallow one, one with as few such members as can be found."""
    n, network, c = wish.n, wish.network, wish.colluders
    name = FEW_LEAVES if c == 1 else f"{FEW_LEAVES}:tolerate={c}"
    few: Any = parse(name).at(network, seed=wish.seed)
    seen: set[tuple[int, int]] = set()
    for protocol, tree in ((name, few), ("tree", shallow)):
        loud = int((least_tree_noise(tree, c, floor=FLOOR) == 1).sum())
        if loud == n or any(loud >= one and tree.depth >= depth for one, depth in seen):
            continue
        seen.add((loud, tree.depth))
        words = (
            f"one tree of {_leaves(tree)} leaves and depth {tree.depth}, of which {loud} members carry the "
            f"noise (others {math.sqrt(FLOOR):.2g} of it)"
        )
        yield AveragingCandidate(protocol, network, words, noise="optimal")
    if wish.training and n * math.comb(n, c) * max(STEPS[wish.compute]) <= _PROGRAM_WORK:
        words = "a fresh random tree in every step, members at its ends louder than others"
        yield AveragingCandidate("tree:kind=uniform", network, words, noise="optimal")


def _leaves(tree: Tree) -> int:
    return tree.n - len(set(tree.parents.tolist()) - {-1}) + int((tree.parents == tree.root).sum() == 1)


# ---- from a scheme to a plan --------------------------------------------------------------------------


def plan_for(
    wish: Requirements,
    scheme: AveragingCandidate,
    *,
    steps: int = 1,
    learning_rate: float = 1.0,
    share: float = 1.0,
) -> Plan:
    """Return the plan of a scheme with the least noise that meets the wish's budget.

    Parameters
    ----------
    wish, scheme : what is wanted and how it is averaged.
    steps, learning_rate : of training; a mean takes one step at rate 1.
    share : the share of the records in a lot.

    Guarantees
    ----------
    Every view the wish names has been asked of the plan that is returned, and meets the budget.

    Examples
    --------
    >>> wish = Requirements.of(10, epsilon=1.0, delta=1e-5, hide="member")
    >>> plan = plan_for(wish, schemes(wish)[0])
    >>> plan.name, round(plan.noise_std / 10**0.5, 3)
    ('averaging', 0.393)
    """
    if not wish.training and wish.hide == "member":
        from sottovoce.algorithms.averaging import PrivateAveraging

        plan: Plan = PrivateAveraging(
            scheme.protocol, noise_std=2 * wish.half, radius=wish.half, center=wish.middle,
            network=scheme.network, seed=wish.seed, **_uneven(wish, scheme),
        )  # fmt: skip
        return calibrated(plan, wish, scheme)
    options = _options(wish, scheme, steps, learning_rate, share)
    return calibrated(_class(scheme)(**options), wish, scheme)


def _class(scheme: AveragingCandidate) -> Any:
    if scheme.exact:
        return ConsensusSGD
    if scheme.protocol == "gossip:1":
        from sottovoce.algorithms.dp_dsgd import DPDSGD

        return DPDSGD
    from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD

    return MuffliatoSGD


def _options(
    wish: Requirements, scheme: AveragingCandidate, steps: int, learning_rate: float, share: float
) -> dict[str, Any]:
    objective, clip_norm = _objective(wish)
    found: dict[str, Any] = {
        "objective": objective, "protocol": scheme.protocol, "network": scheme.network,
        "steps": steps, "learning_rate": learning_rate, "clip_norm": clip_norm, "adjacency": wish.adjacency,
        "sizes": wish.sizes, "noise_multiplier": 1.0, "seed": wish.seed,
    }  # fmt: skip
    found |= _uneven(wish, scheme)
    if share < 1:
        # Rényi accounting is an upper bound found in milliseconds, good enough to rank; peers count tightly
        found |= {"sample_rate": share, "accounting": "rdp"}
    return found


def _uneven(wish: Requirements, scheme: AveragingCandidate) -> dict[str, Any]:
    if scheme.noise == "equal":
        return {}
    return {"noise": scheme.noise, "floor": FLOOR, "tolerate": wish.colluders}


def _objective(wish: Requirements) -> tuple[Any, float]:
    """Return what is minimized and the clip; a mean is least squares on the constant 1, in one step."""
    from sottovoce.objectives import GLM

    if wish.compute == "mean":
        return GLM("squared", dim=1), wish.half
    if wish.compute == "linear":
        return GLM("squared", dim=wish.features), 1.0
    if wish.compute == "logistic":
        return GLM("logistic", dim=wish.features), 1.0
    return _net(str(wish.model)), 1.0


@lru_cache(maxsize=8)
def _net(text: str) -> Any:
    try:
        from sottovoce.objectives.nets.objective import NetObjective
        from sottovoce.objectives.nets.zoo import build
    except ImportError:
        raise MissingDependency("a network needs torch; pip install 'sottovoce[deep]'.") from None
    name, options = net_words(text)
    try:
        return NetObjective(build(name, **options), clip_norm=1.0)
    except TypeError as error:
        raise ConfigError(f"the network {text!r} cannot be built: {error}.") from None


def net_words(text: str) -> tuple[str, dict[str, int]]:
    """Return name and options of a network such as ``"mlp:inputs=64:hidden=16"``.

    >>> net_words("mlp:inputs=64:hidden=16")
    ('mlp', {'inputs': 64, 'hidden': 16})
    """
    name, *parts = text.split(":")
    try:
        return name, {key: int(value) for key, value in (part.split("=") for part in parts)}
    except ValueError:
        raise ConfigError(f"a network is written name:key=number, got {text!r}.") from None


# ---- the least noise ----------------------------------------------------------------------------------


def statement(plan: Plan, view: str, colluders: int, scheme: AveragingCandidate) -> Guarantee:
    """Return what a plan states against a view; the local number, which holds too, where it would be slow.

    Under masks with equal noise all coalitions of one size are alike while they are fewer than anybody's
    partners, so one of them is asked about. On one tree the worst is known; on fresh ones they are tried one
    by one, if not too many.

    Examples
    --------
    >>> wish = Requirements.of(10, epsilon=1.0, delta=1e-5, hide="member")
    >>> masked = schemes(wish)[0]
    >>> found = statement(plan_for(wish, masked), "colluders", 4, masked)
    >>> found.label, round(found.epsilon(1e-5), 3)
    ('exact', 1.25)
    """
    if view != "colluders":
        return plan.privacy(view)  # type: ignore[arg-type]
    protocol: Any = plan.schedule(0)
    if scheme.masked:
        alike = not isinstance(getattr(plan, "noise_multiplier", 0.0), tuple)
        alike = alike and colluders < len(protocol.partners(0))
        if colluders > (protocol.tolerate or 0) and alike:
            return plan.privacy("colluders", colluders=range(colluders))
        return plan.privacy("colluders", colluders=colluders)
    fresh = scheme.fresh and plan.steps > 1
    tried = math.comb(plan.n, colluders) * plan.n * plan.steps if fresh else 0
    if protocol.knows_coalitions and tried <= _COALITION_WORK:
        return plan.privacy("colluders", colluders=colluders)
    return plan.privacy("local")


def calibrated(plan: Plan, wish: Requirements, scheme: AveragingCandidate) -> Plan:
    """Return the plan with the least noise that meets the wish's budget.

    Examples
    --------
    >>> import sottovoce as sv
    >>> wish = Requirements.of(4, epsilon=1.0, delta=1e-5, hide="member")
    >>> exchange = AveragingCandidate("exchange", wish.network, "pairs swap")
    >>> plan = sv.PrivateAveraging("exchange", network=wish.network, noise_std=1.0, radius=0.5)
    >>> round(calibrated(plan, wish, exchange).epsilon(1e-5), 6)
    1.0
    """
    quick = _listed(plan, scheme)

    def at(z: float, one: Plan = quick) -> Plan:
        return one.with_noise(z)

    def worst(z: float) -> list[Guarantee]:
        trial = at(z)
        return [statement(trial, view, c, scheme) for view, c in wish.views]

    allowed = gaussian_mu(wish.epsilon, wish.delta)
    if allowed <= 0:
        raise BudgetInfeasible(
            f"No noise meets epsilon {wish.epsilon:g} at delta {wish.delta:g}; allow a larger one of them."
        )
    first = float(getattr(plan, "noise_std", 1.0)) if plan.noise_field == "noise_std" else 1.0
    stated = worst(first)
    if all(g.curve.is_gaussian for g in stated):
        z = first * max(g.mu for g in stated) / allowed
        bump = 1e-12
        while any(g.epsilon(wish.delta) > wish.epsilon for g in worst(z)):  # the last places
            z, bump = z * (1 + bump), 16 * bump
    else:
        from sottovoce.accounting.calibration import calibrate

        noises = [
            calibrate(
                lambda z, k=k: worst(z)[k],  # type: ignore[misc]
                wish.epsilon,
                wish.delta,
                tolerance=1e-3,
            )
            for k in range(len(stated))
        ]
        z = max(noises)
    return at(z, plan)


def _listed(plan: Plan, scheme: AveragingCandidate) -> Plan:
    """Return the plan with its trees drawn once, so that asking it again at another noise draws none."""
    if not scheme.fresh or plan.steps == 1:
        return plan
    try:
        trees = tuple(plan.schedule(k) for k in range(plan.steps))
    except InvalidInput:
        return plan
    return replace(plan, protocol=trees)  # type: ignore[type-var]
