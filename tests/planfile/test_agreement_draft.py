"""`sottovoce peer draft`: a plan file becomes an agreement that costs what the plan costs."""

import re
import tomllib

import numpy as np
import pytest

from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import DataPart, read_agreement
from sottovoce.planfile.read import load_file

AVERAGE = """
version = 1
title = "Mean of three"
[network]
graph = "complete:3"
[protocol]
name = "masked"
[average]
adjacency = "user"
radius = 0.5
center = 0.5
[budget]
epsilon = 3.0
delta = 1e-5
"""

TRAIN = """
version = 1
title = "Who is ill?"
[network]
graph = "complete:3"
[protocol]
name = "{protocol}"
[data]
file = "records.csv"
label = "ill"
classes = ["no", "yes"]
group = "site"
partition = "column"
bounds = {{ age = [20, 90], weight = [40, 130] }}
intercept = true
[objective]
loss = "logistic"
[train]
algorithm = "consensus-sgd"
adjacency = "add-remove"
steps = 12
learning_rate = 2.0
clip_norm = 1.0
sample_rate = 0.5
[budget]
epsilon = 4.0
delta = 1e-5
"""


def agreed(call, tmp_path):
    """Draft, three keys, agreement: by the commands that the page prints."""
    done = call("peer", "draft", "plan.toml", "-o", "draft.toml")
    assert done.code == 0, done.err
    members = []
    for k, name in enumerate(("north", "south", "east")):
        assert call("peer", "keygen", name, "--name", name).code == 0
        members += ["-m", f"{name}/certificate.pem@127.0.0.1:{7300 + k}"]
    built = call("peer", "agree", "draft.toml", *members, "-o", "agreement.toml")
    assert built.code == 0, built.err
    return read_agreement(tmp_path / "agreement.toml")


def records(path):
    rng = np.random.default_rng(0)
    lines = ["age,weight,site,ill"]
    for k in range(60):
        age, weight = rng.uniform(20, 90), rng.uniform(40, 130)
        lines.append(f"{age:.1f},{weight:.1f},{'abc'[k % 3]},{'yes' if age + weight > 140 else 'no'}")
    path.write_text("\n".join(lines) + "\n")


def test_an_average_keeps_its_noise_center_and_price(call, tmp_path):
    text = AVERAGE.replace('"complete:3"', '"complete:3"\nweights = "lazy"')
    (tmp_path / "plan.toml").write_text(text)
    agreement = agreed(call, tmp_path)
    plan = load_file(tmp_path / "plan.toml").plan
    assert agreement.network.name == "complete:3:weights=lazy"
    assert agreement.plan.noise_multiplier == plan.noise_multiplier
    assert agreement.plan.center == plan.center
    charged = AgreedRun(agreement).charged_guarantee(0)
    assert charged.epsilon(1e-5) == pytest.approx(plan.epsilon(1e-5), rel=1e-9)
    for name in agreement.names:  # without a member directory nobody needs the hash
        signed = call("peer", "agree", "agreement.toml", "--sign", name, "--json")
    assert (signed.code, signed.json["missing"]) == (0, [])
    assert signed.json["members"][0]["label_local"] == "ldp"
    read_agreement(tmp_path / "agreement.toml").require_signatures()


@pytest.mark.parametrize("protocol", ["masked", "tree:kind=uniform"])
def test_a_training_keeps_columns_steps_rate_and_price(protocol, call, tmp_path):
    records(tmp_path / "records.csv")
    (tmp_path / "plan.toml").write_text(TRAIN.format(protocol=protocol))
    agreement = agreed(call, tmp_path)
    plan = load_file(tmp_path / "plan.toml").plan
    assert (agreement.algorithm.sample_rate, agreement.algorithm.batch_size) == (0.5, 10.0)
    assert agreement.data.features == ("age", "weight")
    assert (agreement.data.intercept, agreement.model.parameters) == (True, 3)
    view = "network" if protocol == "masked" else "local"
    assert agreement.plan.privacy("local").epsilon(1e-5) == pytest.approx(
        plan.privacy("local").epsilon(1e-5), rel=1e-6
    )
    assert AgreedRun(agreement).charged_guarantee(0).epsilon(1e-5) == pytest.approx(
        plan.privacy(view).epsilon(1e-5), rel=1e-6
    )


@pytest.mark.parametrize("regression", [False, True])
def test_a_network_keeps_its_size_loss_and_price(regression, call, tmp_path):
    pytest.importorskip("torch")
    records(tmp_path / "records.csv")
    outputs = 1 if regression else 2
    text = TRAIN.format(protocol="masked").replace("intercept = true\n", "")
    model = f'[model]\nname = "mlp"\noptions = {{ inputs = {outputs}, hidden = 3, classes = {outputs} }}'
    if regression:  # one feature, and an amount
        text = text.replace('classes = ["no", "yes"]\n', 'drop = ["ill"]\n').replace('"ill"\n', '"weight"\n')
        model += '\nloss = "squared_error"'
    (tmp_path / "plan.toml").write_text(text.replace('[objective]\nloss = "logistic"', model))
    agreement = agreed(call, tmp_path)
    plan = load_file(tmp_path / "plan.toml").plan
    assert (agreement.model.kind, agreement.model.loss) == ("net", "squared_error" if regression else "")
    assert agreement.model.parameters == plan.objective.n_params
    assert agreement.plan.epsilon(1e-5) == pytest.approx(plan.epsilon(1e-5), rel=1e-6)


