"""Noise sources: reproducible for simulations, protective for people.

`SimulatedNoise` is a counter-based generator: the number added to one coordinate depends on (seed,
agent, step, stream, coordinate) and on nothing else, so a stacked run, a cluster and a peer agree.

`ProtectiveNoise` adds integers on a grid. With :math:`\\sigma` the requested standard deviation,
:math:`s = 512\\sqrt{65537} \\approx 131073` and grid spacing :math:`g = \\sigma / s`, it releases

.. math:: g \\cdot (\\mathrm{round}(x / g) + K), \\qquad K \\sim \\mathcal{N}_{\\mathbb{Z}}(0, s^2),

:math:`\\mathcal{N}_{\\mathbb{Z}}` being the discrete Gaussian of [1]. The floating-point number that
leaves is a function of the integer :math:`\\mathrm{round}(x/g) + K` alone, so its low bits tell nothing
[2]. The draws (`sottovoce.noise.discrete`) are within 2^-99 of exact, and `ProtectiveNoise.distance` counts
2^-96 for each; their bits are AES-256-CTR keyed afresh by the operating system in every call.

Why accountants may treat it as a continuous Gaussian: rounding a continuous Gaussian of variance
:math:`s^2 - 4` to the integers by a discrete Gaussian of parameter 2 gives :math:`\\mathcal{N}_\\mathbb{Z}(q,
s^2)`, again up to :math:`2 e^{-8\\pi^2}`. The discrete mechanism is therefore post-processing of a continuous
one whose standard deviation is smaller by a factor :math:`1 - 1.2\\cdot 10^{-10}`; `slack` pays for it.

References: [1] Canonne, Kamath, Steinke, The Discrete Gaussian for Differential Privacy, 2020, Theorem 4,
<https://arxiv.org/abs/2004.00010>. [2] Mironov, On Significance of the Least Significant Bits For
Differential Privacy, CCS 2012.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from sottovoce import _validate
from sottovoce.errors import InvalidInput
from sottovoce.noise.discrete import STEPS_PER_STD, discrete_gaussian

_LARGEST = 2.0**25  # |value| / std up to which the quotient by the grid is exact to 2^-10 of a step
_WORD = 0xFFFFFFFF
_CHUNK = 1 << 15  # coordinates per block: tables and buffers stay in the cache

Rows: TypeAlias = np.ndarray  # one row of float32 or float64 per agent
Agents: TypeAlias = "Sequence[int] | np.ndarray"  # the numbers of the hosted agents, one per row
Source: TypeAlias = "SimulatedNoise | ProtectiveNoise"  # the sources that can be recorded
Std: TypeAlias = "float | np.ndarray"  # one for all rows, or one per row


@runtime_checkable
class NoiseSource(Protocol):
    """Anything that perturbs rows of numbers, one row per hosted agent, and may protect people or not.

    `slack` is the L2 length that must be taken off a clipping radius before `perturb`, so that the
    sensitivity after rounding is the one accounted.
    """

    @property
    def protective(self) -> bool: ...

    def perturb(self, values: Rows, *, agents: Agents, step: int, std: Std, stream: int = 0) -> Rows: ...

    def slack(self, dim: int, std: float = 1.0) -> float: ...


class SimulationSource:
    """Base of the sources that never protect anybody and do not round."""

    protective = False

    def slack(self, dim: int, std: float = 1.0) -> float:
        """Return 0: nothing is rounded."""
        return 0.0


class SimulatedNoise(SimulationSource):
    """Gaussian noise that can be reproduced: for simulations, never for people.

    Rows shorter than 256 are drawn for all agents at once (SplitMix64 as a counter-based hash, then
    Box-Muller); longer rows by numpy's Philox with counter (0, agent, step, stream). Which of the two is
    decided by the length of the row alone, so hosting other agents never changes an agent's noise.
    """

    def __init__(self, seed: int) -> None:
        self._seed = _validate.count(seed, "the noise seed", minimum=0)

    def __repr__(self) -> str:
        return f"SimulatedNoise({self._seed})"

    def perturb(self, values: Rows, *, agents: Agents, step: int, std: Std, stream: int = 0) -> Rows:
        """Return ``values + std * z`` with z standard normal, in the type of ``values``."""
        values, numbers, scale = _checked(values, agents, std)
        return self._add(values, self._draw(numbers, values.shape[1], values.dtype, step, stream), scale)

    def _draw(self, agents: np.ndarray, dim: int, dtype: np.dtype, step: int, stream: int) -> np.ndarray:
        if dim < 256:
            keys = np.random.SeedSequence((self._seed, 1, step, stream)).generate_state(2, np.uint64)[None]
            return _short_normals(agents, dim, keys).astype(dtype, copy=False)
        key = _key(self._seed)
        if dtype == np.float32:
            from sottovoce.noise.philox import standard_normals

            return standard_normals(key, agents, dim, step, stream)  # the numbers that numpy would draw
        drawn = np.empty((len(agents), dim), dtype)
        for row, agent in zip(drawn, agents, strict=True):
            bits = np.random.Philox(key=key, counter=np.array([0, agent, step, stream], np.uint64))
            np.random.Generator(bits).standard_normal(out=row, dtype=dtype)
        return drawn

    @staticmethod
    def _add(values: np.ndarray, drawn: np.ndarray, std: np.ndarray) -> np.ndarray:
        # overwrites ``drawn``: fresh pages cost as much as the arithmetic
        drawn *= std.astype(values.dtype)[:, None]
        drawn += values
        return drawn


class ProtectiveNoise:
    """Discrete Gaussian noise on a grid, from bits that cannot be predicted or repeated.

    No seed exists: the key of every call comes from the operating system and is forgotten after it, so
    neither a fork nor a copied process nor a restored snapshot repeats noise.

    Guarantees
    ----------
    Rows whose values differ by at most ``2 * (clip - slack(dim, std))`` in L2 before the call are, after it,
    as close as under continuous Gaussian noise of standard deviation ``std`` and sensitivity ``2 * clip``,
    up to the statistical distance `distance`, if AES-256 in counter mode is a pseudorandom generator.
    The stated reduction holds for clip up to 2^14 times std. Values that are not finite, values larger
    than 2^25 times std, and a std that is not positive are refused; nothing is returned then.
    """

    protective = True

    def __repr__(self) -> str:
        return "ProtectiveNoise()"

    def perturb(self, values: Rows, *, agents: Agents, step: int, std: Std, stream: int = 0) -> Rows:
        """Return the grid points nearest to ``values`` moved by discrete Gaussian noise.

        ``agents``, ``step`` and ``stream`` are accepted for the shape of the call and do not enter the noise.
        """
        values, numbers, scale = _checked(values, agents, std)
        _fits_the_grid(values, scale)
        return self._add(values, self._draw(numbers, values.shape[1], values.dtype, step, stream), scale)

    def slack(self, dim: int, std: float = 1.0) -> float:
        """Return the L2 length by which rounding a row of ``dim`` values can move it, and the half step
        that pays for the noise being discrete."""
        spacing = grid_spacing(std)
        return spacing * (math.sqrt(dim) * (0.5 + 2.0**-10) + 0.5)

    @staticmethod
    def distance(coordinates: int) -> float:
        """Return a bound on the statistical distance between ``coordinates`` numbers drawn here and exact
        discrete Gaussians; an (epsilon, delta) guarantee gains (1 + e^epsilon) times it in delta."""
        return coordinates * 2.0**-96

    def _draw(self, agents: np.ndarray, dim: int, dtype: np.dtype, step: int, stream: int) -> np.ndarray:
        return discrete_gaussian(len(agents) * dim).reshape(len(agents), dim)

    @staticmethod
    def _add(values: np.ndarray, drawn: np.ndarray, std: np.ndarray) -> np.ndarray:
        spacing = std / STEPS_PER_STD
        grid = np.divide(values, spacing[:, None], dtype=np.float64)
        np.rint(grid, out=grid)
        grid += drawn
        grid *= spacing[:, None]
        return grid.astype(values.dtype, copy=False)


class KeyedNoise(ProtectiveNoise):
    """Protective noise that is a function of a secret key: a repeated draw gives the same noise.

    A peer that is killed between a draw and its commit, or restored from a backup, repeats the step. With new
    noise the two results together would reveal more than one. Here the same row under the same label gets the
    same noise, so the repetition reveals nothing new, and any other row gets independent noise.

    ``derive`` is a pseudorandom function of a secret key, from a label to 32 secret bytes; the label holds
    agent, step, stream, the scale and the digest of the clean integers.

    Guarantees
    ----------
    Those of `ProtectiveNoise`, if AES-256 and the derivation are pseudorandom and the key was 32 bytes of the
    operating system. One (key, agent, step, stream, integer row, scale) gives one row of bytes; a change in
    any of them gives independent noise, and is a further release.
    """

    def __init__(self, derive: Callable[[bytes], bytes]) -> None:
        self.derive = derive

    def __repr__(self) -> str:
        return "KeyedNoise()"

    def perturb(self, values: Rows, *, agents: Agents, step: int, std: Std, stream: int = 0) -> Rows:
        """Return the grid points nearest to ``values`` moved by the noise of their labels."""
        values, numbers, scale = _checked(values, agents, std)
        _fits_the_grid(values, scale)
        grid = np.rint(np.divide(values, (scale / STEPS_PER_STD)[:, None], dtype=np.float64))
        drawn = [
            discrete_gaussian(values.shape[1], self.key_of(int(number), step, stream, row, float(one)))
            for number, row, one in zip(numbers, grid, scale, strict=True)
        ]
        return self._add(values, np.array(drawn, np.int32).reshape(values.shape), scale)

    def key_of(self, agent: int, step: int, stream: int, whole: np.ndarray, scale: float) -> bytes:
        """Return the key of one row's noise; ``whole`` are its clean integers, of whatever type."""
        label = struct.pack("<3Qd", agent, step, stream, scale)
        content = np.ascontiguousarray(whole, np.float64) + 0.0  # -0.0 and 0.0 are one integer
        return self.derive(b"noise" + label + hashlib.sha256(content.tobytes()).digest())


