"""Validation of queries: defaults, arguments without meaning, assumptions."""

import pytest
from tests.accounting.small_plans import GOSSIP_RING, PAIR, D, every, one, plan_of, stationary_plan

import sottovoce as sv
from sottovoce.accounting.observation import Consensus, LinearGossip, LocalOnly, PairCorrelated, TokenWalk
from sottovoce.accounting.question import POISSON
from sottovoce.errors import InvalidInput
from sottovoce.privacy import Adversary, account
from sottovoce.protocols import HypercubeExchange

CONSENSUS_PLAN = plan_of(Consensus(), every(2.0, 4.0))


@pytest.mark.parametrize(
    ("view", "who", "sentence"),
    [
        ("local", {"observer": 1}, "no observer"),
        ("outsider", {"observer": 1}, "no observer"),
        ("central", {"observer": 1}, "no observer"),
        ("local", {"colluders": [1]}, "takes no colluders"),
        ("network", {"colluders": 2}, "takes no colluders"),
        ("pairwise", {"observer": 1}, "needs observer=... and user"),
        ("pairwise", {"user": 1}, "needs observer=... and user"),
        ("colluders", {}, "needs colluders"),
        ("colluders", {"colluders": 2, "observer": 1}, "not both"),
        ("colluders", {"colluders": 8}, "no agent is left"),
        ("colluders", {"colluders": range(8)}, "no agent is left"),
        ("network", {"observer": 3, "user": 3}, "knows its own records"),
        ("network", {"observer": 8}, "names node 8"),
        ("local", {"user": 8}, "names node 8"),
        ("network", {"participations": 3}, "participations"),
        ("nosy", {}, "view must be one of"),
        ("network", {"label": "rumour"}, "label must be one of"),
    ],
)
def test_arguments_without_meaning_are_refused(view, who, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        account(CONSENSUS_PLAN, view, **who)


def test_single_agent_defaults_to_local():
    alone = plan_of(LocalOnly(), every(1.0, 2.0), n=1)
    assert account(alone).adversary == Adversary("local")
    with pytest.raises(InvalidInput, match="no agent is left"):
        account(alone, "network")


def test_defaults_and_names():
    plan = CONSENSUS_PLAN
    assert account(plan).adversary == Adversary("network")
    assert account(plan, observer=0, user=3).adversary == Adversary("pairwise", 0, 3)
    assert account(plan, "network", observer=0, user=3) == account(plan, "pairwise", **PAIR)
    assert account(plan, colluders=[1, 2]).adversary == Adversary("colluders", [1, 2])
    assert account(plan, "network", user=3).adversary == Adversary("network", user=3)
    assert "whole data set of node 3" in account(plan, "network", user=3).statement(D)
    guarantee = account(plan_of(Consensus(), every(2.0, 4.0), assumptions=("clocks agree",)), "local")
    assert guarantee.assumptions == ("clocks agree",)


def test_a_release_under_another_adjacency_is_refused():
    with pytest.raises(InvalidInput, match="account for them separately"):
        account(plan_of(LocalOnly(), every(1.0, 1.0, adjacency="replace-one")), "local")


def test_poisson_assumption_names_the_sampled_agents():
    def assumes_sampling(*rates, **who):
        def releases(agent):
            return one(agent, adjacency="add-remove", sample_rate=rates[agent % len(rates)])

        plan = stationary_plan(Consensus(), HypercubeExchange(4), releases, adjacency="add-remove")
        return POISSON in account(plan, "local", **who).assumptions

    assert assumes_sampling(0.5)
    assert assumes_sampling(1.0, 0.5)
    assert assumes_sampling(1.0, 0.5, user=1)
    assert not assumes_sampling(1.0, 0.5, user=0)
    assert not assumes_sampling(1.0)


def test_progress_counts_from_one():
    seen = []
    plan = stationary_plan(LinearGossip(), GOSSIP_RING, lambda a: one(a, steps=2), steps=2)
    account(plan, "network", label="conditional", progress=seen.append)
    assert seen == [1, 2, 3, 4]
    seen.clear()
    walk = stationary_plan(TokenWalk(sv.graphs.ring(4), 3), GOSSIP_RING, lambda a: one(a, steps=3), steps=3)
    account(walk, observer=0, progress=seen.append)
    assert seen == [1, 2, 3]
    seen.clear()
    shared = PairCorrelated(sv.graphs.ring(4), own_std=2.0, pair_std=1.0)
    account(stationary_plan(shared, GOSSIP_RING, one), "network", progress=seen.append)
    assert seen == [1, 2, 3, 4]
