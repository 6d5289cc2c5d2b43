"""What an answer is worth: closed forms against simulation, and the printed values of the mathematics."""

import itertools
import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.advice import answer_error, usefulness
from sottovoce.advice.candidates import averaging_candidates, plan_for
from sottovoce.advice.usefulness import _run
from sottovoce.algorithms import DPCD, DPDSGD, DPSGD, ConsensusSGD, Decor, RandomWalkSGD
from sottovoce.data import Shards
from sottovoce.objectives import GLM

COLUMNS = 20_000


@pytest.mark.parametrize(
    "protocol",
    ["exchange", "tree", "masked", "gossip:4", "chebyshev:3", "randomized:30", "fresh-noise:4:fresh=0.5"],
)
def test_the_error_of_an_average_is_what_a_simulation_ends_with(protocol):
    plan = sv.PrivateAveraging(protocol, noise_std=2.0, radius=0.5, network="hypercube:3")
    sd, _, span = answer_error(plan)
    rows = _run(plan, np.zeros((8, COLUMNS)), np.random.default_rng(1))
    simulated = rows.std(axis=1).max()
    assert span == 1.0
    assert sd == pytest.approx(simulated, rel=0.03)  # 2/3 or 3/2 of it would be caught ten times over


def test_bias_of_gossip_is_reached_by_the_worst_values():
    plan = sv.PrivateAveraging("gossip:2", noise_std=1e-9, radius=0.5, network="ring:8")
    _, bias, _ = answer_error(plan)
    M = plan.schedule(0).apply(np.eye(8))
    off = []
    for v in range(8):
        values = 0.5 * np.sign(M[v] - 1 / 8)
        rows = _run(plan, values[:, None], np.random.default_rng(0))
        off.append(abs(rows[v, 0] - values.mean()))
    assert bias == pytest.approx(max(off), abs=1e-6)
    assert bias > 0.1


def test_site_weights_enter_the_bias_of_unfinished_gossip():
    network, weights, radius = sv.graphs.path(4), np.array([8.0, 1.0, 1.0, 2.0]), 0.5
    gossip = sv.protocols.Gossip(network, 2)
    plan = sv.PrivateAveraging(gossip, noise_std=1e-9, radius=radius, site_weights=weights)
    M = np.linalg.matrix_power(network.W.toarray(), 2)
    shares = weights / weights.mean()
    corners = np.array(list(itertools.product((-radius, radius), repeat=4)))
    off = np.abs((corners * shares) @ (M - 1 / 4).T).max()
    assert answer_error(plan)[1] == pytest.approx(off)


@pytest.mark.parametrize("noise", [3.0, (1.0, 2.0, 3.0, 9.0)])
@pytest.mark.parametrize("adjacency", ["add-remove", "user"])
def test_one_step_of_least_squares_is_the_mean(noise, adjacency):
    sizes = [5, 9, 2, 20]
    plan = ConsensusSGD(
        GLM("squared", dim=1), "tree", network="path:4", steps=1, learning_rate=1.0, clip_norm=0.5,
        noise_multiplier=noise, sizes=sizes, adjacency=adjacency,
    )  # fmt: skip
    rng = np.random.default_rng(3)
    values = rng.uniform(-0.5, 0.5, sum(sizes))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    data = Shards(np.ones((sum(sizes), 1)), values, offsets)
    answers = [_run(plan, data, rng)[0, 0] for _ in range(1500)]
    members = [values[a:b].mean() for a, b in itertools.pairwise(offsets)]
    truth = values.mean() if adjacency == "add-remove" else np.mean(members)
    sd, bias, span = answer_error(plan)
    assert bias == 0.0
    assert span == 1.0
    assert np.std(answers) == pytest.approx(sd, rel=0.08)
    assert np.mean(answers) == pytest.approx(truth, abs=4 * sd / math.sqrt(1500))


@pytest.mark.parametrize(
    ("n", "against", "printed"),
    [(10, "local", 1.180), (10, 1, 0.393), (10, 5, 0.528), (64, "local", 0.466), (64, 1, 0.0588),
     (64, 32, 0.0824)],
)  # fmt: skip
def test_printed_errors_of_masked_sums(n, against, printed):
    """Standard deviation of the mean at epsilon 1, delta 1e-5, values in a unit interval."""
    view = {"view": "local"} if against == "local" else {"colluders": against}
    requirements = sv.advice.Requirements.from_arguments(n, epsilon=1.0, delta=1e-5, hide="member", **view)
    plan = plan_for(requirements, next(averaging_candidates(requirements)))
    assert answer_error(plan)[0] == pytest.approx(printed, rel=2e-3)


def test_useless_is_a_quarter_of_the_range():
    """A plan can meet its budget and answer ± 1.32 for values in [0, 1]."""
    options = {"network": "hypercube:3", "radius": 0.5, "epsilon": 1.0, "delta": 1e-5}
    plan = sv.PrivateAveraging.for_budget("exchange", **options)
    use = usefulness(plan)
    assert not use.useful
    assert use.error == pytest.approx(1.319, abs=1e-3)
    assert "wider than the range" in use.sentence
    exact = sv.protocols.HypercubeExchange(4)  # sd of the answer: half the noise
    assert usefulness(sv.PrivateAveraging(exact, noise_std=0.499, radius=0.5)).useful
    assert not usefulness(sv.PrivateAveraging(exact, noise_std=0.501, radius=0.5)).useful


