"""What every algorithm promises, over one list of them."""

import copy
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from scipy.stats import kstest
from tests.algorithms.cases import CASES, EACH, OTHERS, PATH, PLAIN, STEPS, N, P, shards
from tests.algorithms.toys import check_resumed
from tests.mechanisms.toys import Spy
from torch import nn

from sottovoce.algorithms.registry import ALGORITHMS
from sottovoce.data import Shards
from sottovoce.data.agent_tensors import AgentData
from sottovoce.errors import InvalidInput, ReleaseMismatch, SottovoceError
from sottovoce.mechanisms import random_walk
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import ProtectiveNoise, SimulatedNoise
from sottovoce.objectives.nets.objective import NetObjective
from sottovoce.runners import State, run_stacked
from sottovoce.runners.plan_interface import has_noise

ADJACENCIES = ("add-remove", "replace-one", "user")
PAIRS = [
    pytest.param(case, adjacency, id=f"{case}-{adjacency}")
    for case in PLAIN
    for adjacency in ADJACENCIES
    if adjacency in case.make.adjacencies
]
SAMPLED = [case for case in PLAIN if "add-remove" in case.make.adjacencies]
everyone = pytest.mark.parametrize("case", CASES, ids=repr)


def net(clip_norm=1.0):
    torch.manual_seed(0)
    return NetObjective(nn.Linear(P, 2), clip_norm=clip_norm)


def model_of(kind, clip_norm):
    """The options of a plan for a linear model or a network with this clip norm."""
    return {"clip_norm": clip_norm} if kind == "glm" else {"objective": net(clip_norm), "clip_norm": None}


def tensors(data=None):
    data = shards() if data is None else data
    parts = [np.arange(data.offsets[v], data.offsets[v + 1]) for v in range(data.n)]
    return AgentData(data.X.astype(np.float32), (data.y > 0).astype(int), parts, classes=2)


def algorithm_of(plan, data, random, agents=None, start=None):
    """The algorithm and its mechanism over some agents, or all."""
    agents = list(range(plan.n)) if agents is None else agents
    ready = plan.prepared(data)
    part = ready[agents] if isinstance(ready, np.ndarray) else ready.subset(agents)
    mechanism = plan.mechanism(part, agents, random)
    rows = plan.starting(part, random, agents) if start is None else start
    return plan.algorithm(mechanism, rows), mechanism


def hosted(plan, data, seed=7):
    return algorithm_of(plan, data, RunRandomness(SimulatedNoise(seed), batches=seed, start_seed=seed))


def spied(plan, data, steps=None, theta=None):
    """What each release would be without noise, over the first steps."""
    spy = Spy()
    algorithm, _ = algorithm_of(plan, data, RunRandomness(spy, batches=3, start_seed=0), start=theta)
    run_stacked(algorithm, plan.schedule, plan.steps if steps is None else steps)
    return [(values, std) for _, values, std in spy.seen]


@pytest.mark.parametrize(("case", "adjacency"), PAIRS)
def test_without_noise_and_clip_it_is_the_plain_algorithm(case, adjacency):
    plan = case.plan(0.0, clip_norm=math.inf, adjacency=adjacency)
    rows = plan.run(shards(), np.random.default_rng(0)).outputs["rows"]
    np.testing.assert_allclose(rows, case.plain(shards(), plan.steps), rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in PLAIN if case.symmetric], ids=repr)
def test_renaming_the_agents_renames_the_networks(case):
    turn = [1, 2, 3, 0]  # a symmetry of the ring; noise follows an agent's number, so it is off
    plan, data = case.plan(0.0, objective=net(0.5), clip_norm=None), shards()
    rows, other = (
        plan.run(tensors(each), np.random.default_rng(0), start=plan.objective.start(1)[0]).outputs["rows"]
        for each in (data, data.subset(turn))
    )
    np.testing.assert_allclose(other, rows[turn], rtol=0, atol=2e-5)


