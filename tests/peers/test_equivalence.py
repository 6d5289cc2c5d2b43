"""Every algorithm over real gRPC gives the stacked runner's rows on the same recorded noise, bit for bit."""

import json

import numpy as np
import pytest

from sottovoce.privacy.noise import ProtectiveNoise, RecordedNoise
from sottovoce.runners import run_stacked

RECORD = {"inner_steps": 2, "adjacency": "add-remove", "lot": 12.0, "noise_multiplier": 4.0}
CONSENSUS = {"name": "exact-consensus-sgd", "steps": 4}
MUFFLIATO = {"name": "muffliato-sgd", "steps": 3, "rounds": 2}
CASES = {
    "muffliato": (4, "ring:4", {"protocol": "chebyshev"}),
    "muffliato plain": (5, "star:5", {"protocol": "gossip"}),
    "muffliato refreshed": (3, "path:3", {"protocol": "refreshed", "refresh": 0.2}),
    "tree": (5, "star:5", {"protocol": "tree"}),
    "exchange": (4, "complete:4", {"protocol": "exchange"}),
    "exact consensus, tree": (4, "ring:4", {**CONSENSUS, "protocol": "tree"}),
    "exact consensus, exchange": (4, "complete:4", {**CONSENSUS, "protocol": "exchange"}),
    "muffliato sgd": (3, "path:3", {**MUFFLIATO, "protocol": "chebyshev"}),
    "muffliato sgd refreshed": (3, "path:3", {**MUFFLIATO, "protocol": "refreshed", "refresh": 0.1}),
    "dp-dsgd": (4, "ring:4", {"name": "dp-dsgd", "protocol": "gossip", "steps": 5, **RECORD}),
    "dp-dsgt": (4, "ring:4", {"name": "dp-dsgt", "protocol": "gossip", "steps": 5, **RECORD}),
    "dp-dinno": (3, "path:3", {"name": "dp-dinno", "protocol": "neighbour-sum", "steps": 4, **RECORD}),
    "random walk": (4, "ring:4", {"name": "random-walk-sgd", "protocol": "walk", "steps": 9}),
}
SINGLE = ("muffliato", "exact consensus, tree", "dp-dsgt")  # tried in float32 too
PAIRS = [(case, "float64") for case in CASES] + [(case, "float32") for case in SINGLE]


@pytest.mark.parametrize(("case", "dtype"), PAIRS)
def test_peers_equal_the_stacked_runner(case, dtype, consortium):
    n, graph, algorithm = CASES[case]
    group = consortium(n=n, graph=graph, algorithm=algorithm, model={"dtype": dtype}, epsilon=200.0)
    tapes = [RecordedNoise(ProtectiveNoise()) for _ in range(n)]
    outcomes = group.run(noises=tapes)
    rows = np.array([outcome.model for outcome in outcomes])
    assert rows.dtype == dtype
    assert rows.tobytes() == stacked(group, tapes).tobytes()
    if "exact" in case or case in ("tree", "exchange", "random walk"):
        assert all(row.tobytes() == rows[0].tobytes() for row in rows)
    for i, outcome in enumerate(outcomes):
        said = json.loads((group.state(i) / "statement.json").read_text())
        assert said == outcome.statement
        assert said["finished"]
        planned = len(job_of(group).releases(i))
        assert said["guarantee"]["releases"] == planned
        assert np.array_equal(np.load(group.state(i) / "model.npz")["parameters"], rows[i])


NETS = {
    "dp-dsgd": {"name": "dp-dsgd", "protocol": "gossip", "steps": 3, **RECORD},
    "dp-dinno": {"name": "dp-dinno", "protocol": "neighbour-sum", "steps": 2, **RECORD},
    "exact consensus": {**CONSENSUS, "protocol": "tree"},
    "random walk": {"name": "random-walk-sgd", "protocol": "walk", "steps": 5},
}


@pytest.mark.parametrize("case", NETS)
def test_networks_between_peers_equal_the_stacked_runner(case, consortium):
    """Stacked products sum in another order, so 1e-6 here; members of one consensus still agree exactly."""
    pytest.importorskip("torch")
    from sottovoce.peers.records import Records

    model = {
        "kind": "net",
        "net": "mlp",
        "options": {"inputs": 6, "hidden": 5, "classes": 3},
        "dtype": "float32",
    }
    group = consortium(
        n=3, graph="path:3", algorithm=NETS[case], dim=6 * 5 + 5 + 5 * 3 + 3, model=model, epsilon=300.0
    )
    rng = np.random.default_rng(2)
    group.records = [
        Records(rng.standard_normal((9, 6)).astype(np.float32), rng.integers(0, 3, 9)) for _ in range(3)
    ]
    tapes = [RecordedNoise(ProtectiveNoise()) for _ in range(3)]
    rows = np.array([outcome.model for outcome in group.run(noises=tapes)])
    assert np.allclose(rows, stacked(group, tapes), rtol=1e-6, atol=1e-6)
    assert len({len(tape.tape) for tape in tapes}) == 1 or case == "random walk"
    if case in ("exact consensus", "random walk"):
        assert all(row.tobytes() == rows[0].tobytes() for row in rows)


def job_of(group):
    from sottovoce.peers.jobs import Job

    return Job(group.agreement)


def stacked(group, tapes):
    """Return the rows of the same algorithm text, all agents in one process, on the recorded noise."""
    job = job_of(group)
    tape = RecordedNoise(None, {key: row for each in tapes for key, row in each.tape.items()})
    algorithm = job.algorithm(list(range(group.n)), group.records, tape)
    return np.asarray(algorithm.output(run_stacked(algorithm, job.schedule, job.steps, noise=tape)))


def test_the_default_noise_is_protective_and_differs_between_runs(consortium, tmp_path_factory):
    """I13: two runs of the same agreement on the same data never send the same bytes."""
    group = consortium(n=3)
    first = [outcome.model for outcome in group.run()]
    second_group = group
    second_group.folder = tmp_path_factory.mktemp("again")
    second = [outcome.model for outcome in second_group.run()]
    assert not np.array_equal(first, second)


def test_lots_are_drawn_at_their_rate():
    """I14: inclusion counts are binomial at the agreed rate."""
    from scipy import stats

    from sottovoce.peers.jobs import _lot

    counts = np.sum([_lot(200, 0.3) for _ in range(2000)], axis=0)
    spread = (counts - 600) / np.sqrt(2000 * 0.3 * 0.7)
    assert 1e-6 < stats.chi2.cdf((spread**2).sum(), 200) < 1 - 1e-6
    assert (
        not 1e-6 < stats.chi2.cdf((((counts - 660) / np.sqrt(2000 * 0.33 * 0.67)) ** 2).sum(), 200) < 1 - 1e-6
    )
