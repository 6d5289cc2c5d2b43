"""Options that several commands share, and the one place where their words become networks and protocols."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from sottovoce.graphs import Network
    from sottovoce.protocols import Protocol

__all__ = [
    "AddNoise",
    "Draw",
    "Graph",
    "Matrix",
    "Out",
    "ProtocolOption",
    "Rounds",
    "TreeOption",
    "Weights",
    "network_of",
    "node_list",
    "number_list",
    "protocol_of",
]  # fmt: skip

Graph = Annotated[
    str | None,
    typer.Option(help="A graph: ring:64, hypercube:10, er:200:1.5:seed=3, florentine, file:edges.txt ..."),
]
Matrix = Annotated[Path | None, typer.Option(help="Gossip weights of your own instead: CSV or NPZ, n rows.")]
Weights = Annotated[str | None, typer.Option(help="metropolis, max_degree, lazy or uniform.")]
ProtocolOption = Annotated[
    str,
    typer.Option(
        help="gossip, chebyshev, tree, exchange, masked, refreshed, randomized, accelerated-randomized, "
        "dropout or time-varying; also tree:kind=uniform, masked:tolerate=2, dropout:12:nodes=0.1."
    ),
]
Rounds = Annotated[int | None, typer.Option(help="Rounds of gossip; the theoretical number by default.")]
TreeOption = Annotated[
    str | None, typer.Option(help="How a tree is drawn: bfs, capped, uniform or few-leaves.")
]
AddNoise = Annotated[
    float | None, typer.Option(help="refreshed: fresh noise per round, as a share of the noise; 0.1.")
]
Draw = Annotated[int, typer.Option("--draw", help="Seed of the public draws (trees, random edges).")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write the record here, for sottovoce report.")]


def network_of(graph: str | None, matrix: Path | None = None, weights: str | None = None) -> Network:
    """Return the network that ``--graph``, or ``--matrix``, names.

    >>> network_of("ring:5").n
    5
    """
    from sottovoce.planfile.read import build_network
    from sottovoce.planfile.schema import NetworkSection, check_section

    if (graph is None) == (matrix is None):
        sources = "neither" if graph is None else "both"
        raise InvalidInput(f"Who talks to whom? Give --graph (such as ring:8) or --matrix; got {sources}.")
    options = {"graph": graph, "matrix": matrix, "weights": weights}
    return build_network(check_section(NetworkSection, options, "--graph"))


def protocol_of(network: Network, name: str, *, seed: int = 0, **options: Any) -> Protocol:
    """Return the protocol that ``--protocol`` and its companions name, on a network.

    >>> protocol_of(network_of("hypercube:3"), "exchange").rounds
    3
    """
    from sottovoce.planfile.schema import ProtocolSection, check_section

    section = {"name": name, "seed": seed, **options}
    named = check_section(ProtocolSection, section, "--protocol").named("gossip", "--protocol")
    protocol = named.at(network, seed=seed)
    if protocol.adds_noise:
        raise ConfigError(
            f"In a {protocol.name} a row enters anew at every visit, so there is no share of one release; "
            "sottovoce plan prices an average by it."
        )
    return protocol


def node_list(text: str, option: str) -> tuple[int, ...]:
    """Return the nodes that a text such as ``3,5`` names.

    >>> node_list("3, 5", "--collude"), node_list("", "--collude")
    ((3, 5), ())
    """
    try:
        return tuple(int(word) for word in text.replace(",", " ").split())
    except ValueError:
        raise InvalidInput(f"{option} expects node numbers such as 3,5, got {text!r}.") from None


def number_list(text: str, option: str) -> list[float]:
    """Return the positive numbers of a comma-separated list.

    >>> number_list("0.1,2", "--rates")
    [0.1, 2.0]
    """
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{option} must be numbers separated by commas, got {text!r}.") from None
    if not all(0 < value < float("inf") for value in values):
        raise InvalidInput(f"{option} must be positive numbers, got {text!r}.")
    return values
