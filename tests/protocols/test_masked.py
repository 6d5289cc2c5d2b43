"""Masked consensus: the account against brute force over the unknown keys, and sums that never round."""

from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from scipy.linalg import null_space
from tests.protocols.cases import run_locally

import sottovoce as sv
from sottovoce.accounting.observation.averaging import SingleAveraging
from sottovoce.attacks import audit_averaging, gossip_attack
from sottovoce.errors import GraphError, InvalidInput
from sottovoce.noise.grid import from_grid, to_grid
from sottovoce.privacy import account, exact_loss, learning_view
from sottovoce.protocols import Masked, Tree

# ---- the reference: elimination of what nobody in the coalition knows -------------------------------------


def eliminated(n, edges, coalition, std):
    """The loss of every honest member in its own unit, from the masked rows of all honest members.

    Row u of the observation is X_u plus signed unknown masks, each shared by two honest partners (the masks
    shared with the coalition are known). A mask is uniform on a group: a combination that holds one tells
    nothing, so what is left are the combinations free of all masks, and of those X has a Gaussian law.
    """
    honest = [u for u in range(n) if u not in coalition]
    masks = [[(v == u) - (v == w) for v in honest] for u, w in edges if {u, w} <= set(honest)]
    free = null_space(np.array(masks, float).reshape(-1, len(honest))).T * np.asarray(std, float)[honest]
    losses = np.zeros(n)
    losses[honest] = np.einsum("iu,ij,ju->u", free, np.linalg.inv(free @ free.T), free)
    return losses


@pytest.mark.parametrize("seed", range(40))
def test_the_account_equals_elimination_of_the_unknown_keys(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 11))
    edges = [pair for pair in combinations(range(n), 2) if rng.random() < rng.uniform(0.2, 0.9)]
    tree = Tree(sv.graphs.complete(n), kind="uniform", rng=rng)
    masked = Masked(tree, partners=np.array(edges).reshape(-1, 2), tolerate=None)
    coalition = tuple(rng.choice(n, size=int(rng.integers(0, n)), replace=False).tolist())
    std = rng.integers(1, 6, size=n)
    plain, uneven = eliminated(n, edges, coalition, np.ones(n)), eliminated(n, edges, coalition, std)
    view = masked.view(coalition)
    np.testing.assert_allclose(view.leakage(), plain, atol=1e-12)
    np.testing.assert_allclose(view.with_noise(std).leakage(), uneven, atol=1e-12)
    np.testing.assert_allclose(masked.shares(coalition, std), uneven, atol=1e-12)
    if coalition:
        loss = exact_loss(masked, observer=coalition[0], colluders=coalition[1:])
        np.testing.assert_allclose(loss, plain, atol=1e-12)


def test_every_pair_at_once_and_both_kinds_of_knowledge():
    masked = Masked(sv.graphs.ring(5), tolerate=2)
    np.testing.assert_allclose(exact_loss(masked), (1 - np.eye(5)) / 4)
    # whoever does not know its own noise still gets its own sum out of the sum of all
    leakage = masked.view([0, 2], own_noise=False).leakage()
    np.testing.assert_allclose(leakage, [1 / 2, 1 / 3, 1 / 2, 1 / 3, 1 / 3])
    np.testing.assert_allclose(masked.output_view(3).leakage(), 1 / 5)


# ---- what a coalition computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("own_noise", [True, False])
@pytest.mark.parametrize("coalition", [(), (0,), (1, 4)])
def test_observations_are_sums_and_reconstruction_spreads_them(coalition, own_noise):
    rng = np.random.default_rng(5)
    masked = Masked(sv.graphs.ring(6), partners=sv.graphs.ring(6))
    values = rng.integers(-9, 9, size=(6, 3)) / 8
    view = masked.view(coalition, own_noise)
    seen = masked.observe(values, coalition, own_noise)
    assert len(seen) == len(view.messages)
    blocks = masked.blocks(coalition)
    start = len(coalition) if own_noise else 0
    for row, block in zip(seen[start:], blocks, strict=False):
        assert (row == values[block].sum(axis=0)).all()
    estimate = view.reconstruct(seen)
    for block in blocks:
        np.testing.assert_allclose(estimate[block], np.tile(values[block].mean(axis=0), (len(block), 1)))
    # two worlds with equal sums over the blocks look the same to the coalition
    moved = values.copy()
    for block in blocks:
        if len(block) > 1:
            moved[block[0]] += 0.5
            moved[block[1]] -= 0.5
    assert (masked.observe(moved, coalition, own_noise) == seen).all()


def test_attack_and_account_agree_on_a_cut_partner_graph():
    whole = Masked(sv.graphs.star(6))
    assert gossip_attack(whole, 0).nodes == ()
    assert gossip_attack(whole.tree, 0).nodes == (1, 2, 3, 4, 5)  # in clear, the hub reads every row
    cut = Masked(sv.graphs.star(6), partners=[(0, 1), (0, 2), (3, 4), (4, 5)], tolerate=None)
    attack = gossip_attack(cut, 0)
    assert attack.nodes == (1, 2) == tuple(np.flatnonzero(cut.view(0).leakage() > 1 - 1e-12))
    values = np.arange(6.0) ** 2
    values_read = attack.values(cut.observe(values, 0))
    assert {u: row.item() for u, row in values_read.items()} == {1: 1.0, 2: 4.0}
    for call, words in (
        (lambda: gossip_attack(whole, 0, exact=True), "exact=False"),
        (
            lambda: sv.attacks.gradient_attack(whole, attackers=0, steps=3),
            "masked ones tell nothing but",
        ),
        (lambda: learning_view(whole, 3, 0), "masked sums are exact as consensus"),
    ):
        with pytest.raises(InvalidInput, match=words):
            call()


