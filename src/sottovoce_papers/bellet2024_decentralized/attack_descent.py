"""Pictures reconstructed from decentralized gradient descent: a line of 31 nodes, and the Florentine graph.

Paper: Bellet, talk "Privacy in decentralized machine learning", 2024, figures 4 and 5 (El Mrini, Cyffers,
Bellet 2024). The talk prints pictures: on the line the attacker at one end recovers inputs far away; on
the Florentine graph the success rate (PSNR of at least 10) depends on the attacker. A picture of one grey
scores about 10 as well, so records carry that score beside the attack's.
Departures: the network of the MNIST figure is not given there; a small one with sigmoids is used
(`line_network`), with fewer search iterations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sottovoce import graphs
from sottovoce.attacks.inputs import draw_pictures
from sottovoce.errors import InvalidInput
from sottovoce.runners import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import result
from sottovoce_papers.registry import Experiment, Shown

TALK = "Bellet 2024 (talk), El Mrini, Cyffers, Bellet 2024"


def line_cifar10(
    quick: bool = False, *, nodes: int = 31, steps: int | None = None, rate: float = 1e-4, noise: float = 0.0,
    repeats: int = 10, seed: int = 0,
) -> Result:  # fmt: skip
    """Figure 4, above: CIFAR-10 pictures, softmax regression, learning rate 1e-4, some draws of pictures."""
    from sottovoce.attacks.inputs import attack_softmax

    started = time.perf_counter()
    nodes, data, repeats = (10, "digits", 2) if quick else (nodes, "cifar10", repeats)

    def attacked(rng: np.random.Generator) -> tuple[np.ndarray, Any]:
        images, labels = draw_pictures(data, nodes, rng)
        return images, attack_softmax(
            graphs.path(nodes), 0, images, labels, steps=steps or nodes, learning_rate=rate, rng=rng,
            noise_std=noise, classes=10,
        )  # fmt: skip

    config = {"nodes": nodes, "data": data, "steps": steps or nodes, "rate": rate, "noise": noise}
    return _line("attack-line-cifar10", config, attacked, repeats, seed, started)


def line_mnist(
    quick: bool = False, *, nodes: int = 31, rate: float = 1e-6, iterations: int = 600, tv: float = 1e-3,
    repeats: int = 5, seed: int = 0,
) -> Result:  # fmt: skip
    """Figure 4, below: MNIST pictures, a convolutional network, learning rate 1e-6, gradients searched."""
    from sottovoce.attacks.inputs import attack_network

    started = time.perf_counter()
    nodes, data, iterations, repeats = (
        (5, "digits", 60, 2) if quick else (nodes, "mnist", iterations, repeats)
    )

    def attacked(rng: np.random.Generator) -> tuple[np.ndarray, Any]:
        images, labels = draw_pictures(data, nodes, rng)
        return images, attack_network(
            graphs.path(nodes), 0, images, labels, line_network(images.shape[-1], rng), steps=nodes,
            learning_rate=rate, rng=rng, iterations=iterations, tv=tv,
        )  # fmt: skip

    config = {
        "nodes": nodes, "data": data, "steps": nodes, "rate": rate, "iterations": iterations, "tv": tv,
    }  # fmt: skip
    return _line("attack-line-mnist", config, attacked, repeats, seed, started)


def _line(
    name: str,
    config: dict[str, Any],
    attacked: Callable[[np.random.Generator], tuple[np.ndarray, Any]],
    repeats: int,
    seed: int,
    started: float,
) -> Result:
    """Attack ``repeats`` draws of pictures; everything of the first is kept, of the others their scores.

    Who can be attacked the graph alone says, so it is the same in every draw.
    """
    from sottovoce.attacks.inputs import SUCCESS

    draws = [attacked(np.random.default_rng([seed, r] if r else seed)) for r in range(repeats)]
    images, first = draws[0]
    scores, grey = (np.array([getattr(attack, which) for _, attack in draws]) for which in ("psnr", "grey"))
    rows = []
    for u in first.attack.identifiable:
        score, one_grey = scores[:, u], grey[:, u]
        row = {"distance": u, "psnr": score.mean(), "psnr_std": score.std()}
        row |= {"psnr_of_grey": one_grey.mean(), "psnr_of_grey_std": one_grey.std()}
        better, success = int((score > one_grey).sum()), int((score >= SUCCESS).sum())
        rows.append({**row, "better_than_grey": better, "success": success})
    metrics = first.to_dict() | {"pictures": _thumbnails(images, first.inputs)}
    parts = {"outputs": {"images": images, "reconstructed": first.inputs}, "metrics": metrics}
    return result(name, started, {**config, "repeats": repeats}, history=rows, seed=seed, **parts)


def florentine(
    quick: bool = False,
    *,
    rate: float = 1e-5,
    steps: int = 15,
    repeats: int = 10,
    noise: float = 0.0,
    example: int = 5,
    seed: int = 0,
) -> Result:
    """Figure 5: success rate of every Florentine family as attacker, averaged over draws of pictures."""
    from sottovoce.attacks.inputs import attack_softmax

    started = time.perf_counter()
    data = "digits" if quick else "cifar10"
    repeats = 1 if quick else repeats
    network = graphs.florentine()
    rng = np.random.default_rng(seed)
    if not 0 <= example < network.n:
        raise InvalidInput(f"example must be a node from 0 to {network.n - 1}, got {example}.")
    options: dict[str, Any] = {"steps": steps, "learning_rate": rate, "noise_std": noise}
    rates = np.zeros((repeats, network.n))
    scores = np.zeros((repeats, network.n))
    for r in range(repeats):
        images, labels = draw_pictures(data, network.n, rng)
        for attacker in range(network.n):
            attack = attack_softmax(network, attacker, images, labels, rng=rng, classes=10, **options)
            rates[r, attacker] = attack.success_rate
            scores[r, attacker] = np.median(attack.psnr[list(attack.attack.targets)])
            if r == 0 and attacker == example:
                pictured = _thumbnails(images, attack.inputs)
    config = {"data": data, "rate": rate, "steps": steps, "repeats": repeats, "noise": noise}
    metrics = {
        "success_rate": rates.mean(axis=0),
        "success_std": rates.std(axis=0),
        "median_psnr": scores.mean(axis=0),
        "example": {"attacker": example, "pictures": pictured},
        "families": [str(label) for label in network.labels or range(network.n)],
    }
    return result("attack-florentine", started, config, metrics=metrics, seed=seed)


def line_network(side: int, rng: np.random.Generator) -> Any:
    """Return the network of the MNIST figure: two strided convolutions with sigmoids, one linear layer."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        small = (side + 3) // 4
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 5, stride=2, padding=2), torch.nn.Sigmoid(),
            torch.nn.Conv2d(8, 8, 5, stride=2, padding=2), torch.nn.Sigmoid(),
            torch.nn.Flatten(), torch.nn.Linear(8 * small * small, 10),
        )  # fmt: skip
        for parameter in net.parameters():
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def _thumbnails(truth: np.ndarray, reconstructed: np.ndarray) -> dict[str, Any]:
    """Return both rows of pictures for a record: 8-bit values in base64, NaN as none."""
    import base64

    rows: dict[str, Any] = {"shape": list(truth.shape[1:])}
    for name, images in (("true", truth), ("reconstructed", reconstructed)):
        rows[name] = [
            None if np.isnan(image).any()
            else base64.b64encode(np.round(255 * image).astype(np.uint8).tobytes()).decode()
            for image in images
        ]  # fmt: skip
    return rows


