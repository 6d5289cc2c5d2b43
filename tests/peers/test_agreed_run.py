"""An agreement's numbers for one member, written a second time: the largest row, and what was spent."""

import math

import numpy as np
import pytest

from sottovoce.errors import ConfigError, SottovoceError
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.agreement_plan import AgreedNet
from sottovoce.privacy import gaussian_epsilon

SGD = {"name": "consensus-sgd", "adjacency": "user", "clip_norm": 0.5, "steps": 3, "learning_rate": 0.1}
DELTA = 1e-5


def agreed_run(consortium, algorithm, **more):
    return AgreedRun(consortium(algorithm=algorithm, **more).agreement)


def largest(numbers, reach, std, center=0.0):
    """A row's own reach, and what Gaussian noise exceeds with a chance below 2^-40 among so many numbers."""
    return (reach + center + math.sqrt(2 * math.log(2.0**41 * numbers)) * std) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("protocol", "graph", "times"),
    [
        ("gossip:2", "ring:4", 1),
        ("dropout:2:edges=0.3", "ring:4", 1),
        ("exchange", "hypercube:2", 1),
        ("tree", "path:4", 4),
    ],
)
@pytest.mark.parametrize("radius", [0.5, 3.0])
@pytest.mark.parametrize("center", [0.0, [1.0, -7.0]])
def test_rows_that_clip_and_noise_do_not_allow_are_known(protocol, graph, times, radius, center, consortium):
    """Means of rows stay within one row's reach; on the way to an exact sum a row may hold all of them."""
    algorithm = {
        "name": "averaging",
        "protocol": protocol,
        "clip_norm": radius,
        "noise_multiplier": 4.0,
        "center": center,
    }
    found = agreed_run(consortium, algorithm, n=4, graph=graph, dim=2, epsilon=900.0)
    far = float(np.max(np.abs(center)))
    assert found.bound == pytest.approx(times * largest(4 * 2, radius, 4.0 * radius, far), rel=1e-12)


def test_no_bound_where_nothing_public_bounds_a_row(consortium):
    averaging = {"name": "averaging", "noise_multiplier": 4.0}
    record = {**SGD, "adjacency": "add-remove", "batch_size": 4, "sample_rate": 0.5, "noise_multiplier": 4.0}
    for algorithm, graph in (
        ({**averaging, "protocol": "chebyshev:2"}, "ring:4"),  # weights below zero
        ({**averaging, "protocol": "refreshed:2:fresh=0.1"}, "ring:4"),  # noise on the way
        ({**averaging, "protocol": "masked"}, "ring:4"),
        ({**record, "protocol": "exchange"}, "hypercube:2"),
        ({**SGD, "name": "dp-dsgd", "noise_multiplier": 4.0, "protocol": "gossip:1"}, "ring:4"),
    ):
        assert agreed_run(consortium, algorithm, n=4, graph=graph, epsilon=900.0).bound is None


@pytest.mark.parametrize(("tolerate", "around"), [("", 4), (":tolerate=2", 3)])
def test_masked_steps_that_were_made_cost_what_stood_around_them(tolerate, around, consortium):
    """Five members: any one sees four noises around a row, any two see three."""
    z, clip_norm = 8.0, 0.5
    made = agreed_run(
        consortium,
        {**SGD, "protocol": f"masked{tolerate}", "noise_multiplier": z},
        n=5,
        graph="complete:5",
        epsilon=900.0,
    )
    assert made.tolerate == {4: 1, 3: 2}[around]

    def price(steps, noises):  # a member replaced moves its row by twice the clip
        return gaussian_epsilon(2 * clip_norm * math.sqrt(steps) / (z * clip_norm * math.sqrt(noises)), DELTA)

    (release,) = made.plan.releases(2)
    for steps in (1, 2, 3):
        some = [release.at(k) for k in range(steps)]
        assert made.spent(2, some).epsilon(DELTA) == pytest.approx(price(steps, around), rel=1e-6)
        assert made.spent_locally(2, some).epsilon(DELTA) == pytest.approx(price(steps, 1), rel=1e-6)
    assert made.charged_guarantee(2).epsilon(DELTA) == pytest.approx(price(3, around), rel=1e-6)
    assert made.noise_amplification(2) == pytest.approx(math.sqrt(around), rel=1e-6)
    assert made.spent(2, []).epsilon(DELTA) == 0.0
    assert made.spent(2, []).adversary.kind == "local"


