"""What a consortium wants, in its own words, checked once: who, what, hidden from whom, and how good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from sottovoce import _validate, graphs
from sottovoce.algorithms.plan import as_network
from sottovoce.errors import GraphError, InvalidInput
from sottovoce.graphs import Network

__all__ = ["Requirements"]

Compute = Literal["mean", "logistic", "linear", "net"]
Hide = Literal["record", "member"]
Silent = Literal["wait", "go on"]


@dataclass(frozen=True)
class Requirements:
    """Everything `sottovoce.advice.advise` is told; public facts only.

    Examples
    --------
    >>> wish = Requirements.of(12, epsilon=2.0, delta=1e-5, records=500, compute="logistic", features=10)
    >>> wish.n, wish.total, wish.adjacency, wish.views
    (12, 6000, 'add-remove', (('network', 0),))
    >>> Requirements.of(5, epsilon=1.0, delta=1e-5, against="the postman")
    Traceback (most recent call last):
    sottovoce.errors.InvalidInput: against must be "outsiders", "member", "everyone" or a number of colluding members, got 'the postman'.
    """  # noqa: E501

    network: Network
    reachable: bool  # whether anyone can reach anyone, so that any graph may be taken
    sizes: tuple[int, ...]
    hide: Hide
    epsilon: float
    delta: float
    against: str | int
    compute: Compute
    low: float
    high: float
    features: int
    model: str | None
    target: float | None
    silent: Silent
    latency: float
    seconds: float | None
    masks: bool
    seed: int

    @classmethod
    def of(
        cls,
        members: Any,
        *,
        epsilon: float,
        delta: float,
        compute: Compute = "mean",
        records: int | Sequence[int] = 1,
        hide: Hide = "record",
        against: str | int = "member",
        values: tuple[float, float] = (0.0, 1.0),
        features: int | None = None,
        model: str | None = None,
        target: float | None = None,
        silent: Silent = "wait",
        latency: float = 0.05,
        seconds: float | None = None,
        masks: bool = True,
        seed: int = 0,
    ) -> Requirements:
        """Check what was said, each in one sentence; see `sottovoce.advice.advise` for the words."""
        network, reachable = _network(members)
        _one_of(compute, get_args(Compute), "compute")
        _one_of(hide, get_args(Hide), "hide")
        _one_of(silent, get_args(Silent), "silent")
        low, high = _range(values)
        if target is not None:
            target = _validate.positive(target, "target")
        return cls(
            network=network,
            reachable=reachable,
            sizes=_sizes(records, network.n),
            hide=hide,
            epsilon=_epsilon(epsilon),
            delta=_validate.delta(delta),
            against=_adversary(against, network.n),
            compute=compute,
            low=low,
            high=high,
            features=_features(compute, features),
            model=_model(compute, model),
            target=target,
            silent=silent,
            latency=_validate.positive(latency, "latency"),
            seconds=None if seconds is None else _validate.positive(seconds, "seconds"),
            masks=bool(masks),
            seed=_validate.count(seed, "seed", minimum=0),
        )

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
    def colluders(self) -> int:
        """How many members may collude: at least one, since no budget is accepted against less."""
        return self.against if isinstance(self.against, int) else 1

    @property
    def views(self) -> tuple[tuple[str, int], ...]:
        """The views that must meet the budget, with the number of colluders where the view takes one.

        Outsiders alone are never enough: whoever is kept out, one member looks as well.
        """
        if self.against == "everyone":
            return (("local", 0),)
        if self.against == "outsiders":
            return (("outsider", 0), ("network", 0))
        if isinstance(self.against, int) and self.against > 1:
            return (("colluders", self.against),)
        return (("network", 0),)

    @property
    def training(self) -> bool:
        """Whether a model is learned, in many steps."""
        return self.compute != "mean"

    def but(self, **changed: Any) -> Requirements:
        """Return the wish with some of its facts changed; ``members`` and ``records`` are numbers."""
        members, records = changed.pop("members", None), changed.pop("records", None)
        wish = self
        if members is not None:
            each = max(1, round(self.total / self.n))
            wish = replace(
                wish, network=graphs.complete(members), reachable=True, sizes=(each,) * int(members)
            )
        if records is not None:
            wish = replace(wish, sizes=(int(records),) * wish.n)
        return replace(wish, **changed)


def _epsilon(epsilon: Any) -> float:
    try:
        return _validate.positive(epsilon, "epsilon")
    except InvalidInput as error:
        raise InvalidInput(f"{str(error)[:-1]}; 1 is usual, a smaller one hides more.") from None


def _network(members: Any) -> tuple[Network, bool]:
    if isinstance(members, bool):
        raise InvalidInput(f"members must be a number, pairs of members, or a network, got {members!r}.")
    if isinstance(members, (int, np.integer)):
        n = int(members)
        if n < 2:
            raise InvalidInput(
                f"advice is for two members or more, got {n}; one holder alone takes dp-sgd or dp-cd."
            )
        return graphs.complete(n), True
    if isinstance(members, str):
        try:
            network = as_network(members)
        except GraphError as error:
            if not str(error).startswith("Unknown graph"):
                raise
            raise GraphError(
                f"{str(error)[:-1]}; a number of members alone means that anyone can reach anyone."
            ) from None
    elif isinstance(members, Network) or hasattr(members, "nodes"):
        network = as_network(members)
    else:
        network = _from_pairs(members)
    if network.n < 2:
        raise InvalidInput(f"advice is for two members or more, got {network.n}; one holder takes dp-sgd.")
    return network, 2 * len(network.edges) == network.n * (network.n - 1)


def _from_pairs(members: Any) -> Network:
    import networkx as nx

    try:
        pairs = [tuple(pair) for pair in members]
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise TypeError
    except TypeError:
        raise InvalidInput(
            f"members must be a number, pairs such as [(0, 1), (1, 2)], or a network, got {members!r}."
        ) from None
    graph = nx.Graph()
    if all(isinstance(end, (int, np.integer)) for pair in pairs for end in pair):
        graph.add_nodes_from(range(max(int(end) for pair in pairs for end in pair) + 1))
    graph.add_edges_from(pairs)
    if not nx.is_connected(graph):
        parts: list[list[Any]] = [list(part) for part in nx.connected_components(graph)]
        smallest = min(parts, key=len)
        cut = sorted(smallest, key=str)
        raise InvalidInput(
            f"the members are not connected: {', '.join(map(str, cut[:5]))} cannot reach the others; add a "
            "link, or advise each part for itself."
        )
    return graphs.from_networkx(graph)


def _sizes(records: int | Sequence[int], n: int) -> tuple[int, ...]:
    if isinstance(records, (int, np.integer)) and not isinstance(records, bool):
        return (_held(int(records), "records"),) * n
    try:
        listed = [int(size) for size in records]  # type: ignore[union-attr]
    except (TypeError, ValueError):
        raise InvalidInput(f"records must be a number, or one per member, got {records!r}.") from None
    if len(listed) != n:
        raise InvalidInput(
            f"records must be one number per member ({n}), got {len(listed)}; one number alone is for all."
        )
    return tuple(_held(size, "the records of a member") for size in listed)


def _held(size: int, name: str) -> int:
    if size < 1:
        raise InvalidInput(
            f"{name} must be at least 1, got {size}; leave members without records out of the consortium."
        )
    return size


def _adversary(against: Any, n: int) -> str | int:
    if against in ("outsiders", "member", "everyone"):
        return str(against)
    if isinstance(against, (int, np.integer)) and not isinstance(against, bool):
        c = int(against)
        if c < 1:
            raise InvalidInput(
                f"the number of colluding members must be at least 1, got {c}; one is any one member alone."
            )
        if c >= n:
            raise InvalidInput(
                f"{c} of {n} members cannot all collude against somebody else; take at most {n - 1}, or "
                '"everyone".'
            )
        return "everyone" if c == n - 1 and c > 1 else c
    raise InvalidInput(
        'against must be "outsiders", "member", "everyone" or a number of colluding members, got '
        f"{against!r}."
    )


def _range(values: Any) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in values)
    except (TypeError, ValueError):
        raise InvalidInput(f"values must be a range such as (0, 1), got {values!r}.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(f"values must be a range whose first end is the smaller, got {values!r}.")
    return low, high


def _features(compute: str, features: int | None) -> int:
    if compute in ("logistic", "linear"):
        if features is None:
            raise InvalidInput(
                f"a {compute} model needs features, the number of its columns, or a public sample with them."
            )
        return _validate.count(features, "features")
    if features is not None:
        raise InvalidInput(f"features are for logistic and linear models; leave them out for a {compute}.")
    return 1


def _model(compute: str, model: str | None) -> str | None:
    if (compute == "net") != (model is not None):
        raise InvalidInput(
            'a network needs model=..., such as "mlp:inputs=64:hidden=16"; others have none, got '
            f"compute={compute!r} and model={model!r}."
        )
    return model


def _one_of(value: Any, known: Sequence[str], name: str) -> None:
    if value not in known:
        raise InvalidInput(f"{name} must be one of {', '.join(known)}, got {value!r}.")
