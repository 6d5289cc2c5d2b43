# ruff: noqa: E501  the texts are other people's files, with lines of their own
"""The folders that `sottovoce init` writes: plan, toy data, test, and a page that says what to change.

Texts are what a user reads and edits, so they are kept whole; toy data are drawn from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["KITS", "Kit"]


class Kit(NamedTuple):
    """What a folder is for, what to type in it, its texts by name, and a maker of its tables by name."""

    about: str
    command: str
    texts: dict[str, str]
    tables: Callable[[], dict[str, str]]


# ---- toy data ------------------------------------------------------------------------------------------


def _no_tables() -> dict[str, str]:
    return {}


def _values() -> dict[str, str]:
    """Sixteen clinics, one value in [0, 1] each."""
    import numpy as np

    rng = np.random.default_rng(7)
    return {"values.csv": "\n".join(f"{value:.3f}" for value in rng.beta(4, 6, size=16)) + "\n"}


def _draw(count: int, rng: object) -> list[tuple[float, float, float, str]]:
    """Age, dose and pressure on their public scales, and whether a treatment helped."""
    from typing import Any

    import numpy as np

    drawn: Any = rng
    rows = []
    for _ in range(count):
        age, dose, pressure = drawn.uniform(20, 90), drawn.uniform(0, 10), drawn.uniform(80, 200)
        score = 3.0 * (dose - 5) / 5 - 2.0 * (age - 55) / 35 - 1.0 * (pressure - 140) / 60
        helped = drawn.random() < 1 / (1 + np.exp(-2.5 * score))
        rows.append((round(age, 1), round(dose, 2), round(pressure, 1), "yes" if helped else "no"))
    return rows


def _records(sites: int = 8, each: int = 150) -> dict[str, str]:
    import numpy as np

    rng = np.random.default_rng(11)
    lines = ["age,dose,pressure,helped,site"]
    for site in range(sites):
        lines += [f"{a},{d},{p},{y},clinic-{site}" for a, d, p, y in _draw(each, rng)]
    public = ["age,dose,pressure,helped,site"]
    public += [f"{a},{d},{p},{y},public" for a, d, p, y in _draw(400, rng)]
    return {"records.csv": "\n".join(lines) + "\n", "public.csv": "\n".join(public) + "\n"}


def _members() -> dict[str, str]:
    """One table per member, scaled by public bounds to [-1, 1], with a constant; one public table."""
    import numpy as np

    rng = np.random.default_rng(13)
    tables = {}
    for name, count in (("north", 400), ("south", 400), ("east", 400), ("public", 400)):
        lines = ["age,dose,pressure,constant,helped"]
        for a, d, p, y in _draw(count, rng):
            scaled = (a - 55) / 35, (d - 5) / 5, (p - 140) / 60
            lines.append(",".join([*(f"{value:.4f}" for value in scaled), "1", str(int(y == "yes"))]))
        tables[f"{name}.csv"] = "\n".join(lines) + "\n"
    return tables


# ---- texts ---------------------------------------------------------------------------------------------

_AVERAGE_PLAN = """# Sixteen clinics, one value each: their mean, with every clinic hidden from any other one.
version = 1
title = "Mean of sixteen clinics"

[network]
graph = "complete:16"      # who can reach whom; also ring:16, file:edges.txt

[protocol]
name = "masked"            # masks that cancel in the sum; "tree" if members cannot share keys

[average]
values = "values.csv"      # one value per clinic, in the order of the network
centre = 0.5               # values in [0, 1]: a public range, chosen before looking
radius = 0.5
adjacency = "user"         # hides a whole clinic

[budget]
epsilon = 4.0              # the least noise that meets this is taken
delta = 1e-5
view = "network"           # against the most curious clinic
"""

_AVERAGE_README = """# A private mean

    sottovoce plan plan.toml        # private: yes; useful: yes; nothing is read
    sottovoce average plan.toml     # the mean, as every clinic gets it
    python -m pytest                # the answer is as good as the plan said

Change `values.csv` (one line per member), the range (`centre`, `radius`) and `[budget]`; `sottovoce plan` says what the
answer will be worth before anything is spent. `[noise]` with `seed = 1` makes it a simulation that can be repeated.
"""

_AVERAGE_TEST = '''"""The answer is where the plan said it would be."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def sottovoce(*words):
    done = subprocess.run([sys.executable, "-m", "sottovoce", *words, "--json"], cwd=HERE, capture_output=True)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return json.loads(done.stdout)


