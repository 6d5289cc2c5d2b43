"""Protective integers: the table, the discrete Gaussian and the discrete Laplace law."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
from scipy import stats

from sottovoce.noise import discrete
from sottovoce.noise.discrete import (
    LAPLACE_STEPS,
    STEPS_PER_STD,
    Bits,
    discrete_gaussian,
    discrete_laplace,
    narrow_gaussian,
)


def test_discrete_gaussian_agrees_with_opendp():
    """Two-sample chi-square against OpenDP's exact sampler, on the narrow table and on the wide sum."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)

    def oracle(scale, count):
        return np.array((space >> dp.m.then_gaussian(scale=scale))([0] * count))

    bits = Bits()
    narrow = narrow_gaussian(bits.words(60_000), bits)
    for ours, scale in ((narrow, 512.0), (discrete_gaussian(60_000), STEPS_PER_STD)):
        theirs = oracle(scale, 20_000)
        edges = np.quantile(theirs, np.linspace(0, 1, 65)[1:-1])
        table = np.array([np.bincount(np.digitize(x, edges), minlength=64) for x in (ours, theirs)])
        assert stats.chi2_contingency(table).pvalue > 1e-6
        wrong = np.array([np.bincount(np.digitize(ours * 1.1, edges), minlength=64), table[1]])
        assert stats.chi2_contingency(wrong).pvalue < 1e-6


def test_table_is_the_discrete_gaussian_exactly():
    """Rebuild the probabilities from the alias table in rational arithmetic and compare with mpmath."""
    import mpmath

    threshold, values, low = discrete._table()
    unit = 1 << (discrete._FIRST_BITS + discrete._TIE_BITS)
    mass = Counter()
    for slot in range(discrete._SLOTS):
        own = (int(threshold[slot]) << discrete._TIE_BITS) + low[slot]
        mass[int(values[discrete._SLOTS + slot])] += own
        mass[int(values[slot])] += unit - own
    assert sum(mass.values()) == unit * discrete._SLOTS
    with mpmath.workprec(200):
        norm = 512 * mpmath.sqrt(2 * mpmath.pi)  # by Poisson summation, to e^(-5 million)
        for k in (0, 1, -1, 100, -511, 2000, -5000, 8191):
            truth = mpmath.exp(-mpmath.mpf(k * k) / (2 * 512**2)) / norm
            assert abs(mpmath.mpf(mass[k]) / (unit * discrete._SLOTS) - truth) < mpmath.mpf(2) ** -112


def test_ties_are_decided_by_the_remaining_bits():
    threshold, values, low = discrete._table()
    slot = next(s for s in range(discrete._SLOTS) if low[s] > 1 and values[s] != values[discrete._SLOTS + s])
    word = np.array([(slot << discrete._FIRST_BITS) | int(threshold[slot])], np.uint32)
    for further, value in ((low[slot] - 1, values[discrete._SLOTS + slot]), (low[slot], values[slot])):
        bits = SimpleNamespace(more=lambda n, further=further: further.to_bytes(n, "little"))
        assert narrow_gaussian(word, bits)[0] == value


def test_protective_laplace_noise_has_its_law_and_no_last_value():
    """P(k) is proportional to exp(-|k| / 2^20): whole numbers, both tails, and nowhere an end."""
    sample = discrete_laplace(300_000)
    assert (sample == np.rint(sample)).all()
    scaled = sample / LAPLACE_STEPS
    assert stats.kstest(scaled, "laplace").pvalue > 1e-5
    assert stats.kstest(scaled * 1.05, "laplace").pvalue < 1e-5
    assert stats.kstest(scaled / 1.05, "laplace").pvalue < 1e-5
    assert scaled.max() > 8
    assert scaled.min() < -8


def test_the_laplace_sampler_goes_on_as_long_as_it_wins(monkeypatch):
    """Every further scale is one more trial of 1/e; nothing cuts the tail off."""
    wins = iter([True] * 60)
    true = discrete._with_probability_exp

    def lucky(a):
        if (a == LAPLACE_STEPS).all() and len(a):
            return np.full(len(a), next(wins, False))
        return true(a)

    monkeypatch.setattr(discrete, "_with_probability_exp", lucky)
    assert discrete._geometric(1)[0] // LAPLACE_STEPS == 60


def test_trials_win_with_the_exponential_probability():
    for a in (0, 1 << 18, 1 << 20):
        won = discrete._with_probability_exp(np.full(200_000, a)).mean()
        want = np.exp(-a / 2**20)
        assert abs(won - want) <= 5 * np.sqrt(want * (1 - want) / 200_000)
