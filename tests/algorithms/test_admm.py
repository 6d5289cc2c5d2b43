"""Private ADMM: equals ISTA's answer on the Lasso, sensitivities, three ways of running it."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms import CentralADMM, FederatedADMM, TokenADMM
from sottovoce.data import Shards
from sottovoce.errors import InvalidInput, NotAGuarantee, ReleaseMismatch
from sottovoce.mechanisms.admm_kernels import client_move, prox_rows, record_moves
from sottovoce.noise import samplers
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives import GLM, clip_rows
from sottovoce.runners.in_process import run_stacked

from .proximal import prox_logistic, prox_squared, prox_squared_batch

MODELS = [GLM("squared", l1=0.1), GLM("logistic", l2=0.05), GLM("huber", l1=0.02, width=0.4)]


def problem(seed=0, n=40, p=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    return X, np.sign(X @ rng.normal(size=p) + 0.3 * rng.normal(size=n))


def ista(model, X, y, steps=4000):
    w, step = np.zeros(X.shape[1]), 0.5 * len(y) / np.linalg.norm(X, 2) ** 2
    for _ in range(steps):
        w = model.regularizer.prox(w - step * model.gradient(w, X, y), step)
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
        z = model.regularizer.prox(z + moves.mean(axis=0), gamma)
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
    assert change[2] / seen[0][1].max() <= plan.privacy("local", participations=1).mu * (1 + 1e-12)


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
    for _ in range(T):
        z = plan.objective.regularizer.prox(zh, 1.5)
        means = []
        for which, D in enumerate((X, other)):
            free = math.inf if noise_in == "mean" else 0.6
            moves = record_moves(0, 1.0, D, y, u[which], z, 1.5, free)
            u[which] = u[which] + moves
            means.append(
                clip_rows(u[which] - z, 0.6).mean(axis=0) if noise_in == "mean" else 2 * moves.mean(axis=0)
            )
        assert np.linalg.norm(means[0] - means[1]) / 0.2 <= plan.privacy().mu / math.sqrt(T) * (1 + 1e-9)
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
    # closed form: noise multiplier sigma sqrt(n) / (2 C) over the clip, replace-one
    for colluders in ((), (1, 2)):
        z = 4.0 * math.sqrt(50 - len(colluders)) / 2
        want = sv.privacy.Curve.sampled_gaussian(0.2, z, 20, adjacency="replace-one").epsilon(1e-5)
        view = {"view": "colluders", "colluders": colluders} if colluders else {"view": "central"}
        found = fed.privacy(**view)
        assert found.label == "exact"
        assert found.epsilon(1e-5) == pytest.approx(want, rel=1e-9)
    # without a secure sum messages are seen, and who sent them: sampling amplifies nothing
    seen = FederatedADMM(GLM("squared"), 50, 20, 0.2, 1.0, 1.0, 4.0, secure_sum=False).privacy("central")
    assert (seen.label, seen.mu) == ("ldp", pytest.approx(math.sqrt(20)))
    token = TokenADMM(GLM("squared"), 50, 500, 1.0, 1.0, 8.0, cap=10)
    assert token.privacy("local").rdp(2.0) == pytest.approx(8 * 2.0 * 10 / 64)
    published = token.privacy("network", label="published")
    assert published.rdp(2.0) == pytest.approx(8 * 2.0 * 10 / 64 * math.log(50) / 50)
    with pytest.raises(NotAGuarantee):
        published.require(100.0, 1e-5)
    assert token.privacy("network").mu == token.privacy("local").mu
    spend = {"epsilon": 1, "delta": 1e-5, "steps": 3, "records": 9, "gamma": 1.0, "clip_norm": 1.0}
    with pytest.raises(NotAGuarantee):
        CentralADMM.for_budget(GLM("squared"), noise_in="state", **spend)
    plan = CentralADMM.for_budget(GLM("squared"), **spend)
    assert 0.999 < plan.epsilon(1e-5) <= 1.0
    assert plan.privacy().mu == pytest.approx(math.sqrt(3) * 2 / (9 * plan.noise_std))
    wider = CentralADMM(GLM("squared"), 9, 3, 1.0, 1.0, 0.5, noise_in="increment")
    assert wider.privacy().mu == pytest.approx(math.sqrt(3) * 4 / (9 * 0.5))


def test_bad_plans_are_refused():
    with pytest.raises(InvalidInput, match="adjacency of admm must be replace-one"):
        CentralADMM(GLM(), 9, 3, 1.0, 1.0, 0.5, adjacency="user")
    with pytest.raises(InvalidInput, match="adjacency of federated-admm must be user"):
        FederatedADMM(GLM(), 9, 3, 1.0, 1.0, 1.0, 0.5, adjacency="add-remove")
    with pytest.raises(InvalidInput, match="noise_in"):
        CentralADMM(GLM(), 9, 3, 1.0, 1.0, 0.5, noise_in="nowhere")
    with pytest.raises(InvalidInput, match="clip_norm must be positive, and finite"):
        TokenADMM(GLM(), 9, 3, 1.0, math.inf, 0.5)
    X, y = problem(n=8)
    with pytest.raises(InvalidInput, match="9 records"):
        CentralADMM(GLM(), 9, 3, 1.0, 1.0, 0.5).run((X, y), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="rounding slack"):
        CentralADMM(GLM(), 8, 3, 1.0, 1e-6, 1.0).run((X, y), sv.privacy.ProtectiveNoise())


def test_who_took_part_is_not_told():
    """The central statement needs it hidden."""
    X, y = problem(7, n=4, p=2)
    shards = Shards.from_parts(X, y, np.arange(4)[:, None])
    plan = FederatedADMM(GLM("squared"), 4, 5, 0.5, 1.0, 1.0, 1.0)
    assert set(plan.run(shards, np.random.default_rng(0)).outputs) == {"rows", "coef", "mean"}


def central_twin(plan, X, y, seed):
    """z of the last step, in numpy, from the formulas of the module's head."""
    noise = sv.privacy.SimulatedNoise(seed)
    n, p = X.shape
    u, zh, lam = np.zeros((n, p)), np.zeros(p), plan.relaxation
    for k in range(plan.steps):
        z = plan.objective.regularizer.prox(zh, plan.gamma)
        eta = noise.perturb(np.zeros((1, p)), agents=[0], step=k, std=plan.noise_std)[0]
        w = np.array([prox_logistic(2 * z - u[i], X[i], y[i], plan.gamma) for i in range(n)])
        moves = w - z if plan.noise_in == "mean" else clip_rows(w - z, plan.clip_norm)
        u = u + 2 * lam * moves
        if plan.noise_in == "mean":
            zh = z + clip_rows(u - z, plan.clip_norm).mean(axis=0) + eta
        else:
            zh = zh + lam * (2 * moves.mean(axis=0) + eta)
            u = u + lam * eta * (plan.noise_in == "state")
    return plan.objective.regularizer.prox(zh, plan.gamma), zh