@pytest.mark.parametrize(("case", "adjacency"), PAIRS)
@pytest.mark.parametrize("kind", ["glm", "net"])
@pytest.mark.parametrize("bad", [1e3, 1e25, np.nan, np.inf])
def test_one_change_moves_a_release_by_at_most_the_declared_sensitivity(case, adjacency, kind, bad):
    """One record (or all of agent 2's) is changed; the noise is left out and every release compared.

    Starting rows are the same, so the first release differs by the change alone; later ones by what it does
    to the models too, which the accountant takes as given: only the first is compared.
    """
    plan = case.plan(1.0, adjacency=adjacency, **model_of(kind, 0.7))
    data = shards()
    rows = slice(data.offsets[2], data.offsets[3]) if adjacency == "user" else slice(30, 31)
    X = data.X.copy()
    X[rows] = bad
    if kind == "glm" and not math.isfinite(bad):
        X = np.nan_to_num(X, nan=1e200, posinf=1e300)  # GLMs refuse NaN in a file; these overflow later
    other = Shards(X, data.y, data.offsets)
    if adjacency == "add-remove":  # the changed record against none: zeros, or what counts as zero
        gone = data.X.copy()
        gone[rows] = 0.0 if kind == "glm" else np.nan
        data = Shards(gone, data.y, data.offsets)
    both = (tensors(data), tensors(other)) if kind == "net" else (data, other)
    theta = np.random.default_rng(1).normal(size=(N, plan.objective.query(both[0]).dim)) * 3
    theta = theta.astype(plan.objective.query(both[0]).dtype)
    (first, std), (second, _) = (spied(plan, one, 1, theta)[0] for one in both)
    moved = np.linalg.norm(first.astype(float) - second.astype(float), axis=1)
    assert np.isfinite(moved).all()
    release = plan.releases(2)[0]
    divisor = 1 if adjacency == "user" else EACH  # of the sum that gets the noise
    assert moved[2] / divisor <= release.sensitivity * (1 + 1e-5)
    assert np.delete(moved, 2).max() == 0
    assert std / divisor == pytest.approx(release.noise_std)


@pytest.mark.parametrize("case", PLAIN, ids=repr)
def test_worst_change_moves_a_release_by_exactly_what_is_declared(case):
    """Agent 2 pulls one way, then the other, with the full clip: 2C, no more and no less."""
    plan, data = case.plan(1.0, clip_norm=0.7, adjacency="user"), shards()
    seen = []
    for label in (1.0, -1.0):
        X, y = data.X.copy(), data.y.copy()
        X[data.offsets[2] : data.offsets[3]] = 1e3
        y[data.offsets[2] : data.offsets[3]] = label
        seen.append(spied(plan, Shards(X, y, data.offsets), 1)[0][0])
    moved = np.linalg.norm(seen[0] - seen[1], axis=1)
    assert moved[2] == pytest.approx(plan.releases(2)[0].sensitivity, rel=1e-9)


@pytest.mark.parametrize("case", [*PLAIN, *(case for case in OTHERS if case.name == "dp-sgd")], ids=repr)
def test_empty_batch_is_released_as_noise(case):
    plan = case.plan(case.noise, batch_size=1.0, sample_rate=1e-9)
    assert all((values == 0).all() for values, _ in spied(plan, case.data(), 2))


@pytest.mark.parametrize(("case", "adjacency"), PAIRS)
@pytest.mark.parametrize("kind", ["glm", "net"])
def test_messages_carry_the_planned_noise(case, adjacency, kind):
    """The difference of runs with and without noise has the distribution of the planned release."""
    plan = case.plan(3.0, adjacency=adjacency, batch_size=6, steps=60, **model_of(kind, 0.5))
    data = tensors() if kind == "net" else shards()
    random = RunRandomness(SimulatedNoise(7), batches=3, start_seed=0)
    loud, quiet = (algorithm_of(each, data, random)[1] for each in (plan, plan.with_noise(0.0)))
    theta = np.zeros((N, loud.dim), loud.query.dtype)
    drawn = np.concatenate([(loud(theta, k) - quiet(theta, k)).ravel() for k in range(plan.steps)])
    std = plan.releases(0)[0].noise_std
    batch_size = 1.0 if adjacency == "user" else 6.0  # a row is a clipped sum, or a mean, over the batch
    assert std == pytest.approx(3.0 * 0.5 / batch_size)
    assert abs(np.std(drawn) / std - 1) < 4 / math.sqrt(2 * len(drawn))
    assert kstest(drawn / std, "norm").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):  # the test has the power to see a factor
        assert abs(np.std(drawn) / (wrong * std) - 1) > 4 / math.sqrt(2 * len(drawn))


