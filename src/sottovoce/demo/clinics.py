"""Sixteen clinics: the demonstration. Each part is one function from the consortium to a result.

The clinics and their names are invented; the patients are those of scikit-learn's breast-cancer data
(Wolberg, Street, Mangasarian 1995), dealt out so that half of the clinics are screening sites, where tumors
are mostly benign, and half are referral hospitals. Every clinic holds as many patients as any other. Features
are scaled by the ranges printed in the data set's own description, which is public; nothing is read off the
records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sottovoce._format import number
from sottovoce.accounting.gaussian import gaussian_epsilon, gaussian_mu
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.algorithms import ConsensusSGD, MuffliatoSGD, Optimizer, Plan, PrivateAveraging
from sottovoce.data import Shards, load
from sottovoce.graphs import Network, hypercube
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.objectives import GLM
from sottovoce.protocols import Chebyshev, Gossip, HypercubeExchange, Masked, Protocol, Tree, rounds_for
from sottovoce.runners import Result, run_stacked
from sottovoce.runners.base import provenance_now

NAMES = tuple(
    "Acquarosa Belmirto Castelbruma Doralba Erbaquieta Fontevaga Girolago Isolmare Lunaverde Montequieto "
    "Nevebruna Olmatorre Pietravento Roccafiore Selvachiara Torrelieve".split()
)
PATIENTS = 28  # per clinic
# malignant tumors among them; screening sites and referral hospitals take turns along the network
MALIGNANT = (18, 1, 3, 20, 2, 16, 17, 1, 4, 19, 15, 2, 20, 1, 3, 18)
EPSILON, DELTA = 1.0, 1e-5
QUANTITY = "share of malignant tumors"
SIMULATED = "simulation: reproducible, not protective"
Tick = Callable[[int], None]

# The ranges printed in the description of the data set: means, standard errors, worst values.
LOW = (
    6.981, 9.71, 43.79, 143.5, 0.053, 0.019, 0.0, 0.0, 0.106, 0.05,
    0.112, 0.36, 0.757, 6.802, 0.002, 0.002, 0.0, 0.0, 0.008, 0.001,
    7.93, 12.02, 50.41, 185.2, 0.071, 0.027, 0.0, 0.0, 0.156, 0.055,
)  # fmt: skip
HIGH = (
    28.11, 39.28, 188.5, 2501.0, 0.163, 0.345, 0.427, 0.201, 0.304, 0.097,
    2.873, 4.885, 21.98, 542.2, 0.031, 0.135, 0.396, 0.053, 0.079, 0.03,
    36.04, 49.54, 251.2, 4254.0, 0.223, 1.058, 1.252, 0.291, 0.664, 0.208,
)  # fmt: skip


@dataclass(frozen=True)
class Consortium:
    """Who takes part, what they hold, and who talks to whom."""

    network: Network
    shards: Shards = field(repr=False)
    X_test: np.ndarray = field(repr=False)
    y_test: np.ndarray = field(repr=False)

    def shares(self) -> np.ndarray:
        """(16,) share of malignant tumors at every clinic: the private numbers of the first parts."""
        return np.array([float((self.shards.user(i)[1] < 0).mean()) for i in range(self.network.n)])

    def accuracy(self, coef: np.ndarray) -> float:
        """Share of held-out patients that a linear model classifies rightly."""
        return float((np.where(self.X_test @ coef > 0, 1.0, -1.0) == self.y_test).mean())


def consortium(seed: int = 7) -> Consortium:
    """Return the sixteen clinics on a hypercube; ``seed`` deals out the patients."""
    rng = np.random.default_rng(seed)
    data = load("breast_cancer").split(0.2, rng)
    assert data.y_test is not None
    malignant, benign = (rng.permutation(np.flatnonzero(data.y == label)) for label in (-1, 1))
    sick = np.split(malignant, np.cumsum(MALIGNANT))
    well = np.split(benign, np.cumsum([PATIENTS - count for count in MALIGNANT]))
    parts = [np.concatenate([sick[v], well[v]]) for v in range(16)]
    shards = Shards.from_parts(scaled(data.X), data.y, parts)
    network = replace(hypercube(4), node_names=NAMES)
    return Consortium(network, shards, scaled(data.X_test), data.y_test)


def scaled(X: np.ndarray) -> np.ndarray:
    """Return features by their public ranges, with an intercept, every record of length at most 1."""
    low, high = np.array(LOW), np.array(HIGH)
    unit = np.clip((X - low) / (high - low), 0.0, 1.0) - 0.25
    wide = np.hstack([unit, np.full((len(unit), 1), 0.5)])
    return wide / np.maximum(1.0, np.linalg.norm(wide, axis=1, keepdims=True))


# ---- 1: without noise ----------------------------------------------------------------------------------


def reconstruction(clinics: Consortium, observer: int = 0) -> Result:
    """Let one clinic solve for the others' numbers after an averaging without noise."""
    started = time.perf_counter()
    network, shares = clinics.network, clinics.shares()
    protocol = Gossip(network, rounds_for(network))
    view = protocol.view(observer)
    estimates = view.reconstruct(protocol.observe(shares, observer))[:, 0]
    nodes = [u for u in range(network.n) if view.covers(u)]
    distances = network.distances_from(observer)
    recovered = []
    for u in nodes:
        values = {"true": float(shares[u]), "recovered": float(estimates[u])}
        error = abs(values["recovered"] - values["true"])
        recovered.append(
            {"node": u, "name": NAMES[u], "distance": int(distances[u]), **values, "error": error}
        )
    config = {"graph": network.name, "protocol": protocol.name, "rounds": protocol.rounds, "labels": NAMES}
    metrics = {"observer": observer, "reconstructed": nodes, "count": len(nodes), "recovered": recovered}
    metrics |= {"quantity": QUANTITY, "n": network.n, "edge_list": network.edges}
    provenance = provenance_now(started, noise="none")
    return Result("reconstruction", config, metrics=metrics, provenance=provenance)