class RecordedNoise:
    """Keep what another source draws, and play it back: for comparing runs bit by bit.

    The first request for (agent, step, stream) is drawn from ``source`` and kept; later ones get the same
    draw. Without a source only what was recorded can be played. A recording is never protective.
    """

    protective = False

    def __init__(
        self, source: Source | None = None, tape: dict[tuple[int, int, int], np.ndarray] | None = None
    ) -> None:
        self.source = source
        self.tape = {} if tape is None else tape

    def recorded(
        self, agent: int, step: int, stream: int, draw: Callable[[Source], np.ndarray]
    ) -> np.ndarray:
        """Return the noise recorded under a label; new noise is drawn from the source and kept."""
        key = (agent, step, stream)
        if key not in self.tape:
            if self.source is None:
                raise InvalidInput(
                    f"The recording holds no noise of agent {agent} at step {step}, stream {stream}; "
                    "replay the steps that were recorded."
                )
            self.tape[key] = draw(self.source)
        return self.tape[key]

    def perturb(self, values: Rows, *, agents: Agents, step: int, std: Std, stream: int = 0) -> Rows:
        """Return ``values`` with the recorded noise of (agent, step, stream), drawing it if it is new."""
        values, numbers, scale = _checked(values, agents, std)

        def draw(agent: int) -> Callable[[Source], np.ndarray]:
            of = np.array([agent]), values.shape[1], values.dtype, step, stream
            return lambda source: source._draw(*of)[0]

        rows = np.stack([self.recorded(agent, step, stream, draw(agent)) for agent in numbers.tolist()])
        add = ProtectiveNoise._add if rows.dtype == np.int32 else SimulatedNoise._add
        return add(values, rows, scale)

    def slack(self, dim: int, std: float = 1.0) -> float:
        """Return the slack of the recorded source."""
        kinds = {row.dtype.kind == "i" for row in self.tape.values()}
        integers = isinstance(self.source, ProtectiveNoise) if self.source is not None else kinds == {True}
        return ProtectiveNoise().slack(dim, std) if integers else 0.0


