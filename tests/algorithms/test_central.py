"""Plans of one trusted holder: noise-free limits, sensitivities, prices, blocks, resumption."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.accounting.release import Release
from sottovoce.algorithms.dp_cd import DPCD
from sottovoce.algorithms.dp_gcd import DPGCD
from sottovoce.algorithms.dp_sgd import DPSGD
from sottovoce.algorithms.optimizers import Optimizer
from sottovoce.data import Shards
from sottovoce.errors import ConfigError, DataError, InvalidInput, ReleaseMismatch
from sottovoce.mechanisms.base import AnnouncedReleases
from sottovoce.mechanisms.coordinate import coordinate_clips
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import RecordedNoise, grid_step
from sottovoce.objectives import GLM
from sottovoce.privacy import ProtectiveNoise, gaussian_epsilon
from sottovoce.runners import run_stacked
from sottovoce.runners.state import leaves

MODELS = [
    GLM("logistic", l2=0.01),
    GLM("squared", l1=0.05),
    GLM("huber", l1=0.01, l2=0.1, box=0.3, width=0.5),
    GLM("squared", ball=0.2),
]


def named(model):
    return model.loss + ("-ball" if model.ball else "")


def problem(seed=0, n=60, p=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)), np.sign(rng.normal(size=n))


def sgd(model=None, **changes):
    given = {
        "records": 60,
        "steps": 7,
        "batch_size": 12,
        "learning_rate": 0.3,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
    }
    return DPSGD(model or GLM(), **{**given, **changes})


def cd(model=None, **changes):
    given = {"records": 60, "steps": 23, "clip_norm": 1.0, "noise_multiplier": 2.0, "smoothness": (0.25,) * 4}
    given = {**given, **changes}
    if "bounds" in changes:
        del given["smoothness"]
    return DPCD(model or GLM(), **given)


def gcd(model=None, **changes):
    given = {"records": 60, "steps": 6, "clip_norm": 1.0, "noise_ratio": 2.0}
    return DPGCD(model or GLM(), **{**given, **changes})


def hosted(plan, data, random):
    """The plan's text and source on some data, as a runner makes them."""
    ready = plan.prepared(data)
    source = plan.source(ready, [0], random)
    return plan.algorithm(source, plan.starting(ready, random, [0])), source


# ---- without noise and clip: the textbook --------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_dp_sgd_is_proximal_gradient_descent(model):
    X, y = problem()
    w, total = np.zeros(4), np.zeros(4)
    for _ in range(7):
        w = w - 0.3 * model.gradient(w, X, y)
        w = np.sign(w) * np.maximum(np.abs(w) - 0.3 * model.l1, 0) / (1 + 0.3 * model.l2)
        if model.box:
            w = np.clip(w, -model.box, model.box)
        if model.ball:
            w = w * min(1.0, model.ball / np.linalg.norm(w))
        total += w
    for output, want in (("last", w), ("mean", total / 7)):
        plan = sgd(model, batch_size=None, clip_norm=math.inf, noise_multiplier=0.0, output=output)
        found = plan.run((X, y), np.random.default_rng(0)).outputs
        assert np.allclose(found["coef"], want, atol=1e-13)
        assert np.allclose(found["last"], w, atol=1e-13)


def test_dp_sgd_takes_an_optimizer_and_a_falling_rate():
    X, y = problem()
    model = GLM("squared")
    plan = sgd(
        model, batch_size=None, clip_norm=math.inf, noise_multiplier=0.0, learning_rate=(0.2, 0.05), steps=3,
        optimizer=Optimizer("momentum", 0.5),
    )  # fmt: skip
    w, velocity = np.zeros(4), np.zeros(4)
    for rate in (0.2, 0.1, 0.05):
        velocity = 0.5 * velocity + model.gradient(w, X, y)
        w = w - rate * velocity
    assert np.allclose(plan.run((X, y), np.random.default_rng(0)).outputs["coef"], w, atol=1e-13)


