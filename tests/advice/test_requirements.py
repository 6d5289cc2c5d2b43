"""Requirements that cannot be met are refused in one sentence."""

import networkx as nx
import pytest

import sottovoce as sv
from sottovoce.errors import InvalidInput


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((1,), "two members or more"),
        (([(0, 1), (2, 3)],), "not connected"),
        ((nx.disjoint_union(nx.path_graph(3), nx.path_graph(2)),), "connected"),
        (("path:1",), "two"),
        ((5, {"records": 0}), "records"),
        ((5, {"records": [3, 1, 4, -1, 5]}), "records"),
        ((5, {"delta": 0.0}), "delta"),
        ((5, {"epsilon": 0.0}), "epsilon"),
        ((5, {"records": -3}), "records"),
        ((5, {"records": [1, 2]}), "one number per member"),
        ((5, {"epsilon": -1.0}), "epsilon"),
        ((5, {"colluders": 5}), "cannot all collude"),
        ((5, {"view": "mallory"}), "view must be"),
        ((5, {"hide": "patient"}), "hide must be"),
        ((5, {"compute": "median"}), "compute must be"),
        ((5, {"compute": "logistic"}), "needs features"),
        ((5, {"values": (1, 0)}), "first end is the smaller"),
        ((5, {"compute": "net"}), "model="),
        ((5, {"sample": "synthetic"}), "needs no sample"),
        ((5, {"silent": "shout"}), "silent must be"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    members, changed = arguments[0], (arguments[1] if len(arguments) > 1 else {})
    with pytest.raises(InvalidInput, match=sentence) as refused:
        sv.advise(members, **({"epsilon": 1.0, "delta": 1e-5} | changed))
    assert "\n" not in str(refused.value)
