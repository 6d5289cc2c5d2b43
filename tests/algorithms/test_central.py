"""Central optimisers: noise-free limits, sensitivities, prices, resumption."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.algorithms.blocks import randomness
from sottovoce.algorithms.dp_cd import DPCD, coordinate_clips, private_smoothness
from sottovoce.algorithms.dp_gcd import DPGCD, laplace
from sottovoce.algorithms.dp_sgd import DPSGD
from sottovoce.errors import ConfigError, DataError, InvalidInput
from sottovoce.objectives import GLM
from sottovoce.privacy import ProtectiveNoise, gaussian_epsilon

MODELS = [
    GLM("logistic", l2=0.01),
    GLM("squared", l1=0.05),
    GLM("huber", l1=0.01, l2=0.1, box=0.3, width=0.5),
]


def problem(seed=0, n=60, p=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)), np.sign(rng.normal(size=n))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.loss)
def test_dp_sgd_without_noise_is_proximal_gradient_descent(model):
    X, y = problem()
    plan = DPSGD(model, records=60, steps=7, lot=60, learning_rate=0.3, clip=math.inf, noise_multiplier=0.0)
    w = np.zeros(4)
    for _ in range(7):
        w = model.regulariser.prox(w - 0.3 * model.gradient(w, X, y), 0.3)
    assert np.allclose(plan.run((X, y), np.random.default_rng(0)).outputs["coef"], w, atol=1e-13)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.loss)
@pytest.mark.parametrize("period", [None, 5])
def test_dp_cd_equals_its_numpy_twin(model, period):
    """Textbook proximal coordinate descent on the coordinates drawn, with running averages."""
    X, y = problem(1)
    M = model.coordinate_smoothness(X)
    plan = DPCD(model, 60, 23, math.inf, 0.0, smoothness=tuple(M), step_scale=0.8, period=period)
    chosen = randomness(np.random.default_rng(3)).draws(0, 0).integers(4, size=23)
    w, since = np.zeros(4), []
    for t, j in enumerate(chosen):
        if period and t % period == 0 and t > 0:
            w, since = np.mean(since, axis=0), []
        gamma = 0.8 / M[j]
        v = w[j] - gamma * model.gradient(w, X, y)[j]
        w = w.copy()
        w[j] = model.regulariser.prox(np.array([v]), gamma)[0]
        since.append(w)
    found = plan.run((X, y), np.random.default_rng(3)).outputs["coef"]
    assert np.allclose(found, np.mean(since, axis=0), atol=1e-11)


def test_dp_cd_with_one_coordinate_is_dp_gradient_descent():
    X, y = problem(2, p=1)
    model = GLM("logistic", l2=0.1)
    cd = DPCD(model, 60, 9, math.inf, 0.0, smoothness=(0.5,), output="last").run(
        (X, y), np.random.default_rng(0)
    )
    gd = DPSGD(model, 60, 9, 60, 2.0, math.inf, 0.0).run((X, y), np.random.default_rng(0))
    assert np.allclose(cd.outputs["coef"], gd.outputs["coef"], atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_dp_gcd_without_noise_takes_the_steepest_coordinate(sparse):
    X, y = problem(3)
    model, M = GLM("logistic", l1=0.01), np.array([0.2, 0.3, 0.4, 0.5])
    w = np.zeros(4)
    for _ in range(6):
        G = model.gradient(w, X, y)
        j = np.argmax(np.abs(G) / np.sqrt(M))
        w[j] = model.regulariser.prox(w[j : j + 1] - G[j] / M[j], 1 / M[j])[0]
    plan = DPGCD(model, 60, 6, math.inf, 0.0, smoothness=tuple(M))
    data = (sp.csr_array(X) if sparse else X, y)
    assert np.allclose(plan.run(data, np.random.default_rng(0)).outputs["coef"], w, atol=1e-12)


def hostile(rng, p):
    return rng.choice([0.0, 1.0, -1.0, 1e3, 1e38, -1e200, 1e300], size=p)


@pytest.mark.parametrize("seed", range(12))
def test_no_record_moves_a_release_by_more_than_what_is_booked(seed):
    """Noise off, one record changed to something hostile, from a random model (TRUST I11)."""
    rng = np.random.default_rng(seed)
    n, p = 20, 3
    X, y = problem(seed, n, p)
    model = GLM(["logistic", "squared", "huber"][seed % 3])
    other = X.copy()
    other[4] = hostile(rng, p)
    start = rng.normal(size=p) * 10 ** rng.uniform(-1, 2)
    seeded = lambda: np.random.default_rng(1)  # noqa: E731

    sgd = DPSGD(model, n, 1, n, 0.7, 1.3, 0.0)
    full = sgd.run((X, y), seeded(), start=start).outputs["coef"]
    without = sgd.run((np.delete(X, 4, 0), np.delete(y, 4)), seeded(), start=start).outputs["coef"]
    changed = sgd.run((other, y), seeded(), start=start).outputs["coef"]
    slack = 1 + 1e-9
    assert np.linalg.norm(full - without) * n / 0.7 <= 1.3 * slack
    assert np.linalg.norm(full - changed) * n / 0.7 <= 2 * 1.3 * slack

    M = np.array([0.1, 1.0, 3.0])
    cd = DPCD(model, n, 1, 1.3, 0.0, smoothness=tuple(M), output="last")
    a, b = (cd.run((D, y), seeded(), start=start).outputs["coef"] for D in (X, other))
    C = coordinate_clips(M, 1.3)
    assert (np.abs(a - b) * M <= 2 * C / n * slack + 1e-13).all()

    gcd = DPGCD(model, n, 1, 1.3, 0.0, smoothness=tuple(M))
    from sottovoce.algorithms.dp_gcd import _gradient
    from sottovoce.objectives.glm import record_slopes

    with np.errstate(all="ignore"):
        G = [
            _gradient(np.ascontiguousarray(D.T), record_slopes(model.kind, 1.0, D @ start, y), C) / n
            for D in (X, other)
        ]
    assert np.isfinite(G).all()
    assert (np.abs(G[0] - G[1]) <= 2 * C / n * slack).all()
    assert gcd.privacy().valid is True


def test_smoothness_release_moves_by_at_most_its_sensitivity():
    class Silent(ProtectiveNoise):
        protective = False
        seen = None

        def perturb(self, values, *, agents, step, std, stream=0):
            Silent.seen = (values.copy(), std)
            return values

        def slack(self, dim, std=1.0):
            return 0.0

    X, _ = problem(4, n=10, p=3)
    other = X.copy()
    other[0] = [1e300, np.nan, -1e9]
    seen = []
    for D in (X, other):
        private_smoothness(D, np.array([1.0, 2.0, 0.5]), 0.25, 10, 0.4, randomness(Silent()))
        seen.append(Silent.seen)
    assert np.linalg.norm(seen[0][0] - seen[1][0]) / seen[0][1] <= 0.4 * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.1])
def test_published_noise_meets_its_epsilon(epsilon, delta):
    """DP-CD: s^2 = 12 L^2 T ln(1/delta) / (n eps)^2; DP-GCD: scale 8 L sqrt(T ln(1/delta)) / (n eps)."""
    T = 50
    z = math.sqrt(12 * T * math.log(1 / delta)) / epsilon / 2  # in units of the sensitivity 2L/n
    assert DPCD(GLM(), 10, T, 1.0, z, smoothness=(1.0,)).privacy().epsilon(delta) <= 0.97 * epsilon
    r = 4 * math.sqrt(T * math.log(1 / delta)) / epsilon
    assert DPGCD(GLM(), 10, T, 1.0, r).privacy().epsilon(delta) <= 0.94 * epsilon


def test_budgets_are_met_and_not_wasted():
    options = {"objective": GLM(), "records": 1000, "clip": 1.0}
    for plan in (
        DPSGD.for_budget(epsilon=1.0, delta=1e-6, steps=30, lot=50, learning_rate=1.0, **options),
        DPCD.for_budget(epsilon=1.0, delta=1e-6, steps=30, bounds=(1.0, 2.0), **options),
        DPGCD.for_budget(epsilon=1.0, delta=1e-6, steps=30, **options),
    ):
        assert 0.99 <= plan.privacy().epsilon(1e-6) <= 1.0
        assert plan.privacy().adversary.kind == "central"
        plan.require(1.0, 1e-6, view="central")
    assert plan.cost()["messages"] == 0


def test_noise_has_the_scale_that_is_booked():
    """The spread of one released step, on data that contribute nothing: right scale in, 2/3 and 3/2 out."""
    X, y = np.zeros((10, 2)), np.ones(10)
    draws = {"sgd": [], "cd": [], "gcd": []}
    rng = np.random.default_rng(0)
    for _ in range(500):
        w = DPSGD(GLM(), 10, 1, 5, 1.0, 2.0, 3.0).run((X, y), rng).outputs["coef"]
        draws["sgd"].extend(w * 5 / 6)
        w = DPCD(GLM(), 10, 1, 2.0, 3.0, smoothness=(1.0, 1.0)).run((X, y), rng).outputs["coef"]
        draws["cd"].append(w[w != 0][0] / (3 * 2 * math.sqrt(2) / 10))
        scale = np.array([3 * 2 * 1.0 / 10])
        draws["gcd"].append(laplace(np.zeros(1), scale, randomness(rng), 0, 0)[0] / scale[0] / math.sqrt(2))
    for name, values in draws.items():
        assert 0.85 < np.std(values) < 1.15, name


def test_protective_noise_runs_and_differs():
    X, y = problem(5)
    for plan in (
        DPSGD(GLM(), 60, 3, 10, 1.0, 1.0, 1.0),
        DPCD(GLM(), 60, 3, 1.0, 1.0, smoothness=(0.25,) * 4),
        DPGCD(GLM(), 60, 3, 1.0, 1.0),
    ):
        once, again = (plan.run((X, y), ProtectiveNoise()).outputs["coef"] for _ in range(2))
        assert (once != again).any()
        same = [plan.run((X, y), np.random.default_rng(8)).outputs["coef"] for _ in range(2)]
        assert (same[0] == same[1]).all()


@pytest.mark.parametrize("make", [
    lambda: DPSGD(GLM(), 60, 40, 10, 1.0, 1.0, 1.0, output="mean"),
    lambda: DPCD(GLM(), 60, 140, 1.0, 1.0, smoothness=(0.25,) * 4, period=9),
    lambda: DPGCD(GLM(), 60, 12, 1.0, 1.0),
])  # fmt: skip
def test_an_interrupted_run_resumes_to_the_same_bits(make, tmp_path):
    X, y = problem(6)
    plan = make()
    whole = plan.run((X, y), np.random.default_rng(5)).outputs["coef"]

    class Stop(Exception):
        pass

    def stop_later(w, seen=[]):  # noqa: B006
        seen.append(1)
        if len(seen) == 3:
            raise Stop
        return {}

    path = tmp_path / "run.npz"
    with pytest.raises(Stop):
        plan.run((X, y), np.random.default_rng(5), checkpoint=path, evaluate=stop_later)
    assert path.exists()
    resumed = plan.run((X, y), np.random.default_rng(5), checkpoint=path).outputs["coef"]
    assert (resumed == whole).all()
    with pytest.raises(ConfigError, match="another plan"):
        plan.run((X + 1, y), np.random.default_rng(5), checkpoint=path)
    path.write_bytes(b"garbage")
    with pytest.raises(DataError, match="not a checkpoint"):
        plan.run((X, y), np.random.default_rng(5), checkpoint=path)


def test_bad_plans_and_data_are_refused():
    X, y = problem(7)
    good = {"objective": GLM(), "records": 60, "steps": 3, "clip": 1.0, "noise_multiplier": 1.0}
    with pytest.raises(InvalidInput, match="separable"):
        DPCD(**{**good, "objective": GLM(ball=1.0)}, smoothness=(1.0,))
    with pytest.raises(InvalidInput, match="either public smoothness"):
        DPCD(**good)
    with pytest.raises(InvalidInput, match="2 coordinates"):
        DPCD(**good, smoothness=(1.0, 1.0)).run((X, y), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="public number"):
        DPCD(**good, smoothness=(1.0,) * 4).run((X[1:], y[1:]), np.random.default_rng(0))
    with pytest.raises(DataError, match="Labels"):
        DPSGD(**good, lot=5, learning_rate=1.0).run((X, y + 5), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="lot must be at most"):
        DPSGD(**good, lot=61, learning_rate=1.0)
    with pytest.raises(InvalidInput, match="central"):
        DPSGD(**good, lot=5, learning_rate=1.0).privacy("pairwise")
    assert math.isinf(
        DPSGD(**{**good, "noise_multiplier": 0.0}, lot=5, learning_rate=1.0).privacy().epsilon(1e-5)
    )
    assert DPCD(**good, smoothness=(1.0,)).privacy().epsilon(1e-5) == gaussian_epsilon(math.sqrt(3), 1e-5)


def test_rounding_to_the_grid_is_paid_for_by_the_clip():
    """With a protective source two neighbouring sums, each rounded, differ by at most what is booked."""
    from sottovoce.algorithms.decentralized import Gradients
    from sottovoce.data import Shards

    class Rounds(ProtectiveNoise):
        """Rounds to the grid and adds nothing."""

        def _draw(self, agents, dim, dtype, step, stream):
            return np.zeros((len(agents), dim))

    coarse, dim = 400.0, 64  # a grid coarse enough to matter: noise 400 times the clip
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2, dim))
    empty = np.array([X[0], np.zeros(dim)])
    for level, booked in (("user", 2.0), ("record", 1.0)):
        released = []
        for D in (X, empty if level == "record" else -X):
            shards = Shards(D, np.full(2, 1e6), np.array([0, 2]))
            source = Gradients(
                GLM("squared"), shards, [0], Rounds(), clip=1.0, noise_multiplier=coarse, level=level
            )
            released.append(source.perturb(source(np.zeros((1, dim)), 0), 0, 1.0))
        assert np.linalg.norm(released[0] - released[1]) / source.std[0] <= booked / coarse


def test_the_divisor_is_the_expected_lot_not_the_realised_one():
    """Twenty records that all pull with the full clip: a step is (realised lot) / (expected lot)."""
    X, y = np.ones((20, 1)), np.full(20, 1e6)
    plan = DPSGD(GLM("squared"), 20, 1, 2, 1.0, 1.0, 0.0)
    rng = np.random.default_rng(0)
    counts = np.array([plan.run((X, y), rng).outputs["coef"][0] * 2 for _ in range(300)])
    assert np.allclose(counts, np.round(counts))
    assert counts.min() == 0  # an empty lot moves nothing
    assert abs(counts.mean() - 2) < 0.3
    assert abs(counts.var() - 20 * 0.1 * 0.9) < 0.5


def test_protective_laplace_noise_pays_for_its_grid(monkeypatch):
    """Two neighbouring values may round one step further apart than the sensitivity."""
    from sottovoce.algorithms import dp_gcd

    seen = []
    true = dp_gcd._gradient
    monkeypatch.setattr(dp_gcd, "_gradient", lambda *given: (seen.append(given[2].copy()), true(*given))[1])
    n, r = 10, 2.0**14
    plan = DPGCD(GLM("logistic"), records=n, steps=1, clip=1.0, noise_ratio=r, smoothness=0.25)
    X, y = np.ones((n, 4)), np.tile([1.0, -1.0], n // 2)
    plan.run((X, y), ProtectiveNoise())
    plan.run((X, y), np.random.default_rng(0))
    protective, simulated = seen
    D = 2 * simulated / n
    grid = r * D / 2.0**20
    assert (simulated == 0.5).all()
    assert (2 * protective / n + grid <= D * (1 + 1e-12)).all()


def test_a_removed_record_leaves_an_empty_place():
    plan = DPSGD(GLM(), records=10, steps=2, lot=5, learning_rate=1.0, clip=1.0, noise_multiplier=1.0)
    assert any("empty place" in line for line in plan.privacy().assumptions)
    common = {"objective": GLM(), "records": 10, "steps": 2, "clip": 1.0, "smoothness": (0.25,)}
    for adjacency, said in (("add-remove", True), ("replace-one", False)):
        found = DPCD(noise_multiplier=1.0, adjacency=adjacency, **common).privacy()
        assert any("empty place" in line for line in found.assumptions) is said


def test_a_zero_draw_of_discrete_noise_is_still_a_release_on_the_grid():
    """One draw in 330,000 is zero; the sum then left as it was, off the grid, and told itself exactly."""

    class Zeros:
        protective = True

        def slack(self, dim, std=1.0):
            return 0.0

        def perturb(self, values, *, agents, step, std, stream=0):
            return np.zeros_like(values)

    n, z = 8, 1.0
    plan = DPCD(
        GLM("logistic"),
        records=n,
        steps=1,
        clip=1.0,
        noise_multiplier=z,
        smoothness=(0.25,),
        output="last",
    )
    X = np.random.default_rng(0).uniform(-1, 1, (n, 1))
    (w,) = plan.run((X, np.tile([1.0, -1.0], n // 2)), Zeros()).outputs["coef"]
    steps = w / (plan.step_scale / 0.25) / (2 / n) / randomness(ProtectiveNoise()).grid(z)
    assert abs(steps) > 1000
    assert steps == pytest.approx(round(steps), abs=1e-6)
