"""Answers by error sentence: every sentence of the page is raised by somebody, as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.cli.config import read_plan

PAGE = (Path(__file__).parents[1] / "docs" / "answers.md").read_text()
SENTENCES = re.findall(r"^### `(.*)`$", PAGE, re.M)
RING, GLM = sv.graphs.ring(4), sv.objectives.GLM()
STEPS = {"steps": 3, "clip": 1.0, "noise_multiplier": 2.0}


def file(text):
    def read(folder):
        (folder / "plan.toml").write_text(text)
        return read_plan(folder / "plan.toml")

    return read


def plan():
    return sv.Muffliato(sv.protocols.Tree(RING), noise_std=1.0, radius=0.5)


def published():
    return sv.privacy.Guarantee(
        sv.privacy.Adversary("local"), "user", "published", sv.privacy.Curve.gaussian(1.0)
    )


def mixing():
    torch = pytest.importorskip("torch")
    from sottovoce.objectives.nets import NetObjective

    return NetObjective(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4)), clip=1.0)


def unbounded(folder):
    (folder / "t.csv").write_text("age,ill\n" + "3,yes\n4,no\n" * 9)
    return sv.fit("logistic", folder / "t.csv", label="ill", classes=["no", "yes"], graph="ring:4",
                  epsilon=1.0, delta=1e-5)  # fmt: skip


TRIGGERS = [
    lambda _: sv.graphs.parse("gird:4:4"),
    lambda _: sv.graphs.from_edges([(0, 1), (2, 3)]),
    lambda _: sv.graphs.Network([(0, 1)], [[0.5, 0.5], [0.5, 0.44]]),
    lambda _: sv.protocols.Exchange(6),
    lambda _: sv.protocols.Masked(sv.graphs.path(2)),
    lambda _: sv.algorithms.ConsensusSGD(GLM, sv.protocols.Gossip(RING, 3), sizes=[9] * 4, **STEPS),
    lambda _: plan().require(1.0, 1e-5),
    lambda _: published().require(9.0, 1e-5),
    lambda _: plan().privacy("network", label="published"),
    lambda _: plan().privacy("pairwise"),
    lambda _: sv.fit("logistic", (np.zeros((9, 2)), [0, 1, 0] * 3), graph="ring:4", epsilon=1.0),
    lambda _: plan().privacy("local") + published(),
    lambda _: sv.algorithms.ConsensusSGD(GLM, RING, **STEPS),
    lambda _: sv.algorithms.DPSGD(GLM, records=100, lot=200, **STEPS),
    lambda _: sv.fit("logistic", (np.zeros((3, 2)), [0, 1, 0]), graph="ring:4", epsilon=1.0, delta=1e-5),
    lambda _: sv.fit("logistic", (np.zeros((9, 2)), [0, 1, 0] * 3)),
    unbounded,
    lambda _: mixing(),
    lambda _: sv.data.load("nothing"),
    lambda _: sv.algorithms.DeepConsensus,
    lambda folder: read_plan(folder / "gone.toml"),
    file("[network]\ngraph = 'ring:4'\n"),
    file("version = \n"),
]


def test_every_sentence_of_the_page_has_a_trigger():
    assert len(SENTENCES) == len(TRIGGERS)


@pytest.mark.parametrize(("sentence", "trigger"), list(zip(SENTENCES, TRIGGERS, strict=False)))
def test_the_sentence_is_raised_as_it_stands(sentence, trigger, tmp_path):
    pattern = ".*".join(re.escape(part) for part in sentence.split("..."))
    with pytest.raises((sv.errors.SottovoceError, AttributeError)) as raised:
        trigger(tmp_path)
    assert re.fullmatch(pattern, str(raised.value), re.S), str(raised.value)
