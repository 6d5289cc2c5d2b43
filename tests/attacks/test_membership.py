"""Membership audits of learning: the stacked trainer is the library's, claims hold, bugs are found."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits
from tests.attacks.test_audit import Halved

import sottovoce as sv
from sottovoce.attacks import membership
from sottovoce.errors import InvalidInput
from sottovoce.privacy import SimulatedNoise
from sottovoce_papers.bayrooti2023.small_net import SmallNet

torch = pytest.importorskip("torch")

from sottovoce.algorithms import DPDSGD, DPDSGT, DPSGD, ConsensusSGD, DPDiNNO  # noqa: E402
from sottovoce.attacks.membership import _Tap  # noqa: E402
from sottovoce.objectives.nets.objective import NetObjective  # noqa: E402
from sottovoce.runners import run_stacked  # noqa: E402

NET = SmallNet()
START = NET.initial(np.random.default_rng(0))
PLANS = {"dp-dsgd": DPDSGD, "dp-dsgt": DPDSGT, "dp-dinno": DPDiNNO, "exact consensus": ConsensusSGD}
FAMILY = 0.001


def problem():
    digits = load_digits()
    return membership.digits_problem(digits.images / 16, digits.target, records=20)


def plan_for(kind, data, *, steps=6, z=4.0, batch_size=None, clip_norm=1.0, rate=0.05):
    objective = NetObjective(NET.module(START), clip_norm=clip_norm)
    options = {"steps": steps, "batch_size": batch_size, "noise_multiplier": z, "learning_rate": rate}
    if kind is DPSGD:
        return kind(objective, sizes=data.sizes, **options)
    return kind(objective, sv.graphs.path(3), sizes=data.sizes, **options)


def test_the_small_net_is_the_torch_network():
    rng = np.random.default_rng(1)
    images, labels = rng.normal(size=(2, 9, 14, 14)).astype(np.float32), rng.integers(0, 3, (2, 9))
    theta = np.stack([NET.initial(rng), NET.initial(rng)]) * 3
    patches = np.stack([NET.patches(x) for x in images])
    present = rng.uniform(size=(2, 9)) < 0.7
    objective = NetObjective(NET.module(theta[0]), clip_norm=1.5)
    ours = NET.clipped_sums(theta, np.arange(2), patches, labels, present, 1.5)
    theirs = objective.clipped_sums(
        theta, torch.as_tensor(images)[:, :, None], torch.as_tensor(labels), torch.as_tensor(present)
    )
    np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=2e-5)
    outputs = objective.outputs(theta, torch.as_tensor(images[0])[:, None])
    losses = [objective.loss(each, torch.as_tensor(labels[0])).numpy() for each in outputs]
    np.testing.assert_allclose(NET.losses(theta, images[0], labels[0]), losses, atol=1e-5)


def test_one_record_moves_a_sum_of_the_small_net_by_the_clip():
    """Sixty gradients that point one way, summed in float32: coarse, but not as coarse as an audit."""
    rng, records = np.random.default_rng(1), 60
    images = 1 + 0.1 * rng.normal(size=(records, 14, 14))
    patches, labels = NET.patches(images)[None], np.zeros((1, records), int)
    row, owner = NET.initial(rng)[None], np.zeros(1, int)
    whole = NET.clipped_sums(row, owner, patches, labels, np.ones((1, records), bool), 0.1).astype(float)
    for gone in range(records):
        batch_size = np.arange(records)[None] != gone
        without = NET.clipped_sums(row, owner, patches, labels, batch_size, 0.1)
        assert np.linalg.norm(whole - without) == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize("kind", PLANS.values(), ids=PLANS)
def test_stacked_copies_equal_one_run_of_the_plan(kind):
    """Without sampling and noise every copy is the plan's own run, message by message."""
    from sottovoce.data.agent_tensors import AgentData

    data = problem()
    plan = plan_for(kind, data, z=0.0, clip_norm=2.0)
    copies = membership.train_models(
        plan, NET, data, member=False, models=3, start=START, rng=np.random.default_rng(0),
    )  # fmt: skip
    images = data.images.reshape(-1, 1, 14, 14).astype(np.float32)
    whole = AgentData(images, data.labels.ravel(), np.arange(60).reshape(3, 20))
    rows = plan.run(whole, np.random.default_rng(0), start=START).outputs["rows"]
    expected = NET.losses(rows[:1], data.canary[None], np.array([0]))[0, 0]
    np.testing.assert_allclose(copies.losses, expected, rtol=2e-4)


