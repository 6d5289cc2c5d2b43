"""What the package offers: true ``__all__``, docstrings, examples on the main names, imports on first use."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.peers.conftest import Consortium

import sottovoce

ROOT = Path(__file__).parents[1]
FOUND = (module.name for module in pkgutil.walk_packages(sottovoce.__path__, "sottovoce."))
MODULES = ["sottovoce", *sorted(name for name in FOUND if "__main__" not in name)]
# the names a user meets first; others may do without an example
ENTRY_POINTS = [
    "Guarantee", "Muffliato", "Network", "Plan", "PrivateAveraging", "Protocol", "Result", "advise",
    "fit", "load_model", "load_plan", "make_private", "save_plan", "Budget", "TrainingOptions",
    "advice.compare", "advice.usefulness", "attacks.reconstruct_gossip", "graphs.complete",
    "graphs.florentine",
    "graphs.from_matrix", "graphs.from_networkx", "graphs.grid", "graphs.hypercube",
    "objectives.nets.NetObjective",
    "privacy.exact_loss", "privacy.gaussian_epsilon", "privacy.gaussian_mu", "privacy.published_loss",
    "privacy.sampled_gaussian", "protocols.Gossip", "protocols.Masked", "protocols.TimeVarying",
    "sklearn.PrivateLasso", "sklearn.PrivateLinearSVC", "sklearn.PrivateLogisticRegression",
    "sklearn.PrivateRidge",
]  # fmt: skip


def offered(module):
    """(name, object) of the classes and functions a module defines."""
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            if value.__module__.startswith("sottovoce"):
                yield name, value


@pytest.mark.parametrize("name", MODULES)
def test_all_is_true(name):
    module = importlib.import_module(name)
    entries = getattr(module, "__all__", [])
    assert len(set(entries)) == len(entries), f"{name}.__all__ lists a name twice"
    missing = [entry for entry in entries if not hasattr(module, entry)]
    assert not missing, f"{name}.__all__ promises {missing}"


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_public_names_say_what_they_are(name):
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip() or not hasattr(module, "__all__"), f"{name} has no docstring"
    silent = [entry for entry, value in offered(module) if not (value.__doc__ or "").strip()]
    assert not silent, f"no docstring in {name}: {silent}"


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_names_that_users_call_have_an_example(name):
    module, _, last = f"sottovoce.{name}".rpartition(".")
    assert ">>>" in (getattr(importlib.import_module(module), last).__doc__ or "")


def test_the_test_sees_what_is_missing():
    module = inspect.getmodule(test_all_is_true)
    names = {entry for entry, _ in offered(importlib.import_module("sottovoce.graphs"))}
    assert {"Network", "ring", "parse"} <= names
    assert not list(offered(module))


def test_make_targets_name_files_that_exist():
    named = re.findall(r"\b(?:tests|docs|verification)/[\w/]+\.\w+", (ROOT / "Makefile").read_text())
    assert len(named) > 4
    # records are written by the target that names them
    assert [
        name for name in named if not name.startswith("docs/results") and not (ROOT / name).exists()
    ] == []


# ---- names that are imported on first use ---------------------------------------------------------------


def test_names_and_submodules_are_found():
    assert sottovoce.graphs.Network is sottovoce.Network
    assert sottovoce.privacy.Guarantee is sottovoce.Guarantee
    assert "fit" in dir(sottovoce)
    assert dir(sottovoce.attacks) == sorted(sottovoce.attacks.__all__)


@pytest.mark.parametrize("module", [sottovoce, sottovoce.privacy, sottovoce.attacks, sottovoce.algorithms])
def test_unknown_names_are_attribute_errors(module):
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nothing'"):
        module.nothing


HEAVY = {"numba", "torch", "networkx", "sklearn", "matplotlib", "dp_accounting"}
AVERAGING_PEER = """
import sys
import numpy as np
import sottovoce.ledger.run_ledger, sottovoce.peers.runtime
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import read_agreement
from sottovoce.peers.member_data import Records
run = AgreedRun(read_agreement(sys.argv[1]))
run.spending(0)
run.program(0, Records(np.ones((2, 1)), np.zeros(0))).begin()
"""


@pytest.mark.parametrize(
    ("program", "heavy"),
    [("import sottovoce, sottovoce.attacks, sottovoce.privacy", HEAVY | {"scipy"}), (AVERAGING_PEER, HEAVY)],
    ids=["the package", "a peer that averages"],
)
def test_importing_imports_nothing_heavy(program, heavy, tmp_path):
    agreement = Consortium(tmp_path, n=2, graph="path:2", dim=1).file
    words = [sys.executable, "-c", f"{program}\nimport sys\nprint(*{heavy} & set(sys.modules))", agreement]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split() == []