def test_the_mean_is_where_the_plan_said():
    planned = sottovoce("plan", "plan.toml")
    assert planned["private"] is True
    assert planned["useful"] is True
    answer = np.ravel(sottovoce("average", "plan.toml")["rows"])
    truth = np.loadtxt(HERE / "values.csv").mean()
    assert np.ptp(answer) == 0  # everybody has the same
    assert abs(answer[0] - truth) < 5 * planned["error"]
'''

_TRAIN_PLAN = """# Eight clinics, a logistic model: who is helped by a treatment? Every single record is hidden.
version = 1
title = "Who is helped?"

[network]
graph = "complete:8"

[protocol]
name = "masked"            # or "tree:kind=uniform": a fresh tree in every step, without keys

[data]
file = "records.csv"       # a line per record
label = "helped"
classes = ["no", "yes"]    # public names, in order
group = "site"             # which clinic a record belongs to
partition = "column"
bounds = { age = [20, 90], dose = [0, 10], pressure = [80, 200] }  # public: scaled to [-1, 1] by them
intercept = true
unit_rows = true
test_file = "public.csv"   # public records for the score: nothing private is spent on it

[objective]
loss = "logistic"

[train]
algorithm = "consensus-sgd"
adjacency = "add-remove"   # hides a record; "user" would hide a whole clinic and cost far more
steps = 40
learning_rate = 4.0
clip = 1.0

[budget]
epsilon = 2.0
delta = 1e-5
view = "network"
"""

_TRAIN_README = """# A private model over sites

    sottovoce plan plan.toml                       # private? useful? simulated on synthetic records
    sottovoce train plan.toml --out study          # the model and its record
    sottovoce train plan.toml --checkpoint kept    # can be interrupted
    python -m pytest

Put your own table in place of `records.csv`: one column of labels, one that names the site, features with public bounds.
`sottovoce advise 8 --epsilon 2 --records 150 --compute logistic --features 4` says whether another plan would do better.
"""

_TRAIN_TEST = '''"""The model is good, and its price is the one that was planned."""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def sottovoce(*words):
    done = subprocess.run([sys.executable, "-m", "sottovoce", *words, "--json"], cwd=HERE, capture_output=True)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return json.loads(done.stdout)


def test_the_model_is_good_at_the_planned_price():
    planned = sottovoce("plan", "plan.toml")
    assert planned["private"] is True
    assert planned["useful"] is True
    trained = sottovoce("train", "plan.toml")
    assert trained["metrics"]["test_accuracy"] > 0.8  # without privacy: about 0.88
    assert all(one["epsilon"] <= 2.0 for one in trained["guarantees"] if one["against"] == "any one node")
