"""A model, its records and the plan that trains it: run, and made into a fitted model.

`sottovoce.fit`, private training loops and plan files prepare their runs as a `PreparedFit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from sottovoce.accounting.budget import Budget
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.coalitions import NO_OTHER_OUTPUT
from sottovoce.accounting.question import ONLY_ROWS_SENT
from sottovoce.accounting.wording import uncharged
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import InvalidInput
from sottovoce.models.adapters import ModelAdapter
from sottovoce.models.fitted import Fitted
from sottovoce.noise.run_randomness import RandomSource
from sottovoce.runners import Cluster, Result
from sottovoce.runners.progress import bar
from sottovoce.runners.run import RunOptions, run_on_ranks

SIMULATED = "the noise is simulated from a seed: this fit is a simulation and protects nobody"
TEST = "the test records are public"


@dataclass(frozen=True)
class PreparedFit:
    """A model, its records and the plan that trains it, before anything is charged.

    ``accepted`` is what is read from private records and not charged, by name; the assumptions of ``privacy``
    and ``guarantees`` name it. A guarantee that counts on observers seeing nothing but the rows sent to them
    is refused: the fitted model is one more output.
    """

    adapter: ModelAdapter
    plan: Plan
    privacy: Guarantee
    guarantees: Sequence[Guarantee]
    accepted: tuple[str, ...]
    budget: Budget | None

    def __post_init__(self) -> None:
        if {ONLY_ROWS_SENT, NO_OTHER_OUTPUT} & set(self.privacy.assumptions):
            raise InvalidInput(
                "a fit hands out the model of all nodes, in which the observers would see more than what "
                "reached them during training; state the budget with view='local'."
            )

    @property
    def delta(self) -> float:
        """The delta at which epsilon is stated."""
        return 1e-5 if self.budget is None else self.budget.delta

    @property
    def statements(self) -> list[dict[str, Any]]:
        """The guarantees as a result stores them."""
        accepted = {"accepted": list(self.accepted)}
        return [guarantee.to_dict(self.delta) | accepted for guarantee in self.guarantees]

    def run(
        self,
        noise: RandomSource,
        cluster: Cluster | None = None,
        *,
        progress: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result | None:
        """Run the plan, in this process or as a rank; the result is returned on rank 0.

        ``every`` is by default a twentieth of the steps; ``on_evaluation`` takes errors of regression in the
        unit of the labels. With protective noise the runner charges the lifetime ledger of this machine.
        """
        plan, adapter, listener = self.plan, self.adapter, options.get("on_evaluation")

        def evaluated(step: int, entry: Mapping[str, Any]) -> None:
            if listener is not None:
                listener(step, adapter.rescaled(entry))

        defaults: RunOptions = {"guarantees": self.statements, "evaluate": adapter.evaluate}
        options = {**defaults, **options, "on_evaluation": evaluated}
        options["every"] = options.get("every") or max(1, plan.steps // 20)
        if cluster is None:
            return plan.run(adapter.data, noise, progress=progress, **options)
        with bar(progress, f"{plan.name} on {cluster.size} ranks", plan.steps) as tell:
            return run_on_ranks(
                cluster, plan, adapter.data, noise, progress=lambda done: tell(done, {}), **options
            )

    def fitted(self, result: Result) -> Fitted:
        """Return the model of a run of the plan, with its scores."""
        result = self.adapter.scored(result)
        if self.budget is not None:
            stated = {"budget": self.budget.to_dict(self.privacy)}
            result = replace(result, provenance={**result.provenance, **stated})
        return Fitted.of_run(self.adapter, self.plan, result, self.privacy, self.delta)


def how_many(budget: Budget) -> int:
    """Return the number of members that collude."""
    return budget.colluders if isinstance(budget.colluders, int) else len(budget.colluders)


def with_assumptions(
    guarantee: Guarantee,
    accepted: Iterable[str],
    notes: Iterable[str] = (),
    *,
    public_test: bool,
    simulated: bool,
) -> Guarantee:
    """Return a guarantee that states what was read and not charged, and what else it rests on."""
    assumptions = [*map(uncharged, accepted), *notes]
    assumptions += [TEST] if public_test else []
    assumptions += [SIMULATED] if simulated else []
    return replace(guarantee, assumptions=(*guarantee.assumptions, *assumptions))