def test_replicated_protocols_are_the_protocol():
    rng = np.random.default_rng(2)
    base = sv.protocols.Gossip(sv.graphs.path(4), 3)
    rows = rng.normal(size=(5, 4, 2))
    out = membership.apply_to_copies(base, rows.reshape(20, 2), 5, 0).reshape(5, 4, 2)
    np.testing.assert_allclose(out, [base.apply(copy) for copy in rows], atol=1e-12)
    seen = membership.observe_copies(base, rows, 1).transpose(1, 0, 2)
    np.testing.assert_allclose(seen, [base.observe(copy, 1) for copy in rows], atol=1e-12)
    rows[2, 1] = np.nan
    out = membership.apply_to_copies(base, rows.reshape(20, 2), 5, 0).reshape(5, 4, 2)
    assert np.isnan(out[2]).all()
    assert np.isfinite(np.delete(out, 2, axis=0)).all()


def views():
    return {"neighbor": (1,), "distant": (2,), "colluders": (1, 2)}


@pytest.mark.parametrize("kind", [*PLANS.values(), DPSGD], ids=[*PLANS, "dp-sgd"])
def test_no_audit_of_learning_exceeds_its_claim(kind):
    data = problem() if kind is not DPSGD else problem().merged()
    plan = plan_for(kind, data, batch_size=10, z=2.0)
    audits, _ = membership.audit_membership(
        plan, NET, data, models=2000, start=START, rng=np.random.default_rng(3),
        views=None if kind is DPSGD else views(), level=FAMILY / 20,
    )  # fmt: skip
    assert not any(audit.refuted for audit in audits.values())


def test_white_box_audits_come_close_and_keep_the_order_of_the_views():
    """Full batches, canary at the clip: the neighbor's test is near the claim, the distant far below."""
    data = problem()
    plan = plan_for(DPDSGD, data, steps=5, z=1.5, rate=0.01)
    audits, _ = membership.audit_membership(
        plan, NET, data, models=4000, start=START, rng=np.random.default_rng(4), views=views()
    )
    assert 0.75 < audits["neighbor"].tightness <= 1
    assert audits["distant"].tightness < 0.7 * audits["neighbor"].tightness
    assert audits["colluders"].tightness >= 0.9 * audits["neighbor"].tightness
    exact = plan_for(ConsensusSGD, data, steps=5, z=1.5, rate=0.01)
    audits, _ = membership.audit_membership(
        exact, NET, data, models=4000, start=START, rng=np.random.default_rng(4), views=views()
    )
    assert not any(audit.refuted for audit in audits.values())
    assert audits["distant"].epsilon_claimed < audits["loss"].epsilon_claimed
    assert audits["distant"].tightness > 0.6


