"""Numbers as people write them, in commands, pages and notebooks.

A number that bounds privacy is rounded to the side on which it stays true: what is lost upwards; what is
left, what an audit has shown and what protects downwards. `ROUNDING` says which side is safe for which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from numbers import Integral, Real
from typing import Literal

Quantity = Literal[
    "value", "epsilon", "delta", "mu", "loss", "share", "best guess", "spent",
    "lower bound", "remaining", "limit", "noise", "required noise",
]  # fmt: skip
ROUNDING: Mapping[Quantity, str] = {
    "value": ROUND_HALF_EVEN,  # bounds no privacy: an accuracy, a time, a formula as published
    "epsilon": ROUND_CEILING,
    "delta": ROUND_CEILING,
    "mu": ROUND_CEILING,
    "loss": ROUND_CEILING,  # any other privacy loss
    "share": ROUND_CEILING,  # of the squared loss (mu squared) under local privacy
    "best guess": ROUND_CEILING,
    "spent": ROUND_CEILING,  # spent before, added, together
    "lower bound": ROUND_FLOOR,  # shown by an audit or an attack
    "remaining": ROUND_FLOOR,
    "limit": ROUND_FLOOR,  # a budget
    "noise": ROUND_FLOOR,  # a claim about what protects
    "required noise": ROUND_CEILING,  # an instruction: the printed amount must be enough
}
# names under which results, statements and ledgers store quantities
_NAMES: Mapping[Quantity, str] = {
    "epsilon": "epsilon epsilon_all_versions epsilon_claimed epsilon_colluders epsilon_local "
    "epsilon_network epsilon_of_one_run epsilon_of_the_search epsilon_outsider epsilon_pairwise "
    "epsilon_typical epsilon_worst",
    "delta": "delta statistical_distance",
    "mu": "mu mu_claimed",
    "share": "exact_largest exact_max exact_mean max_exact mean_exact",
    "best guess": "best_guess",
    "spent": "adds epsilon_spent spent total",
    "lower bound": "epsilon_lower mu_lower tightness",
    "remaining": "left",
    "limit": "budget epsilon_budget limit",
    "noise": "noise_multiplier noise_ratio noise_std",
}
FIELDS = {name: quantity for quantity, names in _NAMES.items() for name in names.split()}
_SET = ("delta", "limit")  # what somebody has set: shown as it was set, up to six digits
_EXACT = Context(prec=800)  # more digits than any float has


def rounded(
    value: float, quantity: Quantity = "value", *, places: int | None = None, digits: int = 3
) -> Decimal:
    """Return a number with ``places`` decimals, else ``digits`` significant digits, on its safe side.

    Guarantees
    ----------
    Read back as a float, the result is at least ``value`` for quantities that round upwards, and at most
    ``value`` for those that round downwards.

    >>> rounded(1.2341, "epsilon", places=3), rounded(1.2349, "remaining", places=3)
    (Decimal('1.235'), Decimal('1.234'))
    """
    # Of all decimals that read back as this float the shortest is rounded: the binary fraction of 0.1 is
    # a little above 0.1, and would become 0.101.
    exact = Decimal(repr(float(value)))
    last = -places if places is not None else exact.adjusted() - digits + 1
    return exact.quantize(Decimal((0, (1,), last)), rounding=ROUNDING[quantity], context=_EXACT)


def significant(value: float, quantity: Quantity = "value", digits: int = 4) -> str:
    """Return a number with so many significant digits, without trailing zeros."""
    if not math.isfinite(value):
        return number(value)
    return f"{float(rounded(value, quantity, digits=digits)):.{digits}g}"


def number(value: object, quantity: Quantity = "value") -> str:
    """Return a number with at most three decimals and thousands separators; text stays as it is.

    >>> number(0.123456), number(7), number(1e-5), number(None), number("inf"), number(12345.6)
    ('0.123', '7', '1e-05', '–', '∞', '12,346')
    >>> number(0.123456, "epsilon"), number(0.0004, "epsilon"), number(0.9999, "remaining")
    ('0.124', '0.0004', '0.999')
    """
    if value is None or value != value:
        return "–"
    if value in ("inf", math.inf):
        return "∞"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if not isinstance(value, Real):
        return str(value)
    if quantity in _SET:
        return significant(float(value), quantity, 6)
    text = _three_decimals(float(value), quantity)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def fine(value: object, quantity: Quantity = "value") -> str:
    """Return a number as `number` does, with three significant digits where it is small."""
    if isinstance(value, float) and 0 < abs(value) < 0.1:
        return significant(value, quantity, 3)
    return number(value, quantity)


def fixed(value: object, quantity: Quantity = "value") -> str:
    """Return a number with three decimals, for columns of numbers that a reader compares."""
    if isinstance(value, float) and math.isfinite(value) and quantity not in _SET:
        return _three_decimals(float(value), quantity)
    return number(value, quantity)


def percent(share: float, quantity: Quantity = "value", places: int = 2) -> str:
    """Return a share between 0 and 1, such as an accuracy, in percent."""
    if not math.isfinite(share):
        return number(share)
    return f"{100 * rounded(share, quantity, places=places + 2):.{places}f} %"


def compared(value: float, limit: float, quantity: Quantity = "epsilon") -> tuple[str, str]:
    """Return a bound and its limit with the digits that show which is larger."""
    texts = number(value, quantity), number(limit, "limit")
    digits = 4
    while math.isfinite(value + limit) and (value <= limit) != (_read(texts[0]) <= _read(texts[1])):
        if digits > 15:  # equal, and too long to round to both sides
            return repr(float(value)), repr(float(limit))
        texts = significant(value, quantity, digits), significant(limit, "limit", digits)
        digits += 1
    return texts


def _three_decimals(value: float, quantity: Quantity) -> str:
    """Return a number with three decimals; two digits where that is too coarse, none where it is too fine."""
    if math.isinf(value):
        return "−∞"
    if value and abs(value) < 1e-3:
        return significant(value, quantity, 2)
    return f"{rounded(value, quantity, places=0 if abs(value) >= 1000 else 3):,f}"


def _read(text: str) -> float:
    return float(text.replace(",", ""))
