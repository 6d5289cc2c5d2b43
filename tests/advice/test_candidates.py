"""Candidates: noise on trees is the least that the linear program certifies."""

import math

import networkx as nx
import numpy as np
import pytest
from tests.advice.consortia import consortium

import sottovoce as sv
from sottovoce.accounting.tree_noise import least_tree_noise, tree_noise_program
from sottovoce.advice.candidates import averaging_candidates, guarantee_against, plan_for
from sottovoce.protocols import Tree


@pytest.mark.parametrize("seed", range(8))
def test_few_leaves_reach_the_optimum_that_the_program_certifies(seed):
    """The noise of the advised tree is the closed form, which the linear program cannot beat."""
    graph, sizes, c, _ = consortium(seed)
    requirements = sv.advice.Requirements.from_arguments(
        graph, epsilon=1.0, delta=1e-5, hide="member", colluders=c, records=sizes
    )
    uneven = [
        candidate
        for candidate in averaging_candidates(requirements)
        if candidate.noise_allocation == "optimal"
    ]
    for candidate in uneven:
        plan = plan_for(requirements, candidate)
        program = tree_noise_program(plan.schedule(0), c, floor=0.1)
        variances = np.square(plan._noise_stds) / max(plan._noise_stds) ** 2
        assert variances.sum() == pytest.approx(program.sum(), rel=1e-6)
        assert guarantee_against(plan, *requirements.views[0]).epsilon(1e-5) <= 1.0
        local = plan_for(
            requirements, next(s for s in averaging_candidates(requirements) if s.protocol == "tree")
        )
        share = sv.advice.usefulness(plan).error ** 2 / sv.advice.usefulness(local).error ** 2
        assert share == pytest.approx(variances.sum() / requirements.n, rel=1e-4)
    if c == 1 and requirements.n >= 4 and nx.diameter(graph) < requirements.n - 1:
        assert uneven


def test_a_path_of_ten_needs_the_noise_of_its_ends():
    """path:10 has 2 tau against single observers, here with a floor of a tenth: 2.8 tau."""
    tree = Tree(sv.graphs.path(10))
    assert least_tree_noise(tree, 1, floor=0.1).sum() == pytest.approx(2.8)
    advice = sv.advise("path:10", epsilon=1.0, delta=1e-5, hide="member", masks=False, target=10.0)
    few = next(row for row in advice.rows if "few leaves" in row.name)
    assert few.use.error == pytest.approx(1.180 * math.sqrt(2.8 / 10), rel=2e-3)
