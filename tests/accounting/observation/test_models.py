"""Prices recomputed from the release lists by other means: rationals, mpmath, dp-accounting, enumeration.

Nothing here reads our curves, views or share formulas: only what a plan lists, and the number that came back.
"""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as pld

import sottovoce as sv
from sottovoce.accounting.observation import (
    Averaging,
    Consensus,
    Curator,
    Federation,
    LinearGossip,
    LocalOnly,
    PairCorrelated,
    TokenWalk,
)
from sottovoce.privacy import Release, account
from sottovoce.protocols.server import Server

mpmath.mp.dps = 40


def plan(model, releases, n, steps, schedule=None, adjacency="user"):
    return SimpleNamespace(
        n=n,
        steps=steps,
        width=1,
        is_stationary=False,
        accounting="pld",
        observation=model,
        adjacency=adjacency,
        assumptions=(),
        schedule=schedule,
        releases=lambda u: releases[u],
    )


def gaussian_delta(squared, epsilon):
    """delta of mu^2-GDP at epsilon, in forty digits."""
    mu = mpmath.sqrt(mpmath.mpf(squared.numerator) / squared.denominator)
    ratio = mpmath.mpf(epsilon) / mu
    return mpmath.ncdf(mu / 2 - ratio) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - ratio)


def assert_gaussian(guarantee, squared, delta=1e-6):
    """The epsilon that was claimed is that of mu^2 = ``squared`` (a fraction), to the last digits."""
    epsilon = guarantee.epsilon(delta)
    if squared == 0:
        assert epsilon == 0
        return
    assert float(gaussian_delta(squared, epsilon)) == pytest.approx(delta, rel=1e-7)


def component(parents, coalition, user):
    """The nodes that hang together with ``user`` in a tree without the coalition."""
    links = [{u, p} for u, p in enumerate(parents) if p >= 0]
    found, fresh = {user}, [user]
    while fresh:
        at = fresh.pop()
        for link in links:
            for other in link - {at} if at in link else ():
                if other not in coalition and other not in found:
                    found.add(other)
                    fresh.append(other)
    return found


def listed(rng, n, steps, unequal):
    """Random releases on a grid of binary fractions, so that rationals hold them exactly."""
    stds = rng.integers(2, 9, size=(2, n)) if unequal else np.full((2, n), rng.integers(2, 9))
    cut = int(rng.integers(1, steps)) if steps > 1 else 1
    releases = []
    for u in range(n):
        first = Release(u, 0, sensitivity=0.5, noise_std=float(stds[0, u]), steps=cut)
        later = Release(
            u, cut, sensitivity=0.25, noise_std=float(stds[1, u]), steps=max(steps - cut, 1), count=2
        )
        releases.append([first, later] if steps > cut else [first])
    return releases


def hidden(releases, members, step, stream):
    """The variance of all members' noise in one value of one step."""
    total = Fraction(0)
    for w in members:
        total += sum(
            Fraction(r.noise_std) ** 2
            for r in releases[w]
            if r.step <= step < r.step + r.steps and stream < r.count
        )
    return total


@pytest.mark.parametrize("seed", range(20))
def test_consensus_over_random_trees_by_rationals(seed):
    rng = np.random.default_rng(seed)
    n, steps = int(rng.integers(3, 9)), int(rng.integers(1, 6))
    graph = sv.graphs.ring(n) if seed % 2 else sv.graphs.complete(n)
    trees = [sv.protocols.Tree(graph, kind="uniform", rng=rng) for _ in range(steps)]
    releases = listed(rng, n, steps, unequal=seed % 3 > 0)
    priced = plan(Consensus(), releases, n, steps, lambda k: trees[k])
    coalition = sorted(rng.choice(n, size=min(int(rng.integers(1, 3)), n - 2), replace=False).tolist())
    user = next(u for u in rng.permutation(n).tolist() if u not in coalition)

    def squared(members_at):
        total = Fraction(0)
        for release in releases[user]:
            for step, stream in itertools.product(
                range(release.step, release.step + release.steps), range(release.count)
            ):
                around = hidden(releases, members_at(step), step, stream)
                total += Fraction(release.sensitivity) ** 2 / around
        return total

    inside = squared(lambda k: component(trees[k].parents.tolist(), coalition, user))
    who = {"observer": coalition[0]} if len(coalition) == 1 else {"colluders": coalition}
    view = "pairwise" if len(coalition) == 1 else "colluders"
    assert_gaussian(account(priced, view, user=user, **who), inside)
    assert_gaussian(account(priced, "local", user=user), squared(lambda k: {user}))
    assert_gaussian(account(priced, "central", user=user), squared(lambda k: range(n)))


