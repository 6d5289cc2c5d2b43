"""Curves at deltas far below what one FFT resolves, against a bracket computed without any FFT."""

import functools
import math

import mpmath
import numpy as np
import pytest

from sottovoce.accounting.pld import composed, rare_delta, rare_epsilon
from sottovoce.privacy import Curve


def normal_tail(x):
    return math.erfc(x / math.sqrt(2)) / 2


def masses(q, z, h, removed, top):
    """(first, mass, mass above) of one step's loss in cells of width h."""
    # removed: (1-q) N(0) + q N(1) against N(0), loss ln(1 - q + q e^((2x-1)/(2z^2))); added: the reverse
    edge = int(abs(math.log1p(-q)) / h) + 1
    first, last = (-edge, int(top / h)) if removed else (-int(top / h), edge)
    tails = []
    for i in range(first, last + 1):
        inside = (math.exp(i * h if removed else -i * h) - (1 - q)) / q
        x = None if inside <= 0 else z * z * math.log(inside) + 0.5
        if removed:
            tails.append(1.0 if x is None else (1 - q) * normal_tail(x / z) + q * normal_tail((x - 1) / z))
        else:
            tails.append(0.0 if x is None else normal_tail(-x / z))
    tails[0] = 1.0
    return first, -np.diff(tails), tails[-1]


@functools.cache
def sums(q, z, steps, h, top, removed):
    """The same of the sum over steps: direct convolutions of positive numbers, so tails keep their digits."""
    first, power, above = masses(q, z, h, removed, top)
    start, total, lost = 0, np.ones(1), 0.0
    for bit in bin(steps)[:1:-1]:
        if bit == "1":
            start, total, over = cut(start + first, np.convolve(total, power), top, h)
            lost += above + over
        first, power, over = cut(2 * first, np.convolve(power, power), top, h)
        above = 2 * above + over
    return start, total, lost


def cut(start, mass, top, h):
    """Keep losses in [-0.6, top]: lower ones count as -0.6, higher ones as infinite."""
    below = max(0, int(-0.6 / h) - start)
    mass = np.concatenate([[mass[: below + 1].sum()], mass[below + 1 :]])
    room = max(1, int(top / h) - start - below)
    return start + below, mass[:room], float(mass[room:].sum())


def bracket(q, z, steps, delta, h, top):
    """Epsilon with every loss rounded down (one direction is enough), and rounded up."""

    def solve(start, total, lost, up):
        x = (start + np.arange(len(total)) + up * steps) * h
        low, high = 0.0, 2.0
        for _ in range(60):
            middle = (low + high) / 2
            over = x > middle
            found = float(np.sum(total[over] * -np.expm1(middle - x[over]))) + up * lost
            low, high = (low, middle) if found <= delta else (middle, high)
        return high

    removed, added = (sums(q, z, steps, h, top, direction) for direction in (True, False))
    return solve(*removed, 0), max(solve(*removed, 1), solve(*added, 1))


def test_the_normal_tail_of_the_bracket_is_that_of_mpmath():
    for x in (-3.0, 0.0, 2.0, 7.0, 11.0):
        assert normal_tail(x) == pytest.approx(float(mpmath.ncdf(-x)), rel=1e-13)


@pytest.mark.parametrize("delta", [1e-12, 1e-14])
def test_tiny_deltas_lie_in_an_independent_bracket(delta):
    low, high = bracket(0.0035, 2.05, 100, delta, h=1e-4, top=0.3)
    assert high - low < 0.0101
    curve = Curve.sampled_gaussian(0.0035, 2.05, 100)
    found = curve.epsilon(delta)
    assert low <= found <= high
    assert found < 0.5 * curve.epsilon(delta, method="rdp")  # what it fell back to
    assert curve.delta(found) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-13, 1e-18])
def test_gaussian_curves_are_met_where_the_exact_formula_is_known(mu, delta):
    exact = Curve.gaussian(mu)
    found = rare_epsilon(exact.parts, delta)
    assert exact.epsilon(delta) <= found <= exact.epsilon(delta) * (1 + 1e-4) + 1e-6
    assert rare_delta(exact.parts, found) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(
    "curve",
    [
        Curve.sampled_gaussian(0.01, 1.0, 300),
        Curve.sampled_gaussian(0.2, 0.8, 5, adjacency="replace-one"),
        Curve.sampled_gaussian(0.05, 1.5, 20) + Curve.laplace(0.1, 5) + Curve.gaussian(0.5) + Curve.pure(0.1),
    ],
    ids=["add-remove", "replace-one", "mixed"],
)
def test_both_compositions_agree_where_both_resolve(curve):
    for delta in (1e-5, 1e-9):
        assert rare_epsilon(curve.parts, delta) == pytest.approx(
            composed(curve.parts).epsilon(delta), rel=2e-4
        )


def test_the_curve_falls_without_a_jump_where_the_method_changes():
    curve = Curve.sampled_gaussian(0.0035, 2.05, 100)
    found = [curve.epsilon(10.0**-k) for k in range(8, 17)]
    steps = np.diff(found)
    assert (steps > 0).all()
    assert steps.max() < 1.5 * steps.min()