@pytest.mark.parametrize("noise_in", ["mean", "increment", "state"])
def test_central_admm_equals_its_twin(noise_in):
    X, y = problem(8, n=12, p=3)
    plan = CentralADMM(GLM(l1=0.02, l2=0.1), 12, 15, 0.8, 0.3, 0.2, 0.4, noise_in)
    found = plan.run((X, y), sv.privacy.SimulatedNoise(6)).outputs
    z, zh = central_twin(plan, X, y, 6)
    assert np.allclose(found["coef"], z, atol=1e-12)
    assert np.allclose(found["mean"], zh, atol=1e-12)


@pytest.mark.parametrize("secure", [True, False])
def test_federated_admm_equals_its_twin(secure):
    X, y = problem(9, n=6, p=3)
    shards = Shards.from_parts(X, y, np.arange(6)[:, None])
    plan = FederatedADMM(GLM(l1=0.02, l2=0.1), 6, 15, 0.6, 0.8, 0.3, 0.2, 0.4, secure_sum=secure)
    found = plan.run(shards, np.random.default_rng(3)).outputs
    random = RunRandomness.from_rng(np.random.default_rng(3))
    u, zh = np.zeros((6, 3)), np.zeros(3)
    for k in range(15):
        z = plan.objective.regularizer.prox(zh, 0.8)
        part = random.draws(0, k).random(6) < 0.6
        eta = random.noise.perturb(np.zeros((6, 3)), agents=range(6), step=k, std=0.2)
        moves = np.array([prox_logistic(2 * z - u[i], X[i], y[i], 0.8) - z for i in range(6)])
        rows = 2 * clip_rows(moves, 0.3) * part[:, None]
        sent = rows + (eta if secure else eta * part[:, None])
        u = u + 0.4 * (rows if secure else sent)
        zh = zh + 0.4 * sent.mean(axis=0)
    assert np.allclose(found["mean"], zh, atol=1e-12)
    assert np.allclose(found["rows"], plan.objective.regularizer.prox(zh, 0.8), atol=1e-12)


