"""Attempts to refute every convex plan's statement on the data that make it tightest.

Every algorithm of the registry is here, and averages as they are seen by a neighbor, a stranger and, where
they are masked, by coalitions. For each plan two neighboring data sets are chosen so that the changed record
or user pulls in opposite directions in every step (or is there and is not); the score is the optimal linear
test where the view is Gaussian. A lower bound above the claim would prove a mistake. The ratio of the two
says how tight the claim is: about 1 minus what the number of runs costs, less where a claim covers more than
this attack uses. All bounds hold together with probability 1 - ``level``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import sottovoce as sv
from sottovoce._format import Quantity
from sottovoce.algorithms import (
    DPDSGD,
    DPDSGT,
    CentralADMM,
    ConsensusFedAvg,
    DPDiNNO,
    FederatedADMM,
    TokenADMM,
)
from sottovoce.algorithms.consensus_sgd import ConsensusSGD
from sottovoce.algorithms.decor import Decor
from sottovoce.algorithms.dp_cd import DPCD
from sottovoce.algorithms.dp_gcd import DPGCD
from sottovoce.algorithms.dp_sgd import DPSGD
from sottovoce.algorithms.fixed_point import FixedPoint
from sottovoce.algorithms.mafalda import Mafalda, correlation
from sottovoce.algorithms.muffliato_sgd import MuffliatoSGD
from sottovoce.algorithms.random_walk_sgd import RandomWalkSGD
from sottovoce.attacks.audit import audit_averaging
from sottovoce.attacks.bounds import lower_bound
from sottovoce.data import Shards
from sottovoce.graphs import complete
from sottovoce.mechanisms.random_walk_kernels import holder_moves
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.objectives import GLM
from sottovoce.runners.base import Result
from sottovoce.runners.sweep import Trial
from sottovoce_papers import drawing
from sottovoce_papers.common import Spread, in_turn, result
from sottovoce_papers.registry import Experiment, ResultTable, pick


@dataclass(frozen=True)
class Config:
    """Runs on each side, the delta of the claims, and the probability that any bound is too high."""

    runs: int = 4000
    delta: float = 1e-2
    seed: int = 0
    level: float = 1e-3


_MORE = 20  # runs of an average for one of a plan
QUICK = Config(runs=110, level=0.5)  # enough to see half or twice the noise


class Case(NamedTuple):
    """A statement, and the score of one run with (True) or without the change."""

    claim: Any
    score: Callable[[bool, np.random.Generator], float]


class Average(NamedTuple):
    """One averaging, of which ``observers`` see their part; runs are columns, so there are more of them."""

    protocol: Any
    observers: tuple[int, ...]
    user: int


def run(quick: bool = False, *, spread: Spread = in_turn, **options: Any) -> Result:
    """Return, per plan: the claim, what was refuted, their ratio; in mu where the claim is Gaussian."""
    config = replace(QUICK if quick else Config(), **options)
    names = list(cases())
    trials = [Trial(name, {"case": name, **asdict(config)}) for name in names]
    return result("convex-audits", config, metrics=dict(zip(names, spread(audit_case, trials), strict=True)))


def audit_case(*, case: str, **options: Any) -> dict[str, Any]:
    """Try to refute one plan's statement; its randomness depends on the seed and on its place in `cases`."""
    config, all_cases = Config(**options), cases()
    chosen = all_cases[case]
    rng = np.random.default_rng([config.seed, list(all_cases).index(case)])
    level = config.level / len(all_cases)
    if isinstance(chosen, Average):
        claim, bound = _averaged(chosen, config, level, rng)
    else:
        claim, score = chosen
        sides = [np.array([score(side, rng) for _ in range(config.runs)]) for side in (True, False)]
        by = "mu" if claim.curve.is_gaussian else "epsilon"
        bound = lower_bound(sides[0], sides[1], delta=config.delta, level=level, by=by)
    gaussian = claim.curve.is_gaussian
    claimed = claim.mu if gaussian else claim.epsilon(config.delta)
    refuted = bound.mu if gaussian else bound.epsilon
    return {
        "measure": "mu" if gaussian else f"epsilon at delta {config.delta:g}",
        "claimed": claimed,
        "lower_bound": refuted,
        "tightness": refuted / claimed,
        "refuted": bool(refuted > claimed),
        "against": str(claim.adversary),
        "label": claim.label,
    }


