"""Every way to draw protective noise is charged to the lifetime ledger first, and refused beyond its budget.

`SITES` and `RUNS` list the places of the code where protective randomness begins and where plans are run.
They are compared with what a search of the code finds: a new place fails until it is charged, or shown to
need no charge, here.
"""

import ast
from pathlib import Path

import numpy as np
import pytest
from tests.algorithms.cases import CASES, N
from tests.peers.conftest import Consortium

import sottovoce as sv
from sottovoce.algorithms import FederatedADMM
from sottovoce.cli.main import main
from sottovoce.errors import BudgetExceeded, InvalidInput
from sottovoce.integrations.flower import ClientSide, plan_of
from sottovoce.ledger.balance import LifetimeBudget
from sottovoce.ledger.lifetime import VARIABLE
from sottovoce.noise.discrete import Bits
from sottovoce.noise.samplers import ProtectiveNoise
from sottovoce.objectives import GLM
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.member_data import Records
from sottovoce.peers.member_directory import MemberDirectory
from sottovoce.planfile.training import load_training
from sottovoce.runners import Cluster
from sottovoce.runners.run import run, run_on_ranks
from sottovoce.runners.stopping import EarlyStopping
from sottovoce.sklearn import PrivateLasso, PrivateLogisticRegression, PrivateRidge

DELTA = 1e-5
SOURCE = Path(sv.__file__).parent.parent

# ---- a search of the code -------------------------------------------------------------------------------

# what protective randomness is made with, and what turns a plan and randomness into releases
STARTS = {
    "ProtectiveNoise", "KeyedNoise", "RunKeys", "RunRandomness", "from_rng", "as_noise", "urandom", "Bits",
    "discrete_gaussian", "narrow_gaussian", "discrete_laplace", "grid_noise", "mechanism", "noise_of",
    "run_stacked", "PlanRun",
}  # fmt: skip
CHARGED = "charged before it draws: one of RUNS"
HANDED_ON = "only makes a source, which a charged run is handed"
SAMPLER = "draws for whoever holds the source"
SIMULATED = "takes a numpy generator or a simulated source only"
STORED = "a key and a nonce for what is on the disk"
NO_NOISE = "a random delay of what is sent, whatever it holds"
NO_RECORDS = "noise without records: synthetic worst cases, zeros, or no noise at all"
SITES = {
    "sottovoce/runners/run.py:run": CHARGED,
    "sottovoce/runners/run.py:run_on_ranks": CHARGED,
    "sottovoce/runners/run.py:PlanRun.__init__": CHARGED,
    "sottovoce/runners/run.py:PlanRun._hosted_algorithm": CHARGED,
    "sottovoce/runners/run.py:PlanRun.advance": CHARGED,
    "sottovoce/peers/agreed_run.py:AgreedRun.program": CHARGED,
    "sottovoce/integrations/flower.py:ClientSide.__init__": CHARGED,
    "sottovoce/estimators/fitting.py:noise_source": HANDED_ON,
    "sottovoce/integrations/own_loop.py:make_private": CHARGED,
    "sottovoce/estimators/sklearn_estimators.py:_PrivateLinear._fit": CHARGED,
    "sottovoce/planfile/schema.py:NoiseSection.source": HANDED_ON,
    "sottovoce/integrations/flower.py:noise_of": HANDED_ON,
    "sottovoce/noise/run_randomness.py:RunRandomness.from_rng": HANDED_ON,
    "sottovoce/peers/run_keys.py:RunKeys.__init__": HANDED_ON,
    "sottovoce/algorithms/decor.py:Decor.mechanism": HANDED_ON,
    "sottovoce/algorithms/mafalda.py:Mafalda.mechanism": HANDED_ON,
    "sottovoce/algorithms/consensus_newton.py:ConsensusNewton.mechanism": HANDED_ON,
    "sottovoce/noise/discrete.py:Bits.__init__": SAMPLER,
    "sottovoce/noise/discrete.py:discrete_gaussian": SAMPLER,
    "sottovoce/noise/discrete.py:_geometric": SAMPLER,
    "sottovoce/noise/discrete.py:_with_probability_exp": SAMPLER,
    "sottovoce/noise/grid.py:grid_noise": SAMPLER,
    "sottovoce/noise/grid.py:GridNoise._draw": SAMPLER,
    "sottovoce/noise/samplers.py:ProtectiveNoise._draw": SAMPLER,
    "sottovoce/noise/samplers.py:KeyedNoise.perturb": SAMPLER,
    "sottovoce/noise/samplers.py:RecordedNoise.slack": SAMPLER,
    "sottovoce/mechanisms/noisy_max.py:NoisyMaxMechanism._noisy": SAMPLER,
    "sottovoce/advice/usefulness.py:_run": SIMULATED,
    "sottovoce/advice/usefulness.py:answer_error": SIMULATED,
    "sottovoce/planfile/training.py:_score_name": SIMULATED,
    "sottovoce/attacks/membership.py:train_models": SIMULATED,
    "sottovoce_papers/extensions/convex_audits.py:_networks.steps": SIMULATED,
    "sottovoce/attacks/audit.py:audit_averaging": NO_RECORDS,
    "sottovoce/attacks/audit.py:audit_consensus": NO_RECORDS,
    "sottovoce/attacks/audit.py:audit_outputs": NO_RECORDS,
    "sottovoce/integrations/flower.py:ServerSide.__init__": NO_RECORDS,
    "sottovoce/peers/core.py:Core.__init__": NO_RECORDS,
    "sottovoce/peers/paced_sender.py:_delay": NO_NOISE,
    "sottovoce/ledger/state_key.py:StateKey.__init__": STORED,
    "sottovoce/ledger/state_key.py:StateKey.encrypt": STORED,
    "sottovoce_papers/extensions/secure_sum.py:secure_sum_mean": NO_RECORDS,
}
# what calls the runner: these, with the sites that are charged, are the ways to draw protective noise
RUNS = {
    "sottovoce/algorithms/plan.py:Plan.run",
    "sottovoce/cli/average.py:average",
    "sottovoce/estimators/fitting.py:fit",
    "sottovoce/estimators/sklearn_estimators.py:_PrivateLinear._fit",
    "sottovoce/models/prepared.py:PreparedFit.run",
    "sottovoce/planfile/training.py:run_training",
}
# charged nothing: the noise is always simulated (tests/sottovoce_papers/test_sweep_command.py, tests/demo)
SIMULATIONS = {"sottovoce/planfile/training.py:run_trial", "sottovoce/demo/clinics.py:_trained"}
OTHER_RUNS = ("subprocess", "asyncio", "tracer", "peer", "part", "experiment", "find", "ledger")