def line_table(record: dict[str, Any]) -> Shown:
    """Return the score of every node by distance, beside that of a grey picture."""
    repeats = record["config"]["repeats"]
    rows = tuple(
        (
            row["distance"], row["psnr"], row["psnr_std"], row["psnr_of_grey"], row["better_than_grey"],
            "yes" if row["better_than_grey"] > repeats / 2 else "no",
        )
        for row in record["history"]
    )  # fmt: skip
    back = sum(row["better_than_grey"] for row in record["history"]) / repeats
    reach = sum(row["success"] for row in record["history"]) / repeats
    return Shown(
        ("distance", "PSNR (dB)", "std", "PSNR of grey (dB)", f"better, of {repeats}", "comes back"),
        rows,
        f"Mean and std over {repeats} draws of pictures. Of {len(rows)} pictures {back:.3g} on average come "
        f"back better than one grey; {reach:.3g} reach the 10 decibels that the talk counts as success.",
    )


def line_held(record: dict[str, Any]) -> bool:
    """Whether most pictures come back better than grey in most draws, far ones among them."""
    rows = line_table(record).rows
    back = [row[0] for row in rows if row[-1] == "yes"]
    return len(back) > len(rows) / 2 and max(back) > max(row[0] for row in rows) / 2


def plot_line(record: dict[str, Any]) -> Any:
    """Draw the scores by distance above two rows of pictures: what nodes hold, what the attacker makes."""
    rows, repeats = record["history"], record["config"]["repeats"]
    scored = [row["distance"] for row in rows]
    with drawing.figure_of(1, 2, width=8.2, height=2.6, height_ratios=(2.2, 1)) as (figure, panels):
        for k, which, label in ((0, "psnr", "reconstruction"), (6, "psnr_of_grey", "a picture of one grey")):
            drawing.error_bars(
                panels[0], scored, [row[which] for row in rows], [row[f"{which}_std"] for row in rows], k,
                label,
            )  # fmt: skip
        drawing.level(panels[0], 10.0, "10 dB: success in the talk", 4)
        title = f"{record['name']}: mean and std over {repeats} draws of pictures"
        drawing.names(panels[0], "distance from the attacker (hops)", "PSNR (dB)", title)
        pictures = record["metrics"].get("pictures")
        if pictures is not None:
            drawing.picture_rows(panels[1], pictures, scored)
            panels[1].set_title("above: held by the nodes, by distance; below: reconstructed", fontsize=9)
        panels[1].set_axis_off()
    return figure


