"""Names that are imported on first use."""

import subprocess
import sys

import pytest

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


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"numba", "torch", "scipy", "networkx", "sklearn", "matplotlib"}
    program = (
        f"import sys, sottovoce, sottovoce.attacks, sottovoce.privacy; print(*{heavy} & set(sys.modules))"
    )
    words = [sys.executable, "-c", program]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split() == []
