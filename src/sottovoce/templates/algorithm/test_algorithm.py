"""It learns, it stays within its budget, and without noise it is what the formula says."""

import numpy as np
from my_algorithm import SignDescent, toy

import sottovoce as sv


def plan_for(data, **options):
    return SignDescent(
        sv.objectives.GLM(dim=5), "masked", network="complete:8", steps=30, clip_norm=1.0,
        learning_rate=(0.5, 0.05), sizes=data.sizes.tolist(), **options,
    )


def test_it_learns_within_its_budget():
    data = toy()
    plan = plan_for(data, noise_multiplier=1.0).calibrated_to(2.0, 1e-5)
    assert 1.99 <= plan.epsilon(1e-5) <= 2.0
    coef = plan.run(data, np.random.default_rng(0)).outputs["coef"]
    assert np.mean(np.sign(data.X @ coef) == data.y) > 0.9


def test_without_noise_the_first_step_is_the_sign_of_the_gradient():
    data = toy()
    plan = SignDescent(
        sv.objectives.GLM(dim=5), "tree", network="complete:8", steps=1, clip_norm=1.0, learning_rate=0.5,
        sizes=data.sizes.tolist(),
    )
    gradient = -(data.y[:, None] * data.X / 2).mean(axis=0)  # of the logistic loss at zero
    coef = plan.run(data, np.random.default_rng(0)).outputs["coef"]
    assert np.allclose(coef, -0.5 * np.sign(gradient))
