"""The program of one node: rounds, keys and the chain over what was received."""

from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce import graphs
from sottovoce.errors import TrainingDiverged
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.node_program import StepProgram
from sottovoce.protocols import Tree

SGD = {"name": "consensus-sgd", "adjacency": "user", "clip_norm": 0.5, "steps": 3, "learning_rate": 0.1}


def programs(consortium, algorithm, **more):
    group = consortium(algorithm=algorithm, **more)
    agreed_run = AgreedRun(group.agreement)
    return [agreed_run.program(v, group.records[v], SimulatedNoise(v)) for v in range(group.n)]


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
        progress = {p.progress() for p in some}
        assert len(progress) == 1
        ((done, chain),) = progress
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


def test_batches_of_a_step_are_drawn_from_the_keys_of_that_step(consortium):
    """Keys go forward with what was received, and a batch of an earlier step cannot be drawn again."""
    group = consortium(
        algorithm={
            **SGD, "adjacency": "add-remove", "batch_size": 4, "sample_rate": 0.5, "protocol": "exchange",
            "noise_multiplier": 8.0,
        },
        n=4, graph="hypercube:2", epsilon=900.0,
    )  # fmt: skip
    ready = AgreedRun(group.agreement)
    some = [ready.program(v, group.records[v]) for v in range(4)]
    seen = {v: [] for v in range(4)}
    for program in some:
        program.begin()
    for r in range(some[0].rounds):
        for v, program in enumerate(some):
            if not seen[v] or seen[v][-1] != program.mechanism.batches.key:
                seen[v].append(program.mechanism.batches.key)
        rows = [program.message() for program in some]
        for program in some:
            program.receive({v: rows[v] for v in program.expects(r)})
    assert all(len(keys) == len(set(keys)) == 3 for keys in seen.values())  # one for every step
    assert len({key for keys in seen.values() for key in keys}) == 12  # and for every member


def test_steps_of_a_program_may_differ_in_length_unless_it_is_said_that_they_do_not():
    """A path of three read from its end takes two rounds up and two down, from its middle one and one."""
    trees = [Tree(graphs.path(3), root=root) for root in (0, 1, 0)]
    lengths = [tree.rounds for tree in trees]
    assert len(set(lengths)) == 2
    algorithm = SimpleNamespace(init=lambda: None)
    program = StepProgram(algorithm, lambda k: trees[k], 3, node=2, mechanism=SimpleNamespace(random=None))
    assert list(program.starts) == [0, *np.cumsum(lengths)]
    for r in range(program.rounds):
        step = int(np.searchsorted(np.cumsum(lengths), r, side="right"))
        local, t = trees[step].node_state(2), r - program.starts[step]
        assert (program.sends(r), program.expects(r)) == (local.sends(t), local.expects(t))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_only_a_model_that_is_not_finite_stops_an_agreed_run(consortium, value):
    """Every member stops at the same step, without scores on which they could disagree."""
    some = programs(consortium, {**SGD, "protocol": "tree"})
    for program in some:
        output = program.algorithm.output
        program.algorithm = program.algorithm._replace(
            output=lambda state, output=output: output(state) * value
        )
    if value == 1e300:
        together(some)
        return
    with pytest.raises(
        TrainingDiverged, match="lower the learning rate: after 1 of 3 steps the model is not"
    ):
        together(some)
