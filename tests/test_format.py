"""Numbers for people: bounds are rounded to the safe side by every formatter, for every quantity."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import partial

import numpy as np
import pytest

from sottovoce._format import FIELDS, ROUNDING, compared, fine, fixed, number, percent, significant
from sottovoce.accounting import wording
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.guarantee import Adversary, Guarantee
from sottovoce.cli.output import console, table
from sottovoce.report.rendering import value_text
from sottovoce.report.sections import Table

BOUNDS = [quantity for quantity in ROUNDING if quantity != "value"]
FORMATTERS = {
    "number": number,
    "fine": fine,
    "fixed": fixed,
    **{f"{digits} digits": partial(significant, digits=digits) for digits in (2, 3, 4, 6)},
}


def values():
    """10,000 numbers from 1e-9 to 1e3: most at random, the others on and beside what is printed exactly."""
    rng = np.random.default_rng(0)
    exact = rng.integers(1, 10**6, 1000) / 10.0 ** rng.integers(3, 7, 1000)
    beside = np.concatenate([np.nextafter(exact, 0.0), exact, np.nextafter(exact, math.inf)])
    beside = beside[(beside >= 1e-9) & (beside <= 1e3)]
    return np.concatenate([10 ** rng.uniform(-9, 3, 10_000 - len(beside)), beside]).tolist()


VALUES = values()


def read(text):
    return float(text.replace(",", ""))


def unsafe(quantity, shown, exact):
    """Return the pairs on the wrong side, as the quantity has it."""
    shown, exact = np.array(shown), np.array(exact)
    return exact[shown < exact] if ROUNDING[quantity] == ROUND_CEILING else exact[shown > exact]


@pytest.mark.parametrize("quantity", BOUNDS)
def test_every_formatter_rounds_to_the_safe_side(quantity):
    assert len(VALUES) == 10_000
    for name, write in FORMATTERS.items():
        shown = [read(write(value, quantity)) for value in VALUES]
        assert not unsafe(quantity, shown, VALUES).size, name
    for places in (0, 1, 2):  # in exact arithmetic: a hundredth is no float
        shown = [Decimal(percent(value, quantity, places).removesuffix(" %")) for value in VALUES]
        assert not unsafe(quantity, shown, [100 * Decimal(repr(value)) for value in VALUES]).size


@pytest.mark.parametrize("quantity", ROUNDING)
def test_nothing_is_rounded_further_than_its_last_digit(quantity):
    for value in VALUES[:2000]:
        shown = read(number(value, quantity))
        assert abs(shown - value) <= max(1e-3, 0.1 * value if value < 1e-3 else 0.0), value
        assert shown > 0 or ROUNDING[quantity] == ROUND_FLOOR


def test_quantities_round_as_they_must():
    up = {name for name, side in ROUNDING.items() if side == ROUND_CEILING}
    down = {name for name, side in ROUNDING.items() if side == ROUND_FLOOR}
    losses = {"epsilon", "delta", "mu", "loss", "share", "best guess", "spent"}
    assert up == {*losses, "required noise"}
    assert down == {"lower bound", "remaining", "limit", "noise"}
    assert set(FIELDS.values()) <= set(ROUNDING)
    for name, quantity in FIELDS.items():
        if name.startswith(("epsilon", "mu")):
            wanted = "lower bound" if name.endswith("lower") else {"spent", "limit", "epsilon", "mu"}
            assert quantity in wanted


def test_a_bound_beside_its_limit_shows_which_is_larger():
    rng = np.random.default_rng(1)
    pairs = [(v, v * (1 + s * 10.0**-k)) for v in VALUES[:300] for k in (0, 3, 7, 12) for s in (-0.5, 0, 0.5)]
    pairs += [(float(a), round(float(a), 2)) for a in rng.uniform(0.01, 9, 300)]
    for value, limit in pairs:
        shown, allowed = map(read, compared(value, limit))
        assert (shown <= allowed) == (value <= limit), (value, limit)
        assert shown >= value
        assert allowed <= limit
    assert compared(math.inf, 2.0) == ("∞", "2")


def test_tables_take_the_quantity_of_the_column():
    rows = tuple((v, v, v) for v in VALUES)
    kinds = ("epsilon", "remaining", "value")
    cells = Table(("a", "b", "c"), rows, quantities=kinds).cells()
    for k in (0, 1):
        assert not unsafe(kinds[k], [read(row[k]) for row in cells], VALUES).size
    few = [tuple(row) for row in rows[:200]]
    screen = console()
    with screen.capture() as caught:
        screen.print(table(["a", "b", "c"], few, quantities=kinds))
    lines = [line.split() for line in caught.get().splitlines()]
    shown = np.array([[read(word) for word in line] for line in lines if len(line) == 3 and line[0] != "a"])
    assert len(shown) == 200
    for k in (0, 1):
        assert not unsafe(kinds[k], shown[:, k], VALUES[:200]).size


def test_pages_take_the_quantity_of_the_stored_field():
    for name in ("epsilon", "delta", "spent", "adds", "total", "left", "limit"):
        shown = [read(value_text({name: value}, name)) for value in VALUES]
        assert not unsafe(FIELDS[name], shown, VALUES).size
    shown = [read(value_text({"matrix": {"values": [[v]]}}, "matrix.values.0.0")) for v in VALUES]
    assert not unsafe("share", shown, VALUES).size


def test_statements_round_up():
    for mu in VALUES[:40]:
        if not 1e-3 < mu < 30:
            continue
        guarantee = Guarantee(Adversary("local"), "user", "ldp", Curve.gaussian(mu))
        words = guarantee.statement(1e-5).split()
        assert float(words[2]) >= guarantee.epsilon(1e-5)
        assert float(words[words.index("mu") + 2].rstrip(".")) >= mu


def test_best_guesses_in_words_are_rounded_up():
    for best in np.linspace(0.5, 1.0, 10_000)[1:]:
        words = wording.guess(float(best)).split()
        assert read(words[2]) >= 100 * best - 1e-12


def test_what_is_no_number_stays():
    shown = [number(value) for value in (None, math.nan, "inf", math.inf, True, "word", 7, np.int64(1234))]
    assert shown == ["–", "–", "∞", "∞", "yes", "word", "7", "1,234"]
    assert number(np.float32(0.1), "epsilon") == "0.101"  # a float32 is a little above a tenth
    assert number(1e300, "epsilon").startswith("1,000")
    assert percent(math.inf, "lower bound") == significant(math.inf, "lower bound") == "∞"
    assert number(0.1, "epsilon") == "0.1"


def test_sentences_about_budgets_round_up():
    for value in VALUES:
        _, why = wording.private(value, 1e-5, "any one node", "exact", 0.6)
        assert read(why.split()[3]) >= value