@pytest.mark.parametrize("model", MODELS[:3], ids=named)
@pytest.mark.parametrize("period", [None, 5])
def test_dp_cd_equals_its_numpy_twin(model, period):
    """Textbook proximal coordinate descent on the coordinates drawn, with running averages."""
    X, y = problem(1)
    M = model.coordinate_smoothness(X)
    plan = cd(
        model, clip_norm=math.inf, noise_multiplier=0.0, smoothness=tuple(M), step_scale=0.8, period=period
    )
    random = RunRandomness.from_rng(np.random.default_rng(3))
    _, source = hosted(plan, (X, y), random)
    w, since = np.zeros(4), []
    for t, j in enumerate(source.chosen(0, 23)):
        if period and t % period == 0 and t > 0:
            w, since = np.mean(since, axis=0), []
        gamma = 0.8 / M[j]
        v = w[j] - gamma * model.gradient(w, X, y)[j]
        w = w.copy()
        w[j] = model.regularizer.prox(np.array([v]), gamma)[0]
        since.append(w)
    found = plan.run((X, y), np.random.default_rng(3)).outputs
    assert np.allclose(found["coef"], np.mean(since, axis=0), atol=1e-11)
    assert np.allclose(found["last"], w, atol=1e-11)


def test_coordinates_are_uniform_public_and_fixed_by_step():
    plan, data = cd(steps=4000), problem()
    _, source = hosted(plan, data, RunRandomness.from_rng(np.random.default_rng(0)))
    drawn = source.chosen(0, 4000)
    assert abs(np.bincount(drawn) / 4000 - 0.25).max() < 0.03
    assert (source.chosen(1500, 700) == drawn[1500:2200]).all()
    assert [int(source.chosen(k)[0]) for k in (1023, 1024, 3999)] == drawn[[1023, 1024, 3999]].tolist()
    _, other = hosted(plan, data, RunRandomness.from_rng(np.random.default_rng(1)))
    assert (other.chosen(0, 100) != drawn[:100]).any()


