"""Every algorithm by its one name: what plan files, agreements, records and commands read.

A line per algorithm: name -> module and class, imported when named, since some need numba. An installed
package adds algorithms by entry points of the group ``sottovoce.algorithms`` whose object is a `Plan` class.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from sottovoce.errors import ConfigError

__all__ = ["ALGORITHMS", "algorithm", "names"]

ALGORITHMS: dict[str, str] = {
    "averaging": "averaging:Muffliato",
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
    "federated-admm": "admm:FederatedADMM",
    "token-admm": "admm:TokenADMM",
    "fixed-point": "fixed_point:FixedPoint",
}

# names of the first edition, and what to write now
OLD = {
    "admm-federated": "federated-admm", "admm-token": "token-admm", "mafalda-sgd": "mafalda",
    "sgd": "dp-sgd", "dsgd": "dp-dsgd", "dsgt": "dp-dsgt", "dinno": "dp-dinno", "consensus": "consensus-sgd",
    "exact-consensus-sgd": "consensus-sgd", "muffliato": "muffliato-sgd", "walk": "random-walk-sgd",
}  # fmt: skip


def names() -> tuple[str, ...]:
    """Return the names of all algorithms, installed ones last.

    >>> "dp-dsgt" in names()
    True
    """
    installed = sorted(point.name for point in entry_points(group="sottovoce.algorithms"))
    return (*ALGORITHMS, *(name for name in installed if name not in ALGORITHMS))


def algorithm(name: str) -> Any:
    """Return the plan class of a name.

    >>> algorithm("dp-dsgt").__name__
    'DPDSGT'
    >>> algorithm("dsgt")
    Traceback (most recent call last):
    sottovoce.errors.ConfigError: algorithm 'dsgt' is an old name; write 'dp-dsgt'.
    >>> algorithm("dsgr")
    Traceback (most recent call last):
    sottovoce.errors.ConfigError: algorithm must be one of averaging, consensus-sgd, consensus-fedavg, muffliato-sgd, dp-dsgd, dp-dsgt, dp-dinno, random-walk-sgd, decor, mafalda, dp-sgd, dp-cd, dp-gcd, admm, federated-admm, token-admm, fixed-point, got 'dsgr'.
    """  # noqa: E501
    if name in ALGORITHMS:
        module, _, cls = ALGORITHMS[name].partition(":")
        return getattr(importlib.import_module(f"sottovoce.algorithms.{module}"), cls)
    for point in entry_points(group="sottovoce.algorithms"):
        if point.name == name:
            return point.load()
    refuse_old(name)
    raise ConfigError(f"algorithm must be one of {', '.join(names())}, got {name!r}.")


def refuse_old(name: str) -> None:
    """Refuse a name of the first edition with the one to write now."""
    if name in OLD:
        raise ConfigError(f"algorithm {name!r} is an old name; write {OLD[name]!r}.")
