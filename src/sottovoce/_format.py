"""Numbers as people write them, in commands, pages and notebooks."""

from __future__ import annotations

import math

__all__ = ["fine", "fixed", "number", "percent"]


def number(value: object) -> str:
    """Return a number with at most three decimals and thousands separators; text stays as it is.

    >>> number(0.123456), number(7), number(1e-5), number(None), number("inf"), number(12345.6)
    ('0.123', '7', '1e-05', '–', '∞', '12,346')
    """
    if value is None or value != value:
        return "–"
    if value in ("inf", math.inf):
        return "∞"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value and abs(value) < 1e-3:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}".rstrip("0").rstrip(".")


def fine(value: object) -> str:
    """Return a number as `number` does, with three significant digits where it is small.

    >>> fine(0.00112), fine(0.0526), fine(0.5), fine(12.3456), fine(None)
    ('0.00112', '0.0526', '0.5', '12.346', '–')
    """
    small = isinstance(value, float) and 0 < abs(value) < 0.1
    return f"{value:.3g}" if small else number(value)


def fixed(value: object) -> str:
    """Return a number with three decimals, for columns of numbers that a reader compares.

    >>> fixed(1.0), fixed(0.12345), fixed(0.0), fixed(2e-5), fixed(7), fixed(12345.6), fixed(None)
    ('1.000', '0.123', '0.000', '2e-05', '7', '12,346', '–')
    """
    if not isinstance(value, float) or not math.isfinite(value):
        return number(value)
    if value and abs(value) < 5e-4:
        return f"{value:.1g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"


def percent(share: float) -> str:
    """Return a share between 0 and 1, such as an accuracy, in percent.

    >>> percent(0.93456)
    '93.46 %'
    """
    return f"{100 * share:.2f} %"