def test_dp_cd_with_one_coordinate_is_dp_gradient_descent():
    X, y = problem(2, p=1)
    model = GLM("logistic", l2=0.1)
    silent = {"clip_norm": math.inf, "noise_multiplier": 0.0, "steps": 9}
    one = cd(model, smoothness=(0.5,), output="last", **silent).run((X, y), np.random.default_rng(0))
    two = sgd(model, batch_size=None, learning_rate=2.0, **silent).run((X, y), np.random.default_rng(0))
    assert np.allclose(one.outputs["coef"], two.outputs["coef"], atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_dp_gcd_takes_the_steepest_coordinate(sparse):
    X, y = problem(3)
    model, M = GLM("logistic", l1=0.01), np.array([0.2, 0.3, 0.4, 0.5])
    w, chosen = np.zeros(4), []
    for _ in range(6):
        G = model.gradient(w, X, y)
        j = np.argmax(np.abs(G) / np.sqrt(M))
        w[j] = model.regularizer.prox(w[j : j + 1] - G[j] / M[j], 1 / M[j])[0]
        chosen.append(j)
    plan = gcd(model, clip_norm=math.inf, noise_ratio=0.0, smoothness=tuple(M))
    data = (sp.csr_array(X) if sparse else X, y)
    found = plan.run(data, np.random.default_rng(0)).outputs
    assert np.allclose(found["coef"], w, atol=1e-12)
    assert found["chosen"].tolist() == chosen


# ---- a block is its steps ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS, ids=named)
@pytest.mark.parametrize("make", [
    lambda model: sgd(model, steps=23, learning_rate=(0.5, 0.1), output="mean"),
    lambda model: sgd(model, steps=23, batch_size=None),
    lambda model: cd(model),
    lambda model: cd(model, period=5),
    lambda model: cd(model, bounds=(2.0,) * 4, adjacency="add-remove"),
    lambda model: cd(model, noise_multiplier=0.0, clip_norm=math.inf),
], ids=["sgd-mean", "sgd-full", "cd", "cd-period", "cd-private", "cd-plain"])  # fmt: skip
@pytest.mark.parametrize("recorded", [False, True], ids=["simulated", "on-the-grid"])
@pytest.mark.parametrize("every", [7, 23])
def test_a_block_is_bit_for_bit_its_steps(model, make, recorded, every):
    """The compiled loop against message and update, one step at a time; protective draws are replayed."""
    if model.ball and make(MODELS[0]).name == "dp-cd":
        pytest.skip("coordinate descent refuses the ball")
    plan, data = make(model), problem(8)
    tape = RecordedNoise(ProtectiveNoise())
    found = []
    for compiled in (True, False):
        random = RunRandomness(tape, 5, 7) if recorded else RunRandomness.from_rng(np.random.default_rng(3))
        text, source = hosted(plan, data, random)
        source.recording()
        assert text.block is not None
        text = text if compiled else text._replace(block=None)
        state = run_stacked(text, plan.schedule, plan.steps, every=every)
        charged = sum(release.draws for release in source.drain())
        found.append((text.output(state), state.common, charged))
    assert (found[0][0] == found[1][0]).all()
    assert found[0][2] == found[1][2]
    for one, other in zip(leaves(found[0][1]), leaves(found[1][1]), strict=True):
        assert np.array_equal(one, other)


def test_networks_and_optimizers_run_step_by_step():
    X, y = problem()
    text, _ = hosted(
        sgd(optimizer=Optimizer("adam")), (X, y), RunRandomness.from_rng(np.random.default_rng(0))
    )
    assert text.block is None


# ---- what one record can do ----------------------------------------------------------------------------


def hostile(rng, p):
    return rng.choice([0.0, 1.0, -1.0, 1e3, 1e38, -1e200, 1e300], size=p)


@pytest.mark.parametrize("seed", range(12))
def test_no_record_moves_a_release_by_more_than_what_is_booked(seed):
    """Noise off, one record changed to something hostile, from a random model."""
    rng = np.random.default_rng(seed)
    n, p = 20, 3
    X, y = problem(seed, n, p)
    model = GLM(["logistic", "squared", "huber"][seed % 3])
    other, empty = X.copy(), X.copy()
    other[4], empty[4] = hostile(rng, p), 0.0
    start = rng.normal(size=p) * 10 ** rng.uniform(-1, 2)
    seeded = lambda: np.random.default_rng(1)  # noqa: E731
    slack = 1 + 1e-9

    plan = sgd(
        model, records=n, batch_size=None, steps=1, learning_rate=0.7, clip_norm=1.3, noise_multiplier=0.0
    )
    full, without, changed = (
        plan.run((D, y), seeded(), start=start).outputs["coef"] for D in (X, empty, other)
    )
    assert np.linalg.norm(changed - without) * n / 0.7 <= 1.3 * slack
    assert np.linalg.norm(full - changed) * n / 0.7 <= 2 * 1.3 * slack

    M = np.array([0.1, 1.0, 3.0])
    C = coordinate_clips(M, 1.3)
    plan = cd(
        model, records=n, steps=1, clip_norm=1.3, noise_multiplier=0.0, smoothness=tuple(M), output="last"
    )
    full, without, changed = (
        plan.run((D, y), seeded(), start=start).outputs["coef"] for D in (X, empty, other)
    )
    assert (np.abs(changed - without) * M <= C / n * slack + 1e-13).all()
    assert (np.abs(full - changed) * M <= 2 * C / n * slack + 1e-13).all()

    plan = gcd(model, records=n, steps=1, clip_norm=1.3, noise_ratio=0.0, smoothness=tuple(M))
    G = []
    for D in (X, empty, other):
        _, source = hosted(plan, (D, y), RunRandomness.from_rng(seeded()))
        G.append(source.gradient(start[None]))
    assert np.isfinite(G).all()
    assert (np.abs(G[2] - G[1]) <= C / n * slack).all()
    assert (np.abs(G[2] - G[0]) <= 2 * C / n * slack).all()


class Silent:
    """A source that keeps what it is asked to perturb and adds nothing."""

    protective = False

    def __init__(self):
        self.seen = []

    def perturb(self, values, *, agents, step, std, stream=0):
        self.seen.append((stream, np.array(values), std))
        return np.array(values)

    def slack(self, dim, std=1.0):
        return 0.0


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_the_smoothness_release_moves_by_at_most_its_sensitivity(adjacency):
    X, y = problem(4, n=10, p=3)
    other = X.copy()
    other[0] = [1e300, 0.0, -1e9]
    plan = cd(records=10, bounds=(1.0, 2.0, 0.5), smoothness_mu=0.4, steps=1, adjacency=adjacency)
    seen = []
    for D in (X, other):
        noise = Silent()
        text, _ = hosted(plan, (D, y), RunRandomness(noise, 1, 1))
        text.init()
        seen.append(noise.seen[0])
    stream, first, std = seen[0]
    assert stream == 1
    assert 0 < np.linalg.norm(first - seen[1][1]) / std <= 0.4 * (1 + 1e-12)
    (preliminary, _) = plan.releases(0)
    assert (preliminary.stream, preliminary.noise_std) == (1, std)
    assert preliminary.sensitivity / std == pytest.approx(0.4)


def test_the_worst_record_moves_a_coordinate_by_exactly_the_sensitivity():
    """In the unit C_j / n of the release list: 2 when it is replaced."""
    n = 5
    pull = []
    for target in (1e6, -1e6):
        X, y = np.ones((n, 2)), np.array([target, 0, 0, 0, 0])
        plan = cd(GLM("squared"), records=n, clip_norm=3.0, noise_multiplier=0.0, smoothness=(1.0, 3.0))
        _, source = hosted(plan, (X, y), RunRandomness.from_rng(np.random.default_rng(0)))
        M = source.released_smoothness()
        pull.append([source.coordinate(M, source.margins(np.zeros((1, 2))), j, 0) for j in (0, 1)])
    C = 3.0 * np.sqrt(np.array([0.25, 0.75]))
    assert (np.array(pull[1]) - pull[0]) * n / C == pytest.approx([2.0, 2.0])
    assert plan.releases(0)[0].sensitivity == 2.0


# ---- prices, by closed forms ---------------------------------------------------------------------------


def balle_wang(mu, delta):
    """Epsilon of mu-GDP at delta, by the closed form in 40 digits."""
    mpmath.mp.dps = 40

    def excess(e):
        return mpmath.ncdf(mu / 2 - e / mu) - mpmath.e**e * mpmath.ncdf(-mu / 2 - e / mu) - delta

    return float(mpmath.findroot(excess, (1e-3, 60), solver="bisect", tol=1e-25))


@pytest.mark.parametrize(("adjacency", "moves"), [("replace-one", 2), ("add-remove", 1)])
def test_dp_cd_costs_the_gaussian_composition(adjacency, moves):
    public = cd(steps=100, noise_multiplier=20.0, adjacency=adjacency)
    assert public.privacy().mu == pytest.approx(10 * moves / 20, rel=1e-15)
    assert public.privacy().epsilon(1e-5) == pytest.approx(balle_wang(mpmath.mpf(moves) / 2, 1e-5), rel=1e-9)
    private = cd(steps=100, noise_multiplier=20.0, bounds=(1.0, 1.0), smoothness_mu=0.3, adjacency=adjacency)
    assert private.privacy().mu ** 2 == pytest.approx((moves / 2) ** 2 + 0.09, rel=1e-12)
    shared = cd(
        steps=100, noise_multiplier=20.0, bounds=(1.0, 1.0), smoothness_share=0.2, adjacency=adjacency
    )
    smoothness = shared.releases(0)[0]
    assert (smoothness.sensitivity / smoothness.noise_std) ** 2 == pytest.approx(
        0.2 * shared.privacy().mu ** 2, rel=1e-12
    )


def test_dp_gcd_costs_selections_and_laplace_releases():
    """Renyi: pure losses by the exact formula of randomized response, Laplace by Mironov's closed form."""
    T, r, a = 4, 20.0, 2.0
    plan = gcd(records=1000, steps=T, noise_ratio=r, smoothness=0.25)
    e = 2 / r
    selection = min(
        e, math.log((math.exp(e * (a - 1)) * math.exp(e) + math.exp(-e * (a - 1))) / (math.exp(e) + 1))
    )
    t = 1 / r
    value = math.log(a / (2 * a - 1) * math.exp((a - 1) * t) + (a - 1) / (2 * a - 1) * math.exp(-a * t)) / (
        a - 1
    )
    found = plan.privacy().rdp(a)
    assert T * value < found <= T * (a * e * e / 2 + value) * (1 + 1e-12)
    assert found >= T * (selection / (a - 1) + value) * (1 - 1e-6)
    # pure composition caps it: T (2/r + 1/r)
    assert plan.privacy().epsilon(1e-12) <= T * 3 / r * (1 + 1e-9)
    choose, answer = plan.releases(0)
    assert (choose.mechanism, answer.mechanism) == ("noisy-max", "laplace")
    assert (choose.ratio, answer.ratio, choose.draws, answer.draws) == (r, r, T, T)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.1])
