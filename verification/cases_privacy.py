"""Privacy costs: what commands print about plan files and graphs, and plans drawn at random."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import sottovoce
from verification import recomputation

ROOT = Path(sottovoce.__file__).resolve().parents[2]  # the checkout whose library is recorded
TEMPLATES = ("average", "train", "net")  # of `init`, those with a plan file
ADVICE = {
    "mean": ["6", "--epsilon", "2", "--records", "100"],
    "one-value": ["ring:9", "--epsilon", "4", "--hide", "member", "--values", "0,10"],
    "two-collude": ["ring:9", "--epsilon", "1", "--records", "50", "--colluders", "2", "--values", "0,120"],
    "local": ["5", "--epsilon", "3", "--records", "80", "--view", "local"],
    "outsider": ["5", "--epsilon", "1", "--records", "80", "--view", "outsider"],
    "unequal": ["4", "--epsilon", "2", "--records", "500,80,120,60", "--no-masks"],
    "logistic": ["5", "--epsilon", "2", "--records", "100", "--compute", "logistic", "--features", "5"],
}
PAIRS = [
    (
        "ring:8",
        ["gossip", "chebyshev", "tree", "masked", "fresh-noise", "randomized", "accelerated-randomized"],
    ),
    ("path:5", ["gossip", "chebyshev", "tree:kind=uniform", "masked:tolerate=2"]),
    ("star:6", ["gossip", "tree", "dropout:12:nodes=0.1"]),
    ("hypercube:3", ["gossip", "chebyshev", "exchange", "masked"]),
    ("complete:5", ["gossip", "tree:kind=few-leaves", "masked:partners=2"]),
    ("florentine", ["gossip:6", "tree:kind=capped", "randomized:40", "dropout:8:edges=0.2"]),
    ("er:12:1.5:seed=3", ["gossip", "chebyshev:4", "time-varying:4:c=1.5"]),
    ("grid:3:4", ["gossip:3", "tree"]),
]
DELTA = "1e-5"
CENTRAL = ("dp-sgd", "dp-cd", "dp-gcd", "admm")  # one holder: the budget is about the published result


def load(path: str) -> ModuleType:
    """Return the module in a file, named from the root of the checkout."""
    name = "recorded_" + path.removesuffix(".py").replace("/", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{ROOT / path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def command(*arguments: str) -> dict[str, Any] | str:
    """Return what a command prints as JSON; a refusal is the word "refused"."""
    from sottovoce.cli.main import main

    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            main([*arguments, "--json"])
        except SystemExit as end:
            code = int(end.code or 0)
    try:
        result = json.loads(out.getvalue())
    except ValueError:
        return "refused"
    return "refused" if isinstance(result.get("error"), str) else {"code": code, **result}


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """Go to an empty folder, which is also the home of ledgers, and come back."""
    before, home = Path.cwd(), os.environ.get("SOTTOVOCE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOTTOVOCE_HOME"] = str(Path(folder) / "home")
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
            os.environ.pop("SOTTOVOCE_HOME")
            if home is not None:
                os.environ["SOTTOVOCE_HOME"] = home


def commands() -> Iterator[tuple[str, Any]]:
    """Yield `plan` and `compare` for every plan file, and `advise` for a few consortia."""
    plans = load("tests/cli/plans.py")
    texts = {f"training/{name}": plans.trained(name) for name in plans.ALGORITHMS}
    for name in plans.ALGORITHMS:
        view = "central" if name in CENTRAL else "local"
        budget = f'[budget]\nepsilon = 5.0\ndelta = 1e-5\nview = "{view}"\n'
        texts[f"budget/{name}"] = plans.trained(name, noise="seed = 1\n", more=budget)
    texts |= {"average": plans.AVERAGE + "[noise]\nnoise_multiplier = 4.0\n", "net": plans.NET}
    with empty_folder() as folder:
        files = {name: folder / f"plan{k}.toml" for k, name in enumerate(texts)}
        for name, text in texts.items():
            files[name].write_text(text)
        for template in TEMPLATES:
            command("init", template, str(folder / template))
            files[f"template/{template}"] = folder / template / "plan.toml"
        for path in sorted((ROOT / "examples").glob("**/plan*.toml")):
            files[f"example/{path.parent.name}/{path.stem}"] = path
        for name, path in files.items():
            yield f"privacy/plan/{name}", _without_copies(command("plan", str(path)))
            yield f"privacy/compare/{name}", _without_names(command("compare", str(path)))
        together = [str(files[f"training/{name}"]) for name in ("consensus-sgd", "dp-dsgd", "decor")]
        yield "privacy/compare/together", _without_names(command("compare", *together))
        for name, arguments in ADVICE.items():
            yield f"privacy/advice/{name}", _with_adversary(command("advise", *arguments))


def _with_adversary(result: Any) -> Any:
    """Return a result of `advise` with view and number of colluders under one label."""
    if isinstance(result, str):
        return result
    requirements = dict(result["requirements"])
    view, colluders = requirements.pop("view"), requirements.pop("colluders")
    requirements["against"] = colluders if view == "colluders" else view
    requirements["features"] = requirements["features"] or 1
    return {**result, "requirements": requirements}


def _without_copies(result: Any) -> Any:
    """Return a result of `plan` without its second copies of options and numbers."""
    return (
        result
        if isinstance(result, str)
        else {k: v for k, v in result.items() if k not in ("config", "metrics")}
    )


def _without_names(result: Any) -> Any:
    """Return a result of `compare` without the names of the files."""
    if isinstance(result, str):
        return result
    return {
        **result,
        "rows": [
            {k: v for k, v in row.items() if k not in ("name", "dominated_by")} for row in result["rows"]
        ],
    }


def graphs_and_protocols() -> Iterator[tuple[str, Any]]:
    """Yield `account` for 30 pairs: all observers, one with colluders, and epsilons."""
    with empty_folder():
        for graph, protocols in PAIRS:
            for protocol in protocols:
                pair = ["account", "--graph", graph, "--protocol", protocol]
                name = f"privacy/{graph}+{protocol}"
                yield f"{name}/network", command(*pair, "--noise", "2", "--delta", DELTA)
                yield f"{name}/observer", command(*pair, "--observer", "0")
                yield f"{name}/colluders", command(*pair, "--observer", "0", "--collude", "2,3")


def random_plans(count: int) -> Iterator[tuple[str, Any]]:
    """Yield the privacy costs of plans drawn at random, one in twenty with sampling."""
    logging.getLogger().setLevel(logging.ERROR)
    sampled = count // 20
    for kind, numbers in (("gaussian", count - sampled), ("sampled", sampled)):
        for number in range(numbers):
            drawn = recomputation.case(1, kind == "sampled", number)
            question = dict(drawn.question)
            guarantee = drawn.plan.privacy(question.pop("view", None), **question)
            yield f"privacy/random-plan/{kind}/{number}", float(guarantee.epsilon(drawn.delta))
            yield f"privacy/random-plan/{kind}/{number}/label", guarantee.label