def as_noise(source: NoiseSource | np.random.Generator | int) -> NoiseSource:
    """Return ``source`` if it is one, else a `SimulatedNoise` seeded from the generator or number."""
    if isinstance(source, np.random.Generator):
        return SimulatedNoise(int(source.integers(0, 1 << 63)))
    if isinstance(source, (int, np.integer)):
        return SimulatedNoise(int(source))
    if isinstance(source, NoiseSource):
        return source
    raise InvalidInput(
        f"The noise must be a numpy Generator, a seed or a noise source, got {type(source).__name__}; "
        "np.random.default_rng(1) simulates, ProtectiveNoise() protects."
    )


def perturb_steps(
    source: NoiseSource, values: np.ndarray, *, agent: int, step: int, std: float, stream: int = 0
) -> np.ndarray:
    """Return the rows of ``values``, one per step from ``step`` on, each with the noise of its step.

    The numbers are those of one `NoiseSource.perturb` per step; simulated and protective sources draw them
    all at once, for compiled loops in which a call per step would be most of the work.
    """
    count, dim = values.shape
    # only the sources themselves: one derived from them may perturb in its own way
    if type(source) is ProtectiveNoise and count:
        return source.perturb(values, agents=np.full(count, agent), step=step, std=std, stream=stream)
    if type(source) is SimulatedNoise and 0 < dim < 256 and step + count < 1 << 32:
        values, numbers, scale = _checked(values, np.full(count, agent), std)
        drawn = _short_normals(numbers, dim, _step_keys(source._seed, step, count, stream))
        return source._add(values, drawn.astype(values.dtype, copy=False), scale)
    each = [
        source.perturb(values[k : k + 1], agents=[agent], step=step + k, std=std, stream=stream)
        for k in range(count)
    ]
    return np.concatenate(each) if each else values


