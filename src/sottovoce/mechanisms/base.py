"""The base of all mechanisms: what was sampled and clipped is checked, gets noise and is recorded.

A mechanism reads the records of the agents hosted in this process. It computes sensitivity and noise from the
options of a plan and never reads them from the plan's releases, so the comparison with these can fail; then
`ReleaseMismatch` is raised and nothing leaves. One subclass per kind of query states its own sensitivity and
pays for the rounding of protective noise in its own way, because sensitivities differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.accounting.release import Release
from sottovoce.errors import InvalidInput, ReleaseMismatch
from sottovoce.noise.run_randomness import RunRandomness

Announced = Sequence[Sequence[Release]]  # the releases of a plan, per hosted agent


class ReleaseCheck:
    """Compares draws with what a plan announced for the hosted ``agents``, by default 0, 1, ...

    With ``once`` a second draw for an announced release is refused. Peers may draw again: their noise is
    keyed, so that the same row gets the same noise, and their ledger counts what leaves.
    """

    def __init__(self, releases: Announced, agents: Sequence[int] | None = None) -> None:
        self.agents = range(len(releases)) if agents is None else agents
        self.releases = [tuple(sorted(each, key=lambda r: r.step)) for each in releases]
        self._starts = [[r.step for r in each] for each in self.releases]
        self.once = False
        self._never = np.full(len(self.releases), -1)
        self._last: dict[int, np.ndarray] = {}  # by stream: the last step that each agent has drawn
        # one release object per agent with the same steps is the common case: one comparison of arrays
        self._uniform: tuple[Release, np.ndarray, np.ndarray] | None = None
        firsts = [each[0] for each in self.releases if len(each) == 1]
        shapes = {(r.step, r.steps, r.count, r.stream, r.mechanism) for r in firsts}
        if len(firsts) == len(self.releases) and len(shapes) == 1:
            sensitivity = np.array([r.sensitivity for r in firsts])
            self._uniform = (firsts[0], sensitivity, np.array([r.noise_std for r in firsts]))

    def check(
        self,
        places: Sequence[int],
        step: int,
        stream: int,
        *,
        sensitivity: ArrayLike,
        noise_std: ArrayLike,
        mechanism: str = "gaussian",
        steps: int = 1,
    ) -> None:
        """Raise `ReleaseMismatch` unless ``steps`` equal draws from ``step`` on are announced."""
        self._require_announced(places, step, stream, sensitivity, noise_std, mechanism, steps)
        if self.once:
            self._require_new(places, step, stream, steps)

    def _require_new(self, places: Sequence[int], step: int, stream: int, steps: int) -> None:
        index, last = np.asarray(places, np.intp), self._last.setdefault(stream, self._never.copy())
        repeated = index[last[index] >= step]
        if len(repeated):
            raise ReleaseMismatch(
                f"At step {step} (stream {stream}) agent {self.agents[int(repeated[0])]} would draw a second "
                "time for one announced release; nothing was released."
            )
        last[index] = step + steps - 1

    def _require_announced(
        self,
        places: Sequence[int],
        step: int,
        stream: int,
        sensitivity: ArrayLike,
        noise_std: ArrayLike,
        mechanism: str,
        steps: int,
    ) -> None:
        if self._uniform is not None:
            first, announced_s, announced_n = self._uniform
            index = np.asarray(places, np.intp)
            if (
                first.covers(step, stream)
                and first.covers(step + steps - 1, stream)
                and first.mechanism == mechanism
                and (announced_s[index] == sensitivity).all()
                and (announced_n[index] == noise_std).all()
            ):
                return
        drawn_s = np.broadcast_to(np.asarray(sensitivity, float), (len(places),))
        drawn_n = np.broadcast_to(np.asarray(noise_std, float), (len(places),))
        for place, s, n in zip(places, drawn_s, drawn_n, strict=True):
            announced, agent = self._at(place, step, stream, steps), self.agents[place]
            if announced is None:
                raise ReleaseMismatch(
                    f"At step {step} (stream {stream}) agent {agent} would make a release that the plan does "
                    "not list; nothing was released."
                )
            if (announced.mechanism, announced.sensitivity, announced.noise_std) != (mechanism, s, n):
                raise ReleaseMismatch(
                    f"At step {step} agent {agent} would draw {mechanism} noise {n:g} on "
                    f"sensitivity {s:g}, the plan announced {announced.mechanism} noise "
                    f"{announced.noise_std:g} on {announced.sensitivity:g}; nothing was released."
                )

    def check_totals(self, *, sensitivity: float, noise_std: float, contributions: int) -> None:
        """Raise `ReleaseMismatch` unless every node announced exactly so many of these draws.

        On a path drawn in the run the steps of a node are not known before the run; their number is.
        """
        for node, releases in zip(self.agents, self.releases, strict=True):
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
        end = step + steps - 1
        covering = (r for r in chain(likely, releases) if r.covers(step, stream) and r.covers(end, stream))
        return next(covering, None)


@dataclass(eq=False, kw_only=True)
class Mechanism:
    """Checks every draw against the plan, adds the noise and records the release.

    Subclasses state the scale of their releases by `set_scale`, or check them by `check_and_record`.
    """

    agents: Sequence[int]  # numbers of the hosted agents
    random: RunRandomness  # noise, sampling and under which numbers agents draw them
    adjacency: str  # what neighboring data sets differ in
    announced_releases: Announced | None = None  # the plan's, per hosted agent; None: no comparison

    records_noiseless: ClassVar[bool] = True  # whether a release without noise is recorded, at infinite cost

    def __post_init__(self) -> None:
        self.agents = [int(a) for a in self.agents]
        self.noise_ids = list(self.random.noise_ids_of(self.agents))
        announced = self.announced_releases
        self.release_check = None if announced is None else ReleaseCheck(announced, self.agents)
        self.noisy = True  # whether noise is drawn; without it nothing is protected
        self._recorded: list[Release] | None = None

    def set_scale(self, sensitivity: ArrayLike, noise_std: ArrayLike, drawn: ArrayLike | None = None) -> None:
        """State sensitivity and noise of every hosted agent, in the unit of the announced release.

        ``drawn`` is the noise that is drawn, if a row is divided after the noise.
        """
        shape = (len(self.agents),)
        self.sensitivities = np.broadcast_to(np.asarray(sensitivity, float), shape)
        self.noise_stds = np.broadcast_to(np.asarray(noise_std, float), shape)
        self.stds = self.noise_stds if drawn is None else np.asarray(drawn, float)
        self.noisy = bool(self.stds.any())

    def add_noise(self, values: np.ndarray, places: Sequence[int], step: int, stream: int = 0) -> np.ndarray:
        """Check, draw and record: return ``values`` of the agents at ``places`` with noise, as they leave."""
        self.check(places, step, stream)
        noisy = self.draw(values, places, step, stream) if self.noisy and len(places) else values
        self.record(self.release_of(place, step) for place in places)
        return noisy

    def check(self, places: Sequence[int], step: int, stream: int = 0, *, steps: int = 1) -> None:
        """Raise `ReleaseMismatch` unless the draws of ``steps`` steps are those the plan announced."""
        if self.release_check is not None:
            index = list(places)
            s, n = self.sensitivities[index], self.noise_stds[index]
            self.release_check.check(index, step, stream, sensitivity=s, noise_std=n, steps=steps)

    def check_and_record(self, release: Release) -> None:
        """Check a release of the only hosted agent against the plan, and record it."""
        if self.release_check is not None:
            s, std, kind, steps = release.sensitivity, release.noise_std, release.mechanism, release.steps
            for stream in {release.stream, release.stream + release.count - 1}:
                scale = {"sensitivity": s, "noise_std": std}
                self.release_check.check([0], release.step, stream, **scale, mechanism=kind, steps=steps)
        self.record([release])

    def draw(self, values: np.ndarray, places: Sequence[int], step: int, stream: int) -> np.ndarray:
        """Return the rows with noise of the source, neither checked nor recorded."""
        noise_ids, std = [self.noise_ids[place] for place in places], self.stds[list(places)]
        return self.random.noise.perturb(values, agents=noise_ids, step=step, std=std, stream=stream)

    def release_of(self, place: int, step: int) -> Release:
        """Return the release of one agent in a step, computed without the plan's releases."""
        sensitivity, noise_std = float(self.sensitivities[place]), float(self.noise_stds[place])
        return Release(self.agents[place], step, sensitivity, noise_std, self.adjacency)

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
