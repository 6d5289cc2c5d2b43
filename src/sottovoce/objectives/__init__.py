"""What is minimised: generalised linear models, their proximal maps, and neural networks."""

from sottovoce.objectives.glm import GLM
from sottovoce.objectives.prox import Regulariser, clip_rows, prox_logistic, prox_squared, prox_squared_batch

__all__ = ["GLM", "Regulariser", "clip_rows", "prox_logistic", "prox_squared", "prox_squared_batch"]
