"""Private ADMM: equals ISTA's answer on the Lasso, sensitivities, three ways of running it."""

import math

import numpy as np
import pytest

from sottovoce.algorithms.admm import CentralADMM, FederatedADMM, TokenADMM, client_move, prox_rows
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput, NotAGuarantee
from sottovoce.objectives import GLM, prox_logistic, prox_squared, prox_squared_batch

MODELS = [GLM("squared", l1=0.1), GLM("logistic", l2=0.05), GLM("huber", l1=0.02, width=0.4)]


def problem(seed=0, n=40, p=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    return X, np.sign(X @ rng.normal(size=p) + 0.3 * rng.normal(size=n))


def ista(model, X, y, steps=4000):
    w, step = np.zeros(X.shape[1]), 0.5 * len(y) / np.linalg.norm(X, 2) ** 2
    for _ in range(steps):
        w = model.regulariser.prox(w - step * model.gradient(w, X, y), step)
    return w


@pytest.mark.parametrize("noise_in", ["mean", "increment", "state"])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.loss)
def test_without_noise_admm_finds_what_ista_finds(model, noise_in):
    X, y = problem()
    plan = CentralADMM(model, 40, 600, 1.0, math.inf, 0.0, 0.9, noise_in)
    assert np.allclose(
        plan.run((X, y), np.random.default_rng(0)).outputs["coef"], ista(model, X, y), atol=1e-6
    )


def test_federated_and_token_admm_find_it_too():
    X, y = problem(1)
    parts = np.array_split(np.arange(40), 8)
    shards, model = Shards.from_parts(X, y, parts), GLM("squared", l1=0.1)
    want = ista(model, X, y)
    for plan in (
        FederatedADMM(model, 8, 3000, 0.4, 1.0, math.inf, 0.0, 0.9),
        FederatedADMM(model, 8, 3000, 0.4, 1.0, math.inf, 0.0, 0.9, secure_sum=False),
        TokenADMM(model, 8, 20_000, 1.0, math.inf, 0.0, 0.9),
    ):
        got = plan.run(shards, np.random.default_rng(0)).outputs["coef"]
        assert np.allclose(got, want, atol=1e-5), plan.name


def test_the_server_step_as_printed_goes_to_the_wrong_place():
    """z^ = z + ... instead of z^ = z^ + ...: on the Lasso the printed step ends at 0."""
    X, y = problem(2)
    model, gamma = GLM("squared", l1=0.1), 1.0
    u, z = np.zeros((40, 4)), np.zeros(4)
    for _ in range(2000):
        moves = np.array([prox_squared(2 * z - u[i], X[i], y[i], gamma) - z for i in range(40)])
        u += moves
        z = model.regulariser.prox(z + moves.mean(axis=0), gamma)
    assert np.abs(z).max() < 1e-6 < np.abs(ista(model, X, y)).max()


def test_kernels_equal_the_maps_in_numpy():
    rng = np.random.default_rng(3)
    X, v = rng.normal(size=(5, 3)), rng.normal(size=3)
    y = np.sign(rng.normal(size=5))
    assert np.allclose(prox_rows(1, 1.0, X, y, v, 0.7), prox_squared_batch(v, X, y, 0.7), atol=1e-12)
    assert np.allclose(prox_rows(0, 1.0, X[:1], y[:1], v, 0.7), prox_logistic(v, X[0], y[0], 0.7), atol=1e-12)
    for kind, model in enumerate((GLM("logistic"), GLM("squared"), GLM("huber", width=0.3))):
        for m in (1, 5):
            w = prox_rows(kind, 0.3, X[:m], y[:m], v, 2.0)
            assert np.allclose(w - v + 2.0 * model.gradient(w, X[:m], y[:m]), 0, atol=1e-9)


