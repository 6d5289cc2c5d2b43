"""Published formulas: numbers as printed in the literature, never a guarantee."""
