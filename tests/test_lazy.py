"""Names that are imported on first use."""

import subprocess
import sys

import pytest
from tests.peers.conftest import Consortium

import sottovoce as sv


def test_names_and_submodules_are_found():
    assert sv.graphs.Network is sv.Network
    assert sv.privacy.Guarantee is sv.Guarantee
    assert "fit" in dir(sv)
    assert dir(sv.attacks) == sorted(sv.attacks.__all__)


@pytest.mark.parametrize("module", [sv, sv.privacy, sv.attacks, sv.algorithms])
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