@pytest.mark.parametrize("bad", [1e300, np.nan, np.inf, -1e38])
def test_a_move_is_never_longer_than_the_clip(bad):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(3, 2))
    X[1, 0] = bad
    for kind in range(3):
        for m in (1, 3):
            move = client_move(
                kind, 1.0, X[1 : 1 + m], np.ones(3)[:m], rng.normal(size=2), np.ones(2), 0.5, 0.7
            )
            assert np.isfinite(move).all()
            assert np.linalg.norm(move) <= 0.7 * (1 + 1e-12)


class Spy:
    """Adds nothing and keeps what would have been noised, with the std."""

    protective = False

    def __init__(self):
        self.seen = []

    def perturb(self, values, *, agents, step, std, stream=0):
        if stream == 0:
            self.seen.append((np.array(values), std))
        return np.array(values)

    def slack(self, dim, std=1.0):
        return 0.0


def test_influence_of_a_client_on_each_message():
    X, y = problem(5, n=12, p=2)
    parts = np.array_split(np.arange(12), 4)
    other = X.copy()
    other[parts[2]] = [[1e6, -3], [0, 1e200], [5, 5]]
    plan = FederatedADMM(GLM("logistic", l2=0.1), 4, 6, 1.0, 2.0, 0.3, 1.5, secure_sum=False)
    seen = []
    for D in (X, other):
        spy = Spy()
        # user 2 alone is changed; its first message is formed at the same public z and u
        plan.run(Shards.from_parts(D, y, parts), spy)
        seen.append(spy.seen[0])
    change = np.linalg.norm(seen[0][0] - seen[1][0], axis=1)
    assert change[[0, 1, 3]].max() == 0
    assert change[2] / seen[0][1] <= plan.privacy("local", participations=1).mu * (1 + 1e-12)


@pytest.mark.parametrize("noise_in", ["mean", "increment"])
def test_influence_of_a_record_on_every_release_given_the_past(noise_in):
    """Replay the same releases under D and D': each un-noised mean differs by at most what is booked."""
    n, p, T = 10, 2, 8
    X, y = problem(6, n, p)
    other = X.copy()
    other[3] = [40.0, -90.0]
    plan = CentralADMM(GLM("logistic", l1=0.01), n, T, 1.5, 0.6, 0.2, 0.5, noise_in)
    rng = np.random.default_rng(0)
    u = [np.zeros((n, p)), np.zeros((n, p))]
    zh = np.zeros(p)
    from sottovoce.algorithms.admm import _moves
    from sottovoce.objectives import clip_rows

    for _ in range(T):
        z = plan.objective.regulariser.prox(zh, 1.5)
        means = []
        for which, D in enumerate((X, other)):
            free = math.inf if noise_in == "mean" else 0.6
            moves = _moves(0, 1.0, D, y, u[which], z, 1.5, free)
            u[which] = u[which] + moves
            means.append(
                clip_rows(u[which] - z, 0.6).mean(axis=0) if noise_in == "mean" else 2 * moves.mean(axis=0)
            )
        assert np.linalg.norm(means[0] - means[1]) / 0.2 <= plan.curve().mu / math.sqrt(T) * (1 + 1e-9)
        noise = 0.2 * rng.normal(size=p)
        zh = z + means[0] + noise if noise_in == "mean" else zh + 0.5 * (means[0] + noise)
    # both data sets were given the same released z; the other records' states do not know the difference
    assert (np.delete(u[0], 3, 0) == np.delete(u[1], 3, 0)).all()


def test_noise_inside_the_state_breaks_the_printed_statement():
    """One common noise vector in every u_i: given the same z, replacing record 0 moves all other states."""
    n, p = 6, 1
    X, y = np.ones((n, p)), np.ones(n)
    other = y.copy()
    other[0] = -8.0
    released = np.array([0.3])
    states = []
    for t in (y, other):
        moves = np.array([prox_squared(np.zeros(p), X[i], t[i], 1.0) for i in range(n)])
        eta = released - 2 * moves.mean(axis=0)  # the noise that explains the same release
        states.append(2 * moves + eta)
    assert np.abs(states[0][1:] - states[1][1:]).min() > 0.1