def test_hosted_clients_equal_the_stacked_run():
    X, y = problem(9, n=12, p=3)
    shards = Shards.from_parts(X, y, np.array_split(np.arange(12), 6))
    plan = FederatedADMM(GLM(l1=0.02), 6, 8, 0.6, 0.8, 0.3, 0.2)
    random, start = RunRandomness.from_rng(np.random.default_rng(3)), np.zeros((6, 3))
    texts = [plan.algorithm(plan.source(shards.subset([v]), [v], random), start[[v]]) for v in range(6)]
    states = [text.init() for text in texts]
    for k in range(8):
        sent = np.concatenate([t.message(s, k) for t, s in zip(texts, states, strict=True)])
        got = plan.schedule(k).apply(sent)
        states = [t.update(s, got[[v]], k) for v, (t, s) in enumerate(zip(texts, states, strict=True))]
    rows = np.concatenate([t.output(s) for t, s in zip(texts, states, strict=True)])
    assert (rows == plan.run(shards, np.random.default_rng(3)).outputs["rows"]).all()


@pytest.mark.parametrize("noise", ["simulated", "protective"])
def test_the_token_s_block_equals_its_steps(noise, monkeypatch):
    from sottovoce.mechanisms import random_walk

    monkeypatch.setattr(random_walk, "_NUMBERS", 3 * (16 if noise == "simulated" else 64))
    X, y = problem(9, n=12, p=3)
    shards = Shards.from_parts(X, y, np.array_split(np.arange(12), 6))
    plan = TokenADMM(GLM(l1=0.02, box=0.3), 6, 60, 0.8, 0.3, 0.2, 0.4, cap=7)
    random = RunRandomness.from_rng(np.random.default_rng(3))
    if noise == "protective":
        random = RunRandomness(sv.privacy.ProtectiveNoise(), b"x" * 32, 0)
    text = plan.algorithm(plan.source(shards, range(6), random), np.zeros((6, 3)))
    begin = text.init()
    steps = run_stacked(text._replace(block=None), plan.schedule, 60, state=begin)
    block = run_stacked(text, plan.schedule, 60, state=begin, every=7)
    for one, other in zip(steps.own, block.own, strict=True):
        assert np.allclose(one, other, rtol=0, atol=1e-12)
    assert (begin.own.u == 0).all()
    assert (begin.own.counts == 0).all()
    if noise == "protective":  # every number that leaves is on the grid of the noise
        grid = samplers.grid_step(0.2)
        whole = block.own.u / (0.4 * grid)
        assert np.abs(whole - np.rint(whole)).max() < 1e-4


def test_the_token_equals_its_twin():
    X, y = problem(9, n=6, p=3)
    shards = Shards.from_parts(X, y, np.arange(6)[:, None])
    plan = TokenADMM(GLM(l1=0.02, l2=0.1), 6, 40, 0.8, 0.3, 0.2, 0.4, cap=4)
    found = plan.run(shards, np.random.default_rng(3)).outputs
    random = RunRandomness.from_rng(np.random.default_rng(3))
    chunk = (1 << 17) // 3
    noise = 0.2 * random.draws(1, 0, 0).standard_normal((chunk, 3))
    holders = (random.draws(0, 0, 0).random(chunk)[:40] * 6).astype(int)
    u, zh, held = np.zeros((6, 3)), np.zeros(3), np.zeros(6, int)
    for k, i in enumerate(holders):
        z = plan.objective.regularizer.prox(zh, 0.8)
        move = clip_rows((prox_logistic(2 * z - u[i], X[i], y[i], 0.8) - z)[None], 0.3)[0] * (held[i] < 4)
        held[i] += 1
        u[i] += 0.4 * (2 * move + noise[k])
        zh = zh + 0.4 * (2 * move + noise[k]) / 6
    assert np.allclose(found["mean"], zh, atol=1e-12)
    assert (found["contributions"] == held).all()


