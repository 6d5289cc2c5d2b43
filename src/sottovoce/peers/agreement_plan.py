"""From the words of an agreement to its plan, the same for all members; nothing here is of one member.

The registry gives the algorithm, and its class refuses options, protocols and adjacencies that do not fit, in
the words that Python raises. Refused here is what one process can run and members on machines of their own
cannot: extensions that others have not read, runs without noise, queries and observations that peers do not
have. Two options follow from the agreement: a walk takes its public path, and sums are masked from three
members on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sottovoce import _validate, graphs
from sottovoce.algorithms.build import build_plan, lists_to_tuples, plan_options
from sottovoce.algorithms.registry import ALGORITHMS, algorithm
from sottovoce.errors import ConfigError, MissingDependency, SottovoceError
from sottovoce.objectives import GLM, Softmax
from sottovoce.objectives.prox import Regularizer
from sottovoce.planfile.schema import AGREED_ELSEWHERE, misplaced_options
from sottovoce.protocols import Protocol
from sottovoce.protocols.registry import BUILT_IN
from sottovoce.protocols.registry import names as protocol_names

if TYPE_CHECKING:
    from torch import nn

    from sottovoce.data.agent_tensors import AgentData
    from sottovoce.objectives.nets.objective import NetObjective, NetQuery
    from sottovoce.peers.agreement import ModelPart


@dataclass(frozen=True)
class AgreedNet:
    """A network by name: accounted and signed without torch, built where it trains.

    A network of the package's zoo, or the members' own, whose file and start weights each member names
    (`with_files`) and whose digests the agreement holds.

    Guarantees
    ----------
    A module of one's own is built only from a file with the agreed digest, and starts from weights with the
    agreed digest; neither is ever taken from the wire.
    """

    model: ModelPart
    module_file: str | Path | None = field(default=None, repr=False, compare=False)
    weights_file: str | Path | None = field(default=None, repr=False, compare=False)

    clip_norm: ClassVar[float | None] = None  # the plan says it
    regularizer: ClassVar[Regularizer] = Regularizer()

    @property
    def n_params(self) -> int:
        """Numbers of a row."""
        return self.model.parameters

    @property
    def bytes_per_number(self) -> int:
        """Bytes of a number on the wire."""
        return np.dtype(self.model.number).itemsize

    def with_files(self, module: str | Path | None, weights: str | Path | None) -> AgreedNet:
        """Return the network with this member's copies of the agreed module file and start weights."""
        if not self.model.module:
            raise ConfigError(
                f"The agreement's network {self.model.net!r} is the package's own; supply no files."
            )
        return replace(self, module_file=module, weights_file=weights)

    def require_torch(self) -> None:
        """Raise unless torch is installed: an agreement is read and signed without it, a run needs it."""
        if find_spec("torch") is None:
            raise MissingDependency("A model of kind 'net' needs torch; pip install 'sottovoce[deep]'.")

    @property
    def builder(self) -> dict[str, Any]:
        """What names the network, as saved models hold it."""
        model = self.model
        own = {"module": model.module, "sha256": model.module_sha256}
        return {**(own if model.module else {"zoo": model.net}), "options": dict(model.options)}

    def _module(self) -> nn.Module:
        from sottovoce.objectives.nets.module_files import build_named, put_weights, read_weights

        model, file, weights = self.model, self.module_file, self.weights_file
        if not model.module:
            return build_named(self.builder)
        if file is None or weights is None:
            raise ConfigError(
                f"The agreement's network {model.module!r} is the members' own: name its file and its start "
                "weights with --module and --weights."
            )
        function = f"{Path(file).name}:{model.module.partition(':')[2]}"
        module = build_named({**self.builder, "module": function}, Path(file).parent)
        return put_weights(module, read_weights(weights, sha256=model.weights_sha256), Path(weights).name)

    @cached_property
    def objective(self) -> NetObjective:
        """The objective itself; needs torch."""
        self.require_torch()
        from sottovoce.objectives.nets.objective import NetObjective

        model = self.model
        name, loss = model.net or model.module, model.loss or "cross_entropy"
        try:
            # the plan's mechanism passes the agreed clip norm with every sum, so none is stated here
            objective = NetObjective(self._module(), loss, initial="keep" if model.module else "reset")
        except SottovoceError as error:
            raise ConfigError(f"The agreement's network {name!r} cannot be built: {error}") from None
        if objective.n_params != model.parameters:
            raise ConfigError(
                f"The network {name!r} has {objective.n_params} parameters, the agreement says "
                f"{model.parameters}."
            )
        return objective

    def query(self, data: AgentData) -> NetQuery:
        """Return what sums clipped gradients over batches."""
        return self.objective.query(data)

    def prepared(self, data: AgentData) -> AgentData:
        """Return the records checked."""
        return self.objective.prepared(data)

    def initial_rows(self, rng: np.random.Generator, agents: int = 1, dim: int | None = None) -> np.ndarray:
        """Return the public starting rows: drawn from the run's name, or the agreed weights."""
        return self.objective.initial_rows(rng, agents, dim)

    def metrics(self, rows: np.ndarray, data: AgentData) -> dict[str, Any]:
        """Return nothing: members have no public records in common on which rows could be scored."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Return the network as plain values."""
        return self.model.model_dump(exclude={"kind"}, exclude_defaults=True)


