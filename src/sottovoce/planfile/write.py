"""From a plan to a plan file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import graphs
from sottovoce._io import atomic_write, to_jsonable, to_toml
from sottovoce.algorithms.build import plan_options
from sottovoce.algorithms.optimizers import RateTable
from sottovoce.algorithms.plan import Plan
from sottovoce.errors import InvalidInput, SottovoceError
from sottovoce.graphs import Network
from sottovoce.objectives import GLM
from sottovoce.planfile.read import plan_from_settings
from sottovoce.planfile.schema import ELSEWHERE, VERSION, check_plan_file

RECORDS, VALUES = "records.csv", "values.csv"


def save_plan(plan: Plan, path: str | Path, *, title: str = "") -> Path:
    """Write a plan as a plan file that `load_plan` reads back as the same plan.

    The records of a training plan are named ``records.csv`` with the columns ``label`` and ``site`` and
    features from -1 to 1; change ``[data]`` to name your own. A plan that holds a Python object which a file
    cannot name (a torch module, a function, a protocol or network that was not made from a name) is refused.

    Examples
    --------
    >>> import tempfile, sottovoce as sv
    >>> plan = sv.PrivateAveraging("tree", network="ring:5", noise_std=2.0, radius=0.5)
    >>> print(save_plan(plan, tempfile.mkdtemp() + "/plan.toml").read_text().split("[noise]")[1].strip())
    noise_std = 2.0
    """
    file = Path(path)
    tables = {"version": VERSION, **({"title": title} if title else {}), **plan_tables(plan)}
    settings = check_plan_file(tables, file.name)
    try:
        loaded = plan_from_settings(settings, file.parent, file.name).plan
    except SottovoceError as error:
        raise InvalidInput(f"a plan file cannot describe this plan: {error}") from None
    for item in fields(plan):  # type: ignore[arg-type]
        value, again = getattr(plan, item.name), getattr(loaded, item.name)
        if item.name == "network":
            if value is None:  # the protocol has it
                continue
            value = graphs.as_network(value)
        if not _same(value, again):
            raise InvalidInput(
                f"a plan file cannot name the {item.name} of this plan; build the plan from names, such as "
                'network="ring:8" and protocol="tree".'
            )
    return atomic_write(file, to_toml(tables))


def plan_tables(
    plan: Plan,
    *,
    network: Mapping[str, Any] | None = None,
    protocol: str | None = None,
    model: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the sections of a plan file that describe a plan.

    ``network``, ``protocol`` and ``model`` (of a network, which only its builder can name) replace the
    sections that would be read off the plan.
    """
    tables: dict[str, dict[str, Any]] = {}
    options = {key: getattr(plan, key) for key in plan_options(plan.name)}
    graph = options.get("network")
    if graph is None:
        graph = getattr(options.get("protocol"), "network", None)
    if network is not None or graph is not None:
        tables["network"] = _network_section(graphs.as_network(graph)) if network is None else dict(network)
        name = protocol or _protocol_name(options["protocol"])
        tables["protocol"] = {"name": name, "seed": options["seed"]}
    section = {
        key: _value(plan, key, value)
        for key, value in options.items()
        if key not in ELSEWHERE and not _is_default(plan, key, value)
    }
    section["adjacency"] = plan.adjacency
    if plan.query_kind == "value":
        tables["average"] = section | {"values": VALUES}
    else:
        tables |= _training_sections(plan, model)
        tables["train"] = {"algorithm": plan.name, **section}
    noise = options[plan.noise_field]
    if not isinstance(noise, (int, float)):
        raise InvalidInput("a plan file states one amount of noise for all nodes; this plan has one each.")
    tables["noise"] = {plan.noise_field: float(noise)}
    return tables


def _training_sections(plan: Any, model: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    objective, sizes = plan.objective, plan.sizes or (getattr(plan, "records", None),)
    if model is None and (not isinstance(objective, GLM) or objective.dim is None):
        raise InvalidInput(
            "a plan file describes linear models with a known number of features, or networks by [model]; "
            f"it cannot name this {type(objective).__name__}."
        )
    if sizes == (None,):
        raise InvalidInput("a plan file states the records of each agent; give the plan sizes=...")
    stated = list(sizes) if len(set(sizes)) > 1 else sizes[0]
    data: dict[str, Any] = {"file": RECORDS, "label": "label", "bounds": [-1.0, 1.0], "sizes": stated}
    if len(sizes) > 1:
        data |= {"group": "site", "partition": "column"}
    if model is not None:
        inputs = model.get("options", {}).get("inputs")
        return {"data": data if inputs is None else data | {"width": inputs}, "model": dict(model)}
    data["width"] = objective.dim - objective.intercept
    if objective.intercept:
        data["intercept"] = True
    if objective.class_weight is not None:
        data["class_weight"] = list(objective.class_weight)
    chosen = {item.name: getattr(objective, item.name) for item in fields(objective)}
    for item in fields(objective):
        if item.name in ("dim", "class_weight", "intercept") or chosen[item.name] in (None, item.default):
            del chosen[item.name]
    return {"data": data, "objective": {"loss": objective.loss} | to_jsonable(chosen)}


def _network_section(network: Network) -> dict[str, Any]:
    """Return [network]: the name of the graph, or its edges where the name does not lead back to it."""
    for text in (network.name, "edges:" + ",".join(f"{u}-{v}" for u, v in network.edges.tolist())):
        try:
            named = graphs.parse(text)
        except SottovoceError:
            continue
        if named.n == network.n and np.array_equal(named.edges, network.edges):
            section: dict[str, Any] = {"graph": text}
            if network.node_names is not None and network.node_names != named.node_names:
                section["names"] = [str(label) for label in network.node_names]
            return section
    raise InvalidInput(f"a plan file cannot name the network {network.name!r}; write its matrix to a file.")


def _protocol_name(protocol: Any) -> str:
    if isinstance(protocol, str) or not hasattr(protocol, "rounds"):
        return str(protocol)
    return str(protocol.name) if protocol.reaches_consensus else f"{protocol.name}:{protocol.rounds}"


def _value(plan: Plan, key: str, value: Any) -> Any:
    if isinstance(value, RateTable):
        raise InvalidInput("a plan file has no table of rates; give learning_rate as a number or a Rate.")
    if key == "learning_rate" and hasattr(value, "start"):
        rate = {name: part for name, part in vars(value).items() if part is not None}
        return value.start if value.end in (None, value.start) and not rate.get("warmup") else rate
    values = to_jsonable(plan.describe().get(key, value))
    if isinstance(values, dict):
        return {name: part for name, part in values.items() if part not in (None, [])}
    return values


def _is_default(plan: Plan, key: str, value: Any) -> bool:
    item = plan_options(plan.name)[key]
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    return value is None or _same(default, value)


def _same(one: Any, other: Any) -> bool:
    """Return whether two options are equal; objects are equal if their public attributes are."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, Network):
        return bool(
            one.n == other.n and abs(one.W - other.W).max() == 0 and one.node_names == other.node_names
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if one == other or not hasattr(one, "__dict__"):
        return bool(one == other)
    attributes = [key for key in vars(one) if not key.startswith("_") and key in vars(other)]
    return bool(attributes) and all(_same(getattr(one, key), getattr(other, key)) for key in attributes)
