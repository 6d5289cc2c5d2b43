"""Attacks and audits on the page: graphs with reconstructed nodes, two rows of pictures, histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.report.blocks import Figure, Section, Table
from sottovoce.report.figures import EXACT, GOOD, LOCAL, _new, _svg, bars, curves, graph_picture
from sottovoce.report.sections import provenance

__all__ = [
    "descent",
    "each_attacker",
    "membership",
    "one_attacker",
    "picture_rows",
    "shares",
    "two_histograms",
]


def one_attacker(record: Mapping[str, Any]) -> Section:
    """One attacker on one graph, round by round."""
    config, found = record["config"], record["metrics"]
    rounds = sorted(found["nodes"], key=int)
    blocks: list[Figure | Table] = []
    for shown in (rounds[2], rounds[len(rounds) // 2], rounds[-1]):
        known = set(found["nodes"][shown])
        colours = [1.0 if v in known else 0.0 for v in range(config["n"])]
        picture = graph_picture(
            config["edges"], colours, observers=[config["attacker"]], title=f"Known after {shown} rounds",
            scale_label=None,
        )  # fmt: skip
        blocks.append(Figure(picture, f"Red: values the attacker (ringed) computes after {shown} rounds."))
    rows = tuple((int(r), found["count"][r]) for r in rounds)
    blocks.append(Table(("rounds", "nodes reconstructed"), rows))
    return Section(
        "Reconstruction on a geometric graph",
        f"One node of {config['n']} listens to gossip without noise and solves for the others' values.",
        tuple(blocks),
        (),
        provenance(record),
    )


def shares(record: Mapping[str, Any]) -> Section:
    """Share of nodes reconstructed on random graphs, by number of attackers."""
    history = record["history"]
    rounds = max(h["rounds"] for h in history)
    blocks: list[Figure | Table] = []
    for p in sorted({h["p"] for h in history}):
        some = [h for h in history if h["p"] == p and h["rounds"] == rounds]
        sizes = sorted({h["n"] for h in some})
        series = {
            f"{k} attacker{'s' if k > 1 else ''}": [
                next(h["share"] for h in some if h["n"] == n and h["attackers"] == k) for n in sizes
            ]
            for k in sorted({h["attackers"] for h in some})
        }
        picture = curves(
            sizes, series, xlabel="nodes", ylabel="share reconstructed", title=f"p = {p}", limits=(0.0, 1.05)
        )
        blocks.append(Figure(picture, f"Edge probability {p}, {rounds} rounds, mean over random graphs."))
    means = record["metrics"]["mean_share"]
    blocks.append(Table(("attackers", "mean share"), tuple((int(k), v) for k, v in means.items())))
    return Section("Reconstruction on Erdős-Rényi graphs", "", tuple(blocks), (), provenance(record))


def each_attacker(record: Mapping[str, Any]) -> Section:
    """Every node as attacker, coloured by how many others it reconstructs."""
    config, found = record["config"], record["metrics"]
    others = config["n"] - 1
    picture = graph_picture(
        config["edges"], [c / others for c in found["counts"]], title="Nodes reconstructed by each node",
        scale_label="share of the others reconstructed",
    )  # fmt: skip
    best = found["best_attacker"]
    known = set(found["best_reconstructs"])
    one = graph_picture(
        config["edges"], [1.0 if v in known else 0.0 for v in range(config["n"])], observers=[best],
        title="The best placed attacker", scale_label=None,
    )  # fmt: skip
    lead = (
        f"After {config['rounds']} rounds on {config['graph']} a node reconstructs between {found['least']} "
        f"and {found['most']} of the {others} others, {found['mean']:.1f} on average."
    )
    blocks = (
        Figure(picture, "Every node as the attacker: the share of the others it reconstructs."),
        Figure(one, f"Red: reconstructed by node {best} (ringed)."),
    )
    return Section("Every node as attacker", lead, blocks, (), provenance(record))


def descent(record: Mapping[str, Any]) -> Section:
    """True and reconstructed pictures in two rows, with their scores."""
    config, found = record["config"], record["metrics"]
    pictures = found["pictures"]
    scored = [u for u, p in enumerate(found["psnr"]) if p is not None]
    blocks: list[Figure | Table] = [
        Figure(
            picture_rows(pictures["true"], pictures["reconstructed"], pictures["shape"], scored),
            "Above: the pictures the nodes hold, ordered by distance from the attacker. Below: what the "
            "attacker makes of the models it received.",
        ),
        Figure(
            curves(
                scored,
                {
                    "reconstruction": [found["psnr"][u] for u in scored],
                    "a picture of one grey": [found["psnr_of_grey"][u] for u in scored],
                },
                xlabel="distance from the attacker", ylabel="PSNR in decibels", title="PSNR by distance",
                colours={"reconstruction": EXACT, "a picture of one grey": LOCAL},
            ),
            "How close the reconstruction is; 10 decibels count as success, and plain grey has about that.",
        ),
    ]  # fmt: skip
    lead = (
        f"{found['count']} of {len(found['psnr']) - len(found['attackers'])} pictures come back from "
        f"decentralized gradient descent ({config['steps']} steps at rate {config['rate']:g})."
    )
    return Section("Pictures back from gradient descent", lead, tuple(blocks), (), provenance(record))


def families(record: Mapping[str, Any]) -> Section:
    """Success rate of every Florentine family as attacker."""
    found = record["metrics"]
    picture = bars(
        found["families"], found["success_rate"], xlabel="share of the others' pictures recovered",
        title="Success rate by attacker",
    )  # fmt: skip
    blocks = (Figure(picture, "Each family in turn attacks softmax regression trained by gossip."),)
    return Section("The Florentine families", "", blocks, (), provenance(record))


def membership(record: Mapping[str, Any]) -> Section:
    """Lower bounds beside claims, and the two loss histograms of every algorithm."""
    history = record["history"]
    rows = tuple(
        (
            h["algorithm"],
            h["look"],
            h["epsilon_claimed"],
            h["epsilon_lower"],
            h["epsilon_paper"],
            h["tightness"],
        )
        for h in history
    )
    columns = ("algorithm", "what is looked at", "ε claimed", "ε at least", "ε at least (paper)", "tightness")
    blocks: list[Figure | Table] = [Table(columns, rows)]
    for name, bins in record["metrics"]["histograms"].items():
        picture = two_histograms(bins["edges"], bins["with"], bins["without"], f"Loss on the record: {name}")
        blocks.append(Figure(picture, f"{name}: loss of trained models on the record, with and without it."))
    config = record["config"]
    lead = (
        f"{config['models']:,} models per algorithm, half of them trained with one more record. A bound "
        "above the claim would prove a bug; none is."
        if not record["metrics"]["exceeds_claim"]
        else "A bound exceeds its claim: " + "; ".join(record["metrics"]["exceeds_claim"]) + "."
    )
    return Section("Audit by membership inference", lead, tuple(blocks), (), provenance(record))


def picture_rows(
    true: Sequence[Any], found: Sequence[Any], shape: Sequence[int], chosen: Sequence[int]
) -> str:
    """Return two rows of small pictures as one SVG; pixels are 0 to 255, channels first.

    Examples
    --------
    >>> picture_rows([[0, 255, 128, 0]], [[0, 250, 120, 0]], [1, 2, 2], [0])[:4]
    '<svg'
    """
    import matplotlib
    import numpy as np

    listed = list(chosen)
    side = int(shape[-1])
    gap = max(1, side // 10)
    canvas = np.full((2 * side + gap, len(listed) * (side + gap), 3), np.nan)
    for row, images in enumerate((true, found)):
        for column, u in enumerate(listed):
            if images[u] is None:
                continue
            pixels = np.asarray(images[u], dtype=float).reshape(-1, side, side) / 255
            colours = np.moveaxis(np.broadcast_to(pixels, (3, side, side)), 0, 2)
            top, left = row * (side + gap), column * (side + gap)
            canvas[top : top + side, left : left + side] = colours
    figure, axes, settings = _new(7.2, max(0.8, 7.2 * canvas.shape[0] / canvas.shape[1]))
    with matplotlib.rc_context(settings):
        seen = ~np.isnan(canvas).any(axis=2)
        layers = np.dstack([np.nan_to_num(canvas), seen.astype(float)])
        axes.imshow(layers, interpolation="nearest")
        axes.set_axis_off()
    return _svg(figure, settings, "true pictures above, reconstructed pictures below")


def two_histograms(edges: Sequence[float], members: Sequence[int], others: Sequence[int], title: str) -> str:
    """Return two histograms over common bins, one per hypothesis.

    Examples
    --------
    >>> two_histograms([0.0, 1.0, 2.0], [3, 1], [1, 3], "losses")[:4]
    '<svg'
    """
    import matplotlib

    figure, axes, settings = _new(7.2, 3.0)
    with matplotlib.rc_context(settings):
        axes.stairs(list(members), list(edges), fill=True, color=EXACT, alpha=0.5, label="with the record")
        axes.stairs(list(others), list(edges), fill=True, color=GOOD, alpha=0.5, label="without it")
        axes.set_xlabel("loss on the record")
        axes.set_ylabel("models")
        axes.legend(frameon=False, fontsize=9, labelcolor=settings["text.color"])
    return _svg(figure, settings, title)
