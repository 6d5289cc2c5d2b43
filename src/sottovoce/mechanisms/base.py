"""The base of all mechanisms: what was sampled and clipped gets noise, is checked and recorded.

A mechanism reads the records of the agents hosted in this process. It computes sensitivity and noise from the
options of a plan and never reads them from the plan's releases, so the comparison with these can fail; then
`ReleaseMismatch` is raised and nothing leaves. One subclass per kind of query states its own sensitivity and
pays for the rounding of protective noise in its own way, because sensitivities differ.

The `typing.Protocol` classes say what an algorithm needs of a mechanism.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np

from sottovoce.accounting.release import Release
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.noise.run_randomness import RunRandomness

Announced = Sequence[Sequence[Release]]  # the releases of a plan, per hosted agent


class AnnouncedReleases:
    """The releases that a plan announced for the hosted agents."""

    def __init__(self, releases: Announced) -> None:
        self.releases = [tuple(sorted(each, key=lambda r: r.step)) for each in releases]
        self._starts = [[r.step for r in each] for each in self.releases]
        # one release object per agent with the same steps is the common case: one comparison of arrays
        self._uniform: tuple[Release, np.ndarray, np.ndarray] | None = None
        if self.releases and all(len(each) == 1 for each in self.releases):
            first = self.releases[0][0]
            shapes = {(r.step, r.steps, r.count, r.stream, r.mechanism) for (r,) in self.releases}
            if len(shapes) == 1:
                sensitivity = np.array([r.sensitivity for (r,) in self.releases])
                noise_std = np.array([r.noise_std for (r,) in self.releases])
                self._uniform = (first, sensitivity, noise_std)

    def check(
        self,
        places: Sequence[int],
        step: int,
        stream: int,
        *,
        sensitivity: float | np.ndarray,
        noise_std: float | np.ndarray,
        mechanism: str = "gaussian",
        steps: int = 1,
    ) -> None:
        """Raise `ReleaseMismatch` unless ``steps`` equal draws from ``step`` on are announced."""
        drawn_s = np.broadcast_to(np.asarray(sensitivity, float), (len(places),))
        drawn_n = np.broadcast_to(np.asarray(noise_std, float), (len(places),))
        if self._uniform is not None:
            first, announced_s, announced_n = self._uniform
            index = np.asarray(places, np.intp)
            if (
                first.covers(step, stream)
                and first.covers(step + steps - 1, stream)
                and first.mechanism == mechanism
                and np.array_equal(announced_s[index], drawn_s)
                and np.array_equal(announced_n[index], drawn_n)
            ):
                return
        for row, place in enumerate(places):
            announced = self._at(place, step, stream, steps)
            if announced is None:
                raise ReleaseMismatch(
                    f"At step {step} (stream {stream}) agent {place} would make a release that the plan does "
                    "not list; nothing was released."
                )
            if announced.mechanism != mechanism:
                raise ReleaseMismatch(
                    f"At step {step} agent {announced.sender} would draw for a {mechanism} release, the plan "
                    f"announced {announced.mechanism}; nothing was released."
                )
            if announced.sensitivity != drawn_s[row] or announced.noise_std != drawn_n[row]:
                raise ReleaseMismatch(
                    f"At step {step} agent {announced.sender} would draw noise {drawn_n[row]:g} on "
                    f"sensitivity {drawn_s[row]:g}, the plan announced {announced.noise_std:g} on "
                    f"{announced.sensitivity:g}; nothing was released."
                )

    def check_totals(self, *, sensitivity: float, noise_std: float, contributions: int) -> None:
        """Raise `ReleaseMismatch` unless every node announced at most so many of these draws.

        On a secret path the steps of a node are not known before the run; their number is.
        """
        for node, releases in enumerate(self.releases):
            kinds = {(r.sensitivity, r.noise_std) for r in releases}
            announced = sum(r.draws for r in releases)
            if kinds != {(sensitivity, noise_std)} or announced != contributions:
                raise ReleaseMismatch(
                    f"Node {node} would contribute up to {contributions} times with noise {noise_std:g} on "
                    f"sensitivity {sensitivity:g}, the plan announced {announced} of {sorted(kinds)} "
                    "(sensitivity, noise); nothing was released."
                )

    def _at(self, place: int, step: int, stream: int, steps: int) -> Release | None:
        """Return the release announced for a draw; a walk lists one per visit, too many to try in turn."""
        releases, last = self.releases[place], bisect_right(self._starts[place], step) - 1
        likely = releases[last : last + 1] if last >= 0 else ()
        return next(
            (
                r
                for r in chain(likely, releases)
                if r.covers(step, stream) and r.covers(step + steps - 1, stream)
            ),
            None,
        )


class Mechanism:
    """Checks every draw against the plan, adds the noise and records the release.

    Subclasses set, per hosted agent, `sensitivity` and `noise_std` in the unit of the announced release, and
    `std`, the noise that is drawn (the same unless a row is divided after the noise).

    Parameters
    ----------
    agents : numbers of the hosted agents.
    random : noise, sampling and the numbers that key them.
    adjacency : what neighboring data sets differ in.
    releases : what the plan announced, per hosted agent; None leaves the comparison out (tests).
    """

    records_noiseless: ClassVar[bool] = True  # whether a release without noise is recorded, at infinite cost

    sensitivity: np.ndarray
    noise_std: np.ndarray
    std: np.ndarray
    noisy: bool  # whether noise is drawn; without it nothing is protected

    def __init__(
        self, agents: Sequence[int], random: RunRandomness, adjacency: str, releases: Announced | None
    ) -> None:
        self.agents, self.random, self.adjacency = [int(a) for a in agents], random, adjacency
        self.numbers = list(random.keys_for(self.agents))
        self.announced = None if releases is None else AnnouncedReleases(releases)
        self._recorded: list[Release] | None = None

    def release(self, values: np.ndarray, places: Sequence[int], step: int, stream: int = 0) -> np.ndarray:
        """Return the rows ``values`` of the agents at ``places`` with noise: exactly what leaves."""
        self.check(places, step, stream)
        noisy = self.draw(values, places, step, stream) if self.noisy and len(places) else values
        self.record(self.as_release(place, step) for place in places)
        return noisy

    def check(self, places: Sequence[int], step: int, stream: int = 0, *, steps: int = 1) -> None:
        """Raise `ReleaseMismatch` unless the draws of ``steps`` steps are those the plan announced."""
        if self.announced is not None:
            index = list(places)
            self.announced.check(
                index,
                step,
                stream,
                sensitivity=self.sensitivity[index],
                noise_std=self.noise_std[index],
                steps=steps,
            )

    def draw(self, values: np.ndarray, places: Sequence[int], step: int, stream: int) -> np.ndarray:
        """Return the rows with noise of the source."""
        numbers, std = [self.numbers[place] for place in places], self.std[list(places)]
        return self.random.noise.perturb(values, agents=numbers, step=step, std=std, stream=stream)

    def as_release(self, place: int, step: int) -> Release:
        """Return what one agent releases in a step, from this mechanism's own numbers."""
        return Release(
            sender=self.agents[place],
            step=step,
            sensitivity=float(self.sensitivity[place]),
            noise_std=float(self.noise_std[place]),
            adjacency=self.adjacency,
        )

    def record(self, releases: Iterable[Release]) -> None:
        """Keep the releases for a ledger, once `recording` was called."""
        if self._recorded is not None and (self.noisy or self.records_noiseless):
            self._recorded += releases

    def recording(self) -> Self:
        """Return self, from now on recording every release for `drain`."""
        self._recorded = [] if self._recorded is None else self._recorded
        return self

    def drain(self) -> tuple[Release, ...]:
        """Return the releases since the last call."""
        releases, self._recorded = tuple(self._recorded or ()), None if self._recorded is None else []
        return releases

    def set_batch_key(self, key: int | bytes) -> None:
        """Continue with the batches of an interrupted run; most mechanisms sample none."""


