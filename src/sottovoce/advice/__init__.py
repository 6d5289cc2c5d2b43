"""Which plan to take: candidates at their least noise, what their answers are worth, and a recommendation."""

from sottovoce.advice.advisor import Advice, advise
from sottovoce.advice.comparison import Row, compare, pareto
from sottovoce.advice.samples import Sample
from sottovoce.advice.usefulness import Score, Usefulness, answer_error, simulate, usefulness
from sottovoce.advice.ways import WayOut, ways_out
from sottovoce.advice.wish import Wish

__all__ = [
    "Advice", "Row", "Sample", "Score", "Usefulness", "WayOut", "Wish", "advise", "answer_error", "compare",
    "pareto", "simulate", "usefulness", "ways_out",
]  # fmt: skip
