"""Plan files whose algorithm is a class of the user's own file."""

import pytest
from tests.peers.conftest import Consortium

import sottovoce as sv
from sottovoce.errors import ConfigError, SottovoceError
from sottovoce.peers.agreement_plan import agreed_plan
from sottovoce.planfile.training import load_training, run_training

OWN = """
from dataclasses import dataclass
import sottovoce as sv

@dataclass(frozen=True, repr=False)
class Slow(sv.algorithms.ConsensusSGD):
    name = "slow-sgd"
    brake: float = 2.0

    def rate(self, k):
        return super().rate(k) / self.brake

class Nameless(sv.algorithms.ConsensusSGD):
    pass

number = 3
"""
PLAN = """
version = 1
[network]
graph = "complete:4"
[data]
file = "records.csv"
test_file = "records.csv"
label = "y"
classes = ["0", "1"]
bounds = { a = [0.0, 1.0], b = [0.0, 1.0] }
[train]
algorithm = "mine:Slow"
brake = 4.0
adjacency = "user"
steps = 3
clip_norm = 1.0
learning_rate = 2.0
[noise]
noise_multiplier = 8.0
seed = 3
"""
TABLE = "a,b,y\n" + "".join(f"{k % 7 / 7:.3f},{k % 5 / 5:.3f},{k % 2}\n" for k in range(40))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "records.csv").write_text(TABLE)
    return tmp_path


def write(folder, text=PLAN):
    (folder / "plan.toml").write_text(text)
    return folder / "plan.toml"


def test_a_class_of_a_file_beside_the_plan_is_its_algorithm(folder):
    loaded = load_training(write(folder))
    assert (type(loaded.plan).__name__, loaded.plan.name, loaded.plan.brake) == ("Slow", "slow-sgd", 4.0)
    result = run_training(loaded)
    assert result.name == "slow-sgd"
    plain = PLAN.replace("mine:Slow", "consensus-sgd").replace("brake = 4.0\n", "").replace("= 2.0", "= 0.5")
    same = run_training(load_training(write(folder, plain)))
    assert result.coef.tobytes() == same.coef.tobytes()
    assert sv.load_plan(write(folder)).privacy() == loaded.privacy


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mine:Nameless", "needs a name of its own"),
        ("mine:number", "must name a subclass of sv.Plan"),
        ("mine:Missing", "must name a subclass of sv.Plan"),
        ("nowhere_at_all:Slow", "no file"),
        ("broken:Slow", "failed with SyntaxError"),
    ],
)
def test_other_names_are_refused_in_one_sentence(folder, spec, words):
    (folder / "broken.py").write_text("class (")
    with pytest.raises(SottovoceError, match=words) as caught:
        load_training(write(folder, PLAN.replace("mine:Slow", spec)))
    assert str(caught.value).startswith("plan.toml")
    assert "\n" not in str(caught.value)


def test_options_are_those_of_the_class(folder):
    with pytest.raises(ConfigError, match="brakes"):
        load_training(write(folder, PLAN.replace("brake =", "brakes =")))


def test_an_agreement_never_runs_a_file(folder):
    load_training(write(folder))
    agreement = Consortium(folder, n=2, graph="path:2").agreement
    for name in ("mine:Slow", "slow-sgd"):
        stated = {**agreement.algorithm.stated, "name": name}
        with pytest.raises(ConfigError, match="algorithm must be one of"):
            agreed_plan(agreement.network, stated, agreement.model, agreement.seed)