def programs(consortium, algorithm, **more):
    made = consortium(algorithm=algorithm, **more)
    ready = AgreedRun(made.agreement)
    return [ready.program(v, made.records[v], SimulatedNoise(v)) for v in range(made.n)]


def together(some):
    """All programs to their end, round by round, without a network between them."""
    for program in some:
        program.begin()
    for r in range(some[0].rounds):
        rows = [program.message() for program in some]
        for program in some:
            program.receive({v: rows[v] for v in program.expects(r)})


def test_one_step_of_exact_sums_is_compared_too(consortium):
    """The chain over what was received: equal at all members, told from the first step on."""
    for steps in (1, 2):
        some = programs(
            consortium, {**SGD, "steps": steps, "protocol": "exchange", "noise_multiplier": 8.0}, n=4,
            graph="hypercube:2", epsilon=900.0,
        )  # fmt: skip
        assert {p.progress() for p in some} == {(0, bytes(32))}
        together(some)
        told = {p.progress() for p in some}
        assert len(told) == 1
        ((done, chain),) = told
        assert done == steps
        assert chain != bytes(32)


def test_rounds_kept_for_late_ones_are_two_of_the_longest_steps(consortium):
    """Trees drawn anew for every step differ in depth, and a neighbor may be a whole step behind."""
    (first, *_) = programs(
        consortium, {**SGD, "steps": 9, "protocol": "tree:kind=uniform", "noise_multiplier": 8.0}, n=5,
        graph="complete:5", epsilon=900.0,
    )  # fmt: skip
    lengths = np.diff(first.starts)
    assert first.window == 2 * lengths.max() + 1
    assert lengths.max() > lengths.min()


def test_lots_of_a_step_are_drawn_from_the_keys_of_that_step(consortium):
    """Keys go forward with what was received, and a lot of an earlier step cannot be drawn again."""
    made = consortium(
        algorithm={
            **SGD, "adjacency": "add-remove", "batch_size": 4, "sample_rate": 0.5, "protocol": "exchange",
            "noise_multiplier": 8.0,
        },
        n=4, graph="hypercube:2", epsilon=900.0,
    )  # fmt: skip
    ready = AgreedRun(made.agreement)
    some = [ready.program(v, made.records[v]) for v in range(4)]
    seen = {v: [] for v in range(4)}
    for program in some:
        program.begin()
    for r in range(some[0].rounds):
        for v, program in enumerate(some):
            if not seen[v] or seen[v][-1] != program.source.batches.key:
                seen[v].append(program.source.batches.key)
        rows = [program.message() for program in some]
        for program in some:
            program.receive({v: rows[v] for v in program.expects(r)})
    assert all(len(keys) == len(set(keys)) == 3 for keys in seen.values())  # one for every step
    assert len({key for keys in seen.values() for key in keys}) == 12  # and for every member


def test_several_classes_share_the_parameters_of_an_agreement(consortium):
    agreed = consortium(
        algorithm={**SGD, "protocol": "exchange", "noise_multiplier": 8.0}, n=4, graph="hypercube:2", dim=9,
        kind="logistic", epsilon=900.0, model={"classes": 3},
    ).agreement  # fmt: skip
    assert (agreed.plan.objective.classes, agreed.plan.objective.dim, agreed.plan.width) == (3, 3, 9)
    assert type(agreed.plan.objective.dim) is int


def test_files_are_supplied_for_a_network_of_ones_own_and_for_no_other():
    ours = AgreedNet("mlp", {}, 10)
    ours.supply(None, None)
    for files in (("net.py", None), (None, "start.npz"), ("net.py", "start.npz")):
        with pytest.raises(ConfigError, match="supply no files"):
            ours.supply(*files)
        own = AgreedNet("", {}, 10, module="net.py:make")
        own.supply(*files)
        if None in files:
            with pytest.raises(ConfigError, match="--module and --weights"):
                own._own_module()
        else:
            with pytest.raises(SottovoceError) as caught:  # looked for, and not there
                own._own_module()
            assert "--module and --weights" not in str(caught.value)
