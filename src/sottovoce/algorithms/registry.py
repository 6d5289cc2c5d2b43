"""Every algorithm by its one name: what plan files, agreements, records and commands read.

A line per algorithm: name -> module and class, imported when named, since some need numba. An installed
package adds algorithms by entry points of the group ``sottovoce.algorithms`` whose object is a `Plan` class;
a plan file adds one of a Python file beside it, for this process.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from sottovoce.errors import ConfigError

__all__ = ["ALGORITHMS", "algorithm", "names"]

ALGORITHMS: dict[str, str] = {
    "averaging": "averaging:PrivateAveraging",
    "consensus-sgd": "consensus_sgd:ConsensusSGD",
    "consensus-fedavg": "consensus_fedavg:ConsensusFedAvg",
    "muffliato-sgd": "muffliato_sgd:MuffliatoSGD",
    "dp-dsgd": "dp_dsgd:DPDSGD",
    "dp-dsgt": "dp_dsgt:DPDSGT",
    "dp-dinno": "dp_dinno:DPDiNNO",
    "random-walk-sgd": "random_walk_sgd:RandomWalkSGD",
    "decor": "decor:Decor",
    "mafalda": "mafalda:Mafalda",
    "dp-sgd": "dp_sgd:DPSGD",
    "dp-cd": "dp_cd:DPCD",
    "dp-gcd": "dp_gcd:DPGCD",
    "admm": "admm:CentralADMM",
    "federated-admm": "federated_admm:FederatedADMM",
    "token-admm": "token_admm:TokenADMM",
    "fixed-point": "fixed_point:FixedPoint",
    "consensus-newton": "consensus_newton:ConsensusNewton",
}

_FROM_FILES: dict[str, Any] = {}  # by "file:class" and by the name of the class's algorithm


def add_from_file(spec: str, plan_class: Any) -> None:
    """Make the plan class of a user's file known by ``spec``, ``"file:class"``, and by its own name."""
    if "name" not in vars(plan_class) or plan_class.name in ALGORITHMS:
        raise ConfigError(
            f"{spec} needs a name of its own, which results and ledgers print; write name = "
            f'"my-algorithm" in the class, a name other than {", ".join(ALGORITHMS)}.'
        )
    _FROM_FILES[spec] = _FROM_FILES[plan_class.name] = plan_class


def names() -> tuple[str, ...]:
    """Return the names of all algorithms, installed ones last."""
    installed = sorted(point.name for point in entry_points(group="sottovoce.algorithms"))
    return (*ALGORITHMS, *(name for name in installed if name not in ALGORITHMS))


def algorithm(name: str) -> Any:
    """Return the plan class of a name."""
    if name in ALGORITHMS:
        module, _, cls = ALGORITHMS[name].partition(":")
        return getattr(importlib.import_module(f"sottovoce.algorithms.{module}"), cls)
    if name in _FROM_FILES:
        return _FROM_FILES[name]
    for point in entry_points(group="sottovoce.algorithms"):
        if point.name == name:
            return point.load()
    raise ConfigError(f"algorithm must be one of {', '.join(names())}, got {name!r}.")
