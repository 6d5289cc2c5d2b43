"""What a member reads before it signs."""

import pytest

from sottovoce.errors import ConfigError
from sottovoce.noise.samplers import SimulatedNoise
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.statements import UNPACED, signing_summary
from sottovoce.report.summary_page import of_statement


def test_the_summary_states_what_answer_times_reveal(consortium):
    free = signing_summary(AgreedRun(consortium(n=2, graph="path:2").agreement))
    paced = signing_summary(AgreedRun(consortium(n=2, graph="path:2", timing={"pace": 1.0}).agreement))
    assert UNPACED in free["assumptions"]
    assert UNPACED not in paced["assumptions"]
    assert paced["timing"]["pace"] == 1.0
    with pytest.raises(ConfigError, match="pace"):
        consortium(n=2, graph="path:2", timing={"pace": 0.0})


def test_a_statement_of_simulated_noise_is_not_private(consortium, memory_links):
    group = consortium(n=2, graph="path:2")
    noises = [SimulatedNoise(0), SimulatedNoise(1)]
    statement = group.run(noises=noises, transport=memory_links())[0].statement
    assert "not protective" in statement["noise"]
    assert of_statement(statement)["answers"][0]["answer"] == "no"


def test_the_cost_of_opening_an_agreement_does_not_grow_with_steps(consortium, monkeypatch):
    """F11: however many steps, a schedule whose steps are alike needs a few protocols only."""
    counts = []
    for steps in (10, 10_000_000):
        algorithm = {
            "name": "consensus-sgd",
            "protocol": "masked",
            "steps": steps,
            "noise_multiplier": 3000.0,
        }
        agreed = consortium(n=3, graph="path:3", algorithm=algorithm, epsilon=500.0).agreement
        kind, count = type(agreed.plan), []
        schedule = kind.schedule
        with monkeypatch.context() as patch:
            patch.setattr(kind, "schedule", lambda self, k, c=count, s=schedule: (c.append(k), s(self, k))[1])
            agreed_run = AgreedRun(agreed)
            signing_summary(agreed_run)
            agreed_run.table()
            agreed_run.spending(0)
        assert agreed_run.rounds == 4 * steps // 2
        counts.append(len(count))
    assert counts[0] == counts[1] < 200