def calls(tree, scope=()):
    """Yield (the function it is in, the object, the name) of every call."""
    for child in ast.iter_child_nodes(tree):
        named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if isinstance(child, ast.Call):
            called = child.func
            if isinstance(called, ast.Name):
                yield ".".join(scope), "", called.id
            elif isinstance(called, ast.Attribute):
                yield ".".join(scope), ast.unparse(called.value), called.attr
        yield from calls(child, (*scope, child.name) if named else scope)


def searched(package="sottovoce*"):
    for path in sorted(SOURCE.glob(f"{package}/**/*.py")):
        if "templates" not in path.parts:
            for where, owner, name in calls(ast.parse(path.read_text())):
                yield f"{path.relative_to(SOURCE)}:{where}", owner, name


def test_every_place_where_protective_randomness_begins_is_known():
    assert {site for site, _, name in searched() if name in STARTS} == set(SITES)


def test_every_place_that_runs_a_plan_is_known():
    """Reproductions run plans too, through `Plan.run`, like everybody else's code."""
    runs = {
        site
        for site, owner, name in searched("sottovoce")
        if name == "run_on_ranks" or (name == "run" and not any(word in owner for word in OTHER_RUNS))
    }
    assert runs == RUNS | SIMULATIONS


# ---- each of them is charged, and refused beyond the budget --------------------------------------------