'''

_NET_PLAN = """# Eight clinics, a small network with one hidden layer. Every single record is hidden. Needs torch.
version = 1
title = "Who is helped? A network"

[network]
graph = "complete:8"

[protocol]
name = "masked"

[data]
file = "records.csv"
label = "helped"
classes = ["no", "yes"]
group = "site"
partition = "column"
bounds = { age = [20, 90], dose = [0, 10], pressure = [80, 200] }
test_file = "public.csv"

[model]
name = "mlp"
options = { inputs = 3, hidden = 16, classes = 2 }

[train]
algorithm = "consensus-sgd"
adjacency = "add-remove"
steps = 60
learning_rate = 1.0
clip = 1.0

[budget]
epsilon = 2.0
delta = 1e-5
view = "network"
"""

_NET_README = """# A private network over sites

    pip install 'sottovoce[deep]'                  # torch, once
    sottovoce plan plan.toml
    sottovoce train plan.toml --out study          # weights, record and how to load them
    python -m pytest

`[model] name` is a network of the package (mlp and others); for a torch module of your own use `sv.fit(module, data, ...)`
in Python.
"""

_NET_TEST = _TRAIN_TEST.replace(
    '    assert trained["metrics"]["test_accuracy"] > 0.8  # without privacy: about 0.88\n',
    '    assert trained["metrics"]["accuracy"] > 80  # percent; without privacy about 88\n',
)

_DRAFT = """# Three members, one model, no server: what all of them sign. `sottovoce peer agree` adds the members.
version = 1
title = "Three members"
graph = "complete:3"

[algorithm]
name = "consensus-sgd"
protocol = "masked"        # nobody sees anything but sums over all others
adjacency = "add-remove"   # a single record is hidden
steps = 30
learning_rate = 2.0
clip = 1.0
noise_multiplier = 9.5
lot = 400.0                # public divisor and rate: numbers of records stay each member's own business
sample_rate = 1.0

[model]
kind = "logistic"
parameters = 4

[data]
features = ["age", "dose", "pressure", "constant"]
target = "helped"

[budget]
epsilon = 3.0
delta = 1e-5
"""

_RUN = '''"""Three members on this machine: three identities, one agreement, three peers, one model.

    python run.py

On three machines the same three commands are typed at each member: `peer keygen`, `peer agree`, `peer run`.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
MEMBERS = ("north", "south", "east")


def peer(*words):
    return [sys.executable, "-m", "sottovoce", "peer", *map(str, words)]


def main(folder=HERE / "run"):
    folder.mkdir(exist_ok=True)
    with_ports = []
    sockets = [socket.socket() for _ in MEMBERS]
    for name, each in zip(MEMBERS, sockets):
        each.bind(("127.0.0.1", 0))
        # 1. An identity each: the key stays, the certificate is given to the others.
        subprocess.run(peer("keygen", folder / name, "--name", name), check=True, stdout=subprocess.DEVNULL)
        with_ports += ["--member", f"{folder / name / 'certificate.pem'}@127.0.0.1:{each.getsockname()[1]}"]
    for each in sockets:
        each.close()
    # 2. One agreement: its price is shown, and every member signs it.
    agreement = folder / "agreement.toml"
    subprocess.run(peer("agree", HERE / "draft.toml", *with_ports, "--output", agreement), check=True)
    for name in MEMBERS:
        subprocess.run(
            peer("agree", agreement, "--sign", folder / name), check=True, stdout=subprocess.DEVNULL
        )
    # 3. Every member starts its peer on its own records.
    running = [
        subprocess.Popen(
            peer("run", agreement, "--identity", folder / name, "--data", HERE / f"{name}.csv",
                 "--state", folder / f"{name}-state"),
            stdout=subprocess.DEVNULL,
        )
        for name in MEMBERS
    ]
    codes = [process.wait(timeout=300) for process in running]
    if any(codes):
        raise SystemExit("A peer failed; its message is above.")
    return report(folder)


def report(folder):
    models = [np.load(folder / f"{name}-state" / "model.npz")["parameters"] for name in MEMBERS]
    said = json.loads((folder / "north-state" / "statement.json").read_text())["guarantee"]
    public = np.loadtxt(HERE / "public.csv", delimiter=",", skiprows=1)
    accuracy = float(np.mean((public[:, :-1] @ models[0] > 0) == (public[:, -1] == 1)))
    equal = all(np.array_equal(models[0], other) for other in models)
    print(f"accuracy {accuracy:.3f} on public records; epsilon {said['epsilon']:.3g} at delta {said['delta']:g}")
    print(f"the three models are {'equal to the last bit' if equal else 'DIFFERENT'}")
    return accuracy, equal, said["epsilon"]


if __name__ == "__main__":
    main()
'''

_CONSORTIUM_README = """# A consortium on one machine

    python run.py           # keygen, agree, run: three peers over TLS on the loopback interface
    python -m pytest

`draft.toml` is what all sign; `north.csv`, `south.csv`, `east.csv` are the members' own tables, `public.csv` is for the score.
`sottovoce advise 3 --epsilon 3 --records 400 --compute logistic --features 4 --out advice` writes a draft of your own.
"""

_CONSORTIUM_TEST = '''"""Three peers end with one good model at the agreed price."""

from run import main


def test_three_members_learn_one_model(tmp_path):
    accuracy, equal, epsilon = main(tmp_path / "run")
    assert equal
    assert accuracy > 0.8  # without privacy: about 0.88
    assert epsilon <= 3.0
'''

_PROTOCOL = '''"""An averaging protocol of your own: a public sequence of sparse matrices, and nothing else.

