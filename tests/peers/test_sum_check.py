"""Poison in a masked sum is noticed, recorded and stopped; honest sums are not."""

import asyncio

import numpy as np
import pytest
from scipy import stats

from sottovoce.errors import ConfigError, Refused
from sottovoce.noise.grid import grid_noise
from sottovoce.peers.agreed_run import AgreedRun
from sottovoce.peers.core import Timing
from sottovoce.peers.statements import checks
from sottovoce.peers.sum_check import SumCheck

LEARNING = {
    "name": "consensus-sgd", "protocol": "masked", "adjacency": "user", "clip_norm": 1.0, "steps": 6,
    "noise_multiplier": 8.0, "learning_rate": 0.3,
}  # fmt: skip


def masked(consortium, **more):
    return consortium(n=3, graph="path:3", algorithm=LEARNING, epsilon=500.0, **more)


def run_all(group, links, poison=0.0, at=2):
    """Run all peers; the first adds so many noise widths of the sum to each number of its row of one step."""
    events = [[] for _ in range(group.n)]
    peers = group.peers(transport=links, timing=Timing(give_up=2.0, linger=2.0, witness=32))
    for peer, seen in zip(peers, events, strict=True):
        peer.config.__dict__["log"] = seen.append
    rows, width = peers[0].core.program.masked, np.linalg.norm(peers[0].agreed_run.grid.stds)
    hide = rows.hide
    rows.hide = lambda row, step: hide(row + poison * width * (step == at), step)

    async def together():
        return await asyncio.gather(*[peer.run() for peer in peers], return_exceptions=True)

    return peers, asyncio.run(together()), events


def test_honest_peers_are_not_warned_about(consortium, memory_links):
    peers, outcomes, _ = run_all(masked(consortium), memory_links())
    assert all(outcome.statement["incidents"] == [] for outcome in outcomes)
    assert all(peer.core.program.masked.check.largest > 0 for peer in peers)


@pytest.mark.parametrize("poison", [40.0, 1e7])
def test_a_poisoned_sum_stops_all_peers_and_is_recorded(poison, consortium, memory_links):
    """Once within what the integers can hold, once beyond it."""
    peers, errors, events = run_all(masked(consortium), memory_links(), poison)
    stopped = [peer for peer, error in zip(peers, errors, strict=True) if isinstance(error, Refused)]
    assert stopped
    for peer in stopped:
        (incident,) = peer.core.incidents
        assert incident.startswith("the sum of step 2 is ")
        assert peer.core.durable_at < peer.agreed_run.rounds
    told = [event["what"] for seen in events for event in seen if event["event"] == "incident"]
    assert len(told) == len(stopped)


def test_the_agreed_limit_stops_earlier(consortium, memory_links):
    allowed = AgreedRun(masked(consortium).agreement).sum_check.allowed
    group = masked(consortium, checks={"largest_mean": allowed / 1000})
    _, errors, _ = run_all(group, memory_links())
    assert any("largest_mean" in str(error) for error in errors if isinstance(error, Refused))
    with pytest.raises(ConfigError, match="needs masked sums"):
        consortium(n=2, graph="path:2", checks={"largest_mean": 1.0})


def test_the_signing_summary_says_what_is_and_is_not_detected(consortium):
    run = AgreedRun(masked(consortium).agreement)
    sentence = checks(run)
    assert f"{run.sum_check.limit:.4g}" in sentence
    assert "unnoticed" in sentence


def test_the_bound_holds_for_aligned_rows_and_is_not_wide(consortium):
    """Rows of full norm in one direction with the noise of the grid: none of 20,000 sums is beyond it."""
    run = AgreedRun(masked(consortium).agreement)
    grid, check = run.grid, run.sum_check
    clean = np.zeros(grid.dim)
    clean[0] = 1.0
    noise = sum(grid_noise(20_000 * grid.dim, width) for width in grid.widths).reshape(-1, grid.dim)
    means = clean + noise * grid.spacing / run.n
    assert not any(check.stops(mean) for mean in means)
    widest = 16 * check.noise_std / run.n  # the bound is at 8.5, and honest noise may take as much back
    assert all(check.stops(mean) for mean in means[:100] + np.array([check.row_norm + widest, 0, 0]))
    # the largest of so many is a good part of the way to the bound of 1e-9
    assert np.linalg.norm(means - clean, axis=1).max() > 0.4 * (check.allowed - check.row_norm)


@pytest.mark.parametrize("dim", [1, 3, 100, 10_000])
def test_the_noise_bound_is_beyond_the_exact_quantile(dim):
    check = SumCheck(members=1, dim=dim, steps=1000, row_norm=0.0, noise_std=1.0)
    exact = np.sqrt(stats.chi2.isf(1e-12, dim))
    assert exact <= check.allowed <= 1.25 * exact


def test_a_jump_is_reported_and_remembered_over_a_restart():
    check = SumCheck(members=2, dim=2, steps=10, row_norm=1000.0, noise_std=0.01)
    quiet, loud = np.array([1.0, 0.0]), np.array([9.0, 0.0])
    assert [check.judge(mean, k) for k, mean in enumerate((quiet, 7 * quiet, quiet))] == ["", "", ""]
    fresh = SumCheck(members=2, dim=2, steps=10, row_norm=1000.0, noise_std=0.01, largest=1.0)
    assert "8 times as large" in fresh.judge(loud, 3)
    assert fresh.judge(loud, 4) == ""
    assert not fresh.stops(loud)