# ---- 3: private averages -------------------------------------------------------------------------------


def noise_for_patients() -> float:
    """Return the noise on a clinic's share at which one patient is protected locally at (1, 1e-5)."""
    return 1 / PATIENTS / gaussian_mu(EPSILON, DELTA)


def promises(protocol: Protocol, observer: int) -> list[dict[str, Any]]:
    """Return what this noise promises a patient, against everybody and one clinic, and what to a clinic."""
    std = noise_for_patients()
    whole = PrivateAveraging(protocol, noise_std=std, radius=0.5)
    plan = PrivateAveraging(protocol, noise_std=std, radius=0.5 / PATIENTS)
    rows = [(about_a_patient(plan.privacy("local")), "one patient")]
    rows.append((about_a_patient(plan.privacy(observer=observer)), "one patient"))
    rows.append((whole.privacy("local"), "a whole clinic"))
    return [g.to_dict(delta=DELTA) | {"what": what, "best_guess": g.best_guess} for g, what in rows]


def about_a_patient(guarantee: Guarantee) -> Guarantee:
    """Return a clinic-level statement as one about one patient, whose record moves the share by 1/28."""
    assumption = "the number of patients of every clinic is public"
    return replace(guarantee, adjacency="replace-one", assumptions=(*guarantee.assumptions, assumption))


