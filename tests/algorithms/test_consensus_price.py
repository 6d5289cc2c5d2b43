"""What exact consensus says of single agents when their noises, lots and adjacencies differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.algorithms import ConsensusSGD
from sottovoce.algorithms.gradient_plan import noise_multipliers
from sottovoce.errors import InvalidInput
from sottovoce.objectives.nets.objective import NetObjective

OBJECTIVE = NetObjective(torch.nn.Linear(2, 2))
stds = st.lists(st.floats(0.2, 9.0), min_size=6, max_size=6)


def plan(**options):
    chosen = {"sizes": [500] * 4, "steps": 5, "noise_multiplier": 3.0, "network": sv.graphs.path(4)} | options
    return ConsensusSGD(OBJECTIVE, **chosen)


@pytest.mark.parametrize("batch_size", [None, 100])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "user"])
def test_an_observer_who_sees_the_message_itself_learns_the_local_loss(adjacency, batch_size):
    """On a path of two the only message is the noisy gradient, so pairwise is local."""
    pair = plan(sizes=[500] * 2, network=sv.graphs.path(2), batch_size=batch_size, adjacency=adjacency)
    seen = pair.privacy("pairwise", observer=0, user=1)
    assert seen.epsilon(1e-5) == pytest.approx(pair.privacy("local", user=1).epsilon(1e-5), rel=1e-9)


@given(stds, st.integers(0, 5), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_leakage_with_unequal_noise_is_that_of_the_whitened_messages(std, observer, seed):
    """A second method: the messages as a matrix K, h(u) = s_u^2 k_u^T (K S^2 K^T)^-1 k_u."""
    rng = np.random.default_rng(seed)
    tree = sv.protocols.Tree(sv.graphs.ring(6), kind="uniform", rng=rng)
    state, seen = np.eye(6), []
    for t in range(tree.rounds):
        seen += [state[w] for w in tree.senders(t, observer)]
        state = tree.matrix(t) @ state
    K = np.array(seen)
    K[:, observer] = 0.0
    s = np.array(std)
    precision = np.linalg.pinv((K * s**2) @ K.T, rcond=1e-11, hermitian=True)
    expected = s**2 * np.einsum("ij,ik,kj->j", K, precision, K)
    found = tree.view(observer).with_noise(std).leakage()
    assert found == pytest.approx(expected, abs=1e-8)
    assert tree.shares(observer, std) == pytest.approx(found, abs=1e-12)


def test_a_loud_agent_among_quiet_ones_is_not_hidden_by_them():
    """Its noise is nearly all the noise there is: 64 / 66 of the local loss, not 1 / 3."""
    uneven = plan(noise_multiplier=(8.0, 1.0, 1.0, 1.0), protocol="tree")
    seen = uneven.privacy("pairwise", observer=3, user=0)
    assert seen.mu == pytest.approx(np.sqrt(5 * 64 / 66) / 8)
    quiet = uneven.privacy("pairwise", observer=3, user=1)
    assert quiet.mu == pytest.approx(np.sqrt(5 / 66))


@given(
    st.lists(st.integers(120, 4000), min_size=4, max_size=4), st.sampled_from(["add-remove", "replace-one"])
)
@settings(max_examples=10, deadline=None)
def test_no_single_agent_learns_more_than_everybody_and_none_less_than_the_model_tells(sizes, adjacency):
    uneven = ConsensusSGD.for_budget(
        OBJECTIVE, sv.graphs.path(4), steps=5, sizes=sizes, batch_size=100, view="local",
        adjacency=adjacency, accounting="rdp", epsilon=2.0, delta=1e-5,
    )  # fmt: skip
    z = np.array(noise_multipliers(uneven))
    for user in range(1, 4):
        seen = uneven.privacy("pairwise", observer=0, user=user)
        local = uneven.privacy("local", user=user)
        assert seen.rdp(8.0) <= local.rdp(8.0) * (1 + 1e-9)
        hidden = np.sqrt((z[1:] ** 2).sum())  # all noise but the observer's own
        q = uneven._sample_rates[user]
        model = sv.privacy.Curve.sampled_gaussian(q, hidden, 5, adjacency=adjacency)
        assert seen.rdp(8.0) >= model.renyi(8.0) * (1 - 1e-9)


def test_the_network_statement_is_the_worst_of_all_pairs():
    uneven = plan(sizes=[200, 900, 400, 3000], batch_size=100, noise_multiplier=(1.0, 2.0, 0.8, 0.7))
    pairs = [uneven.privacy("pairwise", observer=v, user=u) for v in range(4) for u in range(4) if u != v]
    for delta in (1e-3, 1e-8):
        worst = max(pair.epsilon(delta) for pair in pairs)
        assert uneven.privacy("network").epsilon(delta) == pytest.approx(worst, rel=1e-9)
        each = [uneven.epsilon(delta, "local", user=i) for i in range(4)]
        assert uneven.epsilon(delta, "local") == pytest.approx(max(each), rel=1e-9)


def test_noises_too_far_apart_to_compute_with_are_refused():
    view = sv.protocols.Gossip(sv.graphs.path(6), rounds=6).view(0)
    with pytest.raises(InvalidInput, match="too much for the view"):
        view.with_noise([1, 1e-14, 1e-14, 1e-14, 1e-14, 1])
    with pytest.raises(InvalidInput, match="one standard deviation per user"):
        view.with_noise([1.0, 2.0])


def test_a_coalition_of_all_leaves_nobody():
    with pytest.raises(InvalidInput, match="no agent is left"):
        plan().privacy("colluders", colluders=range(4))
