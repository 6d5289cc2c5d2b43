"""Bad input to a plan: one sentence, the same in Python, in a plan file and in an agreement."""

import math
from dataclasses import fields

import numpy as np
import pytest
from tests.peers.conftest import Consortium

import sottovoce as sv
from sottovoce import graphs
from sottovoce._io import to_toml
from sottovoce.algorithms.registry import ALGORITHMS, algorithm
from sottovoce.data.ingest import ingest
from sottovoce.data.tables import TableData
from sottovoce.errors import SottovoceError
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.ledger.lifetime import VARIABLE
from sottovoce.objectives import GLM
from sottovoce.peers.agreement import parse_agreement
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.planfile.read import plan_from_settings
from sottovoce.planfile.schema import check_plan_file

NAN, INF = math.nan, math.inf
BAD = {
    "steps": (0, 1.5, "two", True), "learning_rate": (0, "x", NAN, [], [1.0, 2.0, 3.0, 4.0]),
    "clip_norm": (0, -1, NAN, "x", INF, True), "noise_multiplier": (-1, NAN, "x", INF),
    "noise_std": (-1, NAN, "x"), "noise_ratio": (-1, "x"), "batch_size": (0, NAN, "x"),
    "sample_rate": (0, 1.5, NAN, "x"), "adjacency": ("nonsense", 1), "accounting": ("x", 3),
    "optimizer": ("x", 3, []), "rho": (0, "x"), "rho_growth": (0, "x"), "primal_steps": (0, "x"),
    "local_steps": (0, 1.5), "local_rate": (0, "x"), "average_from": (2, "x", NAN), "weighting": ("x", 1),
    "fresh_moments": ("no", 3), "final_public": ("no", 0), "noise_allocation": ("x",), "floor": (0, "x"),
    "tolerate": (0, "x"), "pair_multiplier": (-1, "x"), "noise_in": ("x",), "gamma": (0, "x"),
    "relaxation": (0, 2, "x"), "secure_sum": ("no",), "period": (0, "x"), "cap": (0, "x"),
    "tokens": (0, "x"), "stages": (0, "x"), "feature_norm": (0, "x"), "path": ("x", [0, 99]),
    "step_scale": (0, "x"), "output": ("x",), "smoothness": ([0.1, "x"], [0.1, NAN]),
}  # fmt: skip
NEEDED = {
    "consensus-sgd": {"protocol": "tree"}, "consensus-fedavg": {"protocol": "tree"},
    "consensus-newton": {"protocol": "tree", "batch_size": 5.0, "sample_rate": 0.5},
    "muffliato-sgd": {"protocol": "gossip:2"}, "dp-cd": {"smoothness": (0.1, 0.1)}, "admm": {"gamma": 1.0},
    "federated-admm": {"gamma": 1.0, "sample_rate": 0.5}, "token-admm": {"gamma": 1.0},
}  # fmt: skip
FILED = [name for name in ALGORITHMS if name not in ("averaging", "fixed-point")]
AGREED = (
    "consensus-sgd",
    "consensus-newton",
    "consensus-fedavg",
    "muffliato-sgd",
    "dp-dsgd",
    "dp-dsgt",
    "dp-dinno",
)
OTHERWISE = ("accounting", "sizes")  # cannot be chosen in an agreement