def averages(clinics: Consortium, tick: Tick = lambda done: None, *, runs: int = 2000) -> Result:
    """Average the clinics' shares in six ways with the same noise; measure error, account exposure."""
    started = time.perf_counter()
    network, shares, std = clinics.network, clinics.shares(), noise_for_patients()
    truth = float(shares.mean())
    protocols: dict[str, Protocol] = {
        "gossip": Chebyshev(network, rounds_for(network)),
        "exchange": HypercubeExchange(16),
        "tree": Tree(network),
        "masked sum": Masked(network),
    }
    options = {"noise_std": std, "radius": 0.5 / PATIENTS}
    plans = {name: PrivateAveraging(protocol, **options) for name, protocol in protocols.items()}
    rows = np.repeat(shares[:, None], runs, axis=1)
    noisy = SimulatedNoise(1).perturb(rows, agents=range(16), step=0, std=std)
    floor = _error(noisy.mean(axis=0), truth)
    methods = [_method("local privacy", "nobody", np.ones(1), floor, 16 * 15)]
    statements = [("every method", plans["exchange"].privacy("local"))]
    for k, (name, protocol) in enumerate(protocols.items()):
        leakage = np.array([protocol.view(v).leakage() for v in range(16)])
        pairs, error = leakage[~np.eye(16, dtype=bool)], _error(protocol.apply(noisy), truth)
        methods.append(_method(name, "nobody", pairs, error, protocol.message_count))
        statements += [(name, plans[name].privacy("pairwise", observer=0, user=user)) for user in (1, 15)]
        tick(k + 1)
    methods.append(_method("trusted curator", "a curator with every record", np.array([1 / 16]), floor, 32))
    metrics = {
        "truth": truth,
        "quantity": QUANTITY,
        "methods": methods,
        "noise_floor": floor,
        "delta": DELTA,
        "adjacency": "replace-one",
        "adjacency_words": "one patient's record is exchanged for another",
        "one_answer": float(protocols["tree"].apply(noisy)[0, 0]),
    }
    return Result(
        "averages",
        {"graph": network.name, "noise_std": std, "runs": runs, "labels": NAMES},
        metrics=metrics,
        history=_by_rounds(network, noisy, truth),
        guarantees=[about_a_patient(g).to_dict(delta=DELTA) | {"what": name} for name, g in statements],
        provenance=provenance_now(started, noise=SIMULATED),
    )


def _error(rows: np.ndarray, truth: float) -> float:
    return float(np.sqrt(np.mean((rows - truth) ** 2)))


def _method(name: str, trusts: str, shares: np.ndarray, error: float, messages: int) -> dict[str, Any]:
    mu, typical = gaussian_mu(EPSILON, DELTA), np.median(shares)
    worst, usual = (float(gaussian_epsilon(mu * h**0.5, DELTA)) for h in (np.max(shares), typical))
    privacy = {"epsilon_worst": worst, "epsilon_typical": usual, "share_typical": float(typical)}
    return {"method": name, "trusts": trusts, **privacy, "error": error, "messages": messages}


def _by_rounds(network: Network, noisy: np.ndarray, truth: float) -> list[dict[str, Any]]:
    """Return the error of every node's answer after each round; a tree answers only at its end."""
    exchange, tree = HypercubeExchange(16), Tree(network)
    tree_error = _error(tree.apply(noisy), truth)
    state, history = noisy, []
    for t in range(1, 13):
        state = exchange.matrix(t - 1) @ state if t <= exchange.rounds else state
        errors: dict[str, Any] = {"round": t}
        for name, protocol in (("plain gossip", Gossip), ("accelerated gossip", Chebyshev)):
            errors[name] = _error(protocol(network, t).apply(noisy), truth)
        errors |= {"exchange": _error(state, truth), "tree": tree_error if t >= tree.rounds else None}
        history.append(errors)
    return history


# ---- 3b: private training ------------------------------------------------------------------------------