@pytest.mark.parametrize("case", PLAIN, ids=repr)
@pytest.mark.parametrize("lie", [{"sample_rate": 0.5}, {"adjacency": "replace-one"}])
def test_sampling_rate_or_adjacency_that_differs_from_the_plan_is_refused(case, lie):
    plan = case.plan(1.0, batch_size=3)
    other = [[replace(release, **lie) for release in plan.releases(a)] for a in range(N)]
    mechanism = plan.mechanism(shards(), range(N), RunRandomness.from_rng(np.random.default_rng(0)))
    with pytest.raises(ReleaseMismatch, match="nothing was released"):
        replace(mechanism, announced_releases=other)


# ---- the privacy cost of the releases, by other libraries ------------------------------------------


def gaussian_epsilon(mu, delta):
    """Balle and Wang's conversion, in 50 digits."""
    mpmath.mp.dps = 50

    def excess(eps):
        a = mpmath.ncdf(mu / 2 - eps / mu) - mpmath.e**eps * mpmath.ncdf(-mu / 2 - eps / mu)
        return a - delta

    return float(mpmath.findroot(excess, (0.01, 60), solver="bisect", tol=1e-25))


@pytest.mark.parametrize(("case", "adjacency"), PAIRS)
def test_local_privacy_cost_is_that_of_the_release_list(case, adjacency):
    plan = case.plan(4.0, adjacency=adjacency)
    mu2 = mpmath.mpf(0)
    for release in plan.releases(1):
        mu2 += release.steps * release.count * mpmath.mpf(release.sensitivity / release.noise_std) ** 2
    want = gaussian_epsilon(mpmath.sqrt(mu2), mpmath.mpf("1e-5"))
    assert plan.privacy("local", user=1).epsilon(1e-5) == pytest.approx(want, rel=1e-9)
    draws = plan.steps * getattr(plan, "primal_steps", 1)
    moves = 1 if adjacency == "add-remove" else 2
    assert float(mu2) == pytest.approx(draws * (moves / 4.0) ** 2)


@pytest.mark.parametrize("case", SAMPLED, ids=repr)
def test_sampled_local_privacy_cost_is_that_of_dp_accounting(case):
    plan = case.plan(1.5, batch_size=3)
    accountant = pld_privacy_accountant.PLDAccountant()
    for release in plan.releases(0):
        event = dp_event.PoissonSampledDpEvent(3 / EACH, dp_event.GaussianDpEvent(1.5))
        accountant.compose(event, release.steps * release.count)
    assert plan.privacy("local").epsilon(1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


# ---- every algorithm ------------------------------------------------------------------------------------


def without(*names, of=OTHERS):
    return pytest.mark.parametrize("case", [case for case in of if case.name not in names], ids=repr)


def same(one, other):
    """Whether two states hold the same numbers."""
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other, equal_nan=True))
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return one == other


def quiet(case, **changes):
    """The same plan without any noise, also between neighbors."""
    return case.plan(0.0, **{"pair_multiplier": 0.0} if case.name == "decor" else {}, **changes)


def differing(case, option):
    """The plan of a case with another number; the plan itself where it has no such option."""
    if option == "noise":
        return case.plan(2 * case.noise)
    if option == "steps":
        fewer = {"steps": 4, "path": PATH[:4]} if case.name == "walk" else {"steps": 4}
        return case.plan(case.noise, **(fewer if case.stepwise else {}))
    return case.plan(case.noise, **{case.clip_name or "sensitivity": 2 * case.clip_norm})


