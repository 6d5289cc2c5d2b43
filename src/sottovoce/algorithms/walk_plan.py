"""What walks on public paths and on drawn ones share: options, a network in place of the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sottovoce._validate import several
from sottovoce.algorithms.gradient_plan import GradientPlan
from sottovoce.errors import InvalidInput
from sottovoce.graphs import as_network
from sottovoce.protocols import Walk


@dataclass(frozen=True, repr=False)
class WalkPlan(GradientPlan):
    """SGD carried by a token over a network; `RandomWalkSGD` describes the options."""

    path: str | tuple[int, ...] = "public"
    cap: int | None = None
    tokens: int = 1
    feature_norm: float | None = None
    final_public: bool = True

    name = "random-walk-sgd"
    needs = ("token",)
    uses_optimizer = False
    sequential = True  # one holder at a time: ranks would only wait for each other

    @classmethod
    def _with_protocol(cls, options: dict[str, Any]) -> dict[str, Any]:
        protocol, network, path = options["protocol"], options["network"], options["path"]
        if protocol is not None and not (isinstance(protocol, str) and protocol == "walk"):
            if network is not None:
                raise InvalidInput(f"{cls.name} runs over walk, not over {protocol}.")
            network = protocol
        if network is None:
            raise InvalidInput(f"{cls.name} needs a network for its protocol walk.")
        network = as_network(network)
        if not isinstance(path, str):
            path = tuple(int(v) for v in Walk(network, options["steps"], path=several(path, "path")).path)
        elif path not in ("public", "secret"):
            raise InvalidInput(f'path must be "public", "secret" or one node per step, got {path!r}.')
        return {**options, "protocol": "walk", "network": network, "path": path}

    @property
    def n(self) -> int:
        return int(self.network.n)
