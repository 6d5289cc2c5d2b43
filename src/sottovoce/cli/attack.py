"""`sottovoce attack`: what a curious set of nodes computes from what it receives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer

from sottovoce.cli import options
from sottovoce.cli.output import as_result, emit, table_of

if TYPE_CHECKING:
    from rich.console import Console

ABOUT = """What a curious set of nodes computes from what it receives.

\b
    sottovoce attack gossip --graph florentine --attackers 0 --rounds 7
    sottovoce attack dgd --graph path:12 --attackers 0
"""
attack = Typer(no_args_is_help=True, help=ABOUT)

Graph = Annotated[str, Option("--graph", help="The graph, for example florentine, ring:64, file:edges.txt.")]
Attackers = Annotated[str, Option("--attackers", help="Nodes that share what they see, as 0 or 3,5.")]


@attack.command()
def gossip(
    graph: Graph,
    attackers: Attackers,
    rounds: options.Rounds = None,
    protocol: options.ProtocolOption = "gossip",
    seed: Annotated[int, Option(help="Seed of trees and random edges; public.")] = 0,
    out: options.Out = None,
    json: options.Json = False,
) -> None:
    """Which nodes' values are determined by an averaging without noise (with noise: value plus noise).

    \b
        sottovoce attack gossip --graph florentine --attackers 0 --rounds 7
        sottovoce attack gossip --graph complete:6 --protocol masked:partners=2 --attackers 0,3
    """
    from sottovoce import _validate
    from sottovoce.attacks.gossip import gossip_attack

    if rounds is not None:
        _validate.count(rounds, "rounds")
    network = options.network_of(graph)
    averaging = options.protocol_of(network, protocol, rounds=rounds, seed=seed)
    outcome = gossip_attack(averaging, options.node_list(attackers, "--attackers", network))
    names = [str(network.node_name(u)) for u in outcome.nodes]
    combinations = [str(each) for each in outcome.combinations]
    if network.node_names is not None:  # names in place of x0, x1
        combinations = [
            re.sub(r"\bx(\d+)\b", lambda match: str(network.node_name(int(match[1]))), each)
            for each in combinations
        ]
    config = {"graph": network.name, "n": network.n, "protocol": averaging.name, "rounds": averaging.rounds}
    config |= {"attackers": list(outcome.attackers)}
    metrics = {"reconstructed": list(outcome.nodes), "count": len(outcome.nodes), "names": names}
    metrics |= {"rank": outcome.rank, "combinations": combinations, "exact_arithmetic": outcome.exact}
    who = ", ".join(str(network.node_name(v)) for v in outcome.attackers)
    known = f"{len(names)} of {network.n - len(outcome.attackers)} nodes"
    lines = [f"After {averaging.rounds} rounds {who} knows the value of {known}:"]
    lines.append("  " + (", ".join(names) or "none"))
    if combinations:
        lines.append(f"and {len(combinations)} combinations of the others (--json lists all):")
        lines += [f"  {combination}" for combination in combinations[:10]]
    emit(as_result("attack", config, metrics), json, lines, out)


@attack.command()
def dgd(
    graph: Graph = "path:8",
    attackers: Attackers = "0",
    steps: Annotated[int | None, Option(help="Gradient steps watched; by default one per node.")] = None,
    rounds: Annotated[int, Option(help="Gossip rounds after every step.")] = 1,
    data: Annotated[str, Option(help="One picture per node: digits, mnist or cifar10.")] = "digits",
    rate: Annotated[float, Option(help="Learning rate.")] = 1e-4,
    noise: Annotated[float, Option(help="Noise std on every gradient coordinate.")] = 0.0,
    seed: Annotated[int, Option(help="Seed of the pictures and of the simulated noise.")] = 0,
    out: options.Out = None,
    json: options.Json = False,
) -> None:
    """Which nodes' pictures come back from decentralized gradient descent (softmax regression).

    \b
        sottovoce attack dgd --graph path:12 --attackers 0 --noise 0.01
    """
    import numpy as np

    from sottovoce import _validate
    from sottovoce.attacks.inputs import attack_softmax, draw_pictures
    from sottovoce.protocols import Gossip

    network = options.network_of(graph)
    rng = np.random.default_rng(seed)
    images, labels = draw_pictures(data, network.n, rng)
    result = attack_softmax(
        Gossip(network, _validate.count(rounds, "rounds")),
        options.node_list(attackers, "--attackers", network),
        images,
        labels,
        steps=network.n if steps is None else steps,
        learning_rate=rate,
        rng=rng,
        noise_std=_validate.non_negative(noise, "noise"),
        classes=10,
    )
    config = {"graph": network.name, "n": network.n, "data": data, "rate": rate, "noise": noise}
    pictures = [
        {
            "node": str(network.node_name(u)),
            "gradient determined": "yes" if u in result.attack.identifiable else "no",
            "PSNR (dB)": float(result.psnr[u]),
            "PSNR of plain grey": float(result.grey[u]),
            "comes back": "yes" if u in result.recovered else "no",
        }
        for u in result.attack.targets
    ]

    def text(screen: Console) -> None:
        screen.print(table_of(pictures))
        screen.print(
            f"{len(result.recovered)} of {len(pictures)} pictures come back with a PSNR of 10 or more, "
            f"{len(result.above_grey)} at least 3 dB above plain grey."
        )

    emit(as_result("attack-dgd", config, result.to_dict() | {"pictures": pictures}), json, text, out)