DIFFERING = [
    pytest.param(case, differing(case, option), id=f"{case}-{option}")
    for case in CASES
    for option in ("noise", "clip_norm", "steps")
    if differing(case, option).releases(0) != case.plan(case.noise).releases(0)
]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("case", "other"), DIFFERING)
def test_draws_that_differ_from_the_plan_are_refused(case, other, compiled):
    """The mechanism's own numbers against a list from another plan: factor-of-two bugs cannot pass."""
    plan, random = case.plan(case.noise), RunRandomness.from_rng(np.random.default_rng(0))
    algorithm, mechanism = algorithm_of(plan, case.data(), random)
    algorithm = algorithm if compiled else algorithm._replace(block=None)
    announced = [other.releases(a) for a in range(plan.n)]

    def run():
        # a secret path ends here
        mechanism.release_check = replace(mechanism, announced_releases=announced).release_check
        run_stacked(algorithm, plan.schedule, plan.steps, every=plan.steps)

    with pytest.raises(ReleaseMismatch, match="nothing was released"):
        run()


def test_every_algorithm_has_a_number_that_is_compared():
    assert {param.values[0].name for param in DIFFERING} == {case.name for case in CASES}


def test_cases_cover_the_registry():
    assert {case.make.name for case in CASES} == set(ALGORITHMS)


@everyone
def test_algorithms_do_not_modify_their_state(case):
    """A restart, a rank and a peer hand out states again: none may have changed since."""
    plan = quiet(case)
    algorithm, _ = hosted(plan, case.data())
    state, seen = algorithm.init(), []
    for k in range(min(plan.steps, 3)):
        before = copy.deepcopy(state)
        sent = algorithm.message(state, k)
        following = algorithm.update(state, plan.schedule(k).apply(sent), k)
        algorithm.output(state)
        seen.append(isinstance(state, State) and same(state, before))
        state = following
    assert seen == [True] * min(plan.steps, 3)


@without("averaging", of=CASES)  # one step
def test_interrupted_run_resumes_to_the_same_bits(case, tmp_path):
    check_resumed(case.plan(case.noise), case.data(), tmp_path / "run")


@everyone
def test_runs_with_one_seed_are_equal_and_protective_runs_differ(case):
    plan, data = case.plan(case.noise), case.data()
    seeded = [plan.run(data, np.random.default_rng(8)) for _ in range(2)]
    assert seeded[0].outputs[case.coef].tobytes() == seeded[1].outputs[case.coef].tobytes()
    assert "simulation" in seeded[0].provenance["noise"]
    if case.name in ("decor", "mafalda"):
        with pytest.raises(InvalidInput, match="simulate it with a numpy Generator"):
            plan.run(data, ProtectiveNoise())
    else:
        protective = [plan.run(data, ProtectiveNoise()) for _ in range(2)]
        assert (protective[0].outputs[case.coef] != protective[1].outputs[case.coef]).any()
        assert protective[0].provenance["noise"] == "protective"


@everyone
def test_calibrated_noise_meets_the_budget_and_spends_it(case):
    plan = case.plan(case.noise).calibrated_to(1.5, 1e-5)
    least = 0.99 if case.name == "dp-gcd" else 0.999  # where epsilon jumps
    assert least * 1.5 < plan.epsilon(1e-5) <= 1.5
    plan.privacy().require(1.5, 1e-5)


@without("averaging", "fixed-point", "dp-gcd", of=CASES)  # no records; an operator; the one that takes them
def test_sparse_features_are_refused(case):
    data = case.data()
    with pytest.raises(InvalidInput, match=f"{case.make.name} works on dense features, got sparse ones"):
        case.plan(case.noise).prepared(Shards(sp.csr_array(data.X), data.y, data.offsets))


