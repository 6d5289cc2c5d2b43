"""Fine-tuning end to end: a transformer that reads text and a small ResNet, from weights made on public data.

Each network is trained without privacy on public records first, its last block and head are given a new task,
and ten agents fine-tune them: with their own noise (nobody is trusted, whatever all
others do), behind masks (any one member), with one trusted holder of all records, and without noise.

*Text.* Lines of source files, character by character: is a line documentation, a comment, Python or a C
header? Public: networkx, matplotlib and sympy as they are installed, which have no headers. Private: numpy,
scipy and torch.
*Images.* Public: Fashion-MNIST. Private: MNIST.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce._io import atomic_write
from sottovoce.algorithms import DPSGD, ConsensusSGD
from sottovoce.data.images import load_images
from sottovoce.errors import InvalidInput
from sottovoce.graphs import complete
from sottovoce.runners.base import Result
from sottovoce_papers import drawing
from sottovoce_papers.common import result
from sottovoce_papers.registry import Experiment, ResultTable

PUBLIC, PRIVATE = ("networkx", "matplotlib", "sympy"), ("numpy", "scipy", "torch")
KINDS = ("documentation", "comment", "python", "header")  # the first three in public
LENGTH, SIDE = 32, 14
WAYS = ("own noise", "masked", "central")


def source_lines(package: str, kind: str, lines: int, seed: int = 0) -> list[str]:
    """Return lines of one kind from an installed package's files, different ones, drawn by a public seed.

    Nothing is imported; files are read one after the other until three times as many lines are there.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InvalidInput(f"the text of {package} is needed and it is not installed; pip install {package}.")
    different: dict[str, None] = {}
    for line in _lines(Path(spec.origin).parent, kind):
        different[line] = None
        if len(different) == 3 * lines:
            break
    unique = list(different)
    return [unique[i] for i in np.random.default_rng(seed).permutation(len(unique))[:lines]]


def _lines(folder: Path, kind: str) -> Iterator[str]:
    for file in sorted(folder.rglob("*.h" if kind == "header" else "*.py")):
        inside = False  # a text in triple quotes
        for line in file.read_text(encoding="utf-8", errors="ignore").splitlines():
            quotes = line.count('"""')
            words = " ".join(line.split())
            comment = words.startswith("# ")
            line_kind = "documentation" if inside else "comment" if comment else "python"
            if quotes % 2:
                inside = not inside
            if kind == "header":
                line_kind = kind
            bare = words.removeprefix("# ")
            if (
                line_kind == kind
                and not quotes
                and len(bare) >= 16
                and not bare.startswith((">>>", "*", "//"))
            ):
                yield bare[:LENGTH]


def characters(lines: list[str]) -> np.ndarray:
    """Return lines as (lines, 32) whole numbers: printable characters from 1, padding 0."""
    out = np.zeros((len(lines), LENGTH), np.int64)
    for row, line in zip(out, lines, strict=True):
        codes = [ord(c) - 31 if 32 <= ord(c) < 127 else 95 for c in line[:LENGTH]]
        row[: len(codes)] = codes
    return out


def reader(classes: int) -> Any:
    """Return the transformer: learned positions, two encoder layers, the mean over places, a head."""
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(96, 16), nn.Embedding(LENGTH, 16)
            self.first, self.last = (
                nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(2)
            )
            self.norm, self.head = nn.LayerNorm(16, elementwise_affine=False), nn.Linear(16, classes)

        def forward(self, x: Any) -> Any:
            h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
            return self.head(self.norm(self.last(self.first(h)).mean(1)))

    return Reader()


