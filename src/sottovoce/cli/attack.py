"""`sottovoce attack`: what a curious set of nodes computes from what it receives."""

from __future__ import annotations

from typing import Annotated

from typer import Option, Typer

from sottovoce.cli import options
from sottovoce.cli.output import as_result, emit, template

ABOUT = """What a curious set of nodes computes from what it receives.

\b
    sottovoce attack gossip --graph florentine --attackers 0 --rounds 7
    sottovoce attack dgd --graph path:12 --attackers 0
"""
attack = Typer(no_args_is_help=True, help=ABOUT)

Attackers = Annotated[str, Option("--attackers", help="Nodes that share what they see, as 0 or 3,5.")]


@attack.command()
def gossip(
    graph: options.RequiredGraph,
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
    names_of = network.node_names or [f"x{node}" for node in range(network.n)]
    combinations = [each.named([str(name) for name in names_of]) for each in outcome.combinations]
    config = {"graph": network.name, "n": network.n, "protocol": averaging.name, "rounds": averaging.rounds}
    config |= {"attackers": list(outcome.attackers)}
    metrics = {"reconstructed": list(outcome.nodes), "count": len(outcome.nodes), "names": names}
    metrics |= {"rank": outcome.rank, "combinations": combinations, "exact_arithmetic": outcome.exact}
    who = ", ".join(str(network.node_name(v)) for v in outcome.attackers)
    others = network.n - len(outcome.attackers)
    text = template("attack", who=who, others=others, config=config, metrics=metrics)
    emit(as_result("attack", config, metrics), json, text, out)


@attack.command()
def dgd(
    graph: options.RequiredGraph = "path:8",
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

    text = template("attack_dgd", pictures=pictures, outcome=result)
    emit(as_result("attack-dgd", config, result.to_dict() | {"pictures": pictures}), json, text, out)
