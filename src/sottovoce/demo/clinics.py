"""Sixteen clinics: the demonstration. Each part is one function from the consortium to a result.

The clinics and their names are invented; the patients are those of scikit-learn's breast-cancer data
(Wolberg, Street, Mangasarian 1995), dealt out so that half of the clinics are screening sites, where tumors
are mostly benign, and half are referral hospitals. Every clinic holds as many patients as any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._format import number, percent
from sottovoce.accounting.gaussian import gaussian_epsilon, gaussian_mu
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.algorithms import ConsensusSGD, MuffliatoSGD, Optimizer, Plan, PrivateAveraging
from sottovoce.data import Shards, load
from sottovoce.graphs import Network, hypercube
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.objectives import GLM
from sottovoce.protocols import Chebyshev, Gossip, HypercubeExchange, Masked, Protocol, Tree, rounds_for
from sottovoce.report.rendering import texts
from sottovoce.runners import Result
from sottovoce.runners.base import provenance_now

TEXTS = texts("tour.toml")
NAMES = tuple(TEXTS["names"].split())
PATIENTS = 28  # per clinic
# malignant tumors among them; screening sites and referral hospitals take turns along the network
MALIGNANT = (18, 1, 3, 20, 2, 16, 17, 1, 4, 19, 15, 2, 20, 1, 3, 18)
EPSILON, DELTA = 1.0, 1e-5
SIMULATED = "simulation: reproducible, not protective"
Tick = Callable[[int], None]


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
    whole = load("breast_cancer")
    # public: the description of the data set prints the range of every feature
    low, high = whole.X.min(axis=0), whole.X.max(axis=0)

    def scaled(X: np.ndarray) -> np.ndarray:
        """Return features by their public ranges, with an intercept, every record of length at most 1."""
        wide = np.hstack([(X - low) / (high - low) - 0.25, np.full((len(X), 1), 0.5)])
        return wide / np.maximum(1.0, np.linalg.norm(wide, axis=1, keepdims=True))

    data = whole.split(0.2, rng)
    assert data.y_test is not None
    malignant, benign = (rng.permutation(np.flatnonzero(data.y == label)) for label in (-1, 1))
    sick = np.split(malignant, np.cumsum(MALIGNANT))
    well = np.split(benign, np.cumsum([PATIENTS - count for count in MALIGNANT]))
    parts = [np.concatenate([sick[v], well[v]]) for v in range(16)]
    shards = Shards.from_parts(scaled(data.X), data.y, parts)
    network = replace(hypercube(4), node_names=NAMES)
    return Consortium(network, shards, scaled(data.X_test), data.y_test)


def _result(
    name: str,
    started: float,
    metrics: Mapping[str, Any],
    guarantees: Iterable[tuple[str, Guarantee]] = (),
    noise: str = SIMULATED,
    **values: object,
) -> Result:
    """Return the result of a part; its text is filled with ``values``, its tables are lists of rows."""
    title, about = TEXTS[name]["title"], TEXTS[name]["about"].format(**values)
    return Result(
        name,
        {"title": title, "about": about, "labels": NAMES},
        metrics=metrics,
        guarantees=[g.to_dict(delta=DELTA) | {"what": what} for what, g in guarantees],
        provenance=provenance_now(started, noise=noise),
    )


def reconstruction(clinics: Consortium, observer: int = 0) -> Result:
    """Let one clinic solve for the others' numbers after an averaging without noise."""
    started, network, shares = time.perf_counter(), clinics.network, clinics.shares()
    protocol = Gossip(network, rounds_for(network))
    view = protocol.view(observer)
    estimates = view.reconstruct(protocol.observe(shares, observer))[:, 0]
    distances = network.distances_from(observer)
    recovered = [
        {
            "clinic": NAMES[u],
            "hops away": int(distances[u]),
            "true share": float(shares[u]),
            f"as computed by {NAMES[observer]}": float(estimates[u]),
        }
        for u in range(network.n)
        if view.covers(u)
    ]
    about: dict[str, Any] = {"rounds": protocol.rounds, "observer": NAMES[observer], "count": len(recovered)}
    return _result("reconstruction", started, {"recovered": recovered}, noise="none", **about)


def account(clinics: Consortium) -> Result:
    """Return what the first clinic learns from gossip with noise."""
    from sottovoce.accounting.published.exact_comparison import compare_with_published
    from sottovoce.report.inputs import account_result

    protocol = Gossip(clinics.network, rounds_for(clinics.network))
    assessment = compare_with_published(clinics.network, protocol, observer=0)
    assessment |= {"guarantees": promises(protocol, 0)}
    return Result(**account_result(clinics.network, protocol, assessment))


def noise_for_patients() -> float:
    """Return the noise on a clinic's share at which one patient is protected locally at (1, 1e-5)."""
    return 1 / PATIENTS / gaussian_mu(EPSILON, DELTA)