def _text(records: int, seed: int, shown: int, pretrain: int) -> tuple[Any, Any, Any]:
    """Public records to pretrain on, private ones, and public test records: (inputs, labels) each."""

    def of(packages: tuple[str, ...], kinds: tuple[str, ...], each: int) -> tuple[np.ndarray, np.ndarray]:
        texts = [
            [line for name in packages for line in source_lines(name, kind, each, seed)] for kind in kinds
        ]
        x = np.concatenate([characters(lines) for lines in texts])
        y = np.repeat(np.arange(len(kinds)), [len(lines) for lines in texts])
        order = np.random.default_rng(seed).permutation(len(y))
        return x[order], y[order]

    x, y = of(PRIVATE, KINDS, (records + shown) // (len(KINDS) * (len(PRIVATE) - 1)) + 1)
    x, y = x[: records + shown], y[: records + shown]  # scipy has few headers
    each = pretrain // (len(PUBLIC) * (len(KINDS) - 1))
    first = of(PUBLIC, KINDS[:-1], each) if pretrain else (x[:0], y[:0])
    return first, (x[shown:], y[shown:]), (x[:shown], y[:shown])


def residual(classes: int) -> Any:
    """Return the small ResNet: a stem, three residual blocks with group norms, a head."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(a, b, 3, stride, 1), nn.Conv2d(b, b, 3, 1, 1)
            self.skip = nn.Conv2d(a, b, 1, stride)
            self.norm, self.norms, self.act = nn.GroupNorm(4, b), nn.GroupNorm(4, b), nn.ReLU()

        def forward(self, x: Any) -> Any:
            h = self.act(self.norm(self.one(x)))
            return self.act(self.skip(x) + self.norms(self.two(h)))

    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 1, 1), nn.ReLU(), Block(8, 16, 2), Block(16, 32, 2), Block(32, 32, 1),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(128, elementwise_affine=False),
        nn.Linear(128, classes),
    )  # fmt: skip


def _images(records: int, seed: int, shown: int, pretrain: int) -> tuple[Any, Any, Any]:
    public, private = load_images("fashion_mnist"), load_images("mnist")
    rng = np.random.default_rng(seed)
    a, b = rng.permutation(len(public.y))[:pretrain], rng.permutation(len(private.y))[:records]
    c = rng.permutation(len(private.y_test))[:shown]
    return (
        (public.floats(public.x[a], 0.5, 0.5, SIDE), public.y[a]),
        (private.floats(private.x[b], 0.5, 0.5, SIDE), private.y[b]),
        (private.floats(private.x_test[c], 0.5, 0.5, SIDE), private.y_test[c]),
    )


TASKS: dict[str, tuple[Callable[..., Any], Callable[[int], Any], int, int, tuple[str, ...]]] = {
    "text": (_text, reader, len(KINDS) - 1, len(KINDS), ("last", "norm", "head")),
    "images": (_images, residual, 10, 10, ("4", "7", "8")),
}


def pretrained(task: str, public: tuple[np.ndarray, np.ndarray], epochs: int, seed: int) -> tuple[Any, float]:
    """Return a network trained on public records without privacy, its last part ready for a new task."""
    import torch

    _, make, old, new, trained = TASKS[task]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = make(old)
        step = torch.optim.Adam(net.parameters(), lr=2e-3)
        x, y = torch.as_tensor(public[0]), torch.as_tensor(public[1])
        for _ in range(epochs):
            for rows in torch.randperm(len(y)).split(128):
                step.zero_grad()
                torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                step.step()
        with torch.no_grad():
            right = float((net(x[:4000]).argmax(1) == y[:4000]).float().mean()) if len(y) else 0.0
        fresh = make(new)
    weights = {
        name: value for name, value in net.state_dict().items() if not name.startswith(trained[-1] + ".")
    }
    fresh.load_state_dict(weights, strict=False)
    for name, parameter in fresh.named_parameters():
        parameter.requires_grad_(name.split(".")[0] in trained)
    with torch.no_grad():  # a head that says nothing yet
        for parameter in (p for n, p in fresh.named_parameters() if n.startswith(trained[-1] + ".")):
            parameter.zero_()
    return fresh, 100 * right


def _pretrained_once(task: str, public: Any, epochs: int, seed: int, keep: str) -> tuple[Any, float]:
    """Pretrain, or take the weights that an interrupted run has kept."""
    import torch

    file = Path(keep) / f"{task}-pretrained.npz"
    if not keep or not file.is_file():
        net, score = pretrained(task, public, epochs, seed)
        if keep:
            held = {name: value.numpy() for name, value in net.state_dict().items()}
            atomic_write(file, lambda out: np.savez(out, score=score, **held))
        return net, score
    net, _ = pretrained(task, (public[0][:0], public[1][:0]), 0, seed)
    with np.load(file, allow_pickle=False) as stored:
        values = {name: torch.as_tensor(stored[name]) for name in stored.files if name != "score"}
        net.load_state_dict(values)
        return net, float(stored["score"])


def fine_tuning(
    quick: bool = False,
    *,
    task: str = "text",
    epsilons: tuple[float, ...] = (1.0, 3.0, 8.0),
    agents: int = 10,
    records: int = 6000,
    batch_size: int = 60,
    steps: int = 25,
    learning_rate: float = 2.0,
    clip_norm: float = 1.0,
    epochs: int = 2,
    pretrain: int = 6000,
    shown: int = 1000,
    delta: float = 1e-5,
    seed: int = 0,
    keep: str = "",
) -> Result:
    """Return accuracies of one fine-tuned network: own noise, masked, central, and without noise.

    ``keep`` names a folder where finished cells are kept, so that an interrupted run goes on.
    """
    from sottovoce.data.agent_tensors import AgentData
    from sottovoce.objectives.nets.objective import NetObjective

    if task not in TASKS:
        raise InvalidInput(f"task must be one of {', '.join(TASKS)}, got {task!r}.")
    if quick:
        epsilons, agents, records, batch_size, steps, epochs = (8.0,), 3, 300, 30, 2, 0
        pretrain, shown = 0, 40
    config: dict[str, Any] = {
        "task": task, "epsilons": epsilons, "agents": agents, "records": records, "batch_size": batch_size,
        "steps": steps, "learning_rate": learning_rate, "clip_norm": clip_norm, "epochs": epochs,
        "pretrain": pretrain, "delta": delta, "seed": seed,
    }  # fmt: skip
    public, private, test = TASKS[task][0](records, seed, shown, pretrain)
    new = TASKS[task][3]
    net, public_score = _pretrained_once(task, public, epochs, seed, keep)
    objective = NetObjective(net, clip_norm=clip_norm)
    x, y = private
    parts = np.array_split(np.random.default_rng(seed).permutation(len(y)), agents)
    sizes = tuple(len(part) for part in parts)
    common: dict[str, Any] = {"steps": steps, "clip_norm": clip_norm, "learning_rate": learning_rate}
    spread = {"network": complete(agents), "sizes": sizes, "batch_size": batch_size, **common}
    ways: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
        "own noise": (ConsensusSGD, {**spread, "protocol": "tree"}, {"view": "local"}),
        "masked": (ConsensusSGD, {**spread, "protocol": "masked"}, {}),
        "central": (DPSGD, {"records": len(y), "batch_size": batch_size * agents, **common}, {}),
    }

    def cell(way: str, epsilon: float | None) -> dict[str, float]:
        file = Path(keep) / f"{task}-{way}-{epsilon}.json" if keep else None
        if file is not None and file.is_file():
            stored: dict[str, float] = json.loads(file.read_text())
            return stored
        began = time.perf_counter()
        algorithm, options, view = ways[way]
        if epsilon is None:
            plan = algorithm(objective, noise_multiplier=0.0, **options)
        else:
            plan = algorithm.for_budget(objective, epsilon=epsilon, delta=delta, **view, **options)
        data = AgentData(x, y, parts if way != "central" else [np.arange(len(y))], test=test, classes=new)
        ran = plan.run(data, np.random.default_rng([seed, 1]), every=steps)
        scores = {"accuracy": 100 * ran.metrics["accuracy"], "seconds": round(time.perf_counter() - began, 1)}
        if epsilon is not None:
            scores["epsilon"] = plan.epsilon(delta, **view)
        if file is not None:
            atomic_write(file, json.dumps(scores))
        return scores

    cells = {way: {f"{e:g}": cell(way, e) for e in epsilons} for way in WAYS}
    trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
    metrics = {
        **cells,
        "no noise": cell("own noise", None),
        "public accuracy": public_score,
        "trained parameters": trained,
        "private records": len(private[1]),
    }
    return result(f"fine-tuning-{task}", config, metrics=metrics, seed=seed)


def table(record: dict[str, Any]) -> ResultTable:
    metrics, task = record["metrics"], record["config"]["task"]
    rows = tuple(
        (task, f"{float(e):g}", *(round(metrics[way][e]["accuracy"], 1) for way in WAYS),
         round(metrics["no noise"]["accuracy"], 1))
        for e in metrics["central"]
    )  # fmt: skip
    note = (
        f"{record['config']['agents']} agents, {metrics['private records']:,} private records, "
        f"{metrics['trained parameters']:,} of the parameters trained; noise simulated."
    )
    return ResultTable(
        ("task", "epsilon", "own noise", "masked", "one trusted holder", "no noise"), rows, note
    )


def plot(record: dict[str, Any]) -> Any:
    metrics = record["metrics"]
    with drawing.figure_of(1, 1, width=5.0) as (figure, (panel,)):
        for k, way in enumerate(WAYS):
            at = [float(e) for e in metrics[way]]
            drawing.error_bars(panel, at, [cell["accuracy"] for cell in metrics[way].values()], None, k, way)
        drawing.level(panel, metrics["no noise"]["accuracy"], "no noise")
        drawing.names(panel, "epsilon", "accuracy (%)", record["config"]["task"])
    return figure


def held(record: dict[str, Any]) -> bool:
    """Whether masked sums are at least as good as own noise at every epsilon."""
    metrics = record["metrics"]
    return all(
        metrics["masked"][e]["accuracy"] >= metrics["own noise"][e]["accuracy"] for e in metrics["masked"]
    )


def _of(task: str) -> Callable[..., Result]:
    """The experiment for one task, with the same options."""

    def run(quick: bool = False, **options: Any) -> Result:
        return fine_tuning(quick, task=task, **options)

    known = signature(fine_tuning)
    rest = [option for name, option in known.parameters.items() if name != "task"]
    setattr(run, "__signature__", known.replace(parameters=rest))  # noqa: B010
    return run


_CLAIM = "Behind masks ten agents fine-tune at least as well as with their own noise."

EXPERIMENTS = {
    "fine-tuning-text": Experiment(_of("text"), plot, table, held),
    "fine-tuning-images": Experiment(_of("images"), plot, table, held),
}