def _averaged(case: Average, config: Config, level: float, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return the claim about one averaging in which the change is three deviations, and the bound."""
    leak = float(case.protocol.view(case.observers).leakage()[case.user])
    audit = audit_averaging(
        case.protocol, user=case.user, observers=case.observers, sensitivity=3.0 / leak**0.5, noise_std=1.0,
        runs=2 * _MORE * config.runs, rng=rng, delta=config.delta, level=level,
    )  # fmt: skip
    return audit.guarantee, audit.bound


def cases() -> dict[str, Case | Average]:
    """Return the cases by plan name."""
    return {**_central(), **_users(), **_networks(), **_averages()}


def _averages() -> dict[str, Case | Average]:
    ring, path = sv.graphs.ring(10), sv.graphs.path(10)
    masked = sv.protocols.Masked(sv.protocols.Tree(path), tolerate=3)
    gossip = sv.protocols.Gossip(ring, 3)
    return {
        "averaging, gossip, a neighbor": Average(gossip, (0,), 1),
        "averaging, gossip, two far nodes": Average(gossip, (0, 5), 2),
        "averaging, Chebyshev, a neighbor": Average(sv.protocols.Chebyshev(ring, 3), (0,), 1),
        "averaging, tree, its root": Average(sv.protocols.Tree(path), (0,), 9),
        "averaging, exchange, a partner": Average(sv.protocols.HypercubeExchange(8), (0,), 7),
        "averaging, masked, who taps every link": Average(masked, (), 9),
        "averaging, masked, 1 of 10": Average(masked, (0,), 9),
        "averaging, masked, 3 of 10": Average(masked, (0, 4, 7), 9),
    }


def _pull(side: bool, size: float = 50.0) -> np.ndarray:
    """Targets so far away that a clipped gradient has full length in every step, up or down."""
    return np.array([size if side else -size])


def _central() -> dict[str, Case | Average]:
    model, one = GLM("squared"), np.ones((1, 1))
    one_record: dict[str, Any] = {"records": 1, "clip_norm": 1.0, "adjacency": "replace-one"}
    cd = DPCD(model, steps=4, noise_multiplier=4 / 3, smoothness=(1.0,), output="last", **one_record)
    gcd = DPGCD(model, steps=2, noise_ratio=1.0, smoothness=1.0, **one_record)
    admm = CentralADMM(model, steps=4, gamma=1.0, noise_std=4 / 3, **one_record)
    places: dict[str, Any] = {"sizes": (2,), "steps": 4, "learning_rate": 1.0, "clip_norm": 1.0}
    full = DPSGD(model, batch_size=2, noise_multiplier=2 / 3, **places)
    sampled = DPSGD(model, batch_size=1, noise_multiplier=1.0, **places)
    pulled = FixedPoint(
        lambda u, data: u + data, sensitivity=1.0, noise_std=2 / 3, steps=4, start=np.zeros((1, 1))
    )

    def iterated(side: bool, rng: np.random.Generator) -> float:
        return float(pulled.run(np.full((1, 1), 0.5 if side else -0.5), rng).outputs["blocks"][0, 0])

    def replaced(plan: Any) -> Case:
        def score(side: bool, rng: np.random.Generator) -> float:
            return float(plan.run((one, _pull(side)), rng).outputs["coef"][0])

        return Case(plan.privacy("central"), score)

    def removed(plan: Any) -> Case:
        def score(side: bool, rng: np.random.Generator) -> float:
            # the record is there or its place is empty; a record of zeros contributes nothing
            X, y = np.array([[float(side)], [0.0]]), np.array([50.0 * side, 0.0])
            return float(plan.run((X, y), rng).outputs["coef"][0])

        return Case(plan.privacy("central"), score)

    return {
        "dp-cd": replaced(cd),
        "dp-gcd": replaced(gcd),
        "admm": replaced(admm),
        "dp-sgd, full lots": removed(full),
        "dp-sgd, Poisson lots": removed(sampled),
        "fixed-point": Case(pulled.privacy("central"), iterated),
    }


def _users() -> dict[str, Case | Average]:
    model = GLM("squared")

    def two(side: bool) -> Shards:
        return Shards(np.array([[1.0], [0.0]]), np.array([_pull(side, 500.0)[0], 0.0]), np.arange(3))

    common: dict[str, Any] = {"users": 2, "gamma": 1.0, "clip_norm": 1.0}
    rounds: dict[str, Any] = {"steps": 4, "sample_rate": 1.0, **common}
    fed = FederatedADMM(model, noise_std=8 / 3, secure_sum=False, **rounds)
    secure = FederatedADMM(model, noise_std=2.0, **rounds)
    token = TokenADMM(model, steps=8, noise_std=8 / 3, cap=4, **common)
    options: dict[str, Any] = {"learning_rate": 1.0, "clip_norm": 1.0, "adjacency": "user", "path": "secret"}
    walk = RandomWalkSGD(model, complete(2), steps=8, noise_multiplier=4 / 3, cap=4, **options)

    def noise_known(plan: Any) -> Callable[[bool, np.random.Generator], float]:
        # everything but user 0's own data and noise is known; the sum of its releases is sufficient
        def score(side: bool, rng: np.random.Generator) -> float:
            tape = Tape(int(rng.integers(2**62)))
            plan.run(two(side), tape)
            return float(np.sum([values[0, 0] for values, agents in tape.out if agents[0] == 0]))

        return score

    def mean(plan: Any) -> Callable[[bool, np.random.Generator], float]:
        return lambda side, rng: float(plan.run(two(side), rng).outputs["mean"][0])

    def visits(side: bool, rng: np.random.Generator) -> float:
        theta, total, no_l2 = np.zeros(1), 0.0, np.zeros(1)
        shard = two(side).user(0)
        for _ in range(4):  # four contributions of user 0, every model before and after them seen
            after, noise = theta.copy(), 4 / 3 * rng.standard_normal(1)
            holder_moves(model.kind, model.width, after, *shard, 1.0, noise, 0.0, 1.0, no_l2, no_l2.copy())
            total, theta = total + float(after[0] - theta[0]), after
        return total

    return {
        "federated-admm, local": Case(fed.privacy("local"), noise_known(fed)),
        "federated-admm, secure sum": Case(secure.privacy("central"), mean(secure)),
        "token-admm, local": Case(token.privacy("local"), mean(token)),
        "random-walk-sgd, local": Case(walk.privacy("local"), visits),
    }


def _networks() -> dict[str, Case | Average]:
    model, n, user = GLM("squared"), 4, 3
    ring = sv.protocols.Gossip(sv.graphs.ring(n), 1)

    def shards(side: bool) -> Shards:
        y = np.zeros(n)
        y[user] = _pull(side, 500.0)[0]
        X = np.zeros((n, 1))
        X[user] = 1.0
        return Shards(X, y, np.arange(n + 1))

    common: dict[str, Any] = {"steps": 4, "learning_rate": 1.0, "clip_norm": 1.0, "adjacency": "user"}
    muffliato = MuffliatoSGD(model, ring, noise_multiplier=4 / 3, **common)
    consensus = ConsensusSGD(
        model, sv.protocols.HypercubeExchange(n), noise_multiplier=1.0, **common | {"learning_rate": 0.1}
    )
    decor = Decor(model, ring, noise_multiplier=1.0, pair_multiplier=1.0, **common)
    mafalda = Mafalda(model, ring, noise_multiplier=2 / 3, **common)
    plain: dict[str, Any] = {"network": sv.graphs.ring(n), "noise_multiplier": 4 / 3, **common}
    plain |= {"learning_rate": 0.1}
    taped: dict[str, Any] = {
        "consensus-sgd, local": ConsensusSGD(
            model, sv.protocols.HypercubeExchange(n), **plain | {"network": None}
        ),
        "consensus-fedavg, local": ConsensusFedAvg(model, local_steps=3, **plain),
        "dp-dsgd, local": DPDSGD(model, **plain),
        "dp-dsgt, local": DPDSGT(model, **plain),
        "dp-dinno, local": DPDiNNO(model, **plain),
    }

    def released(plan: Any) -> Case:
        # every model is public, so what leaves of the user, step by step, is all there is to learn
        def score(side: bool, rng: np.random.Generator) -> float:
            tape = Tape(int(rng.integers(2**62)))
            plan.run(shards(side), tape)
            return float(sum(values[list(agents).index(user), 0] for values, agents in tape.out))

        return Case(plan.privacy("local"), score)

    def steps(plan: Any, side: bool, rng: np.random.Generator) -> Any:
        """Yield (state before the step, messages)."""
        data, random = plan.prepared(shards(side)), RunRandomness.from_rng(rng)
        mechanism = plan.mechanism(data, range(n), random)
        algorithm = plan.algorithm(mechanism, plan.starting(data, random, range(n)))
        state = algorithm.init()
        for k in range(plan.steps):
            sent = algorithm.message(state, k)
            yield state, sent
            state = algorithm.update(state, plan.schedule(k).apply(sent, noise=random.noise, step=k), k)

    def moves(plan: Any, side: bool, rng: np.random.Generator) -> list[np.ndarray]:
        """Return what every node subtracted from its model before it sent it, step by step."""
        return [(state.own[0] - sent)[:, 0] for state, sent in steps(plan, side, rng)]

    def moved(side: bool, rng: np.random.Generator) -> float:
        return float(sum(move[user] for move in moves(muffliato, side, rng)))

    def seen(side: bool, rng: np.random.Generator) -> float:
        # node 0 sees, in round 1, the mean over the block {2, 3}
        return float(sum(sent[[2, 3], 0].mean() for _, sent in steps(consensus, side, rng)))

    A = sv.graphs.ring(n).adjacency.toarray()
    weights = np.linalg.inv(np.eye(n) + np.diag(A.sum(axis=1)) - A)[user]

    def decorrelated(side: bool, rng: np.random.Generator) -> float:
        return float(sum(weights @ move for move in moves(decor, side, rng)))

    C = correlation(mafalda).C

    def whitened(side: bool, rng: np.random.Generator) -> float:
        y = np.array([move[user] for move in moves(mafalda, side, rng)])
        return float(C.sum(axis=1) @ (C @ y))

    return {
        "muffliato-sgd, local": Case(muffliato.privacy("local"), moved),
        "consensus-sgd, node 0 about 3": Case(consensus.privacy("pairwise", observer=0, user=user), seen),
        "decor, all messages": Case(decor.privacy("outsider"), decorrelated),
        "mafalda, local": Case(mafalda.privacy("local"), whitened),
        **{name: released(plan) for name, plan in taped.items()},
    }


class Tape:
    """Simulated noise that keeps everything it lets out."""

    protective = False

    def __init__(self, seed: int) -> None:
        self.source, self.out = SimulatedNoise(seed), []  # type: ignore[var-annotated]

    def perturb(self, values: np.ndarray, *, agents: Any, step: int, std: Any, stream: int = 0) -> np.ndarray:
        """Return the noisy values, and remember them."""
        noisy = self.source.perturb(values, agents=agents, step=step, std=std, stream=stream)
        if stream == 0:
            self.out.append((noisy, np.asarray(agents)))
        return noisy

    def slack(self, dim: int, std: float = 1.0) -> float:
        """Return 0: nothing is rounded."""
        return 0.0


def table(record: dict[str, Any]) -> ResultTable:
    keys = ("name", "against", "label", "measure", "claimed", "lower_bound", "tightness")
    rows = pick([{"name": name, **row} for name, row in record["metrics"].items()], *keys)
    columns = ("plan", "against", "label", "measure", "claimed at most", "shown at least", "ratio")
    note = f"{record['config'].get('runs', 0):,} runs on each side; a ratio above 1 would prove a mistake."
    held: dict[str, Quantity] = {"claimed at most": "loss", "shown at least": "lower bound"}
    return ResultTable(columns, rows, note, held | {"ratio": "lower bound"})


def held(record: dict[str, Any]) -> bool:
    """Whether no claim was refuted."""
    return not any(row["refuted"] for row in record["metrics"].values())


def plot(record: dict[str, Any]) -> Any:
    names = list(record["metrics"])
    with drawing.figure_of(height=0.3 * len(names) + 1.2, width=7.2) as (figure, (axes,)):
        rows = [record["metrics"][name] for name in names]
        y = list(range(len(names)))[::-1]
        axes.barh(y, [r["lower_bound"] for r in rows], height=0.5, color=drawing.COLORS[0],
                  label="shown by the attack, at least")  # fmt: skip
        style = {"ls": "none", "marker": "|", "ms": 14, "mew": 2.2, "color": drawing.COLORS[1]}
        axes.plot([r["claimed"] for r in rows], y, **style, label="claimed, at most")
        axes.set_yticks(y, names)
        drawing.names(
            axes, "privacy loss (mu, or epsilon where the claim is not Gaussian)", "", record["name"]
        )
    return figure


EXPERIMENTS = {
    "convex-audits": Experiment(run, plot, table, held, config=Config),
}