@pytest.fixture
def draws(monkeypatch):
    """Whatever protective noise is drawn, in samplers of any kind, begins with a stream of bits."""
    streams, real = [], Bits.__init__

    def spied(self, key=None):
        streams.append(key)
        real(self, key)

    monkeypatch.setattr(Bits, "__init__", spied)
    return streams


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make this a machine with a member directory, whose population has these lifetime budgets."""
    monkeypatch.chdir(tmp_path)

    def make(*budgets):
        directory = MemberDirectory.create(
            tmp_path / "member", "ada", population="p", budgets=budgets, copy=tmp_path / "copy"
        )
        monkeypatch.setenv(VARIABLE, str(directory.folder))
        return directory

    return make


MEAN = sv.PrivateAveraging(sv.protocols.Masked(sv.graphs.complete(4)), noise_std=2.0, radius=0.5)
VALUES = np.linspace(-0.4, 0.4, 4)[:, None]
TABLE = "a,b,y\n" + "".join(f"{k % 7 / 7:.3f},{k % 5 / 5:.3f},{k % 2}\n" for k in range(40))
TRAINING = """
version = 1
[network]
graph = "complete:4"
[protocol]
name = "masked"
[data]
file = "records.csv"
test_file = "records.csv"
label = "y"
classes = ["0", "1"]
bounds = { a = [0.0, 1.0], b = [0.0, 1.0] }
[train]
algorithm = "consensus-sgd"
adjacency = "user"
steps = 3
clip_norm = 1.0
[noise]
noise_multiplier = 8.0
"""


def command(*words):
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    if stopped.value.code:
        raise BudgetExceeded("the command was refused")


def average():
    Path("mean.toml").write_text(
        'version = 1\n[network]\ngraph = "complete:4"\n[protocol]\nname = "masked"\n'
        "[average]\nvalues = [-0.4, -0.1, 0.1, 0.4]\nradius = 0.5\n"
        'adjacency = "user"\n[noise]\nnoise_multiplier = 4.0\n'
    )
    command("average", "mean.toml", "--json")
    return MEAN


def plan_run():
    MEAN.run(VALUES, ProtectiveNoise())
    return MEAN


def runner():
    run(MEAN, VALUES, ProtectiveNoise())
    return MEAN


def on_one_rank():
    with Cluster.alone() as cluster:
        run_on_ranks(cluster, MEAN, VALUES, ProtectiveNoise())
    return MEAN


def fit():
    X = np.random.default_rng(0).uniform(-1, 1, (40, 2))
    return sv.fit(
        "logistic", (X, X[:, 0] > 0), network="complete:4", adjacency="user", protocol="masked",
        training=sv.TrainingOptions(steps=3, noise_multiplier=8.0),
    ).plan  # fmt: skip


def own_loop(network):
    """A loop of the caller's own over private objects."""
    torch = pytest.importorskip("torch")
    X = torch.rand(40, 2) - 0.5
    net, data = torch.nn.Linear(2, 2), torch.utils.data.TensorDataset(X, (X[:, 0] > 0).long())
    private = sv.make_private(
        net, torch.optim.SGD(net.parameters(), lr=0.5), torch.utils.data.DataLoader(data, 20), epochs=2,
        network=network, budget=sv.Budget(2.0, DELTA),
    )  # fmt: skip
    model, optimizer, criterion, loader = private
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
    return private.plan


def estimator(kind, **options):
    X = np.random.default_rng(0).uniform(-1, 1, (40, 2))
    y = (X[:, 0] > 0).astype(int)
    model = kind(epsilon=2.0, delta=DELTA, solver="dp-cd" if not options else "consensus-sgd", **options)
    return model.fit(X, y).plan_


def train(*words):
    Path("records.csv").write_text(TABLE)
    Path("plan.toml").write_text(TRAINING)
    command(*words)
    return load_training(Path("plan.toml")).plan


def flower():
    plan = plan_of({"users": 4, "rounds": 3, "gamma": 1.0, "clip_norm": 1.0, "noise-std": 16.0})
    X = np.ones((4, 2))
    with ClientSide(plan, X, np.ones(4), user=2, folder="client") as client:
        client.answer(0, np.zeros(2))
    with ClientSide(plan, X, np.ones(4), user=2, folder="client") as client:  # the same run is charged once
        client.answer(1, np.zeros(2))
    return plan


def peer():
    agreement = Consortium("", n=2, graph="path:2", dim=1).agreement
    agreed_run, records = AgreedRun(agreement), Records(np.zeros((2, 1)), np.zeros(0))
    directory = MemberDirectory("member")
    program = agreed_run.program(0, records)
    ledger = directory.open_run(directory.charge_of(agreed_run, 0), records, node=0)
    try:
        program.begin()
        program.message()
    finally:
        ledger.close()
    return agreed_run.plan