def test_published_noise_meets_its_epsilon(epsilon, delta):
    """DP-CD: s^2 = 12 L^2 T ln(1/delta) / (n eps)^2; DP-GCD: scale 8 L sqrt(T ln(1/delta)) / (n eps)."""
    T = 50
    z = math.sqrt(12 * T * math.log(1 / delta)) / epsilon  # in units of the clip L
    assert cd(steps=T, noise_multiplier=z).privacy().epsilon(delta) <= 0.97 * epsilon
    r = 4 * math.sqrt(T * math.log(1 / delta)) / epsilon
    assert gcd(steps=T, noise_ratio=r).privacy().epsilon(delta) <= 0.94 * epsilon


def test_dp_sgd_with_all_records_is_one_gaussian_per_step():
    plan = sgd(batch_size=None, steps=16, noise_multiplier=8.0)
    assert plan.privacy().mu == 0.5
    replaced = sgd(batch_size=None, steps=16, noise_multiplier=8.0, adjacency="replace-one")
    assert replaced.privacy().mu == 1.0


def test_budgets_are_met_and_not_wasted():
    options = {
        "objective": GLM(),
        "records": 1000,
        "clip_norm": 1.0,
        "epsilon": 1.0,
        "delta": 1e-6,
        "steps": 30,
    }
    for plan in (
        DPSGD.for_budget(batch_size=50, learning_rate=1.0, **options),
        DPCD.for_budget(bounds=(1.0, 2.0), **options),
        DPCD.for_budget(bounds=(1.0, 2.0), smoothness_mu=0.05, **options),
        DPCD.for_budget(smoothness=(1.0, 2.0), adjacency="add-remove", **options),
        DPGCD.for_budget(**options),
    ):
        assert 0.999 <= plan.privacy().epsilon(1e-6) <= 1.0
        assert plan.privacy().adversary.kind == "central"
        plan.privacy("central").require(1.0, 1e-6)
        assert plan.cost()["messages"] == 0
    exact = DPCD.for_budget(smoothness=(1.0, 2.0), **options)
    assert exact.privacy().epsilon(1e-6) == pytest.approx(1.0, rel=1e-9)


