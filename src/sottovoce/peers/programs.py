"""What one node computes: an algorithm and its protocols, cut into numbered rounds.

`StepProgram` drives the same `Algorithm` that the stacked runner drives, hosting one agent, over
``protocol.local(node)`` of every step. Rounds are counted through the whole run: step k begins at round
``starts[k]``. `MeteredNoise` stands between the algorithm and the noise source and writes down a `Release`
for every draw, so the ledger charges what was drawn, not what was planned.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sottovoce import protocols
from sottovoce.errors import InvalidInput, PeerError
from sottovoce.peers import snapshot
from sottovoce.privacy.ledger import Release
from sottovoce.privacy.noise import Agents, NoiseSource, Std
from sottovoce.runners.base import Algorithm

__all__ = ["MeteredNoise", "StepProgram"]


Plan = list[tuple[tuple[int, ...], tuple[int, ...]]]  # per round: who is sent to, who is heard


class MeteredNoise:
    """A noise source that writes down what every draw costs.

    Parameters
    ----------
    source : where the noise comes from.
    noise_multiplier : the agreed noise over sensitivity; the sensitivity of a draw is its std over this.
    node, adjacency, sample_rate : as in `Release`.

    Examples
    --------
    >>> import numpy as np
    >>> from sottovoce.privacy.noise import SimulatedNoise
    >>> noise = MeteredNoise(SimulatedNoise(1), node=0, noise_multiplier=2.0)
    >>> _ = noise.perturb(np.zeros((1, 3)), agents=[0], step=5, std=1.0)
    >>> [(release.step, release.noise_multiplier) for release in noise.take()]
    [(5, 2.0)]
    """

    def __init__(
        self,
        source: NoiseSource,
        *,
        node: int,
        noise_multiplier: float,
        adjacency: str = "user",
        sample_rate: float = 1.0,
    ) -> None:
        self.source, self.node, self.noise_multiplier = source, node, noise_multiplier
        self.adjacency, self.sample_rate = adjacency, sample_rate
        self._drawn: list[Release] = []

    @property
    def protective(self) -> bool:
        """Whether the source protects people."""
        return self.source.protective

    def perturb(
        self, values: np.ndarray, *, agents: Agents, step: int, std: Std, stream: int = 0
    ) -> np.ndarray:
        """Perturb, and note the release."""
        if list(agents) != [self.node]:
            raise InvalidInput(f"This peer draws noise for member {self.node} only, got {list(agents)}.")
        noisy = self.source.perturb(values, agents=agents, step=step, std=std, stream=stream)
        absolute = float(np.asarray(std).reshape(-1)[0])
        self._drawn.append(
            Release(
                sender=self.node,
                step=step,
                sensitivity=absolute / self.noise_multiplier,
                noise_std=absolute,
                adjacency=self.adjacency,
                sample_rate=self.sample_rate,
            )
        )
        return noisy

    def slack(self, dim: int, std: float = 1.0) -> float:
        """Return the slack of the source."""
        return self.source.slack(dim, std)

    def take(self) -> tuple[Release, ...]:
        """Return the releases since the last call."""
        drawn, self._drawn = tuple(self._drawn), []
        return drawn


class StepProgram:
    """An `Algorithm` hosting one agent, over the local side of one protocol per step.

    Parameters
    ----------
    algorithm : its functions get and return arrays with one row.
    schedule : the protocol of step k; a public function, equal at all members.
    steps, node : as in the stacked runner; which agent is hosted.
    noise : the metered source the algorithm was built with.
    fresh : source for protocols that add fresh noise in a round; it carries no data and costs nothing.
    contacts : everyone this node may send to or hear from.

    Examples
    --------
    >>> import numpy as np, sottovoce as sv
    >>> from sottovoce.privacy.noise import SimulatedNoise
    >>> algorithm = Algorithm(lambda: np.ones((1, 2)), lambda s, k: s, lambda s, r, k: r, lambda s: s)
    >>> noise = MeteredNoise(SimulatedNoise(0), node=0, noise_multiplier=1.0)
    >>> program = StepProgram(algorithm, lambda k: sv.protocols.Exchange(2), 1, node=0, noise=noise)
    >>> program.begin(); program.sends(0), program.contacts, program.rounds
    ((1,), (1,), 1)
    >>> program.receive({1: np.array([3.0, 5.0])}); program.result().tolist()
    [2.0, 3.0]
    """

    def __init__(
        self,
        algorithm: Algorithm,
        schedule: Callable[[int], protocols.Protocol],
        steps: int,
        *,
        node: int,
        noise: MeteredNoise,
        fresh: Any = None,
        contacts: Sequence[int] | None = None,
    ) -> None:
        self.algorithm, self.schedule, self.steps, self.node = algorithm, schedule, steps, node
        self.noise, self.fresh = noise, fresh if fresh is not None else noise.source
        lengths = [schedule(k).rounds for k in range(steps)]
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(int).tolist()
        self.rounds: int = self.starts[-1]
        self.window = 2 * max(lengths, default=1) + 1
        self.contacts = tuple(sorted(contacts if contacts is not None else self._met()))
        self.begun = False
        self._step = self._round = 0
        self._state: Any = None
        self._local: protocols.Local | None = None

    @property
    def at(self) -> int:
        """The round of the run this node is in."""
        return self.starts[self._step] + self._round

    def begin(self) -> None:
        """Make the first row."""
        self._state = self.algorithm.init()
        self.begun = True
        self._open()

    def sends(self, r: int) -> tuple[int, ...]:
        """Return who gets this node's row in round ``r``."""
        k, t = self._place(r)
        return self._plan(k)[t][0]

    def expects(self, r: int) -> tuple[int, ...]:
        """Return whose rows this node needs in round ``r``."""
        k, t = self._place(r)
        return self._plan(k)[t][1]

    def message(self) -> np.ndarray:
        """Return the row of the present round."""
        assert self._local is not None
        return self._local.message(self._round)

    def receive(self, rows: Mapping[int, np.ndarray]) -> None:
        """Take the rows of the present round and go to the next."""
        assert self._local is not None
        self._local.receive(self._round, rows, noise=self.fresh, step=self._step)
        self._round += 1
        if self._round == self._local.rounds:
            self._close()
            self._open()

    def take_releases(self) -> tuple[Release, ...]:
        """Return what was drawn since the last call."""
        return self.noise.take()

    def result(self) -> np.ndarray:
        """Return the output row; before the end, that of the last finished step."""
        if not self.begun:
            raise PeerError("The run has not begun, so there is no model yet.")
        return np.asarray(self.algorithm.output(self._state))[0]

    def snapshot(self) -> bytes:
        """Return everything needed to go on from here."""
        local = {} if self._local is None else _variables(self._local)
        return snapshot.pack((self._step, self._round, self._state, local))

    def restore(self, state: bytes) -> None:
        """Go on from a snapshot."""
        template = self.algorithm.init()
        self._step, self._round, self._state, local = snapshot.unpack(state, (0, 0, template, {}))
        self.begun = True
        if self._step < self.steps:
            self._local = self.schedule(self._step).local(self.node)
            vars(self._local).update(local)

    def _open(self) -> None:
        """Begin the present step; steps without rounds (a single member) end at once."""
        while self._step < self.steps:
            protocol = self.schedule(self._step)
            row = np.asarray(self.algorithm.message(self._state, self._step))[0]
            self._local = protocol.local(self.node)
            self._local.start(row)
            if protocol.rounds:
                return
            self._close()
        self._local = None

    def _close(self) -> None:
        assert self._local is not None
        self._state = self.algorithm.update(self._state, self._local.result()[None], self._step)
        self._step, self._round = self._step + 1, 0

    def _place(self, r: int) -> tuple[int, int]:
        k = bisect.bisect_right(self.starts, r) - 1
        return k, r - self.starts[k]

    def _plan(self, k: int) -> Plan:
        """Return (sends, expects) of every round of step ``k``."""
        return _plan_of(self.schedule(k), self.node)

    def _met(self) -> set[int]:
        met: set[int] = set()
        for protocol in {id(p): p for p in map(self.schedule, range(self.steps))}.values():
            for to, whence in _plan_of(protocol, self.node):
                met.update(to, whence)
        return met


@functools.lru_cache(maxsize=4096)
def _plan_of(protocol: protocols.Protocol, node: int) -> Plan:
    local = protocol.local(node)
    return [(local.sends(t), local.expects(t)) for t in range(protocol.rounds)]


def _variables(local: protocols.Local) -> dict[str, Any]:
    """Return the variables of a local state machine, without the protocol it belongs to."""
    fixed = ("node", "rounds")
    return {
        name: value
        for name, value in vars(local).items()
        if name not in fixed and not isinstance(value, protocols.Protocol)
    }