def test_a_gate_that_draws_otherwise_than_announced_stops():
    from sottovoce.mechanisms.admm import ClientProxMechanism, RecordProxMechanism, TokenProxMechanism

    X, y = problem(9, n=6, p=3)
    shards = Shards.from_parts(X, y, np.arange(6)[:, None])
    random = RunRandomness.from_rng(np.random.default_rng(3))
    fed = FederatedADMM(GLM(), 6, 5, 1.0, 0.8, 0.3, 0.2)
    for clip_norm, std, step in ((0.3, 0.2, 4), (0.4, 0.2, 4), (0.3, 0.1, 4), (0.3, 0.2, 5)):
        gate = ClientProxMechanism(
            objective=GLM(),
            data=shards,
            agents=range(6),
            users=6,
            random=random,
            gamma=0.8,
            clip_norm=clip_norm,
            noise_std=std,
            sample_rate=1.0,
            everyone=True,
            releases=[fed.releases(i) for i in range(6)],
        )
        if (clip_norm, std, step) == (0.3, 0.2, 4):
            gate.proximal_step(np.zeros((6, 3)), np.zeros(3), step)
            continue
        with pytest.raises(ReleaseMismatch):
            gate.proximal_step(np.zeros((6, 3)), np.zeros(3), step)
    central = CentralADMM(GLM(), 6, 5, 0.8, 0.3, 0.2)
    whole = Shards(X, y, np.array([0, 6]))
    for clip_norm, where in ((0.4, "mean"), (0.3, "increment")):
        gate = RecordProxMechanism(
            objective=GLM(),
            data=whole,
            agents=[0],
            random=random,
            gamma=0.8,
            relaxation=0.5,
            clip_norm=clip_norm,
            noise_std=0.2,
            noise_in=where,
            records=6,
            releases=[central.releases(0)],
        )
        with pytest.raises(ReleaseMismatch):
            gate.proximal_step(np.zeros((1, 6, 3)), np.zeros(3), 0)
    token = TokenADMM(GLM(), 6, 30, 0.8, 0.3, 0.2, cap=4)
    for other in ({"clip_norm": 0.4}, {"noise_std": 0.1}, {"cap": 5}):
        options = {"clip_norm": 0.3, "noise_std": 0.2, "cap": 4, **other}
        with pytest.raises(ReleaseMismatch):
            TokenProxMechanism(
                objective=GLM(), data=shards, agents=range(6), random=random, gamma=0.8, relaxation=0.5,
                steps=30, releases=[token.releases(i) for i in range(6)], **options,
            )  # fmt: skip


def test_what_a_client_sends_has_the_noise_that_was_announced():
    """Standard deviation measured on the rows; two thirds and three halves of it are told apart."""
    X, y = problem(9, n=400, p=3)
    shards = Shards.from_parts(X, y, np.arange(400)[:, None])
    plan = FederatedADMM(GLM(), 400, 3, 1.0, 0.8, 0.3, 0.2)
    source = plan.source(shards, range(400), RunRandomness.from_rng(np.random.default_rng(3)))
    answer = source.proximal_step(np.zeros((400, 3)), np.zeros(3), 0)
    (release,) = plan.releases(0)
    std = (answer.released - answer.local).std()
    assert 0.9 < std / release.noise_std < 1.1
    assert np.linalg.norm(answer.local, axis=1).max() <= release.sensitivity / 2 * (1 + 1e-12)
    assert np.linalg.norm(answer.local, axis=1).max() >= release.sensitivity / 2 * 0.9
    again = source.proximal_step(np.zeros((400, 3)), np.zeros(3), 0)
    assert (again.released == answer.released).all()  # in a simulation, by the key


def test_a_repeated_question_is_one_release():
    X, y = problem(9, n=4, p=3)
    shards = Shards.from_parts(X, y, np.arange(4)[:, None])
    plan = FederatedADMM(GLM(), 4, 3, 0.5, 0.8, 0.3, 0.2, secure_sum=False)
    source = plan.source(shards, range(4), RunRandomness.from_rng(sv.privacy.ProtectiveNoise())).recording()
    text = plan.algorithm(source, np.zeros((4, 3)))
    state = text.init()
    sent = text.message(state, 0)
    charged = source.drain()
    after = text.update(state, sent, 0)
    assert (after.own[0] == 0.5 * sent).all()
    assert source.drain() == ()
    assert {r.sender for r in charged} == set(np.flatnonzero(np.abs(sent).sum(axis=1)).tolist())
    assert all(r.noise_std == 0.2 and r.sensitivity == 1.2 for r in charged)


def test_the_cap_stops_contributions():
    X, y = problem(7, n=4, p=2)
    shards = Shards.from_parts(X, y, np.arange(4)[:, None])
    plan = TokenADMM(GLM("squared"), 4, 40, 1.0, 1.0, 0.0, cap=1)
    assert plan.run(shards, np.random.default_rng(0)).outputs["contributions"].sum() == 40
    once = TokenADMM(GLM("squared"), 4, 400, 1.0, 1.0, 0.0, cap=1).run(shards, np.random.default_rng(0))
    assert np.abs(once.outputs["mean"]).max() <= 1.0  # four contributions of at most C, over n; none after


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