def promises(protocol: Protocol, observer: int) -> list[dict[str, Any]]:
    """Return what this noise promises a patient, against everybody and one clinic, and what to a clinic."""
    clinic = PrivateAveraging(protocol, noise_std=noise_for_patients(), radius=0.5)
    patient = replace(clinic, radius=0.5 / PATIENTS)
    one = [about_a_patient(g) for g in (patient.privacy("local"), patient.privacy(observer=observer))]
    return [g.to_dict(delta=DELTA) for g in (*one, clinic.privacy("local"))]


def about_a_patient(guarantee: Guarantee) -> Guarantee:
    """Return a clinic-level statement as one about one patient, whose record moves the share by 1/28."""
    assumption = "the number of patients of every clinic is public"
    return replace(guarantee, adjacency="replace-one", assumptions=(*guarantee.assumptions, assumption))


def averages(clinics: Consortium, tick: Tick = lambda done: None, *, runs: int = 2000) -> Result:
    """Average the clinics' shares in four ways with the same noise; measure error, account exposure."""
    started, network, shares = time.perf_counter(), clinics.network, clinics.shares()
    truth, mu, std = float(shares.mean()), gaussian_mu(EPSILON, DELTA), noise_for_patients()
    protocols: dict[str, Protocol] = {
        "gossip": Chebyshev(network, rounds_for(network)),
        "tree": Tree(network),
        "masked sum": Masked(network),
    }
    rows = np.repeat(shares[:, None], runs, axis=1)
    noisy = SimulatedNoise(1).perturb(rows, agents=range(16), step=0, std=std)

    def method(name: str, pairs: np.ndarray, rows: np.ndarray, messages: int) -> dict[str, Any]:
        worst, typical = (
            float(gaussian_epsilon(mu * h**0.5, DELTA)) for h in (pairs.max(), np.median(pairs))
        )
        error = float(np.sqrt(np.mean((rows - truth) ** 2)))
        losses = {"epsilon_worst": worst, "epsilon_typical": typical}
        return {"method": name, "error": error, **losses, "messages": messages}

    methods, guarantees = [], []
    for k, (name, protocol) in enumerate(protocols.items()):
        leakage = np.array([protocol.view(v).leakage() for v in range(16)])
        pairs = leakage[~np.eye(16, dtype=bool)]
        methods.append(method(name, pairs, protocol.apply(noisy), protocol.message_count))
        plan = PrivateAveraging(protocol, noise_std=std, radius=0.5 / PATIENTS)
        guarantees += [
            (name, about_a_patient(plan.privacy("pairwise", observer=0, user=user))) for user in (1, 15)
        ]
        tick(k + 1)
    methods.append(method("trusted curator", np.array([1 / 16]), noisy.mean(axis=0), 32))
    answer = float(protocols["tree"].apply(noisy)[0, 0])
    about = {"truth": number(truth), "answer": number(answer)}
    return _result("averages", started, {"methods": methods}, guarantees, **about)


def training(
    clinics: Consortium, tick: Tick = lambda done: None, *, steps: int = 15, repeats: int = 20
) -> Result:
    """Train one classifier in six ways, the private ones at the same (1, 1e-5) for one patient."""
    started, network = time.perf_counter(), clinics.network
    common: dict[str, Any] = {"steps": steps, "learning_rate": 8.0, "clip_norm": 1.0}
    common |= {"adjacency": "add-remove", "sizes": (PATIENTS,) * 16, "network": network}
    objective, heavy = GLM("logistic", l2=1e-4), Optimizer("momentum", 0.8)
    budget: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA}
    consensus = partial(ConsensusSGD.for_budget, objective, **common, **budget, optimizer=heavy)
    free = ConsensusSGD(objective, "exchange", **common, optimizer=heavy, noise_multiplier=0.0)
    plans: dict[str, tuple[Plan, str]] = {
        "trusted curator": (consensus("exchange", view="central"), "central"),
        "masked sum": (consensus("masked", view="network"), "network"),
        "another tree every step": (consensus("tree:kind=uniform", view="network"), "network"),
        "gossip": (MuffliatoSGD.for_budget(objective, "gossip:4", **common, **budget, view="local"), "local"),
    }
    methods = [_trained(clinics, "no privacy", free, None, 1)]
    guarantees: list[tuple[str, Guarantee]] = []
    for k, (name, (plan, view)) in enumerate(plans.items()):
        guarantee = plan.privacy(view)
        guarantees += [(name, guarantee), *([(name, plan.privacy("local"))] if view == "network" else [])]
        methods.append(_trained(clinics, name, plan, guarantee, repeats))
        tick(k + 1)
    methods.append(_alone(clinics))
    amounts = {"epsilon": number(EPSILON, "limit"), "delta": number(DELTA, "delta")}
    metrics = {"methods": methods}
    return _result("training", started, metrics, guarantees, steps=steps, repeats=repeats, **amounts)