# ---- noise ---------------------------------------------------------------------------------------------


def test_noise_has_the_scale_that_is_booked():
    """The spread of one released step, on data that contribute nothing: right scale in, 2/3 and 3/2 out."""
    X, y = np.zeros((10, 2)), np.ones(10)
    draws = {"sgd": [], "cd": [], "gcd": []}
    rng = np.random.default_rng(0)
    one = {"records": 10, "steps": 1, "clip_norm": 2.0}
    descent = sgd(batch_size=5, learning_rate=1.0, noise_multiplier=3.0, **one)
    coordinate = cd(noise_multiplier=3.0, smoothness=(1.0, 1.0), **one)
    greedy = gcd(noise_ratio=3.0, smoothness=1.0, **one)
    for _ in range(500):
        draws["sgd"].extend(descent.run((X, y), rng).outputs["coef"] * 5 / 6)
        w = coordinate.run((X, y), rng).outputs["coef"]
        draws["cd"].append(w[w != 0][0] / (3 * math.sqrt(2) / 10))
        w = greedy.run((X, y), rng).outputs["coef"]
        draws["gcd"].append(w[w != 0][0] / (3 * 2 * math.sqrt(2) / 10) / math.sqrt(2))
    for name, values in draws.items():
        assert 0.85 < np.std(values) < 1.15, name


def test_the_selection_noise_has_the_scale_that_is_booked():
    """Two coordinates whose gradients differ by d scales: the better is chosen as often as Laplace says."""
    n, r = 10, 1.5
    X = np.tile([0.5, 0.0], (n, 1))
    y = np.ones(n)  # squared loss at zero: G = (-0.5, 0)
    plan = gcd(GLM("squared"), records=n, steps=1, clip_norm=50.0, noise_ratio=r, smoothness=1.0)
    b = r * 2 * (50 / math.sqrt(2)) / n
    _, source = hosted(plan.with_noise(r * 0.05), (X, y), RunRandomness.from_rng(np.random.default_rng(0)))
    source.announced = None
    b *= 0.05
    chosen = [source.choose(np.zeros((1, 2)), k)[0] for k in range(4000)]
    rng = np.random.default_rng(5)
    G = np.array([-0.5, 0.0])

    def share(scale):
        tried = np.abs(G + rng.laplace(scale=scale, size=(200_000, 2)))
        return float((tried[:, 0] > tried[:, 1]).mean())

    found = float(np.mean(np.array(chosen) == 0))
    assert abs(found - share(b)) < 0.03
    assert abs(found - share(b * 2)) > 0.04
    assert abs(found - share(b / 2)) > 0.04


