"""Candidate plans: every way to average that the members have, with the algorithm that uses it.

A *candidate* is a way to average (masked sums, trees, exchange, gossip) on the members' network; with steps
and learning rate it becomes a plan with the least noise that meets the budget. Where the plan's curve is
Gaussian, mu falls as one over the noise, so one accounting gives the noise and a second checks it; elsewhere
the noise is searched for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from sottovoce.accounting.calibration import calibrate, calibrate_gaussian
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.advice.requirements import RequiredView, Requirements
from sottovoce.algorithms.averaging import PrivateAveraging
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.dp_dsgd import DPDSGD
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.algorithms.plan import UNSPENT, Plan
from sottovoce.algorithms.tree_noise import least_tree_noise
from sottovoce.errors import ConfigError, InvalidInput, MissingDependency
from sottovoce.objectives import GLM
from sottovoce.objectives.base import Objective
from sottovoce.protocols import Masked, Tree, parse
from sottovoce.protocols.registry import Capability, names_with

if TYPE_CHECKING:
    from torch import nn

FLOOR = 0.1  # least variance of a member's noise on a tree with unequal noise, over that of local privacy
FEW_LEAVES = "tree:kind=few-leaves"
STEPS = {"mean": (1,), "logistic": (10, 40), "linear": (10, 40), "net": (30, 100)}
_PROGRAM_WORK = 30_000  # members x coalitions x steps for which uneven noise on fresh trees is computed
_COALITION_WORK = 120_000  # coalitions x steps x members of fresh trees that are accounted one by one


@dataclass(frozen=True)
class AveragingCandidate:
    """One way to average: a protocol by name, and how noise is shared out.

    ``"optimal"`` is the least total on trees, with a floor for everybody.
    """

    protocol: str
    noise_allocation: Literal["equal", "optimal"] = "equal"

    @property
    def name(self) -> str:
        """How it averages, in plain words: the name of a row."""
        tree = "tree with few leaves" if self.protocol.startswith(FEW_LEAVES) else "tree"
        tree = "fresh random trees" if self.protocol == "tree:kind=uniform" else tree
        other = {"masked": "masked sum", "exchange": "pairwise exchange", "chebyshev": "accelerated gossip"}
        protocol = parse(self.protocol).name
        name = tree if protocol == "tree" else other.get(protocol, protocol)
        return name if self.noise_allocation == "equal" else f"{name}, uneven noise"

    def has(self, capability: Capability) -> bool:
        """Return whether its protocol declares a capability."""
        return parse(self.protocol).name in names_with(capability)


def averaging_candidates(requirements: Requirements) -> Iterator[AveragingCandidate]:
    """Yield the ways to average that the members have, the most promising first; some search for a tree."""
    n, network, c = requirements.n, requirements.network, requirements.colluders
    if requirements.masks and n >= 3 and c <= n - 2:
        yield AveragingCandidate("masked" if c == 1 else f"masked:tolerate={c}")
    yield AveragingCandidate("tree")
    if requirements.training:
        yield AveragingCandidate("tree:kind=uniform")
    if n >= 3 and requirements.view not in ("outsider", "local"):
        yield from _uneven_trees(requirements)
    if n & (n - 1) == 0 and (requirements.reachable or network.name.startswith("hypercube")):
        yield AveragingCandidate("exchange")
    yield AveragingCandidate("gossip:1" if requirements.training else "gossip")
    if not requirements.training:
        yield AveragingCandidate("chebyshev")


def _uneven_trees(requirements: Requirements) -> Iterator[AveragingCandidate]:
    """Yield trees whose leaves add most noise: one with as few leaves as can be found, and a shallow one."""
    n, c = requirements.n, requirements.colluders
    trees = {"tree": Tree(requirements.network)}
    if c == 1:  # several colluders can cut a path anywhere: few leaves do not help
        few = parse(FEW_LEAVES).at(requirements.network, seed=requirements.seed)
        assert isinstance(few, Tree)
        trees = {FEW_LEAVES: few, **trees}
    previous: list[tuple[int, int]] = []
    for protocol, tree in trees.items():
        loud = int((least_tree_noise(tree, c, floor=FLOOR) == 1).sum())
        if loud == n or any(loud >= fewer and tree.depth >= depth for fewer, depth in previous):
            continue
        previous.append((loud, tree.depth))
        yield AveragingCandidate(protocol, noise_allocation="optimal")
    if requirements.training and n * math.comb(n, c) * max(STEPS[requirements.compute]) <= _PROGRAM_WORK:
        yield AveragingCandidate("tree:kind=uniform", noise_allocation="optimal")


# ---- from a candidate to a plan --------------------------------------------------------------------------


def plan_for(
    requirements: Requirements,
    candidate: AveragingCandidate,
    *,
    steps: int = 1,
    learning_rate: float = 1.0,
    sample_rate: float = 1.0,
) -> Plan:
    """Return the plan of a candidate with the least noise that meets the budget of the requirements.

    A mean takes one step at learning rate 1; ``sample_rate`` is that of its batches.

    Guarantees
    ----------
    Every view of the requirements was accounted for the returned plan and meets the budget.
    """
    network, seed = requirements.network, requirements.seed
    options: dict[str, Any] = {"protocol": candidate.protocol, "network": network, "seed": seed}
    if candidate.noise_allocation != "equal":
        options |= {"noise_allocation": "optimal", "floor": FLOOR, "tolerate": requirements.colluders}
    if not requirements.training and requirements.hide == "member":
        half, middle = requirements.half, requirements.middle
        average = PrivateAveraging(noise_std=2 * half, radius=half, center=middle, **options)
        return _meeting_budget(average, requirements)
    if sample_rate < 1:
        # Rényi accounting is an upper bound that takes milliseconds, good enough to rank
        options |= {"sample_rate": sample_rate, "accounting": "rdp"}
    algorithm: type[GradientPlan] = ConsensusSGD
    if not candidate.has("reaches_consensus"):
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
    return _meeting_budget(plan, requirements)


def _meeting_budget(plan: Plan, requirements: Requirements) -> Plan:
    def costs(trial: Plan) -> list[Guarantee]:
        return [guarantee_against(trial, view, colluders) for view, colluders in requirements.views]

    return calibrated(plan, costs, requirements.epsilon, requirements.delta)


def _objective(requirements: Requirements) -> Objective:
    """Return what is minimized; a mean is least squares on the constant 1, in one step."""
    if requirements.model is not None:
        return _net_objective(requirements.model)
    loss: Literal["logistic", "squared"] = "logistic" if requirements.compute == "logistic" else "squared"
    return GLM(loss, dim=requirements.features or 1)


@lru_cache(maxsize=8)
def _net_objective(model: str | nn.Module) -> Objective:
    try:
        from sottovoce.objectives.nets.module_files import build_named
        from sottovoce.objectives.nets.objective import NetObjective
    except ImportError:
        raise MissingDependency("a neural network needs torch; pip install 'sottovoce[deep]'.") from None
    if not isinstance(model, str):
        return NetObjective(model, clip_norm=1.0)
    name, options = parse_net(model)
    return NetObjective(build_named({"zoo": name, "options": options}), clip_norm=1.0, initial="reset")


def parse_net(text: str) -> tuple[str, dict[str, int]]:
    """Return name and options of a neural network such as ``"mlp:inputs=64:hidden=16"``."""
    name, *parts = text.split(":")
    try:
        return name, {key: int(value) for key, value in (part.split("=") for part in parts)}
    except ValueError:
        raise ConfigError(f"a neural network is written name:key=number, got {text!r}.") from None


# ---- the least noise ----------------------------------------------------------------------------------


def guarantee_against(plan: Plan, view: RequiredView, colluders: int) -> Guarantee:
    """Return the guarantee of a plan; against many coalitions, where it would be slow, the local one.

    Under masks with equal noise all coalitions of one size are alike while they are fewer than anybody's
    partners, so one of them is accounted. On one tree the worst is known; on fresh ones they are accounted
    one by one, if not too many.
    """
    if view != "colluders":
        return plan.privacy(view)
    protocol = plan.schedule(0)
    if isinstance(protocol, Masked):
        uneven = isinstance(plan, GradientPlan) and isinstance(plan.noise_multiplier, tuple)
        alike = not uneven and (protocol.tolerate or 0) < colluders < len(protocol.partners(0))
        return plan.privacy("colluders", colluders=range(colluders) if alike else colluders)
    work = 0 if plan.is_stationary else math.comb(plan.n, colluders) * plan.n * plan.steps
    if protocol.knows_coalitions and work <= _COALITION_WORK:
        return plan.privacy("colluders", colluders=colluders)
    return plan.privacy("local")


def calibrated(
    plan: Plan, costs: Callable[[Plan], Sequence[Guarantee]], epsilon: float, delta: float
) -> Plan:
    """Return the plan with the least noise at which all of its costs meet the budget.

    ``costs`` are the guarantees that must meet it, of this plan with any amount of noise. Where their curves
    are Gaussian, mu falls as one over the noise; elsewhere the noise is searched for.
    """
    start, accounted = getattr(plan, plan.noise_field), _with_drawn_trees(plan)

    @cache
    def guarantees(noise: float) -> Sequence[Guarantee]:
        return costs(accounted.with_noise(noise))

    def largest(noise: float) -> Guarantee:
        return max(guarantees(noise), key=lambda guarantee: guarantee.mu)

    def least_against(k: int) -> float:
        return calibrate(lambda noise: guarantees(noise)[k], epsilon, delta, tolerance=UNSPENT)

    if all(guarantee.valid and guarantee.curve.is_gaussian for guarantee in guarantees(start)):
        return plan.with_noise(calibrate_gaussian(largest, epsilon, delta, start=start))
    return plan.with_noise(max(map(least_against, range(len(guarantees(start))))))


def _with_drawn_trees(plan: Plan) -> Plan:
    """Return the plan with its trees drawn once, so that accounting at another noise draws none."""
    if plan.is_stationary:
        return plan
    try:
        trees = tuple(plan.schedule(k) for k in range(plan.steps))
    except InvalidInput:
        return plan
    return replace(plan, protocol=trees)  # type: ignore[type-var]
