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

from sottovoce.accounting.calibration import calibrate
from sottovoce.accounting.gaussian import gaussian_mu
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.tree_noise import least_tree_noise
from sottovoce.advice.requirements import RequiredView, Requirements
from sottovoce.algorithms.averaging import PrivateAveraging
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.dp_dsgd import DPDSGD
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import BudgetInfeasible, ConfigError, InvalidInput, MissingDependency
from sottovoce.graphs import Network
from sottovoce.objectives import GLM
from sottovoce.objectives.base import Objective
from sottovoce.protocols import Masked, Protocol, Tree, parse
from sottovoce.protocols.registry import names_with

FLOOR = 0.1  # of the noise of local privacy, which nobody goes below on a tree with unequal noise
STALLS = "the step waits for it; if it stays away, the others agree on a run without it"
GOES_ON = "its exchanges are left out (late = drop), the others go on"
FEW_LEAVES = "tree:kind=few-leaves"
STEPS = {"logistic": (10, 40), "linear": (10, 40), "net": (30, 100)}
_PROGRAM_WORK = 30_000  # members x coalitions x steps for which uneven noise on fresh trees is worked out
_COALITION_WORK = 120_000  # coalitions x steps x members of fresh trees that are tried one by one


@dataclass(frozen=True)
class AveragingCandidate:
    """One way to average: a protocol by name, in words, and how noise is dealt out.

    ``noise`` is ``"equal"``, or ``"optimal"``: the least total on trees, with a floor for everybody.
    """

    protocol: str
    network: Network
    words: str
    noise: Literal["equal", "optimal"] = "equal"

    @property
    def goes_on(self) -> bool:
        """Whether a member that falls silent is left out without a new agreement."""
        return parse(self.protocol).name in names_with("tolerates_dropout")

    @property
    def exact(self) -> bool:
        """Whether it ends in exact consensus."""
        return parse(self.protocol).exact

    @property
    def masked(self) -> bool:
        """Whether rows travel under masks."""
        return parse(self.protocol).name in names_with("masked")

    @property
    def kind(self) -> tuple[str, str]:
        """The protocol and how its noise is dealt out."""
        return self.protocol, self.noise


def averaging_candidates(requirements: Requirements) -> Iterator[AveragingCandidate]:
    """Yield the ways to average that the members have, the most promising first; some search for a tree."""
    n, network, c = requirements.n, requirements.network, requirements.colluders
    shallow = Tree(network)
    if requirements.masks and n >= 3 and c <= n - 2:
        partners = "everybody shares keys with everybody" if n <= 64 else "partners on a circle"
        words = f"sums under masks up a tree of depth {shallow.depth}; {partners}"
        yield AveragingCandidate("masked" if c == 1 else f"masked:tolerate={c}", network, words)
    yield AveragingCandidate("tree", network, f"one tree of depth {shallow.depth}, {_leaves(shallow)} leaves")
    if requirements.training:
        yield AveragingCandidate("tree:kind=uniform", network, "a fresh random tree in every step")
    if n >= 3 and requirements.view not in ("outsider", "local"):
        yield from _uneven_trees(requirements, shallow)
    if n & (n - 1) == 0 and (requirements.reachable or network.name.startswith("hypercube")):
        yield AveragingCandidate("exchange", network, "pairs swap along the dimensions of a hypercube")
    rounds = ":1" if requirements.training else ""
    yield AveragingCandidate(f"gossip{rounds}", network, "neighbors average again and again")
    if not requirements.training:
        yield AveragingCandidate("chebyshev", network, "neighbors average, accelerated")


def _uneven_trees(requirements: Requirements, shallow: Tree) -> Iterator[AveragingCandidate]:
    """Trees whose ends carry the noise: the shallow one, one with as few such members as can be found."""
    n, network, c = requirements.n, requirements.network, requirements.colluders
    name = FEW_LEAVES if c == 1 else f"{FEW_LEAVES}:tolerate={c}"
    few = parse(name).at(network, seed=requirements.seed)
    assert isinstance(few, Tree)
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
    """Return the plan of a candidate with the least noise that meets the budget of the requirements.

    Parameters
    ----------
    requirements, candidate : what is required and how it is averaged.
    steps, learning_rate : of training; a mean takes one step at rate 1.
    share : the share of the records in a batch.

    Guarantees
    ----------
    Every view of the requirements was accounted for the returned plan and meets the budget.
    """
    options: dict[str, Any] = {
        "protocol": candidate.protocol,
        "network": candidate.network,
        "seed": requirements.seed,
    }
    if candidate.noise != "equal":
        options |= {"noise": candidate.noise, "floor": FLOOR, "tolerate": requirements.colluders}
    if not requirements.training and requirements.hide == "member":
        half, middle = requirements.half, requirements.middle
        average = PrivateAveraging(noise_std=2 * half, radius=half, center=middle, **options)
        return calibrated(average, requirements)
    if share < 1:
        # Rényi accounting is an upper bound that takes milliseconds, good enough to rank
        options |= {"sample_rate": share, "accounting": "rdp"}
    algorithm: type[GradientPlan] = ConsensusSGD
    if not candidate.exact:
        algorithm = DPDSGD if candidate.protocol == "gossip:1" else MuffliatoSGD
    plan = algorithm(
        _objective(requirements),
        steps=steps,
        learning_rate=learning_rate,
        clip_norm=1.0 if requirements.training else requirements.half,
        adjacency=requirements.adjacency,
        sizes=requirements.sizes,
        noise_multiplier=1.0,
        **options,
    )
    return calibrated(plan, requirements)