def test_an_audit_refutes_the_claim_of_a_partner_graph_that_falls_apart():
    whole = Masked(sv.graphs.ring(10))
    claim = account(SingleAveraging(whole, 1.0, 0.25), "pairwise", observer=1, user=0)
    cut = Masked(sv.graphs.ring(10), partners=sv.graphs.path(10), tolerate=None)
    options = {"user": 0, "observers": 1, "sensitivity": 1.0, "noise_std": 0.25, "runs": 20_000}
    rng = np.random.default_rng(2)
    assert audit_averaging(cut, **options, rng=rng, guarantee=claim, level=0.001).refuted
    assert not audit_averaging(cut, **options, rng=rng, level=0.001).refuted


# ---- sums -------------------------------------------------------------------------------------------------


def trees():
    rng = np.random.default_rng(0)
    grid = sv.graphs.grid(3, 4)
    drawn = [Tree(grid, kind="uniform", rng=rng) for _ in range(6)]
    return [Tree(grid), Tree(grid, root=7), *drawn, Tree(grid, kind="capped", rng=rng, max_children=1)]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_tree_and_order_gives_the_same_bytes(dtype):
    rng = np.random.default_rng(1)
    values = (rng.normal(size=(12, 5)) * 10.0 ** rng.integers(-6, 6, size=(12, 5))).astype(dtype)
    expected = Masked(trees()[0]).apply(values)
    assert expected.dtype == dtype
    np.testing.assert_allclose(expected[0], values.astype(float).mean(axis=0), rtol=2e-6, atol=1e-9)
    for tree in trees():
        masked = Masked(tree)
        assert masked.apply(values).tobytes() == expected.tobytes()
        local, sent = run_locally(masked, values)
        assert local.tobytes() == expected.tobytes()
        assert len(sent) == masked.message_count == 22
    # the plain tree rounds on the way, differently on every tree
    assert len({tree.apply(values).tobytes() for tree in trees()}) > 1


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_integer_rows_are_added_modulo_their_width(dtype):
    rng = np.random.default_rng(3)
    info = np.iinfo(dtype)
    rows = rng.integers(info.min, info.max, size=(12, 4), dtype=dtype, endpoint=True)
    modulus = 2 ** (8 * np.dtype(dtype).itemsize)
    exact = [sum(int(x) for x in column) % modulus for column in rows.T]
    lifted = [x - modulus if x >= modulus // 2 else x for x in exact]
    for tree in trees():
        masked = Masked(tree)
        total = masked.apply(rows)
        assert total.dtype == dtype
        assert total.tolist() == [lifted] * 12
        assert run_locally(masked, rows)[0].tolist() == [lifted] * 12


def test_grid_conversion_rounds_to_the_nearest_multiple():
    values = np.random.default_rng(0).normal(size=1000)
    for step in (2.0**-10, 1.0, 4.0):
        integers = to_grid(values, step)
        assert np.abs(from_grid(integers, step) - values).max() <= step / 2
        assert (to_grid(from_grid(integers, step), step) == integers).all()


# ---- certificates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_certificates_agree_with_all_coalitions(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 12))
    pairs = [pair for pair in combinations(range(n), 2) if rng.random() < 0.7]
    free = Masked(sv.graphs.complete(n), partners=pairs, tolerate=None)
    for c in range(n - 1):
        whole = all(len(free.blocks(A)) == 1 for size in range(c + 1) for A in combinations(range(n), size))
        assert free.hides_from(c) is whole
        if whole:
            assert Masked(sv.graphs.complete(n), partners=pairs, tolerate=c).tolerate == c
        else:
            with pytest.raises(GraphError, match="could part"):
                Masked(sv.graphs.complete(n), partners=pairs, tolerate=c)


@pytest.mark.parametrize(("n", "k"), [(11, 4), (12, 6), (20, 2), (70, 16)])
def test_connectivity_of_circles(n, k):
    graph = nx.Graph(Masked(sv.graphs.ring(n), partners=k).partner_edges.tolist())
    assert nx.node_connectivity(graph) == k


def test_default_partners():
    assert len(Masked(sv.graphs.ring(64)).partner_edges) == 64 * 63 // 2
    large = Masked(sv.graphs.ring(65), tolerate=3)
    assert {len(large.partners(v)) for v in range(65)} == {16}
    assert len(Masked(sv.graphs.ring(80), tolerate=20).partners(0)) >= 21
    assert exact_loss(large, observer=0, colluders=(1, 2))[40] == pytest.approx(1 / 62)


def test_a_peer_refuses_rows_of_another_kind():
    node = Masked(sv.graphs.star(3)).node_state(0)
    with pytest.raises(InvalidInput, match="no row yet"):
        node.message(0)
    node.start(np.array([1, 2]))
    with pytest.raises(InvalidInput, match="node 1 sent nothing"):
        node.receive(0, {2: np.array([1, 2])})
    with pytest.raises(InvalidInput, match="node 1 sent float64"):
        node.receive(0, {1: np.array([1.0, 2.0]), 2: np.array([1, 2])})
    node.receive(0, {1: np.array([1, 2]), 2: np.array([1, 2])})
    with pytest.raises(InvalidInput, match="is in round 1"):
        node.receive(0, {1: np.array([1, 2]), 2: np.array([1, 2])})
    with pytest.raises(InvalidInput, match="is in round 1"):
        node.result()
