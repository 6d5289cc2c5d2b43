"""A recording noise source and a gradient mechanism with known sums."""

import math

import numpy as np

from sottovoce.mechanisms.gradient import GradientMechanism
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.objectives.clipping import clip_rows


class Recorder:
    """Adds a hundred to what it noises, and keeps the calls."""

    protective = False

    def __init__(self, slack=0.0):
        self.paid, self.calls, self.sizes = slack, [], []

    def perturb(self, values, *, agents, step, std, stream=0):
        stds = np.broadcast_to(std, len(values)).tolist()
        self.calls.append((list(agents), step, stds, stream))
        return np.array(values) + 100

    def slack(self, dim, std=1.0):
        self.sizes.append((dim, std))
        return self.paid


class Spy:
    """A noise source that adds nothing, and keeps (stream, values, std) of what it would noise.

    ``slack(dim, std)`` is what rounding costs.
    """

    def __init__(self, slack=lambda dim, std: 0.0, protective=False):
        self.protective, self._slack, self.seen = protective, slack, []

    def perturb(self, values, *, agents, step, std, stream=0):
        self.seen.append((stream, np.array(values), np.broadcast_to(std, len(values))))
        return np.array(values)

    def slack(self, dim, std=1.0):
        return self._slack(dim, std)


class Sums:
    """A query whose records are vectors, clipped and added."""

    dim, dtype, compiled_descent = 2, np.float64, None

    def __init__(self, records, decay=0.0):
        self.records, self.decay = [np.array(r, float) for r in records], decay
        self.sizes = np.array([len(r) for r in self.records])

    def reseed(self, seeds):
        pass

    def sums(self, theta, batches, places, clip_norm):
        chosen = [self.records[p][batch_size] for p, batch_size in zip(places, batches, strict=True)]
        return np.array(
            [(r if clip_norm == math.inf else clip_rows(r, clip_norm)).sum(axis=0) for r in chosen]
        )


RECORDS = [[[3.0, 4.0], [0.0, 1.0]], [[6.0, 8.0]], [[0.0, 0.5], [0.5, 0.0], [0.0, 0.0]]]


def gradient_mechanism(
    adjacency="add-remove",
    *,
    noise=None,
    decay=0.0,
    announced_releases=None,
    z=(1.0, 2.0, 3.0),
    noise_ids=None,
    **options,
):
    noise = Recorder() if noise is None else noise
    settings = {"clip_norm": 2.0, "sample_rates": [1.0] * 3, "divisors": [2.0, 4.0, 8.0], **options}
    mechanism = GradientMechanism(
        query=Sums(RECORDS, decay),
        agents=[5, 7, 9],
        random=RunRandomness(noise, batches=3, start_seed=0, noise_ids=noise_ids),
        adjacency=adjacency,
        noise_multipliers=z,
        announced_releases=announced_releases,
        **settings,
    )
    return mechanism, noise


THETA = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]])