def _objective(requirements: Requirements) -> Objective:
    """Return what is minimized; a mean is least squares on the constant 1, in one step."""
    if requirements.compute == "net":
        return _net_objective(str(requirements.model))
    loss: Literal["logistic", "squared"] = "logistic" if requirements.compute == "logistic" else "squared"
    return GLM(loss, dim=requirements.features if requirements.training else 1)


@lru_cache(maxsize=8)
def _net_objective(text: str) -> Objective:
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
    """Return name and options of a network such as ``"mlp:inputs=64:hidden=16"``."""
    name, *parts = text.split(":")
    try:
        return name, {key: int(value) for key, value in (part.split("=") for part in parts)}
    except ValueError:
        raise ConfigError(f"a network is written name:key=number, got {text!r}.") from None


# ---- the least noise ----------------------------------------------------------------------------------


def statement(plan: Plan, view: RequiredView, colluders: int) -> Guarantee:
    """Return what a plan states against a view; the local number, which holds too, where it would be slow.

    Under masks with equal noise all coalitions of one size are alike while they are fewer than anybody's
    partners, so one of them is accounted. On one tree the worst is known; on fresh ones they are tried one
    by one, if not too many.
    """
    if view != "colluders":
        return plan.privacy(view)
    protocol: Protocol = plan.schedule(0)
    if isinstance(protocol, Masked):
        own_noise_each = isinstance(plan, GradientPlan) and isinstance(plan.noise_multiplier, tuple)
        alike = not own_noise_each and colluders < len(protocol.partners(0))
        one_for_all = alike and colluders > (protocol.tolerate or 0)
        return plan.privacy("colluders", colluders=range(colluders) if one_for_all else colluders)
    work = 0 if plan.is_stationary else math.comb(plan.n, colluders) * plan.n * plan.steps
    if protocol.knows_coalitions and work <= _COALITION_WORK:
        return plan.privacy("colluders", colluders=colluders)
    return plan.privacy("local")


def calibrated(plan: Plan, requirements: Requirements) -> Plan:
    """Return the plan with the least noise that meets the budget of the requirements."""
    quick = _with_drawn_trees(plan)
    epsilon, delta = requirements.epsilon, requirements.delta

    def stated(z: float) -> list[Guarantee]:
        trial = quick.with_noise(z)
        return [statement(trial, view, c) for view, c in requirements.views]

    allowed = gaussian_mu(epsilon, delta)
    if allowed <= 0:
        raise BudgetInfeasible(
            f"No noise meets epsilon {epsilon:g} at delta {delta:g}; allow a larger one of them."
        )
    first = plan.noise_std if isinstance(plan, PrivateAveraging) else 1.0
    guarantees = stated(first)
    if all(g.curve.is_gaussian for g in guarantees):
        z = first * max(g.mu for g in guarantees) / allowed
        bump = 1e-12
        while any(g.epsilon(delta) > epsilon for g in stated(z)):  # the last places
            z, bump = z * (1 + bump), 16 * bump
        return plan.with_noise(z)

    def noise_against(k: int) -> float:
        return calibrate(lambda z: stated(z)[k], epsilon, delta, tolerance=1e-3)

    return plan.with_noise(max(noise_against(k) for k in range(len(guarantees))))


def _with_drawn_trees(plan: Plan) -> Plan:
    """Return the plan with its trees drawn once, so that accounting at another noise draws none."""
    if plan.is_stationary:
        return plan
    try:
        trees = tuple(plan.schedule(k) for k in range(plan.steps))
    except InvalidInput:
        return plan
    return replace(plan, protocol=trees)  # type: ignore[type-var]