Node v's state after round t is row v of ``matrix(t) @ state``; its messages are read off the matrix. The runner
executes it, the accountant measures what an observer sees, the attack exploits it: all from these few lines.
"""

import numpy as np
from scipy import sparse

import sottovoce as sv


class TwoStars(sv.protocols.LinearProtocol):
    """Odd rounds average with node 0, even rounds with the last node: two hubs take turns."""

    name = "two-stars"

    def __init__(self, n, rounds):
        self.n, self.rounds = n, rounds
        self._matrices = [self._star(0), self._star(n - 1)]

    def _star(self, hub):
        W = np.eye(self.n)
        for v in range(self.n):
            if v != hub:  # doubly stochastic, so the mean of all is kept
                W[v, v] -= 1 / self.n
                W[v, hub] += 1 / self.n
                W[hub, v] += 1 / self.n
                W[hub, hub] -= 1 / self.n
        return sparse.csr_array(W)

    def matrix(self, t):
        return self._matrices[t % 2]


def build(network, rounds, options, rng):
    """What an entry point of the group sottovoce.protocols names: then plan files know `two-stars:6`."""
    return TwoStars(network.n, 2 * network.n if rounds is None else rounds)


if __name__ == "__main__":
    protocol = TwoStars(8, rounds=60)
    plan = sv.Muffliato.for_budget(protocol, radius=0.5, epsilon=12.0, delta=1e-5)
    values = np.linspace(-0.5, 0.5, 8) ** 2
    result = plan.run(values, np.random.default_rng(0))
    print(f"truth {values.mean():.3f}, answers {result.outputs['rows'].ravel().round(3).tolist()}")
    print(f"{plan.usefulness()}")
    print(f"what node 1 learns of the others: {protocol.view(1).leakage().round(3).tolist()}")
    print(f"without noise node 1 can compute the values of nodes {sv.attacks.gossip_attack(protocol, [1]).nodes}")
'''

_PROTOCOL_TEST = '''"""The protocol averages, and the accountant's view is the attack's."""

import numpy as np
from my_protocol import TwoStars

import sottovoce as sv


def test_it_averages():
    protocol = TwoStars(8, rounds=120)
    rows = protocol.apply(np.arange(8.0))
    assert np.allclose(rows, 3.5, atol=1e-3)


def test_it_is_priced_and_useful():
    plan = sv.Muffliato.for_budget(TwoStars(8, 60), radius=0.5, epsilon=12.0, delta=1e-5)
    assert plan.epsilon(1e-5) <= 12.0
    assert plan.usefulness().useful


def test_what_a_node_computes_is_what_the_accountant_says():
    protocol = TwoStars(6, rounds=3)
    found = set(sv.attacks.gossip_attack(protocol, [1]).nodes)
    shares = protocol.view(1).leakage()
    assert found == {u for u in range(6) if u != 1 and shares[u] > 1 - 1e-9}
    assert found  # the hub's value is sent as it is
'''

_PROTOCOL_README = """# A protocol of your own

    python my_protocol.py       # price it, run it, attack it
    python -m pytest

`pip install -e .` registers it (see `pyproject.toml`): then `--protocol two-stars:6` and `[protocol] name = "two-stars"`
work in commands and plan files. Members of a peer run take built-in protocols only.
"""

_PROTOCOL_PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "my-protocol"
version = "0.1.0"
dependencies = ["sottovoce"]

[project.entry-points."sottovoce.protocols"]
two-stars = "my_protocol:build"

[tool.setuptools]
py-modules = ["my_protocol"]
"""

_ALGORITHM = '''"""An algorithm of your own: what is sent, how a row is updated, and which law prices it.

Here: sign descent over exact consensus. Every step the noisy gradients are averaged exactly and the model moves
by the rate in the direction of each coordinate's sign. The gate clips, draws and charges; this file only says
what to do with what comes out.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import sottovoce as sv
from sottovoce.algorithms.plan import Learning
from sottovoce.privacy.laws import Consensus
from sottovoce.runners import Algorithm, State


@dataclass(frozen=True, repr=False)
class SignDescent(Learning):
    """Options, price, budget, checkpoints and plan files come from Learning."""

    name: ClassVar[str] = "sign-descent"
    protocols: ClassVar[tuple[str, ...]] = ("tree", "exchange", "masked")
    default_protocol: ClassVar[str] = "tree:kind=uniform"
    needs_exact: ClassVar[bool] = True
    maskable: ClassVar[bool] = True  # its message is a release, untouched
    uses_optimiser: ClassVar[bool] = False

    @property
    def law(self):
        return Consensus()  # the model is common knowledge, so views of steps compose

    def algorithm(self, source, start):
        return Algorithm(
            init=lambda: State((start,), ()),
            message=lambda state, k: source(state.common[0], k),  # the gate: clip, noise, charge
            update=lambda state, received, k: State(
                (state.common[0] - self.rate(k) * np.sign(received),), ()
            ),
            output=lambda state: state.common[0],
        )


def toy(sites=8, each=200, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(sites * each, 5))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(X @ [2.0, -1.0, 1.0, 0.5, -2.0] + 0.1 * rng.normal(size=len(X)) > 0, 1.0, -1.0)
    return sv.data.Shards(X, y, np.arange(0, sites * each + 1, each))


if __name__ == "__main__":
    data = toy()
    plan = SignDescent.for_budget(
        sv.objectives.GLM(dim=5), "masked", network="complete:8", steps=30, clip=1.0, learning_rate=(0.5, 0.05),
        sizes=data.sizes.tolist(), epsilon=2.0, delta=1e-5,
    )
    result = plan.run(data, np.random.default_rng(0))
    right = np.mean(np.sign(data.X @ result.outputs["coef"]) == data.y)
    print(f"accuracy {right:.3f} at epsilon {plan.epsilon(1e-5):.3g} against any one member")
    print(plan.usefulness(sample="synthetic"))
'''

