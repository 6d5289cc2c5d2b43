"""`sottovoce account`: what each participant learns about each other, before anything runs."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from sottovoce._format import number
from sottovoce.cli import options
from sottovoce.cli.output import emit, progress, section_values, template


def account(
    graph: options.Graph = None,
    matrix: options.Matrix = None,
    weights: options.Weights = None,
    protocol: options.ProtocolOption = "gossip",
    rounds: options.Rounds = None,
    observer: Annotated[
        str | None, Option(help="The node that looks, by number or name; without it, every node in turn.")
    ] = None,
    collude: Annotated[str, Option(help="Nodes that share all they see with the observer: 3,5.")] = "",
    draw: options.Draw = 0,
    noise: options.Noise = None,
    epsilon: options.Epsilon = None,
    delta: options.DeltaOrDefault = None,
    published: Annotated[bool, Option("--published", help="Print what the papers' formulas say.")] = False,
    steps: Annotated[int | None, Option(help="With --published: how often every node takes part.")] = None,
    out: options.Out = None,
    json: options.Json = False,
) -> None:
    """Show what each participant learns about each other, before anything runs.

    The exact loss is a share of the squared loss (mu^2): 0 when the
    observer learns nothing of a user, 1 when it can compute the user's noisy
    value. The published formula (Muffliato, eq. 6) is shown beside it; it is not a
    guarantee, and understates wherever the exact share is larger. Means are
    over all nodes, an observer counting 0 for itself, as in that paper.
    With --published stand the papers' other formulas too: mean loss, Corollary
    1, random graphs, walks and error bounds. All carry the label published, and no
    budget accepts them.

    \b
    Examples:
      sottovoce account --graph hypercube:10 --rounds 10 --observer 0
      sottovoce account --graph florentine --protocol tree --noise 2
      sottovoce account --graph ring:16 --observer 0 --collude 3,5 --json
      sottovoce account --graph er:60:1.5:seed=3 --protocol chebyshev --published
    """
    from sottovoce import _validate
    from sottovoce.accounting.budget import accepted_delta, delta_warning
    from sottovoce.accounting.published.exact_comparison import compare_with_published, published_bounds
    from sottovoce.advice.assessment import averaging_cost
    from sottovoce.errors import InvalidInput
    from sottovoce.report.inputs import account_result
    from sottovoce.report.sections import section_of

    if steps is not None and not published:
        raise InvalidInput("--steps is about the papers' formulas for learning and walks; add --published.")
    network = options.network_of(graph, matrix, weights)
    averaging = options.protocol_of(network, protocol, rounds=rounds, seed=draw)
    curious = options.node_of(observer, "--observer", network)
    colluders = options.node_list(collude, "--collude", network)
    with progress("every observer", network.n, quiet=json or curious is not None) as tick:
        assessment = compare_with_published(network, averaging, curious, colluders, tick=tick)
    at = 1e-5 if delta is None else _validate.delta(delta)
    if delta is not None:
        accepted_delta(at, network.n, "user", ())
    for option, amount in (("--noise", noise), ("--epsilon", epsilon)):
        if amount is not None:
            _validate.positive(amount, option)
    assessment |= averaging_cost(network, averaging, curious, colluders, noise, epsilon, at)
    large = None if noise is None and epsilon is None else delta_warning(at, network.n, "user")
    if large is not None:
        assessment["notes"] = [*assessment.get("notes", ()), large]
    if published:
        times = 1 if steps is None else steps
        bounds = published_bounds(network, averaging, steps=times, noise_std=noise, assessed=assessment)
        assessment["published_bounds"] = bounds
    result = account_result(network, averaging, assessment)
    payload = {key: value for key, value in assessment.items() if key != "_pairs"} | result
    names = result["config"]["labels"]
    needed = [
        [row["against"], number(row["noise_multiplier"], "required noise"), row["adjacency"], row["label"]]
        for row in assessment.get("noise_for_budget", ())
    ]
    shown = {"graph": network.name, "assessment": assessment, "needed": needed}
    text = template("account", **shown, **section_values(section_of(result), names))
    emit(payload, json, text, out)
