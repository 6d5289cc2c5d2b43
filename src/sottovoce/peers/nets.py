"""Networks between peers: the package's zoo and its clipped sums, hosted for one member. Needs torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.errors import ConfigError, DataError, MissingDependency, SottovoceError
from sottovoce.peers.learning import NoisyGradient
from sottovoce.peers.records import Records

if TYPE_CHECKING:
    from sottovoce.peers.jobs import Job

__all__ = ["net_gradients"]


class _Renumbered:
    """A noise source for agents numbered by their place: the source itself knows the members' numbers."""

    def __init__(self, source: Any, agents: Sequence[int]) -> None:
        self.source, self.agents = source, list(agents)
        self.protective = source.protective

    def perturb(self, values: np.ndarray, *, agents: Any, step: int, std: Any, stream: int = 0) -> np.ndarray:
        members = [self.agents[place] for place in agents]
        noisy: np.ndarray = self.source.perturb(values, agents=members, step=step, std=std, stream=stream)
        return noisy

    def slack(self, dim: int, std: float = 1.0) -> float:
        return float(self.source.slack(dim, std))


def net_gradients(
    job: Job, agents: Sequence[int], records: list[Records], noise: Any
) -> tuple[NoisyGradient, np.ndarray]:
    """Return the noisy gradients of the hosted members and the public starting rows.

    Lots are drawn from a key that the operating system gives: which records were in a lot stays secret.
    """
    try:
        from sottovoce.objectives.lots import AgentData, Lots, NoisyGradients
        from sottovoce.objectives.models import build
        from sottovoce.objectives.nets import NetObjective
    except ImportError:
        raise MissingDependency(
            "A model of kind 'net' needs torch; pip install -c constraints.txt 'sottovoce[deep]'."
        ) from None
    part, model = job.agreement.algorithm, job.agreement.model
    # the agreed multiplier is over the sensitivity; the clipped sums measure their noise in clips
    per_clip = part.noise_multiplier * (1.0 if part.adjacency == "add-remove" else 2.0)
    try:
        objective = NetObjective(build(model.net, **model.options), max_grad_norm=part.clip)
    except (SottovoceError, TypeError) as error:
        raise ConfigError(f"The agreement's network {model.net!r} cannot be built: {error}") from None
    if objective.n_params != model.parameters:
        raise ConfigError(
            f"The network {model.net!r} has {objective.n_params} parameters, the agreement says "
            f"{model.parameters}."
        )
    if len({r.X.shape[1:] for r in records}) != 1:
        raise DataError("The members' inputs have unlike shapes.")
    ends = np.cumsum([len(r.X) for r in records])
    parts = [np.arange(end - len(r.X), end) for end, r in zip(ends, records, strict=True)]
    data = AgentData(np.concatenate([r.X for r in records]), np.concatenate([r.y for r in records]), parts)
    lots = Lots(data.sizes, [part.sample_rate] * len(agents), seed=int.from_bytes(os.urandom(16), "little"))
    divisors = data.sizes.tolist() if part.adjacency == "user" else [part.lot] * len(agents)
    noisy = NoisyGradients(
        objective, data, lots, _Renumbered(noise, agents), [per_clip] * len(agents), divisors,
        adjacency=part.adjacency,
    )  # fmt: skip
    return _Hosted(noisy, agents), objective.initial(job.public(0), len(agents))


class _Hosted:
    """Clipped sums numbered by place, seen under the members' numbers."""

    def __init__(self, noisy: Any, agents: Sequence[int]) -> None:
        self.noisy, self.agents = noisy, list(agents)

    def __call__(self, theta: np.ndarray, step: int, stream: int = 0, /) -> np.ndarray:
        rows: np.ndarray = self.noisy(theta, step, stream)
        return rows

    def rows(self, theta: np.ndarray, step: int, stream: int, places: Sequence[int]) -> np.ndarray:
        rows: np.ndarray = self.noisy.rows(theta, step, stream, places)
        return rows
