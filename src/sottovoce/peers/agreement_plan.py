"""From the words of an agreement to a plan: the one place where a peer learns what it computes.

Nothing here knows an algorithm: the registry gives the class, the class says which options, protocols and
adjacencies it has, and what does not fit is refused by the class itself, in the words that Python raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sottovoce import _validate, graphs
from sottovoce.algorithms.build import build_plan, frozen, plan_options, unknown_option
from sottovoce.algorithms.registry import ALGORITHMS, algorithm
from sottovoce.errors import ConfigError, DataError, MissingDependency, SottovoceError
from sottovoce.objectives.prox import Regularizer
from sottovoce.protocols.registry import BUILT_IN
from sottovoce.protocols.registry import names as protocol_names

# what the rest of the agreement says already, or what nobody may choose for others
_ELSEWHERE = {
    "objective": "[model] says it",
    "network": "graph says it",
    "seed": "it is the run's name",
    "sizes": "numbers of records are nobody's business; give lot and sample_rate",
    "accounting": "peers count tightly",
    "dim": "[model] says it in parameters",
    "noise_std": "give noise_multiplier, noise over the clip",
    "radius": "give clip",
    "path": "it follows from the run's name",
}


@dataclass(frozen=True)
class AgreedNet:
    """A network by name: priced and signed without torch, built where it trains.

    A network of the package's zoo, or the members' own, whose file and start weights each member supplies
    (`supply`) and whose digests the agreement holds.

    Guarantees
    ----------
    A module of one's own is built only from a file with the agreed digest, and starts from weights with the
    agreed digest; neither is ever taken from the wire.
    """

    net: str
    options: Mapping[str, int]
    n_params: int
    clip_norm: float | None = None  # the plan says it
    module: str = ""
    module_sha256: str = ""
    weights_sha256: str = ""
    loss: str = ""

    bytes_per_number: ClassVar[int] = 8
    regularizer: ClassVar[Regularizer] = Regularizer()

    def supply(self, module: str | Path | None, weights: str | Path | None) -> None:
        """Say where this member's copies of the agreed module file and start weights are."""
        if not self.module and (module is not None or weights is not None):
            raise ConfigError(f"The agreement's network {self.net!r} is the package's own; supply no files.")
        self.__dict__["_files"] = (module, weights)

    def _own(self) -> Any:
        from sottovoce.objectives.nets.module_files import build_module, put_weights, read_weights

        file, weights = self.__dict__.get("_files", (None, None))
        if file is None or weights is None:
            raise ConfigError(
                f"The agreement's network {self.module!r} is the members' own: name its file and its start "
                "weights with --module and --weights."
            )
        path, function = Path(file), self.module.partition(":")[2]
        built = build_module(
            f"{path.name}:{function}", path.parent, sha256=self.module_sha256, options=self.options
        )
        return put_weights(built, read_weights(weights, sha256=self.weights_sha256), Path(weights).name)

    @cached_property
    def objective(self) -> Any:
        """The objective itself; needs torch."""
        try:
            from sottovoce.objectives.nets.objective import NetObjective
            from sottovoce.objectives.nets.zoo import build
        except ImportError:
            raise MissingDependency(
                "A model of kind 'net' needs torch; pip install 'sottovoce[deep]'."
            ) from None
        name = self.net or self.module
        try:
            network = self._own() if self.module else build(self.net, **self.options)
            built = NetObjective(
                network,
                self.loss or "cross_entropy",
                clip_norm=1.0,
                initial="keep" if self.module else "reset",
            )
        except (SottovoceError, TypeError) as error:
            raise ConfigError(f"The agreement's network {name!r} cannot be built: {error}") from None
        if built.n_params != self.n_params:
            raise ConfigError(
                f"The network {name!r} has {built.n_params} parameters, the agreement says {self.n_params}."
            )
        return built

    def query(self, data: Any) -> Any:
        """Return what sums clipped gradients over lots."""
        return self.objective.query(data)

    def prepared(self, data: Any) -> Any:
        """Return the records checked."""
        return self.objective.prepared(data)

    def initial_rows(self, rng: np.random.Generator, agents: int = 1, dim: int | None = None) -> np.ndarray:
        """Return the public starting rows: drawn from the run's name, or the agreed weights."""
        rows: np.ndarray = self.objective.initial_rows(rng, agents, dim)
        return rows

    def metrics(self, rows: np.ndarray, data: Any) -> dict[str, Any]:
        """Return what may be said of final rows on public records: members have none in common."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Return the network as plain values."""
        own = {"module": self.module, "sha256": self.module_sha256, "weights": self.weights_sha256}
        named = own if self.module else {"net": self.net}
        return {**named, "options": dict(self.options), "parameters": self.n_params}