SPLIT = [case for case in OTHERS if case.plan(1.0).n > 1]


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        *((case, kind) for case in PLAIN for kind in ("glm", "net")),
        *((case, "glm") for case in SPLIT if case.name not in ("secret walk", "token-admm")),  # one holder
    ],
    ids=str,
)
def test_common_state_and_slices_equal_the_stacked_run(case, kind):
    """A rank and a peer send the rows of the whole; the common part could be handed from one to the other."""
    if case in OTHERS:
        options = {"sample_rate": 0.6} if "sample_rate" in case.options else {}
    else:
        options = {"batch_size": 5, **model_of(kind, 1.0)}
    plan, data = case.plan(case.noise, **options), tensors() if kind == "net" else case.data()
    random, close = RunRandomness.from_rng(np.random.default_rng(5)), 1e-6 if kind == "net" else 0
    slices = ([0, 2], [1, 3])
    whole, *parts = (algorithm_of(plan, data, random, agents)[0] for agents in (None, *slices))
    state, mine = whole.init(), [part.init() for part in parts]
    for k in range(plan.steps):
        sent = whole.message(state, k)
        for part, own, agents in zip(parts, mine, slices, strict=True):
            np.testing.assert_allclose(part.message(own, k), sent[agents], rtol=0, atol=close)
        got = plan.schedule(k).apply(sent, noise=random.noise, step=k)
        state = whole.update(state, got, k)
        mine = [p.update(own, got[a], k) for p, own, a in zip(parts, mine, slices, strict=True)]
        assert same(mine[0].common, mine[1].common)
    for part, own, agents in zip(parts, mine, slices, strict=True):
        np.testing.assert_allclose(part.output(own), whole.output(state)[agents], rtol=0, atol=close)


WITHOUT_MESSAGES = ("dp-cd", "dp-gcd", "admm", "secret walk", "token-admm")


def test_algorithms_with_a_block():
    """Each is compared with single steps or numpy beside its algorithm; a new one does not pass unseen."""
    blocks = {case.name: hosted(case.plan(case.noise), case.data())[0].block for case in CASES}
    assert {name for name, block in blocks.items() if block is not None} == {"dp-sgd", *WITHOUT_MESSAGES}


@pytest.mark.parametrize("case", [case for case in OTHERS if case.name in WITHOUT_MESSAGES], ids=repr)
@pytest.mark.parametrize("every", [1, 4])
def test_stretches_of_any_length_give_the_same_states(case, every, monkeypatch):
    """Over the edges of the chunks in which random numbers are drawn, too."""
    monkeypatch.setattr(random_walk, "_NUMBERS", 3 * P)
    plan, data = case.plan(case.noise), case.data()
    whole, parts = (
        run_stacked(hosted(plan, data)[0], plan.schedule, plan.steps, every=length)
        for length in (plan.steps, every)
    )
    assert same(whole, parts)


def sent(case, algorithm):
    """The message of the first step, or the rows after it, from zero, where rows are not exchanged."""
    state = algorithm.init()
    if case.name in WITHOUT_MESSAGES:
        rows = algorithm.output(algorithm.block(state, 0, 1))
        return rows.sum(axis=1) if case.name == "dp-cd" else rows  # one coordinate has moved
    return algorithm.message(state, 0)


@pytest.mark.parametrize(
    ("case", "bad"),
    [
        pytest.param(case, bad, id=f"{case}-{bad}")
        for case in OTHERS
        if case.name != "dp-gcd"  # its choice of a coordinate moves: tests/mechanisms/test_noisy_max.py
        for bad in (0.0, 1e3, -1e3, 1e200, -1e300, *((np.nan, np.inf, -np.inf) if case.takes_nan else ()))
    ],
)
def test_one_change_moves_a_release_of_other_algorithms_by_at_most_the_sensitivity(case, bad):
    """A record replaced, by an ordinary one and by one that pulls; where records are added, by a zero."""
    plan = quiet(case)
    worst = 0.0
    for against in (0.0,) if plan.adjacency == "add-remove" else (None, 1e3):
        rows = []
        for value in (against, bad):
            algorithm, mechanism = hosted(plan, case.data(value))
            rows.append(sent(case, algorithm) * case.scale(plan, mechanism))
        worst = max(worst, float(np.linalg.norm(rows[0] - rows[1])))
    (release, *_) = case.plan(case.noise).releases(case.place)
    assert np.isfinite(worst)
    assert worst <= release.sensitivity * (1 + 1e-9)
    if bad == -1e3 and not case.squared and case.name != "secret walk":  # a token may begin elsewhere
        assert worst >= 0.4 * release.sensitivity  # the change is felt


@without("dp-gcd", "fixed-point", "averaging", of=CASES)  # operators and values are free
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_records_that_are_not_finite_are_refused(case, bad):
    with pytest.raises(SottovoceError, match=r"finite|NaN"):
        case.plan(case.noise).run(case.data(bad), np.random.default_rng(0))