class Reused(SimulatedNoise):
    """Planted: all agents of a model draw the same noise, as with one seed for everybody."""

    def perturb(self, values, *, agents, step, std, stream=0):
        return super().perturb(values, agents=np.asarray(agents) // 3, step=step, std=std, stream=stream)


@pytest.mark.parametrize(("kind", "caught"), [(SimulatedNoise, False), (Halved, True), (Reused, True)])
def test_planted_noise_bugs_are_found_in_training(kind, caught):
    """A neighbor whose own noise is everybody's noise subtracts it."""
    data = problem()
    plan = plan_for(DPDSGD, data, steps=4, z=1.5, rate=0.01)
    inside, outside = (
        membership.train_models(
            plan, NET, data, member=member, models=1500, start=START, rng=np.random.default_rng(seed),
            views=views(), noise=kind(seed),
        )
        for seed, member in ((1, True), (2, False))
    )  # fmt: skip
    claim = plan.privacy("pairwise", observer=1, user=0)
    seen = inside.views["neighbor"], outside.views["neighbor"]
    assert membership.audit_view(*seen, claim, level=FAMILY).refuted is caught


@pytest.mark.parametrize("guard", [True, False])
def test_a_broken_record_says_nothing_unless_the_guard_is_removed(guard):
    class Net(SmallNet):
        def clipped_sums(self, *args):
            return super().clipped_sums(*args, guard=guard)

    data = problem()
    data = replace(data, canary=np.full_like(data.canary, np.nan))
    plan = plan_for(DPDSGD, data, steps=3)
    audits, (inside, _) = membership.audit_membership(
        plan, Net(), data, models=600, start=START, rng=np.random.default_rng(5), level=FAMILY,
        views={"neighbor": (1,)},
    )  # fmt: skip
    assert np.isnan(inside.losses).any() == (not guard)
    assert audits["loss"].refuted == audits["neighbor"].refuted == (not guard)


def test_invalid_input_is_refused():
    digits = load_digits()
    with pytest.raises(InvalidInput, match="1000 pictures"):
        membership.digits_problem(digits.images / 16, digits.target, records=1000)
    data = problem()
    user_level = DPDSGD(
        NetObjective(NET.module(START)), sv.graphs.path(3), steps=2, noise_multiplier=1.0, adjacency="user",
        clip_norm=1.0,
    )  # fmt: skip
    options = {"member": True, "models": 2, "start": START, "rng": np.random.default_rng(0)}
    with pytest.raises(InvalidInput, match="add-remove"):
        membership.train_models(user_level, NET, data, **options)
    with pytest.raises(InvalidInput, match="3 agents, the problem 1"):
        membership.train_models(plan_for(DPDSGD, data), NET, data.merged(), **options)


class FixedGradients:
    """A source whose noisy gradients are fixed beforehand."""

    def __init__(self, steps, agents, width):
        self.gradients = np.random.default_rng(3).normal(size=(steps, agents, width))

    def gradient_with_l2(self, theta, k):
        return self.gradients[k]


@pytest.mark.parametrize(("kind", "parts"), [(DPDSGD, 1), (DPDSGT, 2)])
def test_a_neighbor_adds_up_the_owners_noisy_gradients(kind, parts):
    """What the tap decodes against the gradients themselves; who does not hear the owner decodes nothing."""
    copies, agents, width, steps, rate = 2, 3, 4, 6, 0.5
    source = FixedGradients(steps, copies * agents, width)
    start = np.tile(np.arange(4.0), (copies * agents, 1))
    options = {"steps": steps, "learning_rate": rate, "clip_norm": 1.0, "adjacency": "user"}
    plan = kind(sv.objectives.GLM(dim=4), sv.graphs.path(3), **options)
    direction = np.array([0.5, 0.5, -0.5, 0.5])
    tap = _Tap(copies, direction, {"neighbor": (1,), "distant": (2,)}, start[0], 0)
    run_stacked(plan.algorithm(source, start), sv.protocols.Gossip(sv.graphs.path(3), 1), steps, mix=tap)
    # rows are sums of gradients, tracked ones sums of their differences
    decoded = tap.decoded["neighbor"].reshape(copies, 3, parts)[:, parts - 1, parts - 1]
    pulled = (source.gradients @ direction).reshape(steps, copies, agents)[:-1, :, 0]  # the last was not sent
    wanted = -rate * pulled.sum(axis=0) if parts == 1 else pulled.sum(axis=0)
    np.testing.assert_allclose(decoded, wanted, atol=1e-12)
    assert "distant" not in tap.decoded