def inner_clip(clip_norm: float, slack: float) -> float:
    """Return the bound that leaves room for rounding: ``slack`` below the announced one."""
    if slack >= clip_norm:
        raise InvalidInput(
            f"the rounding slack {slack:g} exceeds the clip norm {clip_norm:g}; less noise is needed."
        )
    return clip_norm - slack


# ---- what algorithms need of a mechanism ---------------------------------------------------------------


class RegularizedSource(Protocol):
    """Noisy gradients of the hosted agents with the l2 term, which depends on no record."""

    def gradient_with_l2(self, theta: np.ndarray, step: int) -> np.ndarray:
        """Return what every hosted agent releases, with the l2 term added."""


class GradientSource(Protocol):
    """Noisy gradients of the hosted agents, each at its own row."""

    @property
    def agents(self) -> Sequence[int]:
        """Numbers of the hosted agents."""

    @property
    def decay(self) -> float:
        """Weight of the l2 term, which is added after the noise."""

    def __call__(self, theta: np.ndarray, step: int, stream: int = 0) -> np.ndarray:
        """Return what every hosted agent releases."""

    def gradient_with_l2(self, theta: np.ndarray, step: int, stream: int = 0) -> np.ndarray:
        """Return the release with the l2 term added."""

    def rows(self, theta: np.ndarray, step: int, stream: int, places: Sequence[int]) -> np.ndarray:
        """Return the releases of the agents at ``places``."""


class UpdateSource(Protocol):
    """Noisy local updates of the hosted agents."""

    def local_update(self, theta: np.ndarray, step: int, *, steps: int, rate: float) -> np.ndarray:
        """Return every agent's clipped and noisy update after some local steps."""


class ValueSource(Protocol):
    """Noisy rows of the hosted agents."""

    rows: np.ndarray

    def released(self, step: int) -> np.ndarray:
        """Return the rows with noise."""


class ProximalStep(NamedTuple):
    """One proximal step: ``local`` stays with the holder, ``released`` leaves."""

    local: np.ndarray
    released: np.ndarray


class ProximalSource(Protocol):
    """Noisy proximal steps of ADMM."""

    def proximal_step(self, u: np.ndarray, z: np.ndarray, k: int) -> ProximalStep:
        """Return the step of the hosted duals ``u`` at the model ``z``; asked again, the same bytes."""
