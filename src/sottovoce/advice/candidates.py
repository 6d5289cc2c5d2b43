"""The plans that are worth a look: for every way to average, the algorithm that uses it, at its least noise.

A *candidate* is a way to average (masked sums, trees, exchange, gossip) on the members' network; with steps
and rate it becomes a plan with the least noise that meets the budget. Where the plan's curve is Gaussian, mu
falls as one over the noise, so one accounting gives the noise and a second checks it; elsewhere the noise is
searched for.
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
    >>> candidate = AveragingCandidate("tree:kind=uniform", sv.graphs.ring(5), "a fresh tree in every step")
    >>> candidate.exact, candidate.fresh, candidate.masked, candidate.goes_on
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


def averaging_candidates(requirements: Requirements) -> list[AveragingCandidate]:
    """Return the ways to average that the members have, the most promising first.

    Examples
    --------
    >>> requirements = Requirements.from_arguments(8, epsilon=1.0, delta=1e-5)
    >>> [candidate.protocol for candidate in averaging_candidates(requirements)]
    ['masked', 'tree', 'tree:kind=few-leaves', 'tree', 'exchange', 'gossip', 'chebyshev']
    """
    return list(each_candidate(requirements))


def each_candidate(requirements: Requirements) -> Iterator[AveragingCandidate]:
    """Yield what `averaging_candidates` lists, one after the other: some take a search for a tree.

    >>> next(each_candidate(Requirements.from_arguments(8, epsilon=1.0, delta=1e-5))).protocol
    'masked'
    """
    n, network, c = requirements.n, requirements.network, requirements.colluders
    shallow = Tree(network)
    if requirements.masks and n >= 3 and c <= n - 2:
        partners = "everybody shares keys with everybody" if n <= 64 else "partners on a circle"
        name = "masked" if c == 1 else f"masked:tolerate={c}"
        yield AveragingCandidate(
            name, network, f"sums under masks up a tree of depth {shallow.depth}; {partners}"
        )
    yield AveragingCandidate("tree", network, f"one tree of depth {shallow.depth}, {_leaves(shallow)} leaves")
    if requirements.training:
        yield AveragingCandidate("tree:kind=uniform", network, "a fresh random tree in every step")
    if n >= 3 and requirements.view not in ("outsider", "local"):
        yield from _uneven_trees(requirements, shallow)
    if n & (n - 1) == 0 and (requirements.reachable or network.name.startswith("hypercube")):
        yield AveragingCandidate("exchange", network, "pairs swap along the dimensions of a hypercube")
    steps = ":1" if requirements.training else ""
    yield AveragingCandidate(f"gossip{steps}", network, "neighbors average again and again", GOES_ON)
    if not requirements.training:
        yield AveragingCandidate("chebyshev", network, "neighbors average, accelerated")


def _uneven_trees(requirements: Requirements, shallow: Tree) -> Iterator[AveragingCandidate]:
    """Trees whose ends carry the noise: the shallow one, one with as few such members as can be found."""
    n, network, c = requirements.n, requirements.network, requirements.colluders
    name = FEW_LEAVES if c == 1 else f"{FEW_LEAVES}:tolerate={c}"
    few: Any = parse(name).at(network, seed=requirements.seed)
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
    if requirements.training and n * math.comb(n, c) * max(STEPS[requirements.compute]) <= _PROGRAM_WORK:
        words = "a fresh random tree in every step, members at its ends louder than others"
        yield AveragingCandidate("tree:kind=uniform", network, words, noise="optimal")


def _leaves(tree: Tree) -> int:
    return tree.n - len(set(tree.parents.tolist()) - {-1}) + int((tree.parents == tree.root).sum() == 1)


# ---- from a candidate to a plan --------------------------------------------------------------------------


def plan_for(
    requirements: Requirements,
    candidate: AveragingCandidate,
    *,
    steps: int = 1,
    learning_rate: float = 1.0,
    share: float = 1.0,
) -> Plan:
    """Return the plan of a candidate with the least noise that meets the requirements's budget.

    Parameters
    ----------
    requirements, candidate : what is wanted and how it is averaged.
    steps, learning_rate : of training; a mean takes one step at rate 1.
    share : the share of the records in a lot.

    Guarantees
    ----------
    Every view of the requirements was accounted for the returned plan and meets the budget.

    Examples
    --------
    >>> requirements = Requirements.from_arguments(10, epsilon=1.0, delta=1e-5, hide="member")
    >>> plan = plan_for(requirements, averaging_candidates(requirements)[0])
    >>> plan.name, round(plan.noise_std / 10**0.5, 3)
    ('averaging', 0.393)
    """
    if not requirements.training and requirements.hide == "member":
        from sottovoce.algorithms.averaging import PrivateAveraging

        plan: Plan = PrivateAveraging(
            candidate.protocol,
            noise_std=2 * requirements.half,
            radius=requirements.half,
            center=requirements.middle,
            network=candidate.network,
            seed=requirements.seed,
            **_uneven(requirements, candidate),
        )
        return calibrated(plan, requirements, candidate)
    options = _options(requirements, candidate, steps, learning_rate, share)
    return calibrated(_class(candidate)(**options), requirements, candidate)


def _class(candidate: AveragingCandidate) -> Any:
    if candidate.exact:
        return ConsensusSGD
    if candidate.protocol == "gossip:1":
        from sottovoce.algorithms.dp_dsgd import DPDSGD

        return DPDSGD
    from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD

    return MuffliatoSGD


def _options(
    requirements: Requirements, candidate: AveragingCandidate, steps: int, learning_rate: float, share: float
) -> dict[str, Any]:
    objective, clip_norm = _objective(requirements)
    options: dict[str, Any] = {
        "objective": objective,
        "protocol": candidate.protocol,
        "network": candidate.network,
        "steps": steps,
        "learning_rate": learning_rate,
        "clip_norm": clip_norm,
        "adjacency": requirements.adjacency,
        "sizes": requirements.sizes,
        "noise_multiplier": 1.0,
        "seed": requirements.seed,
    }
    options |= _uneven(requirements, candidate)
    if share < 1:
        # Rényi accounting is an upper bound that takes milliseconds, good enough to rank
        options |= {"sample_rate": share, "accounting": "rdp"}
    return options


def _uneven(requirements: Requirements, candidate: AveragingCandidate) -> dict[str, Any]:
    if candidate.noise == "equal":
        return {}
    return {"noise": candidate.noise, "floor": FLOOR, "tolerate": requirements.colluders}


def _objective(requirements: Requirements) -> tuple[Any, float]:
    """Return what is minimized and the clip; a mean is least squares on the constant 1, in one step."""
    from sottovoce.objectives import GLM

    if requirements.compute == "mean":
        return GLM("squared", dim=1), requirements.half
    if requirements.compute == "linear":
        return GLM("squared", dim=requirements.features), 1.0
    if requirements.compute == "logistic":
        return GLM("logistic", dim=requirements.features), 1.0
    return _net(str(requirements.model)), 1.0


@lru_cache(maxsize=8)
def _net(text: str) -> Any:
    try:
        from sottovoce.objectives.nets.objective import NetObjective
        from sottovoce.objectives.nets.zoo import build
    except ImportError:
        raise MissingDependency("a network needs torch; pip install 'sottovoce[deep]'.") from None
    name, options = parse_net(text)
    try:
        return NetObjective(build(name, **options), clip_norm=1.0)
    except TypeError as error:
        raise ConfigError(f"the network {text!r} cannot be built: {error}.") from None


def parse_net(text: str) -> tuple[str, dict[str, int]]:
    """Return name and options of a network such as ``"mlp:inputs=64:hidden=16"``.

    >>> parse_net("mlp:inputs=64:hidden=16")
    ('mlp', {'inputs': 64, 'hidden': 16})
    """
    name, *parts = text.split(":")
    try:
        return name, {key: int(value) for key, value in (part.split("=") for part in parts)}
    except ValueError:
        raise ConfigError(f"a network is written name:key=number, got {text!r}.") from None


# ---- the least noise ----------------------------------------------------------------------------------


def statement(plan: Plan, view: str, colluders: int, candidate: AveragingCandidate) -> Guarantee:
    """Return what a plan states against a view; the local number, which holds too, where it would be slow.

    Under masks with equal noise all coalitions of one size are alike while they are fewer than anybody's
    partners, so one of them is accounted. On one tree the worst is known; on fresh ones they are tried one
    by one, if not too many.

    Examples
    --------
    >>> requirements = Requirements.from_arguments(10, epsilon=1.0, delta=1e-5, hide="member")
    >>> masked = averaging_candidates(requirements)[0]
    >>> guarantee = statement(plan_for(requirements, masked), "colluders", 4, masked)
    >>> guarantee.label, round(guarantee.epsilon(1e-5), 3)
    ('exact', 1.25)
    """
    if view != "colluders":
        return plan.privacy(view)  # type: ignore[arg-type]
    protocol: Any = plan.schedule(0)
    if candidate.masked:
        alike = not isinstance(getattr(plan, "noise_multiplier", 0.0), tuple)
        alike = alike and colluders < len(protocol.partners(0))
        if colluders > (protocol.tolerate or 0) and alike:
            return plan.privacy("colluders", colluders=range(colluders))
        return plan.privacy("colluders", colluders=colluders)
    fresh = candidate.fresh and plan.steps > 1
    tried = math.comb(plan.n, colluders) * plan.n * plan.steps if fresh else 0
    if protocol.knows_coalitions and tried <= _COALITION_WORK:
        return plan.privacy("colluders", colluders=colluders)
    return plan.privacy("local")


def calibrated(plan: Plan, requirements: Requirements, candidate: AveragingCandidate) -> Plan:
    """Return the plan with the least noise that meets the requirements's budget.

    Examples
    --------
    >>> import sottovoce as sv
    >>> requirements = Requirements.from_arguments(4, epsilon=1.0, delta=1e-5, hide="member")
    >>> exchange = AveragingCandidate("exchange", requirements.network, "pairs swap")
    >>> plan = sv.PrivateAveraging("exchange", network=requirements.network, noise_std=1.0, radius=0.5)
    >>> round(calibrated(plan, requirements, exchange).epsilon(1e-5), 6)
    1.0
    """
    quick = _with_drawn_trees(plan, candidate)

    def at(z: float, one: Plan = quick) -> Plan:
        return one.with_noise(z)

    def worst(z: float) -> list[Guarantee]:
        trial = at(z)
        return [statement(trial, view, c, candidate) for view, c in requirements.views]

    allowed = gaussian_mu(requirements.epsilon, requirements.delta)
    if allowed <= 0:
        raise BudgetInfeasible(
            f"No noise meets epsilon {requirements.epsilon:g} at delta {requirements.delta:g}; allow a "
            "larger one of them."
        )
    first = float(getattr(plan, "noise_std", 1.0)) if plan.noise_field == "noise_std" else 1.0
    stated = worst(first)
    if all(g.curve.is_gaussian for g in stated):
        z = first * max(g.mu for g in stated) / allowed
        bump = 1e-12
        while any(g.epsilon(requirements.delta) > requirements.epsilon for g in worst(z)):  # the last places
            z, bump = z * (1 + bump), 16 * bump
    else:
        from sottovoce.accounting.calibration import calibrate

        noises = [
            calibrate(
                lambda z, k=k: worst(z)[k],  # type: ignore[misc]
                requirements.epsilon,
                requirements.delta,
                tolerance=1e-3,
            )
            for k in range(len(stated))
        ]
        z = max(noises)
    return at(z, plan)


def _with_drawn_trees(plan: Plan, candidate: AveragingCandidate) -> Plan:
    """Return the plan with its trees drawn once, so that accounting at another noise draws none."""
    if not candidate.fresh or plan.steps == 1:
        return plan
    try:
        trees = tuple(plan.schedule(k) for k in range(plan.steps))
    except InvalidInput:
        return plan
    return replace(plan, protocol=trees)  # type: ignore[type-var]
