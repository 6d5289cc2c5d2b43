"""A peer's run leaves a study: the model in the words of the agreement, the same in another process."""

import json
import subprocess
import sys

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import ConfigError, DataError, SottovoceError
from sottovoce.models.adapters import agreed_model
from sottovoce.objectives.nets.module_files import digest_of
from sottovoce.peers.member_data import read_records

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


def run(made, tmp_path, connections, supply=()):
    """Run all members on their own tables and keep the first one's study."""
    for i in range(made.n):
        table(tmp_path / f"m{i}.csv", i)
    agreement = made.agreement
    if supply:
        agreement.plan.objective.supply(*supply)
    made.records = [read_records(tmp_path / f"m{i}.csv", agreement) for i in range(made.n)]
    type(made).agreement, before = property(lambda self: agreement), type(made).agreement
    try:
        outcomes = made.run(transport=connections())
    finally:
        type(made).agreement = before
    spent = agreement.plan.privacy("local")
    study = agreed_model(agreement, agreement.plan, outcomes[0].model, spent)
    return outcomes, study, study.save(tmp_path / "study")


def test_a_linear_study_scores_the_same_in_another_process(consortium, memory_links, tmp_path):
    made = consortium(
        3, algorithm=LEARNING, dim=15, kind="logistic", model={"classes": 3}, data=DATA, epsilon=90.0
    )
    outcomes, study, folder = run(made, tmp_path, memory_links)
    truth = table(tmp_path / "new.csv", 9)
    here = study.predict(tmp_path / "new.csv")
    assert (here == truth).mean() > 0.8
    assert study.model.feature_names == ("age", "blood pressure", "sex=f", "sex=m")
    text = f"import json, sottovoce as sv; f = sv.load_model({str(folder)!r})\n"
    new = repr(str(tmp_path / "new.csv"))
    text += f"print(json.dumps([f.predict({new}).tolist(), f.scores({new}).tolist()]))"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    names, scores = json.loads(ran.stdout)
    assert names == here.tolist()
    assert scores == study.scores(tmp_path / "new.csv").tolist()
    np.testing.assert_array_equal(outcomes[0].model, sv.load_model(folder).rows[0])


def test_a_module_of_the_members_own_is_supplied_locally_by_digest(consortium, memory_links, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    (tmp_path / "mynet.py").write_text(MYNET)
    space = {}
    exec(MYNET, space)
    torch.manual_seed(0)
    save_file(space["build"]().state_dict(), tmp_path / "start.safetensors")
    model = {
        "module": "mynet:build", "module_sha256": digest_of(tmp_path / "mynet.py"),
        "weights_sha256": digest_of(tmp_path / "start.safetensors"),
    }  # fmt: skip
    files = (tmp_path / "mynet.py", tmp_path / "start.safetensors")
    made = consortium(3, algorithm=LEARNING, dim=57, kind="net", model=model, data=DATA, epsilon=90.0)
    _, study, folder = run(made, tmp_path, memory_links, files)
    truth = table(tmp_path / "new.csv", 9)
    assert (study.predict(tmp_path / "new.csv") == truth).mean() > 0.6
    again = sv.load_model(folder, module=space["build"]())
    np.testing.assert_array_equal(again.scores(tmp_path / "new.csv"), study.scores(tmp_path / "new.csv"))
    with pytest.raises(DataError, match=r"no code; pass the network: .*module='mynet:build'"):
        sv.load_model(folder)
    objective = made.agreement.plan.objective
    with pytest.raises(ConfigError, match="name its file and its start weights"):
        objective.objective
    (tmp_path / "mynet.py").write_text(MYNET + "\n# changed\n")
    objective.supply(*files)
    with pytest.raises(ConfigError, match=r"mynet\.py has the SHA-256"):
        objective.objective


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
        ({"module": "x:build", "module_sha256": "0", "weights_sha256": "0" * 64}, {}, "64 hexadecimal"),
        ({}, {"bounds": {"age": [0, 100]}}, "bounds lacks 'blood pressure'"),
        ({}, {"bounds": {"age": [9, 1], "blood pressure": [0, 1]}}, "low < high"),
        ({}, {"classes": ["a", "a"]}, "two or more different names"),
        ({}, {"intercept": False}, "parameters must be 12"),
        ({}, {"classes": ["well", "ill"]}, "there are 2 classes"),
    ],
)
def test_wrong_agreements_are_one_sentence(consortium, model, data, words):
    kind = "net" if model else "logistic"
    with pytest.raises(SottovoceError, match=words):
        consortium(
            3, algorithm=LEARNING, dim=15, kind=kind, model=model or {"classes": 3}, data={**DATA, **data}
        )