def agreed_plan(
    network: graphs.Network, algorithm_part: Mapping[str, Any], model: Mapping[str, Any], seed: int
) -> Any:
    """Return the plan of an agreement's [algorithm] and [model] on its graph.

    Parameters
    ----------
    network : the agreed graph.
    algorithm_part : ``name``, ``protocol``, ``adjacency``, ``clip_norm``, ``noise_multiplier`` and any plain
        option of that algorithm's plan. Three members or more who name no protocol get masked sums, where
        the algorithm can have them.
    model : ``kind``, ``parameters``, and for a network ``net`` and ``options``.
    seed : public chance, the same at every member.
    """
    options = dict(algorithm_part)
    name = options.pop("name")
    if name not in ALGORITHMS:  # an installed algorithm is not what the others have read
        raise ConfigError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {name!r}.")
    kind = algorithm(name)
    protocol = str(options.get("protocol") or "").partition(":")[0]
    if protocol in protocol_names() and protocol not in BUILT_IN:  # nor is an installed protocol
        raise ConfigError(f"protocol must be one of {', '.join(kind.protocols)}, got {protocol!r}.")
    known = plan_options(name)
    for option in options:
        if option in _ELSEWHERE:
            raise ConfigError(f"{option} cannot be chosen in an agreement: {_ELSEWHERE[option]}.")
        if option not in (*known, "clip_norm", "noise_multiplier", "steps"):
            raise unknown_option(name, option, _ELSEWHERE)
    if kind.query not in ("value", "gradient", "local-update"):
        raise ConfigError(f"{name} asks records for a {kind.query}, which no peer answers.")
    if (kind.query == "value") != (model["kind"] == "mean"):
        raise ConfigError("averaging goes with the model 'mean', learning with a model that learns.")
    _validate.clip(options["clip_norm"], noisy=True)
    if not _validate.non_negative(options["noise_multiplier"], "noise_multiplier"):
        raise ConfigError("noise_multiplier must be positive in an agreement, got 0.")
    arguments: dict[str, Any] = {"seed": seed} | {key: frozen(value) for key, value in options.items()}
    if "path" in known:
        arguments["path"] = "public"
    if arguments.get("protocol") is None and kind.maskable and "masked" in kind.protocols and network.n >= 3:
        arguments["protocol"] = "masked"  # what protects best costs nothing: the same messages as a tree
    if kind.query == "value":
        clip_norm = arguments.pop("clip_norm")
        arguments |= {"radius": clip_norm, "noise_std": arguments.pop("noise_multiplier") * clip_norm}
        arguments |= {"dim": model["parameters"]}
        if arguments.pop("steps", 1) != 1:
            raise ConfigError(f"{name} has one step; leave steps out.")
    objective = None if kind.query == "value" else _objective(model)
    plan = build_plan(name, arguments, objective=objective, network=network)
    if not plan.observation.between_peers:
        raise ConfigError(
            f"{name} needs one holder of all records, a server, or noise that two members share; members on "
            "machines of their own cannot run it."
        )
    if kind.query == "value" and plan.schedule(0).adds_noise:
        raise ConfigError(
            "an average by a walk gathers fresh noise at every visit and runs in one process; members on "
            "machines of their own take masked, tree or gossip."
        )
    if plan.n != network.n:
        raise ConfigError(f"{name} is for {plan.n} agents, the graph has {network.n} nodes.")
    _ = plan.grid  # masked sums that fit no integers are refused here, before anybody signs
    return plan


def hosted_data(plan: Any, model: Mapping[str, Any], X: np.ndarray, y: np.ndarray) -> Any:
    """Return one member's records in the form its plan's source takes."""
    if plan.query == "value":
        return X.mean(axis=0, dtype=X.dtype)[None]
    if model["kind"] == "net":
        _ = plan.objective.objective  # without torch, one sentence
        from sottovoce.data.agent_tensors import AgentData

        data: Any = AgentData(X, y, [np.arange(len(X))])
    else:
        from sottovoce.data.base import Shards

        data = Shards(X, y, np.array([0, len(X)]))
    try:
        return plan.objective.prepared(data)
    except DataError as error:
        raise DataError(f"This member's records do not fit the agreement: {error}") from None


def _objective(model: Mapping[str, Any]) -> Any:
    if model["kind"] == "net":
        own = {key: model.get(key, "") for key in ("module", "module_sha256", "weights_sha256", "loss")}
        return AgreedNet(model.get("net", ""), model.get("options", {}), model["parameters"], **own)
    from sottovoce.objectives import GLM, Softmax

    classes = model.get("classes")
    if classes:
        if model["parameters"] % classes:
            raise ConfigError(f"parameters must be a multiple of the {classes} classes.")
        return Softmax(classes, dim=model["parameters"] // classes)

    return GLM(model["kind"], dim=model["parameters"])
