"""The plan of an agreement: only algorithms and protocols of the library."""

import functools
import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import graphs
from sottovoce.errors import ConfigError, DataError, SottovoceError
from sottovoce.peers.agreed_model import agreed_model
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement import ModelPart
from sottovoce.peers.agreement_plan import AgreedNet, agreed_plan
from sottovoce.peers.member_data import read_records

SGD = {"name": "consensus-sgd", "adjacency": "user", "clip_norm": 0.5, "steps": 3, "learning_rate": 0.1}
PART = {
    "name": "muffliato-sgd",
    "protocol": "matching:3",
    "adjacency": "user",
    "clip_norm": 1.0,
    "noise_multiplier": 8.0,
    "steps": 3,
}
OWN = ModelPart(
    kind="net", module="unheard:make", module_sha256="0" * 64, weights_sha256="0" * 64, parameters=10
)


def test_an_installed_protocol_serves_plans_and_no_agreement(tmp_path, monkeypatch):
    package = tmp_path / "matching-0.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: matching\nVersion: 0.1\n")
    (package / "entry_points.txt").write_text("[sottovoce.protocols]\nmatching = matching_gossip:build\n")
    (tmp_path / "matching_gossip.py").write_text(
        "from sottovoce.protocols import Gossip\n"
        "def build(network, rounds, options, rng):\n"
        "    return Gossip(network, rounds)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plan = sv.PrivateAveraging("matching:3", network="ring:4", noise_std=2.0, radius=0.5)
    assert plan.schedule(0).rounds == 3
    with pytest.raises(ConfigError, match=r"protocol must be one of .*got 'matching'"):
        agreed_plan(sv.graphs.ring(4), PART, ModelPart(kind="logistic", parameters=5), seed=1)


def test_files_are_supplied_for_a_network_of_ones_own_and_for_no_other():
    ours = AgreedNet(ModelPart(kind="net", net="mlp", parameters=10))
    assert ours.bytes_per_number == 4
    for files in (("net.py", None), (None, "start.npz"), ("net.py", "start.npz")):
        with pytest.raises(ConfigError, match="supply no files"):
            ours.with_files(*files)
        own = AgreedNet(OWN).with_files(*files)
        if None in files:
            with pytest.raises(ConfigError, match="--module and --weights"):
                _ = own.objective
        else:
            with pytest.raises(SottovoceError) as caught:  # looked for, and not there
                _ = own.objective
            assert "--module and --weights" not in str(caught.value)


@pytest.mark.parametrize(("graph", "name"), [("path:2", "tree"), ("ring:3", "masked"), ("ring:4", "masked")])
def test_three_members_who_name_no_protocol_get_masked_sums(graph, name):
    part = {**SGD, "noise_multiplier": 8.0}
    plan = agreed_plan(graphs.parse(graph), part, ModelPart(kind="logistic", parameters=5), seed=1)
    assert plan.schedule(0).name == name


@pytest.mark.parametrize("model", [ModelPart(kind="net", net="unheard", parameters=3), OWN])
def test_a_network_that_cannot_be_built_is_called_by_its_name(model):
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match=r"network 'unheard(:make)?' cannot be built"):
        _ = AgreedNet(model).objective


LEARNING = {
    "name": "consensus-sgd", "protocol": "tree", "adjacency": "add-remove", "clip_norm": 1.0, "steps": 30,
    "learning_rate": 4.0, "batch_size": 200.0, "sample_rate": 1.0, "noise_multiplier": 2.0,
}  # fmt: skip


DATA = {
    "features": ["age", "blood pressure", "sex"],
    "target": "state",
    "bounds": {"age": [0, 100], "blood pressure": [50, 250]},
    "categories": {"sex": ["f", "m"]},
    "classes": ["well", "so-so", "ill"],
    "intercept": True,
}


MYNET = """from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x).tanh())

def build():
    return Net()
"""


def table(file, seed, rows=200):
    rng = np.random.default_rng(seed)
    age, pressure = rng.uniform(0, 100, rows), rng.uniform(50, 250, rows)
    how = age / 100 + (pressure - 50) / 200
    state = np.where(how > 1.25, "ill", np.where(how < 0.75, "well", "so-so"))
    lines = [
        f"{a:.1f},{p:.1f},{s},{y}"
        for a, p, s, y in zip(age, pressure, rng.choice(["f", "m"], rows), state, strict=True)
    ]
    file.write_text("\n".join(["age,blood pressure,sex,state", *lines]))
    return state


def run(group, tmp_path, connections, **files):
    """Run all members on their own tables and save the first one's model."""
    for i in range(group.n):
        table(tmp_path / f"m{i}.csv", i)
    agreement = group.agreement
    group.records = [read_records(tmp_path / f"m{i}.csv", agreement) for i in range(group.n)]
    outcomes = group.run(transport=connections(), **files)
    plan = AgreedRun(agreement, **files).plan
    fitted = agreed_model(agreement, plan, outcomes[0].model, plan.privacy("local"))
    return outcomes, fitted, fitted.save(tmp_path / "fitted")