def sentence(make):
    with pytest.raises(SottovoceError) as refused:
        make()
    message = str(refused.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def over_a_network(kind):
    return bool(kind.protocols) and not kind.network_optional and kind.name != "token-admm"


def in_python(kind, options):
    known = {item.name for item in fields(kind) if item.init}
    more = {"network": graphs.ring(4)} if over_a_network(kind) else {}
    more |= {"records": 40} if "records" in known else {}
    more |= {"users": 4} if "users" in known else {}
    tuples = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    return kind(GLM(dim=2), **{**more, **tuples})


def in_a_file(kind, options, folder):
    train = {key: list(v) if isinstance(v, tuple) else v for key, v in options.items()}
    tables = {
        "version": 1,
        "data": {"file": "d.csv", "label": "y", "bounds": [-3.0, 3.0]},
        "noise": {kind.noise_field: train.pop(kind.noise_field)},
    }
    if "protocol" in train:
        name, _, rounds = train.pop("protocol").partition(":")
        tables["protocol"] = {"name": name, **({"rounds": int(rounds)} if rounds else {})}
    known = {item.name for item in fields(kind) if item.init}
    if over_a_network(kind):
        tables["network"] = {"graph": "ring:4"}
    if "users" in known:
        tables["data"]["users"] = 4
    tables["train"] = {"algorithm": kind.name, **train}
    return plan_from_settings(check_plan_file(tables, "plan"), folder, "plan")


def in_an_agreement(kind, options, example):
    tables = {
        **example,
        "algorithm": {"name": kind.name, **options},
        "model": {"kind": "logistic", "parameters": 2},
        "budget": {"epsilon": 900.0, "delta": 1e-5},
    }
    return parse_agreement(to_toml(tables).encode(), "agreement")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    content = Consortium(tmp_path_factory.mktemp("example"), n=2, graph="path:2").agreement
    return content.model_dump(exclude={"signatures"}, exclude_unset=True)


@pytest.mark.parametrize("name", FILED)
def test_same_sentence_in_python_file_and_agreement(name, tmp_path, example):
    rows = np.random.default_rng(0).normal(size=(40, 2))
    lines = [f"{x:.2f},{z:.2f},{int(x > 0)}" for x, z in rows]
    (tmp_path / "d.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    kind = algorithm(name)
    adjacency = "user" if "user" in kind.adjacencies else kind.adjacencies[0]
    good = {
        "steps": 4,
        "clip_norm": 1.0,
        "adjacency": adjacency,
        kind.noise_field: 4.0,
        **NEEDED.get(name, {}),
    }
    in_python(kind, good), in_a_file(kind, good, tmp_path)
    if name in AGREED:
        in_an_agreement(kind, good, example)
    differ = {}
    for option in (item.name for item in fields(kind) if item.init and item.name in BAD):
        for value in BAD[option]:
            options = {**good, option: value}
            expected = sentence(lambda options=options: in_python(kind, options))
            others = [sentence(lambda options=options: in_a_file(kind, options, tmp_path))]
            if name in AGREED and option not in OTHERWISE:
                others.append(sentence(lambda options=options: in_an_agreement(kind, options, example)))
            if any(expected.rstrip(".") not in other for other in others):
                differ[option, repr(value)] = (expected, *others)
    assert differ == {}


def test_all_problems_of_a_file_are_one_message():
    tables = {"version": 1, "network": {"grph": "ring:4"}, "noise": {"noise_std": -1}}
    tables["average"] = {"radius": 1.0, "adjacency": "user"}
    assert sentence(lambda: check_plan_file(tables, "plan.toml")) == (
        "plan.toml has 2 problems: (1) [network] grph is not known (did you mean 'graph'?); expected one of "
        "graph, matrix, weights, names. (2) [noise] noise_std: noise_std must be a finite number of at least "
        "0, got -1."
    )


TABLE = {"version": 1, "noise": {"noise_multiplier": 1.0}}
TRAIN = {"algorithm": "dp-sgd", "steps": 2, "clip_norm": 1.0, "batch_size": 4.0, "adjacency": "add-remove"}
BOUNDS = {"age": [0, 100], "body mass": [10, 60]}


def load_table(folder, objective=None, **data):
    lines = ["age,body mass,sex,ill", *(f"{30 + k},{20 + k},f,{k % 2}" for k in range(12))]
    (folder / "d.csv").write_text("\n".join(lines))
    section = {"file": "d.csv", "label": "ill", "categories": {"sex": ["f", "m"]}, **data}
    tables = {**TABLE, "objective": objective or {}, "data": section, "train": TRAIN}
    return plan_from_settings(check_plan_file(tables, "plan"), folder, "plan")


def test_numeric_columns_of_a_table_need_public_bounds(tmp_path):
    """Every column without bounds is named in one message, in Python and in a plan file."""
    message = sentence(lambda: load_table(tmp_path))
    assert "columns 'age', 'body mass' have no public bounds: give each (low, high) in bounds" in message
    one = sentence(lambda: load_table(tmp_path, bounds={"age": [0, 100]}))
    assert "column 'body mass' has no public bounds" in one
    both = sentence(lambda: load_table(tmp_path, bounds=BOUNDS | {"sex": [0, 1]}))
    assert "column 'sex' has bounds and categories" in both
    with pytest.raises(SottovoceError, match="columns 'age', 'body mass' have no public bounds: give"):
        ingest(TableData(tmp_path / "d.csv", "ill", categories={"sex": ["f", "m"]}))
    scaled = load_table(tmp_path, bounds=BOUNDS).adapter.data.X
    assert scaled[0].tolist() == [-0.4, -0.6, 1.0, 0.0]
    assert load_table(tmp_path, bounds="none").adapter.data.X[0].tolist() == [30.0, 20.0, 1.0, 0.0]


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_an_amount_needs_public_bounds_in_python_and_in_a_plan_file(loss, tmp_path):
    in_file = sentence(lambda: load_table(tmp_path, {"loss": loss}, bounds=BOUNDS))
    table = TableData(tmp_path / "d.csv", "ill", bounds=BOUNDS, categories={"sex": ["f", "m"]})
    for model in (loss, sv.objectives.GLM(loss)):
        assert sentence(lambda model=model: sv.fit(model, table, network="ring:4")) in in_file
    assert "the label 'ill' has no public bounds: give it (low, high) in bounds" in in_file
    bounded = load_table(tmp_path, {"loss": loss}, bounds=BOUNDS | {"ill": [0, 1]})
    assert sorted(set(bounded.adapter.data.y)) == [-1, 1]
    as_they_are = load_table(tmp_path, {"loss": loss}, bounds="none")
    assert sorted(set(as_they_are.adapter.data.y)) == [0, 1]


@pytest.mark.parametrize("change", [{}, {"bounds": BOUNDS, "classes": ["no", "yes"]}])
def test_a_refused_table_charges_nothing(change, tmp_path, monkeypatch, call, refused):
    """Missing bounds, or labels outside the public classes: one sentence, and the ledger is as it was."""
    limit = LifetimeBudget(9.0, 1e-5, "add-remove", "local")
    directory = MemberDirectory.create(
        tmp_path / "home", "north", population="p", budgets=[limit], copy=tmp_path / "copy"
    )
    monkeypatch.setenv(VARIABLE, str(directory.folder))
    load_table(tmp_path, bounds=BOUNDS)
    before = directory.lifetime_ledger.summary()
    data = {"file": "d.csv", "label": "ill", "categories": {"sex": ["f", "m"]}}
    (tmp_path / "plan.toml").write_text(to_toml({**TABLE, "data": data | change, "train": TRAIN}))
    assert "public" in refused("train", "plan.toml")
    assert directory.lifetime_ledger.summary() == before
    (tmp_path / "plan.toml").write_text(to_toml({**TABLE, "data": data | {"bounds": BOUNDS}, "train": TRAIN}))
    assert call("train", "plan.toml").code == 0
    assert directory.lifetime_ledger.summary() != before


@pytest.mark.parametrize(
    "weight", [{"class_weight": [1, 4]}, {"class_weight": {"0": 1, "1": 4}},
               {"class_weight": "balanced", "class_shares": [0.5, 0.125]}]
)  # fmt: skip
def test_class_weights_of_a_plan_file(weight, tmp_path):
    if "class_shares" in weight:
        with pytest.raises(SottovoceError, match="class_shares must sum to 1"):
            load_table(tmp_path, bounds=BOUNDS, **weight)
        weight["class_shares"] = {"0": 0.5, "1": 0.5}
    plan = load_table(tmp_path, bounds=BOUNDS, intercept=True, **weight).plan
    assert plan.objective.intercept
    balanced = weight["class_weight"] == "balanced"
    assert plan.objective.class_weight == ((1.0, 1.0) if balanced else (1.0, 4.0))
    network_plan = sv.algorithms.ConsensusSGD(
        plan.objective,
        "masked",
        network="ring:4",
        sizes=[4] * 4,
        steps=2,
        clip_norm=1.0,
        noise_multiplier=2.0,
    )
    assert sv.load_plan(sv.save_plan(network_plan, tmp_path / "saved.toml")).objective == plan.objective


def test_a_rare_label_does_not_change_a_plan(tmp_path):
    """Classes are public: three declared ones make a softmax of three, whoever has which."""
    plan = load_table(tmp_path, bounds=BOUNDS, classes=[0, 1, 2])
    assert plan.plan.objective.classes == 3
    assert plan.adapter.target.classes.values == (0, 1, 2)
    assert load_table(tmp_path, bounds=BOUNDS).adapter.target.classes.values == (0, 1)