def test_protective_noise_runs_and_differs():
    X, y = problem(5)
    for plan in (sgd(), cd(), cd(bounds=(3.0,) * 4), gcd()):
        once, again = (plan.run((X, y), ProtectiveNoise()) for _ in range(2))
        assert (once.outputs["coef"] != again.outputs["coef"]).any()
        assert once.provenance["noise"] == "protective"
        same = [plan.run((X, y), np.random.default_rng(8)) for _ in range(2)]
        assert (same[0].outputs["coef"] == same[1].outputs["coef"]).all()
        assert "simulation" in same[0].provenance["noise"]


def test_protective_laplace_noise_pays_for_its_grid():
    """Two neighboring values may round one step further apart than the sensitivity."""
    n, r = 10, 2.0**14
    plan = gcd(records=n, steps=1, noise_ratio=r, smoothness=0.25)
    X, y = np.full((n, 4), 1e6), np.ones(n)
    G = {}
    for noise in (ProtectiveNoise(), np.random.default_rng(0)):
        _, source = hosted(plan, (X, y), RunRandomness.from_rng(noise))
        G[source.random.protective] = np.abs(source.gradient(np.zeros((1, 4))))
    D = 2 * 0.5 / n  # 2 C_j / n
    assert G[False] == pytest.approx(np.full(4, 0.5))
    assert (2 * G[True] / n + r * D / 2.0**20 <= D * (1 + 1e-12)).all()
    assert (2 * G[True] / n + r * D / 2.0**20 >= D * (1 - 1e-9)).all()
    with pytest.raises(InvalidInput, match="noise_ratio must be below"):
        hosted(gcd(records=n, noise_ratio=2.0**21), (X, y), RunRandomness.from_rng(ProtectiveNoise()))


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_coordinate_rounding_is_paid_for_by_the_clip(adjacency):
    """With a grid coarse enough to matter, what a record moves and two roundings stay within the booking."""

    class Coarse(Silent):
        def slack(self, dim, std=1.0):
            return 0.01 * std

    n, z = 4, 10.0
    plan = cd(GLM("squared"), records=n, steps=1, noise_multiplier=z, smoothness=(1.0,), adjacency=adjacency)
    values = []
    for target in (1e6, -1e6 if adjacency == "replace-one" else 0.0):
        _, source = hosted(
            plan, (np.ones((n, 1)), np.array([target, 0, 0, 0])), RunRandomness(Coarse(), 1, 1)
        )
        source._grid = 0.0  # the sum itself, before it is rounded
        values.append(source.coordinate(np.ones(1), source.margins(np.zeros((1, 1))), 0, 0) * n)
    moves = plan.releases(0)[0].sensitivity
    assert abs(values[0] - values[1]) + 2 * 0.01 * z == pytest.approx(moves)
    with pytest.raises(InvalidInput, match="rounding slack"):
        hosted(plan.with_noise(1000.0), (np.ones((n, 1)), np.ones(n)), RunRandomness(Coarse(), 1, 1))


def test_a_zero_draw_of_discrete_noise_is_still_a_release_on_the_grid():
    """One draw in 330,000 is zero; the sum then left as it was, off the grid, and told itself exactly."""

    class Zeros(Silent):
        protective = True

    n, z = 8, 2.0
    X = np.random.default_rng(0).uniform(-1, 1, (n, 1))
    y = np.tile([1.0, -1.0], n // 2)
    plan = cd(records=n, steps=1, noise_multiplier=z, smoothness=(0.25,), output="last")
    (w,) = plan.run((X, y), Zeros()).outputs["coef"]
    steps = w / (1 / 0.25) / (1 / n) / grid_step(z)
    assert abs(steps) > 1000
    assert steps == pytest.approx(round(steps), abs=1e-6)
    quiet = cd(records=n, steps=1, noise_multiplier=0.0, smoothness=(0.25,), output="last")
    (w,) = quiet.run((X, y), Zeros()).outputs["coef"]
    steps = w / (1 / 0.25) / (1 / n) / grid_step(z)
    assert abs(steps - round(steps)) > 1e-3


def test_the_divisor_is_the_expected_lot_not_the_realized_one():
    """Twenty records that all pull with the full clip: a step is (realized lot) / (expected lot)."""
    X, y = np.ones((20, 1)), np.full(20, 1e6)
    plan = sgd(GLM("squared"), records=20, steps=1, batch_size=2, learning_rate=1.0, noise_multiplier=0.0)
    rng = np.random.default_rng(0)
    counts = np.array([plan.run((X, y), rng).outputs["coef"][0] * 2 for _ in range(300)])
    assert np.allclose(counts, np.round(counts))
    assert counts.min() == 0  # an empty lot moves nothing
    assert abs(counts.mean() - 2) < 0.3
    assert abs(counts.var() - 20 * 0.1 * 0.9) < 0.5


# ---- the mechanism and the plan ------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("make", "lie"), [
    (sgd, {"noise_multiplier": 0.5}), (sgd, {"clip_norm": 2.0}), (sgd, {"steps": 3}),
    (cd, {"noise_multiplier": 1.0}), (cd, {"adjacency": "add-remove"}), (cd, {"steps": 3}),
    (gcd, {"noise_ratio": 1.0}), (gcd, {"adjacency": "add-remove"}), (gcd, {"steps": 3}),
])  # fmt: skip
def test_a_run_that_draws_other_than_planned_stops(make, lie, compiled):
    plan, other, data = make(), make(**lie), problem()
    text, source = hosted(plan, data, RunRandomness.from_rng(np.random.default_rng(0)))
    source.announced = AnnouncedReleases([other.releases(0)])
    text = text if compiled else text._replace(block=None)
    with pytest.raises(ReleaseMismatch, match="nothing was released"):
        run_stacked(text, plan.schedule, plan.steps, every=plan.steps)


