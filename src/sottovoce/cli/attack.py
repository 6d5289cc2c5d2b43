"""`sottovoce attack`: what a curious set of nodes computes from what it receives."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from sottovoce._format import number
from sottovoce.cli.options import Out, ProtocolOption, Rounds, TreeOption, network_of, node_list, protocol_of
from sottovoce.cli.output import Json, as_record, finish, safe, table

ABOUT = """What a curious set of nodes computes from what it receives.

\b
    sottovoce attack gossip --graph florentine --attackers 0 --rounds 7
    sottovoce attack dgd --graph path:12 --attackers 0
"""
app = typer.Typer(no_args_is_help=True, help=ABOUT)

Graph = Annotated[
    str, typer.Option("--graph", help="The graph, for example florentine, ring:64, file:edges.txt.")
]
Attackers = Annotated[str, typer.Option("--attackers", help="Nodes that share what they see, as 0 or 3,5.")]


@app.command()
def gossip(
    graph: Graph,
    attackers: Attackers,
    rounds: Rounds = None,
    protocol: ProtocolOption = "gossip",
    tree: TreeOption = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of trees and random edges; public.")] = 0,
    out: Out = None,
    json: Json = False,
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
    network = network_of(graph)
    averaging = protocol_of(network, protocol, rounds=rounds, tree=tree, fresh=None, seed=seed)
    attack = gossip_attack(averaging, node_list(attackers, "--attackers"))
    names = range(network.n) if network.labels is None else network.labels
    config = {
        "graph": network.name, "n": network.n, "protocol": averaging.name, "rounds": averaging.rounds,
        "attackers": list(attack.attackers),
    }  # fmt: skip
    payload: dict[str, Any] = {
        "reconstructed": list(attack.nodes), "count": len(attack.nodes),
        "names": [str(names[u]) for u in attack.nodes], "rank": attack.rank,
        "combinations": [_by_name(str(c), names) for c in attack.combinations],
        "exact_arithmetic": attack.exact,
    }  # fmt: skip

    def text(screen: Any) -> None:
        who = ", ".join(str(names[a]) for a in attack.attackers)
        others = network.n - len(attack.attackers)
        screen.print(
            f"After {averaging.rounds} rounds {who} knows the value of {len(attack.nodes)} of {others} nodes:"
        )
        screen.print(safe("  " + (", ".join(payload["names"]) or "none")))
        if attack.combinations:
            screen.print(f"and {len(attack.combinations)} combinations of the others:")
            for combination in payload["combinations"][:10]:
                screen.print(f"  {safe(combination)}")
            if len(attack.combinations) > 10:
                screen.print(f"  ... and {len(attack.combinations) - 10} more (--json lists them)")

    finish(as_record("attack", config, payload), json, out, text)


@app.command()
def dgd(
    graph: Graph = "path:8",
    attackers: Attackers = "0",
    steps: Annotated[
        int | None, typer.Option("--steps", help="Gradient steps watched; by default one per node.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Gossip rounds after every step.")] = 1,
    data: Annotated[
        str, typer.Option("--data", help="One picture per node: digits, mnist or cifar10.")
    ] = "digits",
    rate: Annotated[float, typer.Option("--rate", help="Learning rate.")] = 1e-4,
    noise: Annotated[float, typer.Option("--noise", help="Noise std on every gradient coordinate.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the pictures and of the simulated noise.")] = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Which nodes' pictures come back from decentralized gradient descent (softmax regression).

    \b
        sottovoce attack dgd --graph path:12 --attackers 0 --noise 0.01
    """
    import numpy as np

    from sottovoce import _validate
    from sottovoce.attacks.inputs import attack_softmax
    from sottovoce.attacks.pictures import draw_pictures
    from sottovoce.protocols import Gossip

    network = network_of(graph)
    rng = np.random.default_rng(seed)
    images, labels = draw_pictures(data, network.n, rng)
    result = attack_softmax(
        Gossip(network, _validate.count(rounds, "rounds")), node_list(attackers, "--attackers"), images,
        labels,
        steps=network.n if steps is None else steps, learning_rate=rate, rng=rng,
        noise_std=_validate.non_negative(noise, "noise"), classes=10,
    )  # fmt: skip
    config = {"graph": network.name, "n": network.n, "data": data, "rate": rate, "noise": noise}

    def text(screen: Any) -> None:
        rows = [
            [safe(network.label(u)), "yes" if u in result.attack.identifiable else "no",
             number(float(result.psnr[u])), number(float(result.grey[u])),
             "recovered" if u in result.recovered else ""]
            for u in result.attack.targets
        ]  # fmt: skip
        screen.print(table(["node", "identifiable", "PSNR dB", "of a grey picture", ""], rows))
        share = f"{len(result.recovered)} of {len(result.attack.targets)}"
        screen.print(f"{share} pictures come back with a PSNR of 10 or more.")

    finish(as_record("attack-dgd", config, result.to_dict()), json, out, text)


def _by_name(combination: str, names: Any) -> str:
    """Return a combination of values with the nodes' names in place of x0, x1.

    >>> _by_name("x0 - 1/2 x1", ["Medici", "Strozzi"]), _by_name("x0 + x1", range(2))
    ('Medici - 1/2 Strozzi', 'x0 + x1')
    """
    if isinstance(names, range):
        return combination
    return re.sub(r"\bx(\d+)\b", lambda match: str(names[int(match[1])]), combination)
