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
from typing import Any

import numpy as np

from sottovoce.errors import InvalidInput
from sottovoce.experiments.registry import Experiment
from sottovoce.runners import Result
from sottovoce.runners.base import provenance_now

__all__ = ["EXPERIMENTS", "draw_pictures", "line_network"]

TALK = "Bellet 2024 (talk), El Mrini, Cyffers, Bellet 2024"


def line_cifar10(
    quick: bool = False, *, nodes: int = 31, steps: int | None = None, rate: float = 1e-4, noise: float = 0.0,
    seed: int = 0,
) -> Result:  # fmt: skip
    """Figure 4, above: CIFAR-10 pictures, softmax regression, learning rate 1e-4."""
    from sottovoce import graphs
    from sottovoce.attacks.inputs import attack_softmax

    started = time.perf_counter()
    nodes, data = (10, "digits") if quick else (nodes, "cifar10")
    rng = np.random.default_rng(seed)
    images, labels = draw_pictures(data, nodes, rng)
    found = attack_softmax(
        graphs.path(nodes), 0, images, labels, steps=steps or nodes, learning_rate=rate, rng=rng,
        noise_std=noise, classes=10,
    )  # fmt: skip
    return Result(
        "attack-line-cifar10",
        config={"nodes": nodes, "data": data, "steps": steps or nodes, "rate": rate, "noise": noise},
        outputs={"images": images, "reconstructed": found.inputs},
        metrics=found.to_dict() | {"pictures": _thumbnails(images, found.inputs)},
        provenance=provenance_now(started, seed=seed),
    )


def line_mnist(
    quick: bool = False, *, nodes: int = 31, rate: float = 1e-6, iterations: int = 600, tv: float = 1e-3,
    seed: int = 0,
) -> Result:  # fmt: skip
    """Figure 4, below: MNIST pictures, a convolutional network, learning rate 1e-6, gradients searched."""
    from sottovoce import graphs
    from sottovoce.attacks.inputs import attack_network

    started = time.perf_counter()
    nodes, data, iterations = (5, "digits", 60) if quick else (nodes, "mnist", iterations)
    rng = np.random.default_rng(seed)
    images, labels = draw_pictures(data, nodes, rng)
    side = images.shape[-1]
    found = attack_network(
        graphs.path(nodes), 0, images, labels, line_network(side, rng), steps=nodes, learning_rate=rate,
        rng=rng, iterations=iterations, tv=tv,
    )  # fmt: skip
    return Result(
        "attack-line-mnist",
        config={
            "nodes": nodes,
            "data": data,
            "steps": nodes,
            "rate": rate,
            "iterations": iterations,
            "tv": tv,
        },
        outputs={"images": images, "reconstructed": found.inputs},
        metrics=found.to_dict() | {"pictures": _thumbnails(images, found.inputs)},
        provenance=provenance_now(started, seed=seed),
    )


def florentine(
    quick: bool = False,
    *,
    rate: float = 1e-5,
    steps: int = 15,
    repeats: int = 10,
    noise: float = 0.0,
    seed: int = 0,
) -> Result:
    """Figure 5: success rate of every Florentine family as attacker, averaged over draws of pictures."""
    from sottovoce import graphs
    from sottovoce.attacks.inputs import attack_softmax

    started = time.perf_counter()
    data = "digits" if quick else "cifar10"
    repeats = 1 if quick else repeats
    network = graphs.florentine()
    rng = np.random.default_rng(seed)
    rates = np.zeros((repeats, network.n))
    scores = np.zeros((repeats, network.n))
    for r in range(repeats):
        images, labels = draw_pictures(data, network.n, rng)
        for attacker in range(network.n):
            found = attack_softmax(
                network,
                attacker,
                images,
                labels,
                steps=steps,
                learning_rate=rate,
                rng=rng,
                noise_std=noise,
                classes=10,
            )
            rates[r, attacker] = found.success_rate
            scores[r, attacker] = np.median(found.psnr[list(found.attack.targets)])
    return Result(
        "attack-florentine",
        config={"data": data, "rate": rate, "steps": steps, "repeats": repeats, "noise": noise},
        metrics={
            "success_rate": rates.mean(axis=0), "median_psnr": scores.mean(axis=0),
            "families": [str(label) for label in network.labels or range(network.n)],
        },
        provenance=provenance_now(started, seed=seed),
    )  # fmt: skip


def draw_pictures(data: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return ``n`` different pictures, channels first, with values in [0, 1], and their labels.

    Examples
    --------
    >>> import numpy as np
    >>> images, labels = draw_pictures("digits", 4, np.random.default_rng(0))
    >>> images.shape, float(images.max())
    ((4, 1, 8, 8), 1.0)
    """
    if data == "digits":
        from sklearn.datasets import load_digits

        found = load_digits()
        images, labels = found.images[:, None] / 16.0, found.target
    elif data in ("mnist", "cifar10"):
        from sottovoce.data.images import load_images

        loaded = load_images(data)
        images, labels = loaded.x, loaded.y
    else:
        raise InvalidInput(f"pictures come from digits, mnist or cifar10, got {data!r}.")
    chosen = rng.choice(len(images), n, replace=False)
    picked = images[chosen].astype(np.float64)
    return picked / 255.0 if images.dtype == np.uint8 else picked, labels[chosen].astype(np.int64)


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


def _thumbnails(truth: np.ndarray, found: np.ndarray) -> dict[str, Any]:
    """Return both rows of pictures as bytes in a record: 8-bit values, NaN as none."""
    rows: dict[str, Any] = {"shape": list(truth.shape[1:])}
    for name, images in (("true", truth), ("reconstructed", found)):
        rows[name] = [
            None if np.isnan(image).any() else np.round(255 * image).astype(int).ravel().tolist()
            for image in images
        ]
    return rows


EXPERIMENTS = {
    "attack-line-cifar10": Experiment(
        "Pictures back from descent on a line of 31, softmax regression", f"{TALK}, figure 4", line_cifar10
    ),
    "attack-line-mnist": Experiment(
        "Pictures back from descent on a line of 31, convolutional net", f"{TALK}, figure 4", line_mnist
    ),
    "attack-florentine": Experiment(
        "Success rate of every Florentine family as attacker", f"{TALK}, figure 5", florentine
    ),
}
