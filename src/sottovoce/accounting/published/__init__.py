"""Published formulas: numbers as printed in the literature, never a guarantee.

`formulas` has them; `exact_comparison` puts them next to the exact loss on one network.
"""