@without("dp-gcd")  # two Laplace laws, one inside a maximum: tests/mechanisms/test_noisy_max.py
def test_messages_of_other_algorithms_carry_the_planned_noise(case, monkeypatch):
    monkeypatch.setattr(random_walk, "_NUMBERS", 8 * P)  # one step is looked at: no chunk of thousands
    plan, silent = case.plan(case.noise), quiet(case)
    drawn = []
    for seed in range(150):
        (loud, mechanism), (still, _) = hosted(plan, case.data(), seed), hosted(silent, case.data(), seed)
        scale = case.scale(plan, mechanism)
        difference = scale * (sent(case, loud) - sent(case, still))
        drawn.append(difference[case.place] if case.coef == "rows" or case.name == "walk" else difference)
    drawn = np.concatenate([np.ravel(rows) for rows in drawn])
    (release, *_) = plan.releases(case.place)
    std = release.noise_std if case.std is None else case.std(plan)
    assert abs(np.std(drawn) / std - 1) < 4 / math.sqrt(2 * len(drawn))
    assert kstest(drawn / std, "norm").pvalue > 1e-4


@without()
def test_local_privacy_cost_of_other_algorithms_is_that_of_their_releases(case):
    plan = case.plan(case.noise)
    accountant = pld_privacy_accountant.PLDAccountant()
    mu2 = mpmath.mpf(0)
    for release in plan.releases(case.place):
        draws = 1 if release.joint else release.steps * release.count
        ratio = mpmath.mpf(release.sensitivity) / mpmath.mpf(release.noise_std)
        if release.mechanism == "gaussian":
            mu2 += draws * ratio**2
        else:  # both tails of a maximum of absolute values
            pure = float(ratio) * (2 if release.mechanism == "noisy-max" else 1)
            event = dp_event.LaplaceDpEvent(1 / pure)
            accountant.compose(event, draws)
    guarantee = plan.privacy("local", user=case.place) if plan.n > 1 else plan.privacy("central")
    epsilon = guarantee.epsilon(1e-5)
    if mu2:
        assert epsilon == pytest.approx(gaussian_epsilon(mpmath.sqrt(mu2), mpmath.mpf("1e-5")), rel=1e-9)
        visits = {"walk": 1, "averaging": 1}.get(case.name, STEPS)
        moves = {"admm": 2.0 / 20 * 0.7, "fixed-point": 1.4 / 20, "averaging": 1.4}.get(case.name)
        per = {"dp-sgd": 1.0, "consensus-newton": 1.0, "token-admm": 4 * 0.7, "federated-admm": 4 * 0.7}.get(
            case.name, 2.0
        )
        expected = visits * ((per if moves is None else moves) / case.noise) ** 2
        assert float(mu2) == pytest.approx(expected / STEPS if case.name == "mafalda" else expected)
    else:
        assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-2)


@pytest.mark.parametrize("case", [case for case in CASES if case.symmetric and not case.path], ids=repr)
def test_order_of_records_and_names_of_agents_do_not_matter(case):
    data, back = case.data(), [1, 2, 3, 0]  # a symmetry of the ring
    if isinstance(data, np.ndarray):
        other = data[back]
    elif data.n == 1:
        order = np.random.default_rng(1).permutation(len(data.y))
        other, back = Shards(data.X[order], data.y[order], data.offsets), slice(None)
    else:
        other = data.subset(back)
    before, after = (quiet(case).run(d, np.random.default_rng(2)).outputs[case.coef] for d in (data, other))
    np.testing.assert_allclose(after, before[back] if before.ndim == 2 else before, atol=1e-12)


# ---- without privacy --------------------------------------------------------------------------------------


@everyone
def test_infinite_budget_is_a_run_without_noise(case):
    """An infinite epsilon in every guarantee and a note in the result; the rows are checked above."""
    plan = case.plan(case.noise)
    free = plan.calibrated_to(math.inf, 1e-5)
    assert has_noise(plan)
    assert not has_noise(free)
    assert all(math.isinf(each.epsilon(1e-5)) for each in free.guarantees() if each.valid)
    assert free.run(case.data(), np.random.default_rng(0)).provenance["noise"] == "none: no privacy"