@pytest.mark.parametrize("seed", range(10))
def test_gossip_by_orthogonal_rationals(seed):
    rng = np.random.default_rng(100 + seed)
    n, rounds = int(rng.integers(3, 7)), int(rng.integers(1, 4))
    graph = [sv.graphs.path, sv.graphs.ring, sv.graphs.star][seed % 3](n)
    W = [[Fraction(float(x)).limit_denominator(1000) for x in row] for row in graph.W.toarray()]
    stds = [Fraction(int(s)) for s in (rng.integers(1, 5, size=n) if seed % 2 else np.full(n, 2))]
    observers = sorted(rng.choice(n, size=1 + seed % 2, replace=False).tolist())
    power = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    rows = []
    for _ in range(rounds):
        heard = {w for v in observers for w in range(n) if w != v and W[v][w]}
        rows += [[Fraction(0) if j in observers else power[w][j] * stds[j] for j in range(n)] for w in heard]
        power = [[sum(W[i][k] * power[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
    basis = []
    for row in rows:
        for other in basis:
            factor = sum(a * b for a, b in zip(row, other, strict=True)) / sum(a * a for a in other)
            row = [a - factor * b for a, b in zip(row, other, strict=True)]
        if any(row):
            basis.append(row)
    protocol = sv.protocols.Gossip(graph, rounds)
    releases = [[Release(u, 0, sensitivity=1.5, noise_std=float(stds[u]))] for u in range(n)]
    for model in (Averaging(), LinearGossip()):  # one step of learning is one averaging
        priced = plan(model, releases, n, 1, lambda k: protocol)
        for user in set(range(n)) - set(observers):
            share = sum((b[user] ** 2 / sum(a * a for a in b) for b in basis), Fraction(0))
            found = account(priced, "colluders", colluders=observers, user=user)
            assert_gaussian(found, Fraction(9, 4) / stds[user] ** 2 * share)


def composed(*pairs):
    total = None
    for one, count in pairs:
        many = one.self_compose(count) if count > 1 else one
        total = many if total is None else total.compose(many)
    return total


H = 2e-4


def sampled(rate, noise, relation=pld.NeighborRel.ADD_OR_REMOVE_ONE):
    return pld.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=H, neighboring_relation=relation
    )


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_sampled_consensus_by_dp_accounting(adjacency):
    clip_norm = 1.0 if adjacency == "add-remove" else 0.5  # a record replaced moves the sum by two clips
    relation = (
        pld.NeighborRel.REPLACE_ONE if adjacency == "replace-one" else pld.NeighborRel.ADD_OR_REMOVE_ONE
    )
    releases = [
        [Release(u, 0, sensitivity=1.0, noise_std=1.5, steps=6, adjacency=adjacency, sample_rate=0.1)]
        for u in range(4)
    ]
    two = [sv.protocols.Tree(sv.graphs.path(4), root=0), sv.protocols.HypercubeExchange(4)]
    priced = plan(Consensus(), releases, 4, 6, lambda k: two[k % 2], adjacency)
    # node 0 about node 3: in the path hidden among {1, 2, 3}, in the exchange among {2, 3}
    expected = composed(
        (sampled(0.1, 1.5 / clip_norm * math.sqrt(3), relation), 3),
        (sampled(0.1, 1.5 / clip_norm * math.sqrt(2), relation), 3),
    )
    found = account(priced, "pairwise", observer=0, user=3).epsilon(1e-5)
    assert found == pytest.approx(expected.get_epsilon_for_delta(1e-5), rel=2e-3)
    alone = composed((sampled(0.1, 1.5 / clip_norm, relation), 6)).get_epsilon_for_delta(1e-5)
    assert account(priced, "local").epsilon(1e-5) == pytest.approx(alone, rel=2e-3)


def test_a_curators_mixture_by_dp_accounting():
    same = {"sender": 0, "step": 0, "adjacency": "add-remove"}
    releases = [[
        Release(**same, sensitivity=1.0, noise_std=20.0, mechanism="noisy-max", steps=10),
        Release(**same, sensitivity=1.0, noise_std=25.0, mechanism="laplace", steps=10),
        Release(**same, sensitivity=1.0, noise_std=4.0),
        Release(**same, sensitivity=1.0, noise_std=2.0, sample_rate=0.05, steps=20),
        Release(**same, sensitivity=0.0, noise_std=2.0, steps=1000),
    ]]  # fmt: skip
    choice = pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(2 / 20, 0), value_discretization_interval=H
    )
    expected = composed(
        (choice, 10),
        (pld.from_laplace_mechanism(25.0, value_discretization_interval=H), 10),
        (pld.from_gaussian_mechanism(4.0, value_discretization_interval=H), 1),
        (sampled(0.05, 2.0), 20),
    )
    found = account(plan(Curator(), releases, 1, 20, adjacency="add-remove")).epsilon(1e-6)
    assert found == pytest.approx(expected.get_epsilon_for_delta(1e-6), rel=5e-3)


def test_federations_by_dp_accounting():
    releases = [[Release(u, 0, sensitivity=4.0, noise_std=6.0, steps=8, user_rate=0.2)] for u in range(10)]
    priced = plan(Federation(10, secure_sum=True), releases, 10, 8, lambda k: Server(10))
    for colluders in (0, 1, 3):
        clip_norm = 4.0 / 2
        noise = math.sqrt(10 - colluders) * 6.0 / clip_norm
        expected = composed((sampled(0.2, noise, pld.NeighborRel.REPLACE_ONE), 8))
        view = {"view": "colluders", "colluders": colluders} if colluders else {"view": "central"}
        found = account(priced, **view).epsilon(1e-5)
        assert found == pytest.approx(expected.get_epsilon_for_delta(1e-5), rel=2e-3)
    assert_gaussian(account(priced, "local"), Fraction(8) * Fraction(4, 6) ** 2)


def test_record_sampling_does_not_amplify_users():
    releases = [[Release(u, 0, sensitivity=1.0, noise_std=2.0, steps=4, sample_rate=0.01)] for u in range(2)]
    assert_gaussian(account(plan(LocalOnly(), releases, 2, 4), "network"), Fraction(4, 4))


@pytest.mark.parametrize("final_public", [False, True])
@pytest.mark.parametrize("contractive", [False, True])
def test_walks_by_enumeration_of_all_paths(final_public, contractive):
    graph, steps, user, observer, alpha = sv.graphs.path(4), 5, 0, 2, 2.0
    W = graph.W.toarray()
    noise = 3.0
    expectation = mpmath.mpf(0)
    for path in itertools.product(range(4), repeat=steps):
        chance = 1 / 4 * math.prod(W[a, b] for a, b in itertools.pairwise(path))
        if not chance:
            continue
        cost = 0.0
        for s, holder in enumerate(path):
            if holder != user:
                continue
            later = [t for t in range(s + 1, steps) if path[t] in (user, observer)]
            if later:
                age = later[0] - s
            elif final_public:
                age = steps - s
            else:
                continue
            cost += alpha / (2 * noise**2) / (age if contractive else 1)
        expectation += chance * mpmath.exp((alpha - 1) * cost)
    expected = float(mpmath.log(expectation) / (alpha - 1))
    releases = [[Release(u, 0, sensitivity=2.0, noise_std=2 * noise, steps=steps)] for u in range(4)]
    model = TokenWalk(graph, steps, contractive=contractive, final_public=final_public)
    found = account(plan(model, releases, 4, steps), "pairwise", observer=observer, user=user)
    assert found.rdp(alpha) == pytest.approx(min(expected, steps * alpha / (2 * noise**2)), rel=1e-9)


def test_shared_noise_by_mpmath():
    n, own, pair, steps = 6, 2.0, 5.0, 3
    graph = sv.graphs.ring(n)
    releases = [[Release(u, 0, sensitivity=2.0, noise_std=own, steps=steps)] for u in range(n)]
    priced = plan(PairCorrelated(graph, own, pair), releases, n, steps)
    for coalition in ((), (1,), (1, 4)):
        honest = [v for v in range(n) if v not in coalition]
        covariance = mpmath.zeros(len(honest))
        for i, u in enumerate(honest):
            covariance[i, i] += own**2
            for j, w in enumerate(honest):
                if (u - w) % n in (1, n - 1):
                    covariance[i, i] += pair**2
                    covariance[i, j] -= pair**2
        inverse = covariance**-1
        worst = max(inverse[i, i] for i in range(len(honest)))
        squared = Fraction(float(4 * steps * worst)).limit_denominator(10**15)
        view = {"view": "colluders", "colluders": coalition} if coalition else {"view": "outsider"}
        assert_gaussian(account(priced, **view), squared)
