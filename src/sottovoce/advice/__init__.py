"""Which plan to take: candidates at their least noise, what their answers are worth, and a recommendation."""

from sottovoce.advice.advisor import Advice, advise
from sottovoce.advice.comparison import PlanSummary, compare, pareto
from sottovoce.advice.requirements import Requirements
from sottovoce.advice.samples import Sample
from sottovoce.advice.suggestions import Suggestion, suggestions
from sottovoce.advice.usefulness import Score, Usefulness, answer_error, simulate, usefulness

__all__ = [
    "Advice",
    "PlanSummary",
    "Requirements",
    "Sample",
    "Score",
    "Suggestion",
    "Usefulness",
    "advise",
    "answer_error",
    "compare",
    "pareto",
    "simulate",
    "suggestions",
    "usefulness",
]
