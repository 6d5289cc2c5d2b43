"""Random histories of charges: is any total of the lifetime ledger below an independent recomputation?

    python -m verification.charges --histories 300 --seed 1 --out docs/results/verification.json

A history opens a population with some lifetime budgets and charges plans drawn at random to it, while budgets
of other adjacencies and views are added in between. After every charge each printed total is held against
what the plans cost together by `verification.recomputation`, which uses none of our curves, releases or
accountants: messages in fractions, Gaussian losses in fifty digits, distributions of dp-accounting rounded
downwards. The ledger is read as its rules say:

- a budget counts the plan's cost against its own view if it stood when the plan was charged, else against
  more colluders, else against everybody;
- a change of a whole user covers a record; replacing a record is removing one and adding one; a plan about
  records says nothing about users;
- who takes part in a federation without a secure sum is seen, so the number of rounds is a coin's.

The exit code is 1 if a total is below the truth by more than a relative 1e-9 of epsilon where all is
Gaussian, 1e-6 where distributions are rounded downwards.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import mpmath
import numpy as np

from sottovoce.algorithms import registry
from sottovoce.errors import SottovoceError
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.ledger.charge import charge
from sottovoce.ledger.lifetime import LifetimeLedger
from sottovoce.objectives import GLM
from verification import recomputation, store
from verification.recomputation import Step

ADJACENCIES = ("user", "add-remove", "replace-one")
VIEWS = ("local", "outsider", "network", "colluders:1", "colluders:2")
MANY = 1e12  # a lifetime budget that refuses nothing: the totals are what is judged
Composition = tuple[Step, ...]


# ---- plans, and what each costs against a view ----------------------------------------------------------


@dataclass(frozen=True)
class Priced:
    """A plan, and what it costs against a view, as compositions of which the worst counts."""

    plan: Any
    words: str
    cost: Callable[[str], list[Composition]]
    closed_form: bool = True  # False: recomputed from below only


def federation(rng: np.random.Generator) -> Priced:
    """Sampled clients; without a secure sum it is seen who takes part, with one it is hidden by noise."""
    users, steps = int(rng.integers(2, 7)), int(rng.integers(1, 7))
    clip_norm, std = recomputation.eighths(rng, 0.2, 2), recomputation.eighths(rng, 4, 30)
    rate, secure = float(rng.integers(1, 64)) / 64, bool(rng.random() < 0.5)
    plan = registry.algorithm("federated-admm")(
        GLM("squared"), users=users, steps=steps, sample_rate=rate, gamma=1.0, clip_norm=clip_norm,
        noise_std=std, secure_sum=secure,
    )  # fmt: skip
    squared = (4 * Fraction(clip_norm)) ** 2 / Fraction(std) ** 2

    def cost(view: str) -> list[Composition]:
        if not secure:
            odds = [math.comb(steps, k) * mpmath.mpf(rate) ** k * mpmath.mpf(1 - rate) ** (steps - k)
                    for k in range(steps + 1)]  # fmt: skip
            return [(Step("mixture", tuple((k * squared, odd) for k, odd in enumerate(odds))),)]
        hiding = 1 if view == "local" else users - members(view)
        return [(Step("sampled", 2 / math.sqrt(squared / hiding), steps, rate, True),)]

    return Priced(plan, f"federated-admm, secure sum {secure}", cost)


def others(rng: np.random.Generator) -> Priced:
    """Any other plan of the recomputation, Gaussian or sampled."""
    makers = recomputation.SAMPLED if rng.random() < 0.2 else recomputation.GAUSSIAN
    weights = np.array([weight for weight, _ in makers])
    make = makers[int(rng.choice(len(makers), p=weights / weights.sum()))][1]
    seed = int(rng.integers(2**40))

    def drawn(view: str) -> tuple[Any, bool]:
        """Draw the same plan with a question about ``view``; False where nobody has recomputed that view."""
        known = True

        def asked(rng: np.random.Generator, n: int, views: Sequence[str]) -> Any:
            nonlocal known
            name, size = view.partition(":")[0], members(view)
            known = name in views
            coalitions = list(itertools.combinations(range(n), size)) if size else [()]
            question = {"view": name} | ({"colluders": size} if name == "colluders" else {})
            return (question, coalitions, None) if known else ({"view": "local"}, [()], None)

        with mock.patch.object(recomputation, "whom", asked):
            case = make(np.random.default_rng(seed))
        asked_view, asked_size = view.partition(":")[0], members(view)
        same = case.question.get("view", asked_view) == asked_view  # some ask another question all the same
        return case, known and same and case.question.get("colluders", asked_size) == asked_size

    case, _ = drawn("local")
    if case.words["algorithm"] in ("decor", "mafalda", "federated-admm"):
        raise SottovoceError("shared noise is never protective, and a federation has a function of its own")

    def cost(view: str) -> list[Composition]:
        again, known = drawn(view)
        return again.compositions() if known else [()]

    words = ", ".join(map(str, case.words.values()))
    return Priced(case.plan, words, cost, closed_form="closed_form" not in case.words)


def members(view: str) -> int:
    """Return how many members look together."""
    return int(view.partition(":")[2] or view == "network")


def priced(rng: np.random.Generator) -> Priced:
    """Draw a plan; what a plan refuses is drawn again."""
    while True:
        try:
            return federation(rng) if rng.random() < 0.25 else others(rng)
        except SottovoceError:
            continue


# ---- what a budget counts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Charged:
    """A plan that was charged, and the views of the budgets that stood then."""

    priced: Priced
    views: frozenset[str]

    def compositions(self, adjacency: str, view: str) -> list[Composition]:
        """Return what a budget of this adjacency and view must count."""
        plan = self.priced.plan
        if plan.adjacency == adjacency or plan.adjacency == "user":
            return self.priced.cost(self._counted(view))
        if adjacency == "user":
            return [(Step("gaussian", math.inf),)]
        local = self.priced.cost("local")
        return [tuple(_restated(step, adjacency == "replace-one") for step in each) for each in local]

    def known_from_below(self, adjacency: str, view: str) -> bool:
        """Return whether the recomputation is less than what may be claimed, so that nothing can be close.

        How far removing a record moves what was released about replacing one is not known, only half of it;
        secret walks and fresh trees are recomputed from below.
        """
        halved = (self.priced.plan.adjacency, adjacency) == ("replace-one", "add-remove")
        if halved or not self.priced.closed_form:
            return True
        return self.compositions(adjacency, view) == [()]

    def _counted(self, view: str) -> str:
        """Return the view whose cost counts: its own, more colluders, or everybody."""
        plan = self.priced.plan
        if plan.observation.central_only:
            return "local"
        stored = {name for name in self.views if members(name) < plan.n}
        if view in stored:
            return view
        larger = [name for name in stored if "colluders" in name and 0 < members(view) <= members(name)]
        return min(larger, key=members) if larger else "local"


def _restated(step: Step, replaced: bool) -> Step:
    """Return a step about records under the other record-level adjacency, not more than it truly costs."""
    if step.kind == "sampled":
        return replace(step, replaced=replaced)
    factor = Fraction(2) if replaced else Fraction(1, 2)
    if step.size == math.inf:
        return step
    return replace(step, size=step.size * (factor**2 if step.kind == "gaussian" else float(factor)))


# ---- judging ----------------------------------------------------------------------------------------------


def least_delta(steps: Composition, epsilon: float) -> Any:
    """Return a delta that the composition does not stay below at epsilon."""
    mixtures = [step.size for step in steps if step.kind == "mixture"]
    rest = [step for step in steps if step.kind != "mixture"]
    if any(step.kind == "gaussian" and step.size == math.inf for step in rest):
        return mpmath.mpf(1)
    known = sum((step.size for step in rest if step.kind == "gaussian"), Fraction(0))
    distributions = [step for step in rest if step.kind != "gaussian"]
    total = mpmath.mpf(0)
    for drawn in itertools.product(*mixtures):
        gaussian = sum((squared for squared, _ in drawn), known)
        if distributions:
            delta = _distribution_delta((Step("gaussian", gaussian), *distributions), epsilon)
        else:
            delta = recomputation.gaussian_delta(gaussian, epsilon) if gaussian else 0
        total += mpmath.fprod(odd for _, odd in drawn) * delta
    return total


def _distribution_delta(steps: Composition, epsilon: float) -> float:
    composed = None
    for step in steps:
        if step.kind == "gaussian":
            if step.size == 0:
                continue
            one = recomputation._mechanism(
                "gaussian", 1 / math.sqrt(step.size), 1.0, False, recomputation.COARSE
            )
        else:
            one = recomputation._mechanism(
                step.kind, float(step.size), step.rate, step.replaced, recomputation.COARSE
            )
            one = one.self_compose(step.count) if step.count > 1 else one
        composed = one if composed is None else composed.compose(one)
    return 0.0 if composed is None else float(composed.get_delta_for_epsilon(epsilon))


def judge(charges: Sequence[Charged], budget: LifetimeBudget, total: float) -> dict[str, Any]:
    """Return whether a printed total is below the truth, and whether it is close to it."""
    parts = [recomputation.worst(each.compositions(*budget.kind)) for each in charges]
    together = [tuple(itertools.chain.from_iterable(one)) for one in itertools.product(*parts)]
    if any(step.size == math.inf for one in together for step in one):
        return {"low": total < math.inf, "close": total == math.inf, "exact": True}
    exact = all(step.kind in ("gaussian", "mixture") for one in together for step in one)
    closed = exact and not any(each.known_from_below(*budget.kind) for each in charges)
    slack = recomputation.GAUSSIAN_SLACK if exact else recomputation.SAMPLED_SLACK
    bound = budget.delta * (1 + (mpmath.mpf(10) ** -9))
    low = any(least_delta(one, total * (1 + slack)) > bound for one in together)
    shorter = total / (1 + recomputation.CLOSE)
    close = total <= 1e-5 or any(least_delta(one, shorter) >= budget.delta for one in together)
    return {"low": bool(low), "close": bool(close), "exact": closed}


# ---- histories --------------------------------------------------------------------------------------------


def history(seed: int, number: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Live one history and judge every total after every charge."""
    rng = np.random.default_rng([seed, number])
    ledger = LifetimeLedger(folder / "lifetime.ledger", folder / "copy.ledger", folder / "lock")
    ledger.create("north")
    budgets: dict[tuple[str, str], LifetimeBudget] = {}

    def draw_budget() -> LifetimeBudget:
        adjacency = str(rng.choice(ADJACENCIES, p=[0.5, 0.3, 0.2]))
        delta = float(f"{10 ** -rng.uniform(3, 8):.3g}")
        budget = LifetimeBudget(MANY, delta, adjacency, str(rng.choice(VIEWS)))
        budgets[budget.kind] = budget
        return budget

    ledger.open_population("p", [draw_budget()], "a vote")
    charges: list[Charged] = []
    for _ in range(int(rng.integers(2, 5))):
        if rng.random() < 0.6:
            ledger.set_budget(None, draw_budget(), "another vote")
        chosen = priced(rng)
        views = frozenset(ledger.views(None))
        # a plan about records costs a budget about users infinity: charged all the same, to see that it does
        with mock.patch("sottovoce.ledger.balance.require_lifetime_budget"):
            charge(ledger, chosen.plan, "run")
        charges.append(Charged(chosen, views))
        for row in ledger.summary()[0]["budgets"]:
            budget = LifetimeBudget(*(row[name] for name in ("epsilon", "delta", "adjacency", "view")))
            verdict = judge(charges, budget, row["total"])
            yield {"history": number, "charges": [each.priced.words for each in charges],
                   "budget": str(budget), "total": row["total"], **verdict}  # fmt: skip


def lived(seed: int, number: int) -> list[dict[str, Any]]:
    """Return the verdicts of one history."""
    with tempfile.TemporaryDirectory() as folder:
        return list(history(seed, number, Path(folder)))


def score(verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how many totals were judged, below the truth, and close to it."""
    exact = [each for each in verdicts if each["exact"]]
    return {
        "totals": len(verdicts),
        "below": sum(each["low"] for each in verdicts),
        "close": sum(each["close"] for each in verdicts),
        "closed_form": len(exact),
        "closed_form_close": sum(each["close"] for each in exact),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--histories", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the record here")
    options = parser.parse_args()
    started = time.time()
    verdicts: list[dict[str, Any]] = []
    for number in range(options.histories):
        verdicts += lived(options.seed, number)
    command = f"python -m verification.charges --histories {options.histories} --seed {options.seed}"
    record = {
        "command": command,
        "histories": options.histories,
        **score(verdicts),
        "violations": [each for each in verdicts if each["low"]][:20],
        "seconds": round(time.time() - started),
    }
    text = json.dumps(record, indent=1)
    if options.out is not None:
        store(options.out, "charges", record)
    print(text)
    return int(bool(record["violations"]))


if __name__ == "__main__":
    sys.exit(main())