def _trained(
    clinics: Consortium, name: str, plan: Plan, guarantee: Guarantee | None, repeats: int
) -> dict[str, Any]:
    """Run a plan several times and return the accuracy of the clinics' models."""
    scores = []
    for seed in range(repeats):  # the plan is accounted already: its runs need not account again
        models = plan.run(clinics.shards, SimulatedNoise(seed), guarantees=[]).outputs["rows"]
        scores.append(float(np.mean([clinics.accuracy(row) for row in models])))
    return _accuracy(name, scores, guarantee)


def _alone(clinics: Consortium) -> dict[str, Any]:
    """Every clinic trains on its own patients, shares nothing, and keeps its model to itself."""
    from sklearn.linear_model import LogisticRegression

    scores = []
    for i in range(16):
        model = LogisticRegression(C=100.0, max_iter=5000, fit_intercept=False)
        scores.append(clinics.accuracy(model.fit(*clinics.shards.user(i)).coef_[0]))
    return _accuracy("each clinic alone", scores)


def _accuracy(name: str, scores: list[float], guarantee: Guarantee | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"method": name, "accuracy": percent(float(np.mean(scores)), places=1)}
    row |= {"±": percent(float(np.std(scores)), places=1), "epsilon": None, "against": "not private"}
    if guarantee is not None:
        against = str(guarantee.adversary).replace("node", "clinic")
        row |= {"epsilon": float(guarantee.epsilon(DELTA)), "against": f"{against} ({guarantee.label})"}
    return row


def audit(clinics: Consortium, tick: Tick = lambda done: None, *, runs: int = 40_000) -> Result:
    """Try to break the claims about the averaging with the best linear test, view by view.

    The noise multiplier is 1, low enough for the test to bite; the loss scales with it exactly.
    """
    from sottovoce.attacks.audit import audit_averaging, audit_outputs, published_claim

    started, network, multiplier, far = time.perf_counter(), clinics.network, 1.0, 15
    gossip = Gossip(network, rounds_for(network))
    printed = published_claim(network, gossip.rounds, far, (0,), multiplier)
    views: list[tuple[str, Protocol, tuple[int, ...], int, Guarantee | None]] = [
        ("Belmirto, by gossip", gossip, (0,), 1, None),
        ("Torrelieve, by gossip", gossip, (0,), far, None),
        ("Torrelieve, by gossip, with Fontevaga", gossip, (0, 5), far, None),
        ("Torrelieve, by tree", Tree(network), (0,), far, None),
        ("Torrelieve, by gossip: published formula", gossip, (0,), far, printed),
    ]
    common: dict[str, Any] = {"sensitivity": 2.0, "noise_std": multiplier, "runs": runs, "delta": 1e-2}
    common |= {"rng": np.random.default_rng(11), "level": 0.001 / (len(views) + 1)}
    audits = {}
    for k, (name, protocol, observers, user, claim) in enumerate(views):
        outcome = audit_averaging(protocol, user=user, observers=observers, guarantee=claim, **common)
        audits[name] = outcome.to_dict()
        tick(k + 1)
    audits["Torrelieve, from the answer"] = audit_outputs(HypercubeExchange(16), user=far, **common).to_dict()
    tick(len(views) + 1)
    metrics = {"audits": audits, "runs": runs, "confidence": 0.999}
    return _result("audit", started, metrics)


# ---- the tour ------------------------------------------------------------------------------------------


def parts(quick: bool = False) -> dict[str, Callable[[Consortium, Tick], Result]]:
    """Return the parts of the tour by name; each takes the clinics and a function that counts its ticks."""
    runs, repeats, attacks = (200, 3, 8_000) if quick else (2000, 20, 60_000)
    return {
        "reconstruction": lambda clinics, tick: reconstruction(clinics),
        "account": lambda clinics, tick: account(clinics),
        "averages": partial(averages, runs=runs),
        "training": partial(training, repeats=repeats),
        "audit": partial(audit, runs=attacks),
    }


def write(out: Path, clinics: Consortium, results: Mapping[str, dict[str, Any]]) -> tuple[Path, Path]:
    """Write the results, the report and a plan file; return the paths of the last two."""
    from sottovoce._io import atomic_write
    from sottovoce.report.page import build
    from sottovoce.report.result_files import write_result

    page = build(results.values(), "Sixteen clinics, no server", TEXTS["lead"])
    for name, result in results.items():
        write_result(out / "results" / f"{name}.json", result)
    report = atomic_write(out / "report.html", page)
    shares = [round(share, 4) for share in clinics.shares().tolist()]
    return report, atomic_write(out / "plan.toml", TEXTS["plan"].format(values=shares))