def test_training_that_hides_a_member_among_sixteen_is_not_useful_and_a_record_is():
    common = {"network": "hypercube:4", "steps": 30, "learning_rate": 2.0, "clip_norm": 1.0}
    member, record = (
        ConsensusSGD.for_budget(
            GLM(dim=30), "masked", adjacency=adjacency, epsilon=3.0, delta=1e-5, sizes=[28] * 16, **common
        )
        for adjacency in ("user", "add-remove")
    )
    assert usefulness(member).useful is False
    assert usefulness(record).useful is None  # a large signal-to-noise ratio is no good model
    assert usefulness(record).answer.startswith("signal-to-noise ")
    with pytest.raises(sv.errors.InvalidInput, match="does not answer with an average"):
        answer_error(record)
    assert not usefulness(member, sample="synthetic", runs=4).useful
    assert usefulness(record).signal_to_noise > 20 * usefulness(member).signal_to_noise
    score = usefulness(record, sample="synthetic", runs=4).score
    assert score.mean > score.chance + 0.1
    assert score.source == "synthetic records"


@pytest.mark.parametrize(
    ("loss", "metric"),
    [("squared", "error"), ("huber", "error"), ("logistic", "accuracy"), ("hinge", "accuracy")],
)
def test_models_are_scored_by_error_or_accuracy(loss, metric):
    rate, noise = (1.0, 0.1) if metric == "error" else (4.0, 0.5)
    plan = ConsensusSGD(
        GLM(loss, dim=3), "tree", network="ring:4", steps=30, learning_rate=rate, clip_norm=1.0,
        noise_multiplier=noise, sizes=[200] * 4,
    )  # fmt: skip
    score = usefulness(plan, sample="synthetic", runs=4).score
    assert score.metric == metric
    assert score.useful
    if metric == "error":
        assert score.best <= score.mean < score.chance
    else:
        assert 0.7 < score.mean <= 1.0


def test_the_interval_of_a_simulation_covers_real_runs():
    """Simulate on one part of public records, run on the other: five of six runs end in the interval."""
    data = sv.data.load("breast_cancer").standardized().unit_rows()
    rng = np.random.default_rng(5)
    inside = 0
    for case in range(6):
        cut = round(0.4 * data.n)
        public, own, test = np.split(rng.permutation(data.n), [cut, cut + 150])
        plan = ConsensusSGD.for_budget(
            GLM(dim=data.dim), "masked", network="complete:5", steps=15, learning_rate=4.0, clip_norm=1.0,
            sizes=[30] * 5, epsilon=3.0, delta=1e-5,
        )  # fmt: skip
        score = usefulness(plan, sample=(data.X[public], data.y[public]), seed=case).score
        coef = _run(plan, data.shards(np.split(own, 5)), rng).mean(axis=0)
        accuracy = np.mean(np.sign(data.X[test] @ coef) == np.where(data.y[test] > 0, 1.0, -1.0))
        inside += abs(accuracy - score.mean) <= score.half
        assert score.half < 0.1  # wide intervals would cover anything
        assert "public records" in score.source
    assert inside >= 5


def test_the_signal_does_not_depend_on_the_unit_of_releases():
    """By hand: a mean of 80 records, noise 2 per member, 3 coordinates, 5 steps; and what differs."""
    common = {"steps": 5, "clip_norm": 1.0, "noise_multiplier": 2.0}
    ring, sizes = sv.graphs.ring(4), [20] * 4
    root = math.sqrt(5 / 3)
    plain = usefulness(DPDSGD(GLM(dim=3), ring, sizes=sizes, **common))
    assert plain.signal_to_noise == pytest.approx(root / (2 * 2 / 80))
    shared = Decor(GLM(dim=3), ring, sizes=sizes, pair_multiplier=2.0, adjacency="user", **common)
    # whole members: four clips, not 80
    assert usefulness(shared).signal_to_noise == pytest.approx(root / (2 / 2))
    one = usefulness(DPSGD(GLM(dim=3), records=80, batch_size=20, learning_rate=0.5, **common))
    assert one.signal_to_noise == pytest.approx(root / (2 / 20))
    walk = usefulness(RandomWalkSGD(GLM(dim=3), ring, sizes=sizes, **common))
    assert walk.signal_to_noise == pytest.approx(root / (2 / 20))  # nothing is averaged


def test_usefulness_of_coordinate_descent_is_unknown_without_a_simulation():
    plan = DPCD(GLM(dim=3), records=80, steps=6, clip_norm=1.0, noise_multiplier=2.0, smoothness=(0.25,) * 3)
    use = usefulness(plan)
    assert use.useful is None
    assert str(use).startswith("useful: unknown; a sample of public or synthetic records")