def test_the_kind_of_a_release_and_the_smoothness_release_are_compared_too():
    data = problem()
    _, source = hosted(gcd(), data, RunRandomness.from_rng(np.random.default_rng(0)))
    choose, value = gcd().releases(0)
    source.announced = AnnouncedReleases([[Release(**{**choose.to_dict(), "mechanism": "laplace"}), value]])
    with pytest.raises(ReleaseMismatch, match="announced laplace"):
        source.choose(np.zeros((1, 4)), 0)
    plan = cd(bounds=(1.0,) * 4)
    _, source = hosted(plan, data, RunRandomness.from_rng(np.random.default_rng(0)))
    source.announced = AnnouncedReleases([plan.releases(0)[1:]])
    with pytest.raises(ReleaseMismatch, match="does not list"):
        source.released_smoothness()


def test_user_level_is_refused_where_it_is_not_accounted():
    for make in (sgd, cd, gcd):
        with pytest.raises(InvalidInput, match=r"adjacency of dp-.* must be add-remove or replace-one"):
            make(adjacency="user")


def test_a_removed_record_leaves_an_empty_place():
    assert any("public, not protected" in line for line in sgd().privacy().assumptions)
    for adjacency, said in (("add-remove", True), ("replace-one", False)):
        found = cd(adjacency=adjacency).privacy()
        assert any("public, not protected" in line for line in found.assumptions) is said


@pytest.mark.parametrize("make", [
    lambda: sgd(steps=40, output="mean"),
    lambda: sgd(steps=40, optimizer=Optimizer("adam")),
    lambda: cd(steps=140, period=9),
    lambda: cd(steps=140, bounds=(3.0,) * 4),
    lambda: gcd(steps=12),
])  # fmt: skip
def test_an_interrupted_run_resumes_to_the_same_bits(make, tmp_path):
    X, y = problem(6)
    plan = make()
    whole = plan.run((X, y), np.random.default_rng(5)).outputs["coef"]

    class Stop(Exception):
        pass

    seen = []

    def stop_later(rows):
        seen.append(rows)
        if len(seen) == 3:
            raise Stop
        return {}

    folder = tmp_path / "run"
    with pytest.raises(Stop):
        plan.run((X, y), np.random.default_rng(5), checkpoint=folder, evaluate=stop_later)
    assert folder.exists()
    resumed = plan.run((X, y), np.random.default_rng(5), checkpoint=folder).outputs["coef"]
    assert (resumed == whole).all()
    with pytest.raises(ConfigError, match="another plan"):
        make().with_noise(9.0).run((X, y), np.random.default_rng(5), checkpoint=folder)


def test_a_resumed_protective_run_does_not_use_a_second_release_of_the_smoothness(tmp_path):
    """M_j is charged once: what the checkpoint holds is what goes on."""
    X, y = problem(6)
    plan = cd(steps=100, bounds=(3.0,) * 4)
    first = plan.run((X, y), ProtectiveNoise(), checkpoint=tmp_path / "run").outputs["smoothness"]
    again = plan.run((X, y), ProtectiveNoise(), checkpoint=tmp_path / "run").outputs["smoothness"]
    assert (first == again).all()