@pytest.mark.parametrize(
    ("bounds", "agreed"),
    [
        ("[20, 130]", {"age": (20.0, 130.0), "weight": (20.0, 130.0)}),
        ("{ age = [20, 90], weight = [40, 130] }", {"age": (20.0, 90.0), "weight": (40.0, 130.0)}),
        ('"none"', "none"),
    ],
)
def test_an_amount_keeps_its_bounds(bounds, agreed, call, tmp_path):
    records(tmp_path / "records.csv")
    text = TRAIN.format(protocol="tree").replace('classes = ["no", "yes"]\n', 'drop = ["ill"]\n')
    text = text.replace('label = "ill"', 'label = "weight"').replace('"logistic"', '"squared"')
    (tmp_path / "plan.toml").write_text(re.sub("bounds = .*", f"bounds = {bounds}", text))
    done = call("peer", "draft", "plan.toml", "-o", "draft.toml")
    assert done.code == 0, done.err
    data = DataPart(**tomllib.loads((tmp_path / "draft.toml").read_text())["data"])
    assert (data.target, data.features, data.bounds) == ("weight", ("age",), agreed)


def test_what_an_agreement_cannot_say_is_refused_and_nothing_is_written(call, tmp_path):
    records(tmp_path / "records.csv")
    text = TRAIN.format(protocol="masked")
    for wrong, words in (
        (text.replace("intercept = true", "intercept = true\nunit_rows = true"), "unit_rows"),
        (text.replace('name = "masked"', 'name = "tree"\nkind = "uniform"'), "one name"),
        (text.replace('"logistic"', '"logistic"\nl2 = 0.1'), "cannot say [objective] logistic and l2"),
    ):
        (tmp_path / "plan.toml").write_text(wrong)
        refused = call("peer", "draft", "plan.toml", "-o", "draft.toml")
        assert refused.code == 1
        assert words in refused.err
        assert not (tmp_path / "draft.toml").exists()
    (tmp_path / "plan.toml").write_text(text)
    assert call("peer", "draft", "plan.toml").code == 0
    again = call("peer", "draft", "plan.toml")
    assert (again.code, "exists already" in again.err) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        ("4", "--compute", "logistic", "--features", "5", "--records", "4000"),
        ("4", "--compute", "linear", "--features", "5", "--records", "4000", "--values", "0,1"),
        ("6", "--hide", "member", "--values", "0,10"),
        ("file:roads.txt", "--records", "4000"),
        ("4", "--records", "4000", "--compute", "net", "--model", "mlp:inputs=6:hidden=4"),
        ("ring:6", "--records", "100", "--silent", "go on", "--values", "0,10"),
    ],
)
def test_the_plan_of_an_advice_becomes_a_draft(words, call, tmp_path):
    (tmp_path / "roads.txt").write_text("bern basel\nbasel zurich\nzurich bern\n")
    done = call("advise", *words, "--epsilon", "4", "--out", "advice")
    assert done.code == 0, done.err
    done = call("peer", "draft", "advice/plan.toml", "-o", "draft.toml")
    assert done.code == 0, done.err
    content = tomllib.loads((tmp_path / "draft.toml").read_text())
    advised = tomllib.loads((tmp_path / "advice" / "agreement-draft.toml").read_text())
    # noise is searched for again, to a thousandth; over gossip and trees the budget follows from it
    for section, key in (("algorithm", "noise_multiplier"), ("budget", "epsilon")):
        assert content[section].pop(key) == pytest.approx(advised[section].pop(key), rel=2e-3)
    assert content == advised
    assert ("data" in advised) == ("member" not in words)


def test_an_agreement_of_one_member_and_one_over_another_file_are_refused(call, tmp_path):
    (tmp_path / "plan.toml").write_text(AVERAGE)
    assert call("peer", "draft", "plan.toml", "-o", "draft.toml").code == 0
    members = []
    for i, name in enumerate("abc"):
        assert call("peer", "keygen", name, "--name", name).code == 0
        members += ["-m", f"{name}/certificate.pem@h:{7000 + i}"]
    key = (tmp_path / "a" / "key.pem").read_bytes()
    for words, sentence in (
        ((*members[:2], "-o", "new.toml"), "two members or more, got 1"),
        ((*members, "-o", "a/key.pem"), "exists already"),
    ):
        done = call("peer", "agree", "draft.toml", *words)
        assert (done.code, sentence in done.err) == (1, True)
    assert not (tmp_path / "new.toml").exists()
    assert (tmp_path / "a" / "key.pem").read_bytes() == key