def training(
    clinics: Consortium, tick: Tick = lambda done: None, *, steps: int = 15, repeats: int = 20
) -> Result:
    """Train one classifier in six ways, the private ones at the same (1, 1e-5) for one patient.

    Over exact consensus every step uses another public spanning tree (`spread_trees`), so that no clinic
    sits beside the same other clinic in every step.
    """
    started = time.perf_counter()
    network, allowed = clinics.network, gaussian_mu(EPSILON, DELTA)
    trees = spread_trees(network, steps, np.random.default_rng(3))
    # how many releases' worth of one clinic's gradients one other clinic learns, at most
    worst = float(np.sum([tree_shares(tree) for tree in trees], axis=0).max())
    common: dict[str, Any] = {"objective": GLM("logistic", l2=1e-4), "steps": steps, "learning_rate": 8.0}
    common |= {"clip_norm": 1.0, "adjacency": "add-remove", "sizes": (PATIENTS,) * 16}

    def consensus(protocol: Protocol | list[Tree], noise_multiplier: float) -> ConsensusSGD:
        heavy = Optimizer("momentum", 0.8)
        return ConsensusSGD(protocol=protocol, noise_multiplier=noise_multiplier, optimizer=heavy, **common)

    share = 1 + 1e-10  # shares are rounded upwards in the twelfth place; the budget still holds
    exchange = HypercubeExchange(16)
    gossip = MuffliatoSGD(
        protocol=Gossip(network, 4), noise_multiplier=share * steps**0.5 / allowed, **common
    )
    plans: dict[str, tuple[Plan, str]] = {
        "trusted curator": (consensus(exchange, share * (steps / 16) ** 0.5 / allowed), "central"),
        "masked sum": (consensus(Masked(network), share * (steps / 15) ** 0.5 / allowed), "network"),
        "exact consensus": (consensus(trees, share * worst**0.5 / allowed), "network"),
        "gossip": (gossip, "local"),
    }
    tick(1)
    methods = [_trained(clinics, "no privacy", consensus(exchange, 0.0), None, 1)]
    statements: list[tuple[str, Guarantee]] = []
    for k, (name, (plan, view)) in enumerate(plans.items()):
        guarantee = plan.privacy(view)
        guarantee.require(EPSILON, DELTA)
        statements.append((name, guarantee))
        if name == "exact consensus":
            statements.append((name, plan.privacy("colluders", colluders=(0, 1))))
        if view == "network":
            statements.append((name, plan.privacy("local")))
        if name == "gossip":
            statements.append((name, plan.privacy("network", observer=0)))
        methods.append(_trained(clinics, name, plan, guarantee, repeats))
        tick(k + 2)
    methods.append(_alone(clinics))
    return Result(
        "training",
        {"graph": network.name, "steps": steps, "repeats": repeats, "labels": NAMES},
        metrics={
            "methods": methods,
            "delta": DELTA,
            "epsilon": EPSILON,
            "start": 70.0,
            "lead": _lead(methods),
        },
        guarantees=[guarantee.to_dict(delta=DELTA) | {"what": name} for name, guarantee in statements],
        provenance=provenance_now(started, noise=SIMULATED),
    )


def spread_trees(network: Network, steps: int, rng: np.random.Generator, candidates: int = 16) -> list[Tree]:
    """Return one spanning tree per step, picked so that every pair of nodes learns about as little as any.

    Each is the best of several random trees, given those before it. The choice looks at the network only,
    never at data, so the schedule is public and the accountant reads it as it is.
    """
    load = np.zeros((network.n, network.n))
    trees = []
    for _ in range(steps):
        drawn = [Tree(network, kind="capped", max_children=1, rng=rng) for _ in range(candidates)]
        best = min(drawn, key=lambda tree: float(((load + tree_shares(tree)) ** 4).sum()))
        load += tree_shares(best)
        trees.append(best)
    return trees


def tree_shares(tree: Tree) -> np.ndarray:
    """Return (n, n) what observer v (row) learns of user u (column): one over the size of u's block."""
    shares = np.zeros((tree.n, tree.n))
    for v in range(tree.n):
        for block in tree.blocks(v):
            shares[v, block] = 1 / len(block)
    return shares


