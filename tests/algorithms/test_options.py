"""What an option of a plan cannot be, it refuses: every option of every algorithm, in one sentence each."""

import math
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import InvalidInput

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES, OTHERS, N

NAN, INF = math.nan, math.inf
WHOLE = (0, -1, 1.5, "two", True)
ABOVE_ZERO = (0.0, -1.0, NAN, INF, "much")
AT_LEAST_ZERO = (-1.0, NAN, INF, "much")
SHARE = (-0.1, 1.1, NAN, "half")
WORD = ("nonsense",)

BAD = {
    "steps": WHOLE, "records": WHOLE, "users": WHOLE, "local_steps": WHOLE, "primal_steps": WHOLE,
    "tokens": WHOLE, "cap": WHOLE, "period": WHOLE, "active_blocks": (-1, 1.5, "two"),
    "lot": (0, -1, NAN, "two"), "tolerate": (-1, 1.5, "two"),
    "gamma": ABOVE_ZERO, "rho": ABOVE_ZERO, "rho_growth": ABOVE_ZERO, "local_rate": ABOVE_ZERO,
    "step_scale": ABOVE_ZERO, "smoothness_mu": ABOVE_ZERO, "feature_norm": ABOVE_ZERO,
    "learning_rate": ABOVE_ZERO, "clip": (0.0, -1.0, NAN, "much"),
    "noise_multiplier": AT_LEAST_ZERO, "noise_std": AT_LEAST_ZERO, "noise_ratio": AT_LEAST_ZERO,
    "pair_multiplier": AT_LEAST_ZERO, "sensitivity": AT_LEAST_ZERO,
    "sample_rate": (0.0, *SHARE), "relaxation": (0.0, *SHARE), "smoothness_share": (0.0, 1.0, *SHARE),
    "average_from": SHARE,
    "smoothness": ((0.3, 0.0, 0.2), (0.3, -1.0, 0.2), (0.3, NAN, 0.2)),
    "bounds": ((1.0, 0.0, 1.0), (1.0, NAN, 1.0)),
    "sizes": ([12, 12, 0, 12], [12, 12, -1, 12], [12, 1.5, 12, 12]),
    "adjacency": WORD, "weighting": WORD, "noise": WORD, "output": WORD, "noise_in": WORD,
    "accounting": WORD, "optimiser": WORD, "path": (*WORD, (0, N)), "protocol": WORD,
    "start": (np.zeros(3), np.zeros((0, 3))),
}  # fmt: skip
# what has no wrong value among numbers and words, or a meaning of its own elsewhere
FREE = {
    "objective", "operator", "active", "error", "seed", "fresh_moments", "final_public", "secure_sum",
    "floor", "network",
}  # fmt: skip

ALL = [(case, None) for case in CASES] + [(case, case.noise) for case in OTHERS]


def built(case, protecting, **changes):
    """The plan of a case, with noise, so that what noise needs is asked for."""
    return case.plan(**changes) if protecting is None else case.plan(protecting, **changes)


def refused(case, noise, name, value):
    """What the plan says to a value, or why that is no answer."""
    changes = {name: value}
    if noise is not None and name == case.make.noise_field:
        noise, changes = value, {}
    if name == "bounds":
        changes["smoothness"] = None  # one of the two
    try:
        built(case, noise, **changes)
    except InvalidInput as error:
        said = str(error)
        return (
            "" if said.endswith(".") and "\n" not in said and len(said) < 400 else f"not a sentence: {said}"
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


def test_every_option_is_on_one_of_the_lists():
    known = {field.name for case, noise in ALL for field in fields(type(built(case, noise)))}
    assert known == set(BAD) | FREE


@pytest.mark.parametrize(("case", "noise"), ALL, ids=repr)
def test_an_option_refuses_what_it_cannot_be(case, noise):
    names = [field.name for field in fields(type(built(case, noise))) if field.name in BAD]
    answers = {
        (name, repr(value)): refused(case, noise, name, value) for name in names for value in BAD[name]
    }
    assert len(answers) > 8
    assert {key: said for key, said in answers.items() if said} == {}