def florentine_table(record: dict[str, Any]) -> Shown:
    """Return the success rate of every family."""
    metrics = record["metrics"]
    stds = metrics.get("success_std") or [None] * len(metrics["families"])
    families = zip(metrics["families"], metrics["success_rate"], stds, metrics["median_psnr"], strict=True)
    rows = tuple(sorted(families, key=lambda row: -row[1]))
    columns = ("attacker", "success rate", "std over draws", "median PSNR (dB)")
    note = f"Share of the others with a PSNR of at least 10, {record['config']['repeats']} draws of pictures."
    return Shown(columns, rows, note)


def florentine_held(record: dict[str, Any]) -> bool:
    """Whether success depends on the attacker."""
    rates = record["metrics"]["success_rate"]
    return max(rates) > min(rates)


def plot_florentine(record: dict[str, Any]) -> Any:
    """Draw the families colored by success as attackers, and an example of what one of them sees."""
    metrics, network = record["metrics"], graphs.florentine()
    edges = network.edges.tolist()
    example = metrics.get("example")
    rows, ratios = (2, (4, 1)) if example else (1, (1,))
    size = {"width": 7.4, "height": 3.0 if example else 4.4}
    with drawing.figure_of(1, rows, **size, height_ratios=ratios) as (figure, panels):
        points = drawing.graph(
            panels[0], edges, drawing.layout(edges, network.n), metrics["success_rate"], metrics["families"]
        )
        figure.colorbar(points, ax=panels[0], shrink=0.8, label="success rate as attacker")
        panels[0].set_title("softmax regression by gossip, one picture per family")
        if example:
            shown_nodes = [u for u in range(len(example["pictures"]["true"])) if u != example["attacker"]]
            drawing.picture_rows(panels[1], example["pictures"], shown_nodes)
            panels[1].set_axis_off()
            who = metrics["families"][example["attacker"]]
            panels[1].set_title(f"above: the others' pictures; below: what {who} reconstructs", fontsize=9)
    return figure


EXPERIMENTS = {
    "attack-line-cifar10": Experiment(
        "Pictures back from descent on a line of 31, softmax regression", f"{TALK}, figure 4", line_cifar10,
        plot_line, table=line_table, held=line_held,
        claim="The attacker at one end recovers inputs of nodes far away.",
    ),
    "attack-line-mnist": Experiment(
        "Pictures back from descent on a line of 31, convolutional net", f"{TALK}, figure 4", line_mnist,
        plot_line, table=line_table, held=line_held,
        claim="With a convolutional network too, by a search for the input of each gradient.",
    ),
    "attack-florentine": Experiment(
        "Success rate of every Florentine family as attacker", f"{TALK}, figure 5", florentine,
        plot_florentine, table=florentine_table, held=florentine_held,
        claim="The success rate depends on where the attacker sits.",
    ),
}  # fmt: skip