def test_labels_and_prices():
    fed = FederatedADMM(GLM("squared"), 50, 20, 0.2, 1.0, 1.0, 4.0)
    assert fed.privacy("local").rdp(2.0) == pytest.approx(8 * 2.0 * 20 / 16)
    assert fed.privacy("local", participations=3).rdp(2.0) == pytest.approx(8 * 2.0 * 3 / 16)
    assert fed.privacy("central").valid
    assert fed.privacy("central", colluders=[1, 2]).epsilon(1e-5) > fed.privacy("central").epsilon(1e-5)
    with pytest.raises(InvalidInput, match="secure_sum"):
        FederatedADMM(GLM("squared"), 50, 20, 0.2, 1.0, 1.0, 4.0, secure_sum=False).privacy("central")
    token = TokenADMM(GLM("squared"), 50, 500, 1.0, 1.0, 8.0, cap=10)
    assert token.privacy("local").rdp(2.0) == pytest.approx(8 * 2.0 * 10 / 64)
    with pytest.raises(NotAGuarantee):
        token.privacy("network").require(100.0, 1e-5)
    with pytest.raises(NotAGuarantee):
        CentralADMM.for_budget(
            epsilon=1, delta=1e-5, steps=3, objective=GLM("squared"), records=9, gamma=1.0, clip=1.0,
            noise_in="state",
        )  # fmt: skip
    plan = CentralADMM.for_budget(
        epsilon=1, delta=1e-5, steps=3, objective=GLM("squared"), records=9, gamma=1.0, clip=1.0
    )
    assert 0.999 < plan.privacy().epsilon(1e-5) <= 1.0


def test_the_cap_stops_contributions():
    X, y = problem(7, n=4, p=2)
    shards = Shards.from_parts(X, y, np.arange(4)[:, None])
    plan = TokenADMM(GLM("squared"), 4, 40, 1.0, 1.0, 0.0, cap=1)
    long = plan.run(shards, np.random.default_rng(0)).outputs
    assert long["participations"].sum() == 40
    once = (
        TokenADMM(GLM("squared"), 4, 400, 1.0, 1.0, 0.0, cap=1).run(shards, np.random.default_rng(0)).outputs
    )
    assert np.abs(once["mean"]).max() <= 4 * 1.0 / 4 * 4  # four capped contributions, nothing after


@pytest.mark.parametrize("swap", [False, True])
def test_unseen_participation_in_the_state_does_not_undo_amplification(swap):
    """Two rounds; the second message turns with the unseen first draw, as a client's dual would.

    The hockey-stick divergence of the stateful pair is computed on a grid and must stay below that of two
    independent sampled rounds, whichever way the state is used.
    """
    q, sigma = 0.3, 0.8
    grid = np.linspace(-9, 9, 1201)
    x, y = grid[:, None], grid[None]
    cell = (grid[1] - grid[0]) ** 2

    def normal(at, mean):
        return np.exp(-((at - mean) ** 2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))

    def joint(first, second):
        """First and second message, the latter a function of whether the first was sent."""
        sent = q * normal(x, first) * ((1 - q) * normal(y, 0) + q * normal(y, second(1)))
        held = (1 - q) * normal(x, 0) * ((1 - q) * normal(y, 0) + q * normal(y, second(0)))
        return sent + held

    def delta(one, two, epsilon):
        return float(np.maximum(one - np.exp(epsilon) * two, 0).sum() * cell)

    plain = joint(1, lambda b: 1), joint(-1, lambda b: -1)
    turned = [
        (joint(1, lambda b: 2 * b - 1), joint(-1, lambda b: 1 - 2 * b)),
        (joint(1, lambda b: 1 - 2 * b), joint(-1, lambda b: 2 * b - 1)),
        (joint(1, lambda b: b), joint(-1, lambda b: -1)),
        (joint(1, lambda b: 1), joint(-1, lambda b: 1 - 2 * b)),
    ]
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        bound = delta(*(plain[::-1] if swap else plain), epsilon)
        for pair in turned:
            assert delta(*(pair[::-1] if swap else pair), epsilon) <= bound + 1e-9