# way -> (what it is tested with, adjacency of its plan, how often it is charged)
WAYS = {
    "sottovoce/algorithms/plan.py:Plan.run": [(plan_run, "user", 1)],
    "sottovoce/runners/run.py:run": [(runner, "user", 1)],
    "sottovoce/runners/run.py:run_on_ranks": [(on_one_rank, "user", 1)],
    "sottovoce/cli/average.py:average": [(average, "user", 1)],
    "sottovoce/estimators/fitting.py:fit": [(fit, "user", 1)],
    "sottovoce/integrations/own_loop.py:make_private": [
        (lambda: own_loop("complete:4"), "add-remove", 1),
        (lambda: own_loop(None), "add-remove", 1),
    ],
    "sottovoce/estimators/sklearn_estimators.py:_PrivateLinear._fit": [
        (lambda: estimator(PrivateLogisticRegression), "replace-one", 1),
        (lambda: estimator(PrivateRidge), "replace-one", 1),
        (lambda: estimator(PrivateLasso), "replace-one", 1),
        (lambda: estimator(PrivateLogisticRegression, network="complete:4"), "add-remove", 1),
        (lambda: estimator(PrivateRidge, network="complete:4"), "add-remove", 1),
    ],
    "sottovoce/planfile/training.py:run_training": [
        (lambda: train("train", "plan.toml", "--json"), "user", 1),
        (lambda: train("search", "plan.toml", "--rates", "0.1,0.2", "--json"), "user", 2),
    ],
    "sottovoce/integrations/flower.py:ClientSide.__init__": [(flower, "user", 1)],
    "sottovoce/peers/agreed_run.py:AgreedRun.program": [(peer, "user", 1)],
}  # fmt: skip
EACH = [(way, *case) for way, cases in WAYS.items() for case in cases]
NAMES = [f"{way.rpartition(':')[2]}-{k}" for way, cases in WAYS.items() for k in range(len(cases))]


def test_each_way_is_tested():
    inner = {
        f"sottovoce/runners/run.py:PlanRun.{part}" for part in ("__init__", "_hosted_algorithm", "advance")
    }
    inner.add("sottovoce/models/prepared.py:PreparedFit.run")  # of `fit` and `run_training`
    charged = {site for site, why in SITES.items() if why == CHARGED}
    assert set(WAYS) == (RUNS | charged) - inner


def expected(plan, view):
    """What `account` says of a plan; a curator has its releases alone, and two of two leave nobody."""
    if plan.observation.central_only:
        return plan.privacy("central")
    if view == "colluders:2":
        return plan.privacy("colluders", colluders=2) if plan.n > 2 else plan.privacy("local")
    return plan.privacy(view)


@pytest.mark.parametrize(("way", "act", "adjacency", "times"), EACH, ids=NAMES)
def test_each_way_is_charged_what_the_accountant_says(way, act, adjacency, times, machine, draws, capsys):
    directory = machine(
        *(LifetimeBudget(400.0, DELTA, adjacency, view) for view in ("local", "network", "colluders:2"))
    )
    plan = act()
    assert draws
    assert len(directory.lifetime_ledger.charges) == times
    for row in directory.lifetime_ledger.summary()[0]["budgets"]:
        guarantee = expected(plan, row["view"])
        assert row["total"] == pytest.approx((guarantee * times).epsilon(DELTA), rel=1e-9)


@pytest.mark.parametrize(("way", "act", "adjacency", "times"), EACH, ids=NAMES)
def test_each_way_is_refused_beyond_the_budget_and_draws_nothing(
    way, act, adjacency, times, machine, draws, capsys
):
    directory = machine(LifetimeBudget(0.01, DELTA, adjacency, "local"))
    with pytest.raises(BudgetExceeded):
        act()
    assert draws == []
    assert directory.lifetime_ledger.charges == []


def every_plan():
    """Every algorithm that takes protective noise, with records."""
    for case in CASES:
        if case.name not in ("decor", "mafalda"):
            yield case.name, case.plan(case.noise), case.data()
    bounds = {"smoothness": None, "bounds": (1.0, 1.0, 1.0)}
    cd = next(case for case in CASES if case.name == "dp-cd")
    yield "dp-cd, smoothness released first", cd.plan(cd.noise, **bounds), cd.data()
    hidden = FederatedADMM(
        GLM("squared"), users=N, steps=3, sample_rate=0.5, gamma=1.0, clip_norm=1.0, noise_std=4.0,
        secure_sum=True,
    )  # fmt: skip
    yield "secure sum", hidden, next(case for case in CASES if case.name == "federated-admm").data()