def test_bad_plans_and_data_are_refused():
    X, y = problem(7)
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="separable"):
        cd(GLM(ball=1.0))
    with pytest.raises(InvalidInput, match="either public smoothness"):
        DPCD(GLM(), 60, 3, 1.0, 1.0)
    with pytest.raises(InvalidInput, match="leave it out or give bounds"):
        cd(smoothness_mu=1.0)
    with pytest.raises(InvalidInput, match="2 coordinates"):
        cd(smoothness=(1.0, 1.0)).run((X, y), rng)
    with pytest.raises(InvalidInput, match="2 coordinates"):
        gcd(smoothness=(1.0, 1.0)).run((X, y), rng)
    with pytest.raises(InvalidInput, match="public number"):
        cd().run((X[1:], y[1:]), rng)
    cd(adjacency="add-remove").run((X[1:], y[1:]), rng)
    with pytest.raises(DataError, match="the plan was made for"):
        sgd().run((X[1:], y[1:]), rng)
    sgd(records=None, batch_size=12, sample_rate=0.2).run((X[1:], y[1:]), rng)
    with pytest.raises(DataError, match="Labels"):
        sgd().run((X, y + 5), rng)
    with pytest.raises(DataError, match="Dataset, a pair"):
        sgd().run(None, rng)
    with pytest.raises(DataError, match=r"Expected features \(n, p\)"):
        cd().run((X, y[1:]), rng)
    with pytest.raises(DataError, match="take at most 60"):
        sgd(batch_size=61)
    with pytest.raises(InvalidInput, match="one holder"):
        sgd(network="ring:4")
    with pytest.raises(InvalidInput, match="got 2 agents"):
        DPSGD(GLM(), steps=1, clip_norm=1.0, sizes=(3, 4))
    with pytest.raises(InvalidInput, match="give one"):
        sgd(sizes=(3,))
    with pytest.raises(InvalidInput, match="one part, got 2 users"):
        cd().run(Shards(X, y, np.array([0, 30, 60])), rng)
    for make in (sgd, cd, gcd):
        with pytest.raises(InvalidInput, match="central"):
            make().privacy("local")
    for make in (sgd, cd):
        with pytest.raises(InvalidInput, match="dense features"):
            make().run((sp.csr_array(X), y), rng)
        with pytest.raises(InvalidInput, match="finite"):
            make(clip_norm=math.inf)
        assert math.isinf(make(noise_multiplier=0.0).privacy().epsilon(1e-5))
    assert cd(steps=3, noise_multiplier=2.0).privacy().epsilon(1e-5) == gaussian_epsilon(math.sqrt(3), 1e-5)


def test_clips_of_coordinates_add_up():
    M = np.array([0.2, 1.0, 2.8])
    C = coordinate_clips(M, 2.0)
    assert sum(Fraction(float(c)) ** 2 for c in C) == pytest.approx(4)
    assert (C / np.sqrt(M))[1:] == pytest.approx((C / np.sqrt(M))[:-1])


def test_protective_noise_asked_twice_for_one_step_is_not_the_same():
    """Noise kept for a second question would cancel in the difference of the two answers."""
    plan, data = cd(), problem()
    _, source = hosted(plan, data, RunRandomness.from_rng(ProtectiveNoise()))
    M, margins = source.released_smoothness(), source.margins(np.zeros((1, 4)))
    assert len({source.coordinate(M, margins, 0, 5) for _ in range(4)}) > 1
    _, seeded = hosted(plan, data, RunRandomness.from_rng(np.random.default_rng(0)))
    assert len({seeded.coordinate(M, margins, 0, 5) for _ in range(4)}) == 1


@pytest.mark.parametrize("sparse", [False, True])
def test_every_coordinate_of_every_record_is_clipped_at_its_own_bound(sparse):
    X, y = problem(9)
    M, start = np.array([0.2, 0.3, 0.4, 0.5]), np.full((1, 4), 0.3)
    C = 0.5 * np.sqrt(M / M.sum())
    each = -(y / (1 + np.exp(y * (X @ start[0]))))[:, None] * X
    plan = gcd(clip_norm=0.5, smoothness=tuple(M))
    data = (sp.csr_array(X) if sparse else X, y)
    _, source = hosted(plan, data, RunRandomness.from_rng(np.random.default_rng(0)))
    assert np.allclose(source.gradient(start), np.clip(each, -C, C).mean(axis=0), atol=1e-14)
    assert (np.abs(each) > C).any(axis=0).all()