def _trained(
    clinics: Consortium, name: str, plan: Plan, guarantee: Guarantee | None, repeats: int
) -> dict[str, Any]:
    """Run a plan several times and return the accuracy of the clinics' models."""
    scores = []
    data = plan.prepared(clinics.shards)
    for seed in range(repeats):  # the plan is accounted already: its runs need not account again
        random = RunRandomness.from_rng(SimulatedNoise(seed))
        source = plan.mechanism(data, range(16), random)
        algorithm = plan.algorithm(source, plan.starting(data, random, range(16)))
        models = algorithm.output(run_stacked(algorithm, plan.schedule, plan.steps, noise=random.noise))
        scores.append(np.mean([clinics.accuracy(row) for row in models]))
    return _accuracy(name, scores, guarantee)


def _alone(clinics: Consortium) -> dict[str, Any]:
    """Every clinic trains on its own patients, shares nothing, and keeps its model to itself."""
    from sklearn.linear_model import LogisticRegression

    scores = []
    for i in range(16):
        model = LogisticRegression(C=100.0, max_iter=5000, fit_intercept=False)
        scores.append(clinics.accuracy(model.fit(*clinics.shards.user(i)).coef_[0]))
    return _accuracy("each clinic alone", scores) | {"worst": float(min(scores))}


def _accuracy(name: str, scores: list[Any], guarantee: Guarantee | None = None) -> dict[str, Any]:
    privacy: dict[str, Any] = {"private": False, "epsilon": None, "against": "", "label": "none"}
    if guarantee is not None:
        against = str(guarantee.adversary).replace("node", "clinic")
        privacy = {"private": True, "epsilon": float(guarantee.epsilon(DELTA))}
        privacy |= {"against": against, "label": guarantee.label}
    return {"method": name, "accuracy": float(np.mean(scores)), "spread": float(np.std(scores)), **privacy}


def _lead(methods: list[dict[str, Any]]) -> str:
    at = {m["method"]: 100 * m["accuracy"] for m in methods}
    return (
        f"At epsilon {number(EPSILON, 'limit')} for one patient, training over masked sums reaches "
        f"{at['masked sum']:.1f} % without trusting anybody, over exact consensus without masks "
        f"{at['exact consensus']:.1f} %. A trusted curator would reach {at['trusted curator']:.1f} %, no "
        f"privacy at all {at['no privacy']:.1f} %, gossip (whose only guarantee is local) "
        f"{at['gossip']:.1f} %, and a clinic alone {at['each clinic alone']:.1f} % on average, "
        f"{100 * methods[-1]['worst']:.1f} % at worst."
    )


# ---- 4: an attack on the claims -------------------------------------------------------------------------


def audit(clinics: Consortium, tick: Tick = lambda done: None, *, runs: int = 40_000) -> Result:
    """Try to break the claims about the averaging with the best linear test, view by view.

    The noise multiplier is 0.5, low enough for the test to bite; the loss scales with it exactly.
    """
    from sottovoce.accounting.curve import Curve
    from sottovoce.accounting.guarantee import Adversary
    from sottovoce.accounting.published.formulas import published_loss
    from sottovoce.attacks import audit_averaging, audit_outputs

    started = time.perf_counter()
    network, multiplier = clinics.network, 0.5
    gossip = Gossip(network, rounds_for(network))
    formula = min(1.0, float(published_loss(network, rounds=gossip.rounds)[15, 0]))
    pair = Adversary("pairwise", (0,), 15)
    printed = Guarantee(pair, "user", "published", Curve.gaussian(formula**0.5 / multiplier))
    views: list[tuple[str, Protocol, int | tuple[int, ...], int, Guarantee | None]] = [
        ("Belmirto, by gossip", gossip, 0, 1, None),
        ("Torrelieve, by gossip", gossip, 0, 15, None),
        ("Torrelieve, by gossip, with Fontevaga", gossip, (0, 5), 15, None),
        ("Torrelieve, by exchange", HypercubeExchange(16), 0, 15, None),
        ("Torrelieve, by tree", Tree(network), 0, 15, None),
        ("Torrelieve, by gossip: published formula", gossip, 0, 15, printed),
    ]
    common: dict[str, Any] = {"sensitivity": 1.0, "noise_std": multiplier, "runs": runs, "delta": 1e-2}
    common |= {"rng": np.random.default_rng(11), "level": 0.001 / (len(views) + 1)}
    audits = {}
    for k, (name, protocol, observers, user, claim) in enumerate(views):
        outcome = audit_averaging(protocol, user=user, observers=observers, guarantee=claim, **common)
        audits[name] = outcome.to_dict()
        tick(k + 1)
    audits["Torrelieve, from the answer"] = audit_outputs(HypercubeExchange(16), user=15, **common).to_dict()
    tick(len(views) + 1)
    return Result(
        "audit",
        {"graph": network.name, "noise_multiplier": multiplier, "labels": NAMES},
        metrics={"audits": audits, "runs": runs, "confidence": 0.999},
        provenance=provenance_now(started, noise=SIMULATED),
    )


