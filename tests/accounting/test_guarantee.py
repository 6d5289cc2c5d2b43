"""Guarantees say what they are about, compose like with like and survive storage."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce.privacy as privacy
from sottovoce.accounting.renyi import rdp_delta, rdp_epsilon
from sottovoce.errors import BudgetExceeded, CannotCompose, InvalidInput, NotAGuarantee
from sottovoce.privacy import Adversary, Curve, Guarantee, sampled_gaussian

LOCAL = Adversary("local")
PAIR = Adversary("pairwise", observers=1, user=0)
CURVES = [
    Curve.none(),
    Curve.gaussian(0.7),
    Curve.gaussian(math.inf),
    Curve.pure(0.2, 5),
    Curve.laplace(0.3, 4),
    Curve.gaussian(math.sqrt(0.1)).tabulated(),
    Curve.from_rdp([2, 4, 8], [0.1, 0.2, 0.5]),
    Curve.sampled_gaussian(0.02, 1.1, 50),
    Curve.sampled_gaussian(0.02, 1.1, 50, method="rdp"),
    Curve.sampled_gaussian(0.02, 0.9, 10) + Curve.gaussian(0.5) + Curve.pure(0.1),
]


def guarantee(curve=None, adversary=PAIR, adjacency="user", label="exact", **more):
    return Guarantee(adversary, adjacency, label, Curve.gaussian(0.5) if curve is None else curve, **more)


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_json_round_trip(curve):
    adjacency = "add-remove" if "sampled" in json.dumps(curve.to_dict()) else "user"
    one = guarantee(curve, adjacency=adjacency, assumptions=("the schedule is known",))
    text = json.dumps(one.to_dict(delta=1e-5), allow_nan=False)
    again = Guarantee.from_dict(json.loads(text))
    assert again == one
    assert hash(again) == hash(one)
    assert again.epsilon(1e-5) == one.epsilon(1e-5)
    assert "the schedule is known" in one.statement(1e-5)


def test_stored_numbers_are_not_trusted():
    record = guarantee().to_dict(delta=1e-5)
    record["epsilon"] = record["mu"] = 0.0
    assert Guarantee.from_dict(record).epsilon(1e-5) == guarantee().epsilon(1e-5)
    with pytest.raises(InvalidInput, match="not a stored guarantee"):
        Guarantee.from_dict({"adversary": 3})


@pytest.mark.parametrize("curve", CURVES[1:], ids=str)
@pytest.mark.parametrize("alpha", [1.5, 2.0, 7.3])
def test_n_fold_is_n_times(curve, alpha):
    five = curve + curve + curve + curve + curve
    assert five == curve * 5 or five.rdp(alpha) == pytest.approx((curve * 5).rdp(alpha), rel=1e-13)
    assert (curve * 5).rdp(alpha) == pytest.approx(5 * curve.rdp(alpha), rel=1e-13)
    assert (curve * 0).epsilon(1e-5) == 0
    assert (5 * curve) == curve * 5


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_delta_and_epsilon_agree_and_fall(curve):
    previous = math.inf
    for delta in (1e-12, 1e-8, 1e-5, 1e-2):
        epsilon = curve.epsilon(delta)
        assert epsilon <= previous
        previous = epsilon
        if math.isfinite(epsilon):
            assert curve.delta(epsilon) <= delta * (1 + 1e-4)
    assert curve.delta(1.0) >= curve.delta(2.0)


def test_gaussians_add_in_squares():
    total = guarantee(Curve.gaussian(3.0)) + guarantee(Curve.gaussian(4.0))
    assert total.mu == 5.0
    assert guarantee(Curve.gaussian(1e-200, 4)).mu == 2e-200  # squares would underflow
    with pytest.raises(InvalidInput, match="Gaussian curves only"):
        Curve.pure(1.0).mu


@pytest.mark.parametrize("other", [
    guarantee(adversary=Adversary("pairwise", 2, 0)), guarantee(adversary=Adversary("pairwise", 1, 3)),
    guarantee(adversary=LOCAL), guarantee(adjacency="replace-one"), guarantee(label="conditional"),
    guarantee(label="published"),
])  # fmt: skip
def test_unlike_things_are_refused_with_a_sentence(other):
    for first, second in ((guarantee(), other), (other, guarantee())):
        with pytest.raises(CannotCompose) as caught:
            first + second
        assert str(caught.value).endswith(".")


def test_ldp_with_exact_is_exact_and_says_so():
    both = guarantee() + guarantee(label="ldp")
    assert both.label == "exact"
    assert both.valid
    assert any("upper bound" in line for line in both.assumptions)
    assert both.mu == pytest.approx(math.sqrt(0.5))


def test_budgets_are_for_guarantees_within_them():
    for label in ("conditional", "published"):
        with pytest.raises(NotAGuarantee):
            guarantee(label=label).require(100.0, 1e-5)
        assert not guarantee(label=label).valid
    one = guarantee(label="ldp")
    assert one.require(one.epsilon(1e-6), 1e-6) is one
    with pytest.raises(BudgetExceeded):
        one.require(one.epsilon(1e-6) * (1 - 1e-12), 1e-6)
    with pytest.raises(BudgetExceeded):
        guarantee(Curve.gaussian(math.inf)).require(1e9, 1e-6)


def test_sampled_steps_must_match_the_adjacency():
    curve = Curve.sampled_gaussian(0.1, 1.0, 10)
    for adjacency in ("replace-one", "user"):
        with pytest.raises(InvalidInput, match="replace-one"):
            guarantee(curve, adjacency=adjacency)
    with pytest.raises(CannotCompose):
        curve + Curve.sampled_gaussian(0.1, 1.0, 10, adjacency="replace-one")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Adversary("nosy"),
        lambda: Adversary("local", 1),
        lambda: Adversary("network", (1, 2)),
        lambda: Adversary("colluders"),
        lambda: Adversary("pairwise", 1, 1),
        lambda: Adversary("network", -1),
        lambda: Adversary("outsider", 1),
        lambda: Adversary("network", count=2),
        lambda: Adversary("colluders", 1, count=2),
        lambda: Adversary("colluders", count=0),
        lambda: guarantee(adjacency="record"),
        lambda: guarantee(label="proved"),
        lambda: guarantee(adversary="local"),
        lambda: guarantee(curve=1.0),
        lambda: Curve.gaussian(-1),
        lambda: Curve.gaussian(math.nan),
        lambda: Curve.sampled_gaussian(1.1, 1, 1),
        lambda: Curve.sampled_gaussian(0.1, -1, 1),
        lambda: Curve.pure(1, 1.5),
        lambda: Curve.from_rdp([0.5], [1.0]),
        lambda: Curve.gaussian(1).rdp(1.0),
        lambda: Curve.gaussian(1).epsilon(0),
    ],
)
def test_bad_input(make):
    with pytest.raises(InvalidInput) as caught:
        make()
    assert str(caught.value).endswith(".")


@given(
    orders=st.lists(st.floats(1.05, 60), min_size=3, max_size=12, unique=True),
    mu=st.floats(0.01, 3),
    alpha=st.floats(1.01, 70),
)
@settings(deadline=None, max_examples=100)
def test_a_table_never_answers_below_the_curve_it_was_made_from(orders, mu, alpha):
    table = Curve.from_rdp(orders, [Curve.laplace(mu).rdp(a) for a in orders])
    assert table.rdp(alpha) >= Curve.laplace(mu).rdp(alpha) * (1 - 1e-12)


def test_no_order_helps_by_being_undefined():
    """An infinite order made the chord NaN, the least NaN, and epsilon max(0, NaN) = 0."""
    curve = Curve.from_rdp([2.0, math.inf], [0.5, 1.0])
    assert curve.epsilon(1e-5) == Curve.from_rdp([2.0], [0.5]).epsilon(1e-5) > 5
    record = curve.to_dict()
    record["parts"][0] |= {"orders": [2.0, math.inf], "values": [0.5, 1.0]}
    assert Curve.from_dict(record).epsilon(1e-5) > 5
    for table in (([math.inf], [1.0]), ([2.0, math.nan], [0.5, 1.0]), ([2.0, 3.0], [-math.inf, 1.0])):
        with pytest.raises(InvalidInput):
            Curve.from_rdp(*table)
    for undefined in (math.nan, math.inf):
        assert rdp_epsilon(lambda alpha, loss=undefined: loss, 1e-5) == math.inf
    assert rdp_epsilon(([2.0, 8.0, 32.0], [1.0, 4.0, 16.0]), 1e-5) >= rdp_epsilon(lambda a: a / 2, 1e-5)
    assert rdp_delta(lambda a: 10 * a, 0.0) == 1.0
    assert rdp_epsilon(([2.0, 3.0], [math.nan, 1.0]), 1e-5) > 1
    assert rdp_epsilon(([2.0, math.inf], [1.0, math.nan]), 1e-5) > 1


# ---- whom a statement is about --------------------------------------------------------------------------


def test_statements_name_their_users_in_adversary_and_adjacency():
    curve = Curve.gaussian(1.0)
    worst = Guarantee(Adversary("network", 0), "user", "exact", curve).statement(1e-5)
    assert "against node 0, when the whole data set of one user is replaced" in worst
    one = Guarantee(Adversary("network", 0, 7), "replace-one", "exact", curve).statement(1e-5)
    assert "against node 0, about node 7, when one record of node 7 is replaced" in one


@pytest.mark.parametrize(
    "adversary",
    [Adversary("outsider"), Adversary("outsider", user=3), Adversary("colluders", count=3),
     Adversary("colluders", [1, 2], 5), Adversary("pairwise", 1, 0), Adversary("local")],
    ids=str,
)  # fmt: skip
def test_adversaries_survive_storage(adversary):
    stored = json.loads(json.dumps(adversary.to_dict()))
    assert Adversary.from_dict(stored) == adversary
    assert dataclasses.replace(adversary) == adversary


def test_the_best_guess_is_read_from_the_whole_curve():
    def normal(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    for mu in (0.1, 1.0, 3.0):
        assert guarantee(Curve.gaussian(mu)).best_guess == pytest.approx(normal(mu / 2), rel=1e-12)
    for epsilon, percent in ((1.0, 55.3), (5.0, 71.2)):
        mu = privacy.gaussian_mu(epsilon, 1e-5)
        assert 100 * guarantee(Curve.gaussian(mu)).best_guess == pytest.approx(percent, abs=0.05)
    assert guarantee(Curve.none()).best_guess == 0.5
    assert guarantee(Curve.gaussian(math.inf)).best_guess == 1.0
    # randomized response with epsilon: e^eps / (1 + e^eps), where the pure bound is attained
    assert guarantee(Curve.pure(1.0)).best_guess == pytest.approx(math.e / (1 + math.e), abs=2e-3)


def test_the_least_of_two_bounds_is_kept_through_composition_and_storage():
    loose, tight = Curve.gaussian(1.0).tabulated(), Curve.gaussian(1.0)
    both = Curve.least([loose, tight])
    assert both == Curve.least([both])
    for delta in (1e-2, 1e-5, 1e-9):
        assert both.epsilon(delta) == min(loose.epsilon(delta), tight.epsilon(delta))
        twice = min((loose * 2).epsilon(delta), (tight * 2).epsilon(delta))
        assert (both * 2).epsilon(delta) == (both + both).epsilon(delta) == twice
    assert both.delta(2.0) == min(loose.delta(2.0), tight.delta(2.0))
    assert Curve.worst([both, Curve.gaussian(2.0)]).epsilon(1e-5) == Curve.gaussian(2.0).epsilon(1e-5)
    assert Curve.from_dict(json.loads(json.dumps(both.to_dict()))) == both
    with pytest.raises(InvalidInput):
        _ = both.mu


def test_edges_and_label():
    assert sampled_gaussian(0.0, 1.0, 100).epsilon(1e-5) == 0
    assert sampled_gaussian(0.1, 1.0, 0).epsilon(1e-5) == 0
    assert sampled_gaussian(0.1, 0.0, 1).epsilon(1e-5) == math.inf
    assert sampled_gaussian(0.1, 0.0, 1).delta(5.0) == 1
    one = sampled_gaussian(0.1, 1.0, 5)
    assert (one.label, one.adjacency, one.adversary.kind) == ("ldp", "add-remove", "local")
    assert any("Poisson" in line for line in one.assumptions)
    assert sampled_gaussian(1.0, 2.0, 4).mu == 1.0