def test_a_linear_study_scores_the_same_in_another_process(consortium, memory_links, tmp_path):
    group = consortium(
        3, algorithm=LEARNING, dim=15, kind="logistic", model={"classes": 3}, data=DATA, epsilon=90.0
    )
    outcomes, fitted, folder = run(group, tmp_path, memory_links)
    truth = table(tmp_path / "new.csv", 9)
    here = fitted.predict(tmp_path / "new.csv")
    assert (here == truth).mean() > 0.8
    assert fitted.model.feature_names == ("age", "blood pressure", "sex=f", "sex=m")
    text = f"import json, sottovoce as sv; f = sv.load_model({str(folder)!r})\n"
    new = repr(str(tmp_path / "new.csv"))
    text += f"print(json.dumps([f.predict({new}).tolist(), f.scores({new}).tolist()]))"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    names, scores = json.loads(ran.stdout)
    assert names == here.tolist()
    assert scores == fitted.scores(tmp_path / "new.csv").tolist()
    np.testing.assert_array_equal(outcomes[0].model, sv.load_model(folder).rows[0])


def test_a_module_of_the_members_own_is_supplied_locally_by_digest(consortium, memory_links, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    (tmp_path / "mynet.py").write_text(MYNET)
    space = {}
    exec(MYNET, space)
    torch.manual_seed(0)
    save_file(space["build"]().state_dict(), tmp_path / "start.safetensors")
    files = {"module": tmp_path / "mynet.py", "weights": tmp_path / "start.safetensors"}
    code, weights = (hashlib.sha256(file.read_bytes()).hexdigest() for file in files.values())
    model = {"module": "mynet:build", "module_sha256": code, "weights_sha256": weights}
    group = consortium(3, algorithm=LEARNING, dim=57, kind="net", model=model, data=DATA, epsilon=90.0)
    _, fitted, folder = run(group, tmp_path, memory_links, **files)
    truth = table(tmp_path / "new.csv", 9)
    assert (fitted.predict(tmp_path / "new.csv") == truth).mean() > 0.6
    again = sv.load_model(folder, module=space["build"]())
    np.testing.assert_array_equal(again.scores(tmp_path / "new.csv"), fitted.scores(tmp_path / "new.csv"))
    with pytest.raises(DataError, match=r"no code; pass the network: .*module='mynet:build'"):
        sv.load_model(folder)
    objective = group.agreement.plan.objective
    with pytest.raises(ConfigError, match="name its file and its start weights"):
        objective.objective
    (tmp_path / "mynet.py").write_text(MYNET + "\n# changed\n")
    with pytest.raises(ConfigError, match=r"mynet\.py has the SHA-256"):
        objective.with_files(**files).objective


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        ({"module": "mynet:build"}, {}, "module_sha256 and weights_sha256"),
        ({"module": "mynet:build", "net": "mlp"}, {}, "names its network in"),
        (
            {"module": "../x:build", "module_sha256": "0" * 64, "weights_sha256": "0" * 64},
            {},
            "file:function",
        ),
        ({"module": "x:build", "module_sha256": "0", "weights_sha256": "0" * 64}, {}, "should match pattern"),
        ({}, {"bounds": {"age": [0, 100]}}, "bounds lacks 'blood pressure'"),
        (
            {},
            {"bounds": {"age": 3, "blood pressure": [0, 1]}},
            r"\[data\] bounds.age: input .* tuple, got 3\.",
        ),
        ({}, {"bounds": "some"}, "bounds: input should be 'none', got 'some'"),
        ({}, {"bounds": {"age": [9, 1], "blood pressure": [0, 1]}}, "low < high"),
        ({}, {"classes": ["a", "a"]}, "two or more different names"),
        ({}, {"intercept": False}, "parameters must be 12"),
        ({}, {"classes": ["well", "ill"]}, "there are 2 classes"),
        (
            {"net": "mlp", "loss": "squared_error"},
            {"target": "how ill"},
            r'label \'how ill\' has no public bounds: write bounds = \{ "how ill" = \[low, high\] \} in '
            r'\[data\], or bounds = "none" to take numbers as they are',
        ),
    ],
)
def test_wrong_agreements_are_one_sentence(consortium, model, data, words):
    kind = "net" if model else "logistic"
    with pytest.raises(SottovoceError, match=words):
        consortium(
            3, algorithm=LEARNING, dim=15, kind=kind, model=model or {"classes": 3}, data={**DATA, **data}
        )


def test_an_amount_is_scaled_by_its_bounds_or_taken_as_it_is_by_name(consortium, tmp_path):
    (tmp_path / "m.csv").write_text("age,dose\n10,4\n20,9\n")
    agreed = functools.partial(
        consortium, 2, "path:2", {**LEARNING, "batch_size": 2.0}, dim=1, kind="squared", epsilon=900.0
    )
    data = {"features": ["age"], "target": "dose"}
    with pytest.raises(ConfigError, match="'dose' has no public bounds"):
        agreed(data=data)
    for bounds, features, label in (
        ({"age": [0, 20], "dose": [0, 8]}, [0.0, 1.0], [0.0, 1.0]),
        ("none", [10.0, 20.0], [4.0, 9.0]),
    ):
        X, y = read_records(tmp_path / "m.csv", agreed(data={**data, "bounds": bounds}).agreement)
        assert (X[:, 0].tolist(), y.tolist()) == (features, label)
