"""What a consortium requires: its members, what they compute, what stays hidden from whom, how good it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from sottovoce import _validate, graphs
from sottovoce.errors import GraphError, InvalidInput
from sottovoce.graphs import Network, as_network

if TYPE_CHECKING:
    import networkx as nx
    from torch import nn

Compute = Literal["mean", "logistic", "linear", "net"]
Hide = Literal["record", "member"]
Silent = Literal["wait", "go on"]
RequiredView = Literal["network", "outsider", "local", "colluders"]

_CHOICES = {"view": RequiredView, "compute": Compute, "hide": Hide, "silent": Silent}
_ADVERSARIES = {"local": "everyone else together", "outsider": "outsiders and any one member"}


@dataclass(frozen=True)
class Requirements:
    """What `sottovoce.advise` finds a plan for; public facts only. `from_arguments` makes them.

    Parameters
    ----------
    network : who can talk to whom.
    reachable : whether anyone can reach anyone, so that any graph may be taken.
    sizes : records of each member.
    low, high : range of the values, or of a linear model's target.
    epsilon, delta : the budget.
    view : the adversary: ``"network"`` (any one member), ``"outsider"`` (and any one member: no budget is
        accepted against less), ``"colluders"`` (any group of that size) or ``"local"`` (everyone else).
    colluders : how many members may collude, at least one.
    compute : ``"mean"`` of values in a range, ``"logistic"`` or ``"linear"`` (a model), ``"net"``.
    hide : a ``"record"`` or a whole ``"member"``.
    features : columns of a linear model.
    model : a neural network: a torch module, or one by name such as ``"mlp:inputs=64:hidden=16"``.
    target : the largest error (mean, linear) or the least accuracy that is of use.
    silent : ``"wait"`` for a silent member, or ``"go on"`` without it.
    latency, seconds : seconds a round takes; the longest a run may take.
    masks : whether members can share keys with one another for masked sums.
    seed : of trees and simulations; public.

    Examples
    --------
    >>> requirements = Requirements.from_arguments(12, epsilon=2.0, delta=1e-5, records=500,
    ...                                            compute="logistic", features=10)
    >>> requirements.n, requirements.total, requirements.adjacency, requirements.views
    (12, 6000, 'add-remove', (('network', 0),))
    >>> Requirements.from_arguments(5, epsilon=1.0, delta=1e-5, view="the postman")
    Traceback (most recent call last):
    sottovoce.errors.InvalidInput: view must be one of network, outsider, local, colluders, got 'the postman'.
    """

    network: Network
    reachable: bool
    sizes: tuple[int, ...]
    low: float
    high: float
    epsilon: float
    delta: float
    view: RequiredView = "network"
    colluders: int = 1
    compute: Compute = "mean"
    hide: Hide = "record"
    features: int | None = None
    model: str | nn.Module | None = None
    target: float | None = None
    silent: Silent = "wait"
    latency: float = 0.05
    seconds: float | None = None
    masks: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        values = vars(self)
        for name, literal in _CHOICES.items():
            _validate.choice(values[name], get_args(literal), name)
        try:
            _validate.positive(self.epsilon, "epsilon")
        except InvalidInput as error:
            raise InvalidInput(f"{str(error)[:-1]}; 1 is usual, a smaller one hides more.") from None
        _validate.delta(self.delta)
        for name in ("target", "latency", "seconds"):
            if values[name] is not None:
                _validate.positive(values[name], name)
        _validate.count(self.seed, "seed", minimum=0)
        linear = self.compute in ("logistic", "linear")
        if linear and self.features is None:
            raise InvalidInput(
                f"a {self.compute} model needs features (how many columns), or a public sample."
            )
        if not linear and self.features is not None:
            raise InvalidInput(f"features are for linear models; leave them out for a {self.compute}.")
        if self.features is not None:
            _validate.count(self.features, "features")
        if (self.compute == "net") != (self.model is not None):
            raise InvalidInput(
                'a neural network needs model=..., such as "mlp:inputs=64:hidden=16"; others have none, got '
                f"compute={self.compute!r} and model={self.model!r}."
            )

    @classmethod
    def from_arguments(
        cls,
        members: int | str | Network | nx.Graph | Iterable[Sequence[object]],
        *,
        epsilon: float,
        delta: float,
        records: int | Sequence[int] = 1,
        values: tuple[float, float] = (0.0, 1.0),
        view: RequiredView = "network",
        colluders: int = 1,
        **options: Any,
    ) -> Requirements:
        """Return checked requirements.

        ``members`` is a number (anyone can reach anyone), pairs of members that can talk, a network or its
        name; ``records`` one number or one per member; ``values`` a public range. More than one colluder
        makes the view ``"colluders"``. The other options are fields of `Requirements`.
        """
        network = _network(members)
        n = network.n
        reachable = isinstance(members, (int, np.integer)) or 2 * len(network.edges) == n * (n - 1)
        try:
            low, high = (float(end) for end in values)
            if not -math.inf < low < high < math.inf:
                raise ValueError
        except (TypeError, ValueError):
            raise InvalidInput(
                f"values must be a range whose first end is the smaller, such as (0, 1), got {values!r}."
            ) from None
        view, colluders = _adversary(view, colluders, n)
        sizes = _sizes(records, n)
        return cls(network, reachable, sizes, low, high, epsilon, delta, view, colluders, **options)

    @property
    def n(self) -> int:
        """Number of members."""
        return self.network.n

    @property
    def total(self) -> int:
        """Records of all members together."""
        return sum(self.sizes)

    @property
    def half(self) -> float:
        """Half the range of the values: what they are clipped to around the middle."""
        return (self.high - self.low) / 2

    @property
    def middle(self) -> float:
        """The middle of the range of the values."""
        return (self.high + self.low) / 2

    @property
    def adjacency(self) -> Literal["add-remove", "user"]:
        """What neighboring data sets differ in."""
        return "user" if self.hide == "member" else "add-remove"

    @property
    def views(self) -> tuple[tuple[RequiredView, int], ...]:
        """The views that must meet the budget, with the number of colluders where the view takes one."""
        if self.view == "outsider":  # no budget is accepted against less than one member
            return (("outsider", 0), ("network", 0))
        return ((self.view, self.colluders if self.view == "colluders" else 0),)

    @property
    def adversary(self) -> str:
        """The adversary in words."""
        together = "any one member" if self.colluders == 1 else f"any {self.colluders} members together"
        return _ADVERSARIES.get(self.view, together)

    @property
    def training(self) -> bool:
        """Whether a model is learned, in many steps."""
        return self.compute != "mean"

    def to_dict(self) -> dict[str, Any]:
        """Return the requirements as plain values."""
        network = {"name": self.network.name, "n": self.n, "edges": self.network.edges.tolist()}
        model = self.model if self.model is None else str(self.model)
        return vars(self) | {"network": network, "model": model}


def _network(members: int | str | Network | nx.Graph | Iterable[Sequence[object]]) -> Network:
    import networkx as nx

    try:
        if isinstance(members, (int, np.integer)):
            network = graphs.complete(_validate.count(members, "members"))  # type: ignore[arg-type]
        elif isinstance(members, (str, Network, nx.Graph)):
            network = as_network(members)
        else:
            pairs = [tuple(pair) for pair in members]
            graph = nx.Graph(pairs)
            if all(isinstance(node, (int, np.integer)) for node in graph):  # in the order of the numbers
                graph = nx.Graph()
                graph.add_nodes_from(range(int(np.max(pairs)) + 1))
                graph.add_edges_from(pairs)
            network = graphs.from_networkx(graph)
    except (TypeError, ValueError, nx.NetworkXError) as error:
        if isinstance(error, GraphError) and str(error).startswith("Unknown graph"):
            hint = "a number of members alone means that anyone can reach anyone"
            raise GraphError(f"{str(error)[:-1]}; {hint}.") from None
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"members must be a number, pairs such as [(0, 1), (1, 2)], or a network, got {members!r}."
        ) from None
    if network.n < 2:
        raise InvalidInput("advice is for two members or more, got 1; one holder takes dp-sgd or dp-cd.")
    return network


def _sizes(records: int | Sequence[int], n: int) -> tuple[int, ...]:
    each = (records,) * n if isinstance(records, (int, np.integer)) else _validate.several(records, "records")
    if len(each) != n:
        raise InvalidInput(
            f"records must be one number per member ({n}), got {len(each)}; one number alone is for all."
        )
    try:
        return tuple(_validate.count(size, "the records of a member") for size in each)
    except InvalidInput as error:
        message = f"{str(error)[:-1]}; leave members without records out of the consortium."
        raise InvalidInput(message) from None


def _adversary(view: RequiredView, colluders: int, n: int) -> tuple[RequiredView, int]:
    """Return the view and the number of colluders; all others together are the local view."""
    try:
        colluders = _validate.count(colluders, "colluders")
    except InvalidInput as error:
        raise InvalidInput(f"{str(error)[:-1]}; one is any one member alone.") from None
    if colluders == 1:
        return ("network" if view == "colluders" else view), 1
    if colluders >= n:
        raise InvalidInput(
            f"{colluders} of {n} members cannot all collude against somebody else; take at most {n - 1}, or "
            "the view local."
        )
    if view not in ("network", "colluders"):
        raise InvalidInput(f"colluders go with the view colluders, got view {view!r}; leave one out.")
    return ("local", 1) if colluders == n - 1 else ("colluders", colluders)