def rounds_values(noise: NoiseSource) -> bool:
    """Return whether values are rounded to a grid before the noise of a source is added."""
    return noise.protective or noise.slack(1, 1.0) > 0  # a recording of protective noise rounds too


def grid_of(noise: NoiseSource, std: float) -> float:
    """Return the spacing of the grid on which values meet the noise of a source; 0 without rounding."""
    return float(grid_spacing(std)) if rounds_values(noise) and std > 0 else 0.0


def grid_spacing(std: float) -> float:
    """Return the distance between neighboring grid points for noise of standard deviation ``std``."""
    return _validate.positive(std, "the noise standard deviation") / STEPS_PER_STD


@functools.lru_cache(maxsize=64)
def _key(seed: int) -> np.ndarray:
    return np.random.SeedSequence(seed).generate_state(2, np.uint64)


def _short_normals(agents: np.ndarray, dim: int, keys: np.ndarray) -> np.ndarray:
    """Return standard normals by Box-Muller from hashed counters; ``keys`` (rows, 2) or one pair for all."""
    drawn = np.empty((len(agents), dim))
    block = max(1, _CHUNK // (2 * max(dim, 1)))
    for start in range(0, len(agents), block):
        rows = slice(start, start + block)
        own = keys[rows] if len(keys) > 1 else keys
        drawn[rows] = _normals_block(agents[rows], dim, own[:, :1], own[:, 1:])
    return drawn


def _step_keys(seed: int, first: int, count: int, stream: int) -> np.ndarray:
    """Return (count, 2): ``SeedSequence((seed, 1, step, stream)).generate_state(2, uint64)`` of every step.

    numpy's own hash, for all steps at once: only one of its words differs between them.
    """
    words = [seed & _WORD] if seed <= _WORD else [seed >> s & _WORD for s in range(0, seed.bit_length(), 32)]
    steps = np.arange(first, first + count, dtype=np.uint32)
    entropy = [np.full(count, word, np.uint32) for word in (*words, 1)]
    entropy += [steps, np.full(count, stream, np.uint32)]
    constant = 0x43B0D7E5

    def hashed(value: np.ndarray) -> np.ndarray:
        nonlocal constant
        value = value ^ np.uint32(constant)
        constant = constant * 0x931E8875 & _WORD
        value *= np.uint32(constant)
        value ^= value >> np.uint32(16)
        return value

    def mixed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        value: np.ndarray = np.uint32(0xCA01F9DD) * x - np.uint32(0x4973F715) * y
        value ^= value >> np.uint32(16)
        return value

    pool = [hashed(word) for word in entropy[:4]]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for word in entropy[4:]:
        pool = [mixed(state, hashed(word)) for state in pool]
    state = np.empty((count, 4), np.uint32)
    constant = 0x8B51F9DD
    for place, pooled in enumerate(pool):
        value = pooled ^ np.uint32(constant)
        constant = constant * 0x58F38DED & _WORD
        value *= np.uint32(constant)
        state[:, place] = value ^ value >> np.uint32(16)
    low, high = state[:, ::2].astype(np.uint64), state[:, 1::2].astype(np.uint64)
    return low | high << np.uint64(32)


def _normals_block(agents: np.ndarray, dim: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    pairs = (dim + 1) // 2
    counter = (agents.astype(np.uint64)[:, None] << np.uint64(32)) + np.arange(2 * pairs, dtype=np.uint64)
    counter *= np.uint64(0x9E3779B97F4A7C15)
    counter += first
    uniform = _mix(_mix(counter) ^ second) >> np.uint64(11)
    radius = np.sqrt(-2.0 * np.log((uniform[:, :pairs] + 1.0) * 2.0**-53))
    angle = uniform[:, pairs:] * (2.0**-53 * 2.0 * np.pi)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :dim]


def _mix(z: np.ndarray) -> np.ndarray:
    """SplitMix64's output function (Steele, Lea, Flood, OOPSLA 2014), in place."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _checked(values: Rows, agents: Agents, std: Std) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    numbers = np.asarray(agents, np.int64)
    values = np.asarray(values)
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64)
    numbered = numbers.min(initial=0) >= 0 and numbers.max(initial=0) < 1 << 31
    if values.ndim != 2 or numbers.shape != (values.shape[0],) or not numbered:
        raise InvalidInput(
            "Noise needs one row per agent, the agents numbered from 0 and below 2^31, got values of shape "
            f"{values.shape} for {numbers.size} agents."
        )
    scale = np.asarray(std, np.float64)
    if scale.shape != numbers.shape:
        scale = np.broadcast_to(scale, numbers.shape)
    if not (scale.min(initial=0.0) >= 0 and scale.max(initial=0.0) < np.inf):  # also catches NaN
        raise InvalidInput(f"The noise standard deviation must be finite and at least 0, got {std!r}.")
    return values, numbers, scale


def _fits_the_grid(values: np.ndarray, std: np.ndarray) -> None:
    largest = np.abs(values).max(axis=1, initial=0.0)
    if not ((std > 0) & (largest <= _LARGEST * std)).all():  # also catches NaN
        raise InvalidInput(
            "Protective noise needs a positive standard deviation and finite values below 2^25 times it; "
            "clip them first. Without noise nothing is sent."
        )
