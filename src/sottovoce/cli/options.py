"""Options that several commands share, and the networks, protocols and numbers that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from sottovoce._validate import did_you_mean
from sottovoce.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from sottovoce.graphs import Network
    from sottovoce.protocols import Protocol

Json = Annotated[bool, Option("--json", help="Print one JSON object instead of text.")]
Graph = Annotated[
    str | None,
    Option(help="A graph: ring:64, hypercube:10, er:200:1.5:seed=3, florentine, file:edges.txt ..."),
]
RequiredGraph = Annotated[
    str, Option("--graph", help="A graph: florentine, ring:64, hypercube:4, file:edges.txt ...")
]
Matrix = Annotated[Path | None, Option(help="Gossip weights of your own instead: CSV or NPZ, n rows.")]
Weights = Annotated[str | None, Option(help="metropolis, max_degree, lazy or uniform.")]
ProtocolOption = Annotated[
    str,
    Option(
        help="gossip, chebyshev, tree, exchange, masked, fresh-noise, randomized, accelerated-randomized, "
        "dropout, time-varying or neighbor-sum; also tree:kind=uniform, masked:tolerate=2, "
        "fresh-noise:fresh=0.2."
    ),
]
Rounds = Annotated[
    int | None, Option(help="Rounds of gossip; by default as many as accelerated gossip needs.")
]
Draw = Annotated[int, Option("--draw", help="Seed of the public draws (trees, random edges).")]
Noise = Annotated[float | None, Option(help="Noise multiplier: noise over the radius of the values.")]
Epsilon = Annotated[float | None, Option(help="Budget: the least noise that meets it is computed.")]
Delta = Annotated[float, Option(help="The delta of every epsilon.")]
DeltaOrDefault = Annotated[float | None, Option(help="Delta of every epsilon; 1e-5 by default.")]
Population = Annotated[str | None, Option(help="Whose records they are, by the lifetime ledger.")]
Latency = Annotated[float, Option(help="Seconds a round takes.")]
TrainingFile = Annotated[Path, Argument(help="A plan file with \\[data] and \\[train] sections.")]
Out = Annotated[Path | None, Option("--out", "-o", help="Write the result here, for sottovoce report.")]


def network_of(graph: str | None, matrix: Path | None = None, weights: str | None = None) -> Network:
    """Return the network that ``--graph``, or ``--matrix``, names."""
    from sottovoce.planfile.read import build_network
    from sottovoce.planfile.schema import NetworkSection, check_section

    if (graph is None) == (matrix is None):
        sources = "neither" if graph is None else "both"
        raise InvalidInput(f"Who talks to whom? Give --graph (such as ring:8) or --matrix; got {sources}.")
    options = {"graph": graph, "matrix": matrix, "weights": weights}
    return build_network(check_section(NetworkSection, options, "--graph"))


def protocol_of(network: Network, name: str, *, seed: int = 0, **options: object) -> Protocol:
    """Return the protocol that ``--protocol`` and its companions name, on a network."""
    from sottovoce.planfile.schema import ProtocolSection, check_section

    section = {"name": name, "seed": seed, **options}
    named = check_section(ProtocolSection, section, "--protocol").named("gossip", "--protocol")
    protocol = named.at(network, seed=seed)
    if protocol.adds_noise:
        raise ConfigError(
            f"In a {protocol.name} a row enters anew at every visit, so there is no share of one release; "
            "sottovoce plan computes the privacy cost of such an average."
        )
    return protocol


def node_list(text: str, option: str, network: Network | None = None) -> tuple[int, ...]:
    """Return the nodes that a text such as ``3,5`` or ``Medici,Pazzi`` names; digits are node numbers."""
    labels = () if network is None else network.node_names or ()
    names = {label: k for k, label in enumerate(labels) if isinstance(label, str) and not label.isdecimal()}
    nodes: list[int] = []
    for part in (part.strip() for part in text.split(",")):
        for word in [part] if part in names else part.split():
            try:
                nodes.append(names[word] if word in names else int(word))
            except ValueError:
                what = f"{option} expects node numbers such as 3,5{' or names' if names else ''}"
                near = did_you_mean(word, names) if names else ""
                raise InvalidInput(f"{what}, got {word!r}{near}.") from None
    return tuple(nodes)


def node_of(text: str | None, option: str, network: Network) -> int | None:
    """Return the one node that a text names; None for none."""
    if text is None:
        return None
    nodes = node_list(text, option, network)
    if len(nodes) != 1:
        raise InvalidInput(f"{option} expects one node, got {text!r}.")
    return nodes[0]


def number_list(text: str, option: str, kind: type[float] = float) -> list[Any]:
    """Return the numbers of a comma-separated list; ``kind`` int takes whole numbers only."""
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise InvalidInput(f"{option} must be {what} separated by commas, got {text!r}.") from None