_ALGORITHM_TEST = '''"""It learns, it stays within its budget, and without noise it is what the formula says."""

import numpy as np
from my_algorithm import SignDescent, toy

import sottovoce as sv


def plan_for(data, **options):
    return SignDescent(
        sv.objectives.GLM(dim=5), "masked", network="complete:8", steps=30, clip=1.0,
        learning_rate=(0.5, 0.05), sizes=data.sizes.tolist(), **options,
    )


def test_it_learns_within_its_budget():
    data = toy()
    plan = plan_for(data, noise_multiplier=1.0).within(2.0, 1e-5)
    assert 1.99 <= plan.epsilon(1e-5) <= 2.0
    coef = plan.run(data, np.random.default_rng(0)).outputs["coef"]
    assert np.mean(np.sign(data.X @ coef) == data.y) > 0.9


def test_without_noise_the_first_step_is_the_sign_of_the_gradient():
    data = toy()
    plan = SignDescent(
        sv.objectives.GLM(dim=5), "tree", network="complete:8", steps=1, clip=1.0, learning_rate=0.5,
        sizes=data.sizes.tolist(),
    )
    gradient = -(data.y[:, None] * data.X / 2).mean(axis=0)  # of the logistic loss at zero
    coef = plan.run(data, np.random.default_rng(0)).outputs["coef"]
    assert np.allclose(coef, -0.5 * np.sign(gradient))
'''

_ALGORITHM_README = """# An algorithm of your own

    python my_algorithm.py      # priced, run, judged
    python -m pytest

One class: what it sends, how it updates, and its law (`Consensus` after exact consensus, `Local` otherwise). `pip install -e .`
registers it: then `[train] algorithm = "sign-descent"` works in plan files.
"""

_ALGORITHM_PROJECT = (
    _PROTOCOL_PROJECT.replace("my-protocol", "my-algorithm")
    .replace("sottovoce.protocols", "sottovoce.algorithms")
    .replace('two-stars = "my_protocol:build"', 'sign-descent = "my_algorithm:SignDescent"')
    .replace("my_protocol", "my_algorithm")
)

KITS: dict[str, Kit] = {
    "average": Kit(
        "A private mean of sixteen clinics' values.",
        "sottovoce average plan.toml",
        {"plan.toml": _AVERAGE_PLAN, "README.md": _AVERAGE_README, "test_average.py": _AVERAGE_TEST},
        _values,
    ),
    "train": Kit(
        "A private logistic model over eight clinics' records.",
        "sottovoce train plan.toml",
        {"plan.toml": _TRAIN_PLAN, "README.md": _TRAIN_README, "test_train.py": _TRAIN_TEST},
        _records,
    ),
    "net": Kit(
        "A private network over eight clinics' records (torch).",
        "sottovoce train plan.toml",
        {"plan.toml": _NET_PLAN, "README.md": _NET_README, "test_net.py": _NET_TEST},
        _records,
    ),
    "consortium": Kit(
        "Three members, one agreement, three peers on this machine.",
        "python run.py",
        {
            "draft.toml": _DRAFT,
            "run.py": _RUN,
            "README.md": _CONSORTIUM_README,
            "test_consortium.py": _CONSORTIUM_TEST,
        },
        _members,
    ),
    "protocol": Kit(
        "An averaging protocol of your own: priced, run, attacked.",
        "python my_protocol.py",
        {
            "my_protocol.py": _PROTOCOL,
            "test_protocol.py": _PROTOCOL_TEST,
            "pyproject.toml": _PROTOCOL_PROJECT,
            "README.md": _PROTOCOL_README,
        },
        _no_tables,
    ),
    "algorithm": Kit(
        "A learning algorithm of your own: priced, run, judged.",
        "python my_algorithm.py",
        {
            "my_algorithm.py": _ALGORITHM,
            "test_algorithm.py": _ALGORITHM_TEST,
            "pyproject.toml": _ALGORITHM_PROJECT,
            "README.md": _ALGORITHM_README,
        },
        _no_tables,
    ),
}