def contacts(protocol: Protocol, n: int, rounds: int, most: float = math.inf) -> set[tuple[int, int]]:
    """Return the pairs of members whose peers connect in the first rounds; ``most`` are all there can be."""
    pairs: set[tuple[int, int]] = set()
    states = [protocol.node_state(u) for u in range(n)]
    for t in range(rounds):
        for u, state in enumerate(states):
            pairs |= {(min(u, v), max(u, v)) for v in (*state.sends(t), *state.expects(t))}
        if len(pairs) >= most:
            break
    return pairs


def agreed_plan(
    network: graphs.Network, algorithm_part: Mapping[str, Any], model: ModelPart, seed: int
) -> Any:
    """Return the plan of an agreement's [algorithm] and [model] on its graph.

    Three members or more who name no protocol get masked sums, where the algorithm can have them. ``seed`` is
    public randomness, the same at every member.
    """
    options: dict[str, Any] = {key: lists_to_tuples(value) for key, value in algorithm_part.items()}
    name = options.pop("name")
    if name not in ALGORITHMS:  # an installed algorithm is not what the others have read
        raise ConfigError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {name!r}.")
    kind = algorithm(name)
    protocol = str(options.get("protocol") or "").partition(":")[0]
    if protocol in protocol_names() and protocol not in BUILT_IN:  # nor is an installed protocol
        raise ConfigError(f"protocol must be one of {', '.join(kind.protocols)}, got {protocol!r}.")
    everywhere = ("clip_norm", "noise_multiplier", "steps")
    problems = misplaced_options("algorithm", name, options, AGREED_ELSEWHERE, everywhere)
    if problems:
        raise ConfigError(" ".join(problems))
    averages = kind.query_kind == "value"
    if kind.query_kind not in ("value", "gradient", "newton", "local-update"):
        raise ConfigError(
            f"peers release values, gradients, moments or local updates of their records, {name} releases a "
            f"{kind.query_kind}; take another algorithm."
        )
    if averages != (model.kind == "mean"):
        raise ConfigError("averaging goes with the model 'mean', learning with a model that learns.")
    _validate.clip(options["clip_norm"], noisy=True)
    if not _validate.non_negative(options["noise_multiplier"], "noise_multiplier"):
        raise ConfigError("noise_multiplier must be positive in an agreement, got 0.")
    options["seed"] = seed
    if "path" in plan_options(name):
        options["path"] = "public"
    if options.get("protocol") is None and kind.maskable and "masked" in kind.protocols and network.n >= 3:
        options["protocol"] = "masked"  # what protects best costs nothing: the same messages as a tree
    if averages:
        if options.pop("steps", 1) != 1:
            raise ConfigError(f"{name} has one step; leave steps out.")
        options |= {"radius": options.pop("clip_norm"), "dim": model.parameters}
        options["noise_std"] = options.pop("noise_multiplier") * options["radius"]
    plan = build_plan(name, options, objective=_objective(model), network=network)
    if not plan.observation.between_peers:
        raise ConfigError(
            f"{name} needs one holder of all records, a server, or noise that two members share; members on "
            "machines of their own cannot run it."
        )
    if averages and plan.schedule(0).adds_noise:
        raise ConfigError(
            "an average by a walk gathers fresh noise at every visit and runs in one process; members on "
            "machines of their own take masked, tree or gossip."
        )
    if plan.n != network.n:
        raise ConfigError(f"{name} is for {plan.n} agents, the graph has {network.n} nodes.")
    _ = plan.grid  # masked sums that fit no integers are refused here, before anybody signs
    return plan


def _objective(model: ModelPart) -> GLM | Softmax | AgreedNet | None:
    if model.kind == "mean":
        return None
    if model.kind == "net":
        return AgreedNet(model)
    if model.classes is None:
        return GLM(model.kind, dim=model.parameters)
    if model.parameters % model.classes:
        raise ConfigError(f"parameters must be a multiple of the {model.classes} classes.")
    return Softmax(model.classes, dim=model.parameters // model.classes)