@pytest.mark.parametrize(("name", "plan", "data"), list(every_plan()), ids=[each[0] for each in every_plan()])
def test_every_algorithm_is_charged_before_it_draws(name, plan, data, machine, draws):
    directory = machine(LifetimeBudget(1e-6, DELTA, plan.adjacency, "local"))
    with pytest.raises(BudgetExceeded, match="nothing was charged to p"):
        plan.run(data, ProtectiveNoise())
    assert draws == []
    directory.lifetime_ledger.set_budget(None, LifetimeBudget(1e9, DELTA, plan.adjacency, "local"), "more")
    plan.run(data, ProtectiveNoise())
    assert draws
    [row] = directory.lifetime_ledger.summary()[0]["budgets"]
    assert row["total"] == pytest.approx(expected(plan, "local").epsilon(DELTA), rel=1e-9)


# ---- what is charged to nobody, and what fails before the charge -----------------------------------------


@pytest.mark.parametrize("rng", [np.random.default_rng(0), 7])
def test_simulations_are_charged_to_nobody(rng, machine, draws):
    directory = machine(LifetimeBudget(0.01, DELTA, "user", "local"))
    MEAN.run(VALUES, rng)
    PrivateRidge(random_state=0).fit(np.eye(4), np.arange(4.0) / 4)
    assert draws == []
    assert directory.lifetime_ledger.charges == []


def test_a_plan_without_noise_is_refused_by_any_budget(machine, draws):
    directory = machine(LifetimeBudget(1e300, DELTA, "user", "local"))
    with pytest.raises(BudgetExceeded, match="∞"):
        MEAN.with_noise(0.0).run(VALUES, ProtectiveNoise())
    assert directory.lifetime_ledger.charges == []


def fails(*arguments):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"evaluate": fails}, ZeroDivisionError),
        ({"every": 1, "on_evaluation": fails}, ZeroDivisionError),
        ({"on_step": fails}, ZeroDivisionError),
        ({"early_stopping": EarlyStopping()}, InvalidInput),
        ({"every": 1, "early_stopping": EarlyStopping("auc")}, InvalidInput),
        ({"start": np.zeros((7, 7, 7))}, InvalidInput),
        ({"population": "q"}, sv.errors.ConfigError),
        ({"checkpoint": "file"}, sv.errors.ConfigError),
        ({"checkpoint": "file/below"}, sv.errors.SottovoceError),
    ],
)
def test_a_call_that_fails_without_noise_costs_nothing(options, error, machine, draws):
    directory = machine(LifetimeBudget(9.0, DELTA, "user", "local"))
    Path("file").write_text("not a folder")
    with pytest.raises(error):
        MEAN.run(VALUES, ProtectiveNoise(), **options)
    if not {"start", "on_step", "early_stopping"} & set(options):
        with Cluster.alone() as cluster, pytest.raises(error):
            run_on_ranks(cluster, MEAN, VALUES, ProtectiveNoise(), **{"every": 1, **options})
    assert draws == []
    assert directory.lifetime_ledger.charges == []


def test_evaluation_before_the_charge_sees_public_rows_and_leaves_no_trace(machine):
    machine(LifetimeBudget(9.0, DELTA, "user", "local"))
    seen, steps = [], []
    result = MEAN.run(
        VALUES,
        ProtectiveNoise(),
        evaluate=lambda rows: seen.append(rows.copy()) or {"first": float(rows[0, 0])},
        on_evaluation=lambda step, entry: steps.append(step),
    )
    assert (seen[0] == 0).all()
    assert steps == [0, 1]
    assert [entry["step"] for entry in result.history] == [1]


def test_a_search_without_records_to_score_on_is_refused_before_it_is_charged(machine, draws, capsys):
    directory = machine(LifetimeBudget(99.0, DELTA, "user", "local"))
    Path("records.csv").write_text(TABLE)
    Path("plan.toml").write_text(TRAINING.replace('test_file = "records.csv"\n', ""))
    with pytest.raises(BudgetExceeded):
        command("search", "plan.toml")
    assert "no records to score on" in capsys.readouterr().err
    assert directory.lifetime_ledger.charges == []
    Path("plan.toml").write_text(TRAINING)
    with pytest.raises(BudgetExceeded):
        command("search", "plan.toml", "--clip-norms", "1,-1")
    with pytest.raises(BudgetExceeded):
        command("search", "plan.toml", "--out", "records.csv/result.json")
    assert draws == []
    assert directory.lifetime_ledger.charges == []