# ---- the tour ------------------------------------------------------------------------------------------

LEAD = (
    "Sixteen clinics want a common answer and a common model, and no clinic may learn another's patients. "
    "There is no server. The clinics are invented; the patients are those of a public data set."
)

# a plan of one's own to begin with: the clinics' first question, with nobody to trust
PLAN = """version = 1
title = "Sixteen clinics: share of malignant tumors"

[network]
graph = "hypercube:4"         # every clinic talks to four others

[protocol]
name = "masked"               # clinics learn the sum, and no single row

[average]
radius = 0.5                  # shares lie in [0, 1]: half a unit around
center = 0.5                  # one half
adjacency = "user"            # hide everything a clinic holds
values = {values}

[budget]
epsilon = 2.0
delta = 1e-5
"""


class TourPart(NamedTuple):
    """One part of the tour: its name, a title and a number of ticks for the progress bar, and what runs."""

    name: str
    title: str
    ticks: int | None
    run: Callable[[Consortium, Tick], Result]


def parts(quick: bool = False) -> tuple[TourPart, ...]:
    """Return the parts of the tour."""
    runs, repeats, attacks = (200, 3, 8_000) if quick else (2000, 20, 60_000)
    return (
        TourPart("reconstruction", "reconstruction", None, lambda c, _: reconstruction(c)),
        TourPart("account", "account", None, lambda c, _: account(c)),
        TourPart("averages", "private averages", 4, partial(averages, runs=runs)),
        TourPart("training", "private training", 5, partial(training, repeats=repeats)),
        TourPart("audit", "attacking the claims", 7, partial(audit, runs=attacks)),
    )


def account(clinics: Consortium) -> Result:
    """Return what the first clinic learns from gossip with noise."""
    from sottovoce.accounting.published.exact_comparison import compare_with_published
    from sottovoce.report.inputs import account_result

    network = clinics.network
    protocol = Gossip(network, rounds_for(network))
    assessment = compare_with_published(network, protocol, observer=0)
    assessment |= {"guarantees": promises(protocol, 0)}
    return Result(**account_result(network, protocol, assessment))


def write(out: Path, clinics: Consortium, results: Mapping[str, dict[str, Any]]) -> tuple[Path, Path]:
    """Write the results, the report and a plan file; return the paths of the last two."""
    from sottovoce._io import atomic_write
    from sottovoce.report.page import build
    from sottovoce.report.result_files import write_result

    page = build(results.values(), "Sixteen clinics, no server", LEAD)
    for name, result in results.items():
        write_result(out / "results" / f"{name}.json", result)
    report = atomic_write(out / "report.html", page)
    shares = [round(share, 4) for share in clinics.shares().tolist()]
    return report, atomic_write(out / "plan.toml", PLAN.format(values=shares))
