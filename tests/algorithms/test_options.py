"""What an option of a plan cannot be, it refuses: every option of every algorithm, in one sentence each."""

import math
from dataclasses import fields

import numpy as np
import pytest
from tests.algorithms.cases import CASES, N

from sottovoce.algorithms import DPDSGT, ConsensusSGD, DPDiNNO, GradientPlan, Optimizer, PrivateAveraging
from sottovoce.errors import InvalidInput
from sottovoce.graphs import ring
from sottovoce.objectives import GLM
from sottovoce.protocols import Gossip, NeighborSum, Tree

NAN, INF = math.nan, math.inf
WHOLE = (0, -1, 1.5, "two", True)
NO_NUMBER = ("much", "1", b"1", True, 1j, [], {}, object(), 10**400)
ABOVE_ZERO = (0.0, -1.0, NAN, INF, *NO_NUMBER)
AT_LEAST_ZERO = (-1.0, NAN, INF, *(v for v in NO_NUMBER if v != []))  # no noise multipliers: see there
SHARE = (-0.1, 1.1, NAN, *NO_NUMBER)
WORD = ("nonsense", "", 1, None, [], object(), np.array(["user", "user"]))
FLAG = ("no", "", 0, 1, None, [], NAN)
NO_SEQUENCE = (5, 1.5, "twelve", object(), NAN)
BAD = {
    "steps": WHOLE, "records": WHOLE, "users": WHOLE, "local_steps": WHOLE, "primal_steps": WHOLE,
    "tokens": WHOLE, "cap": WHOLE, "stages": WHOLE, "period": WHOLE, "active_blocks": (-1, 1.5, "two"),
    "batch_size": (0, -1, NAN, "two"), "tolerate": (-1, 1.5, "two"),
    "gamma": ABOVE_ZERO, "rho": ABOVE_ZERO, "rho_growth": ABOVE_ZERO, "local_rate": ABOVE_ZERO,
    "step_scale": ABOVE_ZERO, "smoothness_mu": ABOVE_ZERO, "feature_norm": ABOVE_ZERO,
    "learning_rate": (*ABOVE_ZERO, ("x", 0.1), (1.0, 2.0, 3.0, 4.0), {"first": 1.0}),
    "clip_norm": (0.0, -1.0, NAN, *NO_NUMBER),
    "noise_multiplier": AT_LEAST_ZERO, "noise_std": AT_LEAST_ZERO, "noise_ratio": AT_LEAST_ZERO,
    "pair_multiplier": AT_LEAST_ZERO, "sensitivity": AT_LEAST_ZERO,
    "sample_rate": (0.0, *SHARE), "relaxation": (0.0, *SHARE), "smoothness_share": (0.0, 1.0, *SHARE),
    "average_from": SHARE,
    "smoothness": ((0.3, 0.0, 0.2), (0.3, -1.0, 0.2), (0.3, NAN, 0.2), (0.3, "x", 0.2), object(), 1j),
    "bounds": ((1.0, 0.0, 1.0), (1.0, NAN, 1.0), 5, object()),
    "site_weights": ((1.0,), (1.0, 2.0, 0.0, 1.0), (1.0, 2.0, NAN, 1.0), (1.0, 2.0, INF, 1.0), "much", 3.0),
    "sizes": ([12, 12, 0, 12], [12, 12, -1, 12], [12, 1.5, 12, 12], *NO_SEQUENCE),
    "seed": (-1, 1.5, "x", None, NAN, [1], True), "radius": ABOVE_ZERO, "dim": WHOLE,
    "center": (NAN, INF, "x", None, {}, [], (0.0, NAN, 0.0), (1.0, 2.0)), "floor": (0.0, *SHARE),
    "fresh_moments": FLAG, "final_public": FLAG, "secure_sum": FLAG,
    "active": (1, "x", []), "error": (1, "x", []), "operator": (1, "x", None),
    "network": ("nonsense", 3, 1.5, object()),
    "objective": ("logistic", 1, object()),
    "adjacency": WORD, "weighting": WORD, "noise_allocation": WORD, "output": WORD, "noise_in": WORD,
    "accounting": WORD, "optimizer": (*WORD[:2], 1, None, [], object()),
    "path": ("nonsense", "", (0, N), 5, None, object(), (0.5, 1.0)),
    "protocol": ("nonsense", 3, 1.5, True, object(), {}, [1, 2]),
    "start": (None, np.zeros(3), np.zeros((0, 3))),
}  # fmt: skip
everyone = pytest.mark.parametrize("case", CASES, ids=repr)


def refused(case, name, value):
    """What the plan says to a value, or why that is no answer; with noise, so that its needs are checked."""
    changes = {name: value, **({"smoothness": None} if name == "bounds" else {})}  # one of the two
    try:
        case.plan(case.noise, **changes)
    except InvalidInput as error:
        message = str(error)
        sentence = message.endswith(".") and "\n" not in message and len(message) < 400
        return "" if sentence else f"not a sentence: {message}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


def test_every_option_has_a_check():
    known = {field.name for case in CASES for field in fields(type(case.plan(case.noise)))}
    assert known == set(BAD)


@everyone
def test_invalid_option_values_are_refused(case):
    names = [field.name for field in fields(type(case.plan(case.noise))) if field.name in BAD]
    answers = {(name, repr(value)): refused(case, name, value) for name in names for value in BAD[name]}
    assert len(answers) > 8
    assert {key: answer for key, answer in answers.items() if answer} == {}


@everyone
def test_adjacencies_that_are_not_accounted_are_refused(case):
    for adjacency in {"add-remove", "replace-one", "user"} - set(case.make.adjacencies):
        with pytest.raises(InvalidInput, match=f"adjacency of {case.make.name} must be "):
            case.plan(case.noise, adjacency=adjacency)


def test_protocol_and_a_network_of_other_sizes_are_refused():
    for make in (
        lambda **more: PrivateAveraging(Gossip(ring(4), 2), noise_std=1.0, radius=1.0, **more),
        lambda **more: ConsensusSGD(GLM(), Tree(ring(4)), clip_norm=1.0, adjacency="user", **more),
    ):
        assert make(network=ring(4)).n == make().n == 4
        with pytest.raises(InvalidInput, match=r"the protocol is for 4 nodes, the network has 5\."):
            make(network=ring(5))


def test_protocol_objects_without_the_needed_capability_are_refused():
    """A protocol given as an object is checked as one given by its name."""
    total = NeighborSum(ring(4))
    with pytest.raises(InvalidInput, match="averaging needs a protocol that brings the rows together"):
        PrivateAveraging(total, noise_std=1.0, radius=1.0)
    for make, protocol, words in (
        (DPDiNNO, Gossip(ring(4), 1), "dp-dinno needs a protocol that adds up the rows of neighbors"),
        (DPDSGT, total, "dp-dsgt needs a protocol that brings the rows together"),
    ):
        with pytest.raises(InvalidInput, match=words):
            make(GLM(dim=2), protocol, steps=3, clip_norm=1.0, noise_multiplier=1.0, adjacency="user")


@pytest.mark.parametrize("case", [case for case in CASES if issubclass(case.make, GradientPlan)], ids=repr)
def test_optimizers_are_taken_or_refused(case):
    if case.make.uses_optimizer:
        assert case.plan(case.noise, optimizer="momentum").optimizer == Optimizer("momentum")
    else:
        with pytest.raises(InvalidInput, match="leave optimizer at sgd"):
            case.plan(case.noise, optimizer="momentum")
