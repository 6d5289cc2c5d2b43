"""An agreement at work: how long it is, when it is priced in full, its start, and what it has spent."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce import graphs
from sottovoce.accounting.release import Release
from sottovoce.errors import ConfigError, DataError
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement_plan import AgreedNet, agreed_plan
from sottovoce.peers.node_program import StepProgram
from sottovoce.privacy import gaussian_epsilon
from sottovoce.protocols import HypercubeExchange, Tree

SGD = {
    "name": "consensus-sgd", "adjacency": "user", "clip_norm": 0.5, "steps": 3, "learning_rate": 0.1,
    "noise_multiplier": 8.0,
}  # fmt: skip


def agreed(consortium, algorithm, **more):
    return consortium(algorithm={**SGD, **algorithm}, epsilon=900.0, **more)


def test_a_run_is_as_long_as_its_steps_together(consortium):
    """Four members exchange in two rounds; trees that are drawn anew differ in depth."""
    steady = AgreedRun(agreed(consortium, {"protocol": "exchange"}, n=4, graph="hypercube:2").agreement)
    assert (steady.rounds, steady.codec.dim) == (3 * 2, 3)
    drawn = AgreedRun(
        agreed(consortium, {"protocol": "tree:kind=uniform"}, n=5, graph="complete:5").agreement
    )
    assert drawn.rounds == sum(drawn.plan.schedule(k).rounds for k in range(3))
    assert type(steady.rounds) is type(drawn.rounds) is int


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_trees_drawn_anew_are_priced_in_full_up_to_so_many_pairs_and_steps(late):
    """16 members are 256 pairs: 2^16 pairs and steps are reached with 256 steps."""

    def exact(steps, *, steady=False, **options):
        plan = SimpleNamespace(n=16, steps=steps, is_stationary=steady, grid=None, width=1)
        plan.schedule = lambda k: SimpleNamespace(rounds=1)
        agreement = SimpleNamespace(
            plan=plan,
            timing=SimpleNamespace(late=late),
            run=bytes(32),
            model=SimpleNamespace(number="float64"),
        )
        return AgreedRun(agreement, **options)._exact

    found = [exact(256), exact(257), exact(257, exact=True), exact(10**6, steady=True)]
    assert found == ([True, False, True, True] if late == "wait" else [False] * 4)


def test_a_run_goes_on_from_a_model_of_the_agreed_shape_in_the_agreed_type(consortium):
    made = agreed(consortium, {"protocol": "exchange"}, n=4, graph="hypercube:2")
    agreed_run, third = AgreedRun(made.agreement), np.array([1.0, 2.0, 1 / 3], np.float32)
    program = agreed_run.program(1, made.records[1], SimulatedNoise(0), start=third)
    program.begin()
    assert program.result().dtype == made.agreement.model.number == "float64"
    np.testing.assert_array_equal(program.result(), third.astype(float))
    for wrong in (third[:2], third[None], np.zeros(())):
        with pytest.raises(DataError, match="model to go on from"):
            agreed_run.program(1, made.records[1], SimulatedNoise(0), start=wrong)


def test_the_loudest_member_says_how_large_a_row_may_be():
    """Two members, one with twice the noise: 2 numbers in all, and an exchange sends means of rows."""
    plan = SimpleNamespace(
        n=2, steps=1, is_stationary=True, grid=None, width=1, maskable=True, adjacency="user", center=0.0,
        schedule=lambda k: HypercubeExchange(2),
        releases=lambda v: [Release(v, 0, sensitivity=2.0, noise_std=3.0 * (v + 1))],
    )  # fmt: skip
    agreement = SimpleNamespace(plan=plan, run=bytes(32), model=SimpleNamespace(number="float64"))
    tail = math.sqrt(2 * math.log(2.0**41 * 2))
    assert AgreedRun(agreement).bound == pytest.approx((1.0 + 6.0 * tail) * (1 + 1e-6), rel=1e-12)


DELTA = 1e-5


def price(steps, noises):
    """A member replaced moves its row by twice the clip, which so many noises of 8 clips hide."""
    return gaussian_epsilon(2 * math.sqrt(steps) / (8.0 * math.sqrt(noises)), DELTA)


def epsilons(guarantees):
    return {name: found.epsilon(DELTA) for name, found in guarantees.items()}


def test_a_run_that_was_broken_off_costs_what_it_released(consortium):
    """Five members under masks: any two see the noise of three around a row, any one that of four."""
    pairs = AgreedRun(
        agreed(consortium, {"protocol": "masked:tolerate=2"}, n=5, graph="complete:5").agreement
    )
    (release,) = pairs.plan.releases(2)
    some = [release.at(k) for k in range(2)]
    assert epsilons(pairs.cost_of_interrupted(2, some)) == pytest.approx(
        {"colluders:2": price(2, 3), "network": price(2, 4)}, rel=1e-6
    )
    assert epsilons(pairs.cost_of_interrupted(2, [])) == {"colluders:2": 0.0, "network": 0.0}
    spending = pairs.spending(2)  # counts a release as it is seen: with three noises around it
    for steps in (1, 2):
        spending.add(release.at(steps - 1))
        assert spending.epsilon() == pytest.approx(price(steps, 3), rel=1e-6)


def test_without_masks_single_members_are_named_and_gossip_has_only_the_local_price(consortium):
    """In an exchange of four a member hears one other alone, and the sum of the two others."""
    exchange = AgreedRun(agreed(consortium, {"protocol": "exchange"}, n=4, graph="hypercube:2").agreement)
    (release,) = exchange.plan.releases(1)
    assert epsilons(exchange.cost_of_interrupted(1, [release.at(0)])) == pytest.approx(
        {"network": price(1, 1)}, rel=1e-6
    )
    assert epsilons(exchange.cost_of_interrupted(1, [])) == {"network": 0.0}
    plain = {"name": "dp-dsgd", "protocol": "gossip:1"}
    gossip = AgreedRun(agreed(consortium, plain, n=4, graph="ring:4").agreement)
    (release,) = gossip.plan.releases(1)
    assert gossip.cost_of_interrupted(1, [release.at(0)]) == gossip.cost_of_interrupted(1, []) == {}


@pytest.mark.parametrize(("graph", "name"), [("path:2", "tree"), ("ring:3", "masked"), ("ring:4", "masked")])
def test_three_members_who_name_no_protocol_get_masked_sums(graph, name):
    part = {key: value for key, value in SGD.items() if key != "protocol"}
    plan = agreed_plan(graphs.parse(graph), part, {"kind": "logistic", "parameters": 5}, seed=1)
    assert plan.schedule(0).name == name


@pytest.mark.parametrize("net", [{"net": "unheard"}, {"net": "", "module": "unheard.py:make"}])
def test_a_network_that_cannot_be_built_is_called_by_its_name(net):
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match=r"network 'unheard(\.py:make)?' cannot be built"):
        _ = AgreedNet(options={}, n_params=3, **net).objective


def test_steps_of_a_program_may_differ_in_length_unless_it_is_said_that_they_do_not():
    """A path of three read from its end takes two rounds up and two down, from its middle one and one."""
    trees = [Tree(graphs.path(3), root=root) for root in (0, 1, 0)]
    lengths = [tree.rounds for tree in trees]
    assert len(set(lengths)) == 2
    text = SimpleNamespace(init=lambda: None)
    program = StepProgram(text, lambda k: trees[k], 3, node=2, source=SimpleNamespace(random=None))
    assert list(program.starts) == [0, *np.cumsum(lengths)]
    for r in range(program.rounds):
        step = int(np.searchsorted(np.cumsum(lengths), r, side="right"))
        local, t = trees[step].local(2), r - program.starts[step]
        assert (program.sends(r), program.expects(r)) == (local.sends(t), local.expects(t))
