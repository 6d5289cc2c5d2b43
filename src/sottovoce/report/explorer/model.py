"""What the explorer shows: settings in, numbers and sentences out, all of them from the one accountant.

`ExplorerSettings` is what a person chooses on the page: graph, protocol, rounds, noise. `ExplorerModel` is
the plan that the settings describe, and computes what the page shows. Numbers become text here, so that the
page has nothing to compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sottovoce import graphs
from sottovoce._format import fixed, number
from sottovoce.accounting import wording
from sottovoce.accounting.accountant import account_each
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.gaussian import gaussian_epsilons
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.published.exact_comparison import PUBLISHED_FOR, missing_links
from sottovoce.accounting.published.formulas import published_loss
from sottovoce.advice.usefulness import usefulness
from sottovoce.algorithms import PrivateAveraging
from sottovoce.algorithms.build import plan_options
from sottovoce.errors import ConfigError, InvalidInput, Refused, SottovoceError
from sottovoce.graphs import Network
from sottovoce.leakage.view import DETERMINED
from sottovoce.protocols import Masked, NamedProtocol, Protocol, parse
from sottovoce.report.figures import springs

PAIRS = 32  # nodes up to which an offline page holds every pair of colluders
NODES = 600  # nodes that a page draws
ROUNDS = 400


class ExplorerSettings(BaseModel):
    """What is chosen on the page; ``graph`` None is the graph of the file that was opened."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    graph: str | None = Field(None, max_length=4000)
    protocol: str = Field("gossip", max_length=80)
    rounds: int | None = Field(None, ge=1, le=ROUNDS)
    seed: int = Field(0, ge=0)
    noise: float = Field(2.0, gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)

    @classmethod
    def read(cls, values: object) -> ExplorerSettings:
        """Return what a page sent, or say in one sentence what does not fit."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"a setting is an object, got {type(values).__name__}.")
        if str(values.get("graph") or "").strip().lower().startswith("file"):
            raise ConfigError("A page opens no files; start it with `sottovoce explore file:...` instead.")
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            message = first["msg"].removeprefix("Input ")
            raise ConfigError(f"{place}: input {message}, got {first['input']!r}.") from None

    @property
    def named(self) -> NamedProtocol:
        """The protocol, with the rounds chosen where they are a choice."""
        named = parse(self.protocol)
        return named if self.rounds is None or not named.takes_rounds else replace(named, rounds=self.rounds)


@dataclass(frozen=True)
class Opened:
    """A plan that was opened from a file."""

    plan: Any
    network: Network
    title: str = ""
    delta: float = 1e-5
    protocol: str | None = None

    @cached_property
    def setting(self) -> ExplorerSettings:
        """The setting of the page as the file has it."""
        plan, protocol = self.plan, self.plan.schedule(0)
        if protocol.adds_noise:
            raise ConfigError(
                f"The explorer shows protocols in which a row enters once, not a {protocol.name}; sottovoce "
                "plan computes the privacy cost of such an average."
            )
        named = parse(self.protocol or protocol.name)
        seed = plan.seed if "seed" in plan_options(plan.name) else 0
        options: dict[str, Any] = {"delta": self.delta, "seed": int(seed or 0)}
        options["protocol"] = str(replace(named, rounds=None))
        if isinstance(plan.noise_multiplier, (int, float)) and plan.noise_multiplier > 0:
            options["noise"] = float(plan.noise_multiplier)
        if named.takes_rounds:
            options["rounds"] = min(protocol.rounds, ROUNDS)
        return ExplorerSettings(**options)


def open_model(target: str, **options: Any) -> ExplorerModel:
    """Return the explorer of a graph by name, a file of edges, a plan file or an agreement.

    ``options`` are fields of `ExplorerSettings`; those that are None keep their default.
    """
    chosen = {key: value for key, value in options.items() if value is not None}
    if target.endswith(".toml"):
        opened = open_plan(Path(target))
    elif target.startswith("file:"):
        network = graphs.parse(target)
        plan = PrivateAveraging("gossip", network=network, noise_std=1.0, radius=0.5, center=0.5)
        opened = Opened(plan, network, protocol="gossip")
    else:
        return ExplorerModel(ExplorerSettings.read({"graph": target, **chosen}))
    return ExplorerModel(ExplorerSettings.read(opened.setting.model_dump() | chosen), opened)


def open_plan(path: Path) -> Opened:
    """Return the plan of a plan file, or of an agreement."""
    from sottovoce.planfile.read import load_file, read_toml

    if "members" in read_toml(path):
        from sottovoce.peers.agreement import read_agreement

        agreement = read_agreement(path)
        network = replace(agreement.network, node_names=tuple(member.name for member in agreement.members))
        protocol, delta = agreement.algorithm.protocol, agreement.budget.delta
        return Opened(agreement.plan, network, agreement.title, delta, protocol)
    loaded = load_file(path)
    settings = loaded.settings
    if loaded.network is None:
        raise ConfigError(
            f"{path.name} runs over no network, so there is nobody to look; try one with [network]."
        )
    name = None
    if settings.protocol.name is not None:
        name = str(settings.protocol.named("gossip"))
    elif settings.train is None:
        name = "chebyshev"
    return Opened(loaded.plan, loaded.network, settings.title, loaded.delta, name)


@dataclass(frozen=True)
class ExplorerModel:
    """The plan that a setting stands for, and what the page shows of it."""

    setting: ExplorerSettings
    opened: Opened | None = field(default=None, repr=False)
    _other_rounds: dict[int, ExplorerModel] = field(default_factory=dict, init=False, repr=False)
    _leakage: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict, init=False, repr=False)

    # ---- the plan -----------------------------------------------------------------------------------------

    @cached_property
    def network(self) -> Network:
        """The graph, with the members' names."""
        if self.setting.graph is not None:
            network = graphs.parse(self.setting.graph)
        elif self.opened is not None:
            network = self.opened.network
        else:
            raise ConfigError('A setting needs a graph by name, such as "ring:8".')
        if network.n > NODES:
            raise Refused(f"A page draws at most {NODES} nodes, got {network.n:,}; use `sottovoce account`.")
        return network

    @cached_property
    def names(self) -> list[str]:
        """What the nodes are called."""
        labels = self.network.node_names
        return [f"node {v}" if labels is None else str(labels[v]) for v in range(self.network.n)]

    @cached_property
    def plan(self) -> Any:  # attributes of averaging plans are read off it
        """The plan: that of the file, as the page changed it, or an average of values in [0, 1]."""
        chosen, opened = self.setting, self.opened
        changed: dict[str, Any] = {"network": self.network, "seed": chosen.seed}
        base: dict[str, Any] = {"radius": 0.5, "center": 0.5}
        if opened is not None:
            if chosen == opened.setting:
                return opened.plan
            if opened.plan.query_kind != "value":
                only_noise = chosen.model_copy(update={"noise": opened.setting.noise}) == opened.setting
                changed = {} if only_noise else {**changed, "protocol": str(chosen.named)}
                try:
                    return replace(opened.plan, **changed).with_noise(chosen.noise)
                except TypeError:
                    raise ConfigError(f"{opened.plan.name} has no protocol that could be changed.") from None
            base = {key: getattr(opened.plan, key) for key in ("radius", "center", "dim", "adjacency")}
        return PrivateAveraging(str(chosen.named), noise_std=chosen.noise * base["radius"], **base, **changed)

    @property
    def protocol(self) -> Protocol:
        """The averaging of the (first) step."""
        protocol: Protocol = self.plan.schedule(0)
        return protocol

    def at(self, rounds: int | None) -> ExplorerModel:
        """Return the model after so many rounds, where the number of rounds is a choice."""
        if rounds is None or not self.adjustable or rounds == self.protocol.rounds:
            return self
        if rounds not in self._other_rounds:
            changed = ExplorerSettings.read(self.setting.model_dump() | {"rounds": rounds})
            self._other_rounds[rounds] = ExplorerModel(changed, self.opened)
        return self._other_rounds[rounds]

    @property
    def adjustable(self) -> bool:
        """Whether the number of rounds is a choice."""
        return self.setting.named.takes_rounds

    @cached_property
    def most_rounds(self) -> int:
        """The end of the slider: where the theory stops, or the rounds of the setting."""
        if not self.adjustable:
            return self.protocol.rounds
        theory = replace(self.setting.named, rounds=None).at(self.network, seed=self.setting.seed).rounds
        return min(ROUNDS, max(theory, self.protocol.rounds))

    # ---- what is shown ------------------------------------------------------------------------------------

    def scene(self) -> dict[str, Any]:
        """Return the graph and what is true for every observer: error, cost, the local privacy cost."""
        plan, protocol, network, delta = self.plan, self.protocol, self.network, self.setting.delta
        local, use, cost = plan.privacy("local"), usefulness(plan), plan.cost()
        partners = protocol.partner_edges if isinstance(protocol, Masked) else None
        size = f", {number(cost['bytes'])} bytes" if "bytes" in cost else ""
        return {
            "setting": self.setting.model_dump(mode="json"),
            "title": self.opened.title if self.opened is not None else "",
            "graph": network.name,
            "n": network.n,
            "names": self.names,
            "edges": network.edges.tolist(),
            "partners": None if partners is None or len(partners) > 2000 else partners.tolist(),
            "positions": springs(network.edges.tolist(), network.n).round(5).tolist(),
            "protocol": protocol.name,
            "algorithm": plan.name,
            "steps": plan.steps,
            "rounds": protocol.rounds,
            "most_rounds": self.most_rounds,
            "adjustable": self.adjustable,
            "delta": number(delta, "delta"),
            "adjacency": wording.adjacency(plan.adjacency, noun="participant"),
            "local": {
                "epsilon": fixed(local.epsilon(delta), "epsilon"),
                "words": wording.guess(local.best_guess),
            },
            "useful": {"verdict": use.verdict, "words": use.sentence},
            "noise": number(float(self.setting.noise), "noise"),
            "error": None if use.error is None else number(float(math.hypot(use.error, use.bias))),
            "cost": f"{number(cost['rounds'])} rounds, {number(cost['messages'])} messages{size}",
            "notes": missing_links(network, protocol),
        }

    def view(self, observers: Iterable[int], rounds: int | None = None) -> dict[str, Any]:
        """Return what one node, or a coalition, learns of everybody after so many rounds."""
        who = tuple(sorted(set(observers)))
        if len(who) >= self.network.n:
            raise InvalidInput("Everybody colludes, so nobody is left to protect; let fewer collude.")
        return self.at(rounds).views([who])[0]

    def views(self, groups: Sequence[tuple[int, ...]]) -> list[dict[str, Any]]:
        """Return `view` of several coalitions; their epsilons are computed together."""
        guarantees = [account_each(self.plan, who) for who in groups]
        epsilons = iter(
            _epsilons([g.curve for each in guarantees for g in each.values()], self.setting.delta)
        )
        return [
            self._shown(who, each, {u: next(epsilons) for u in each})
            for who, each in zip(groups, guarantees, strict=True)
        ]

    def _shown(
        self, who: tuple[int, ...], each: Mapping[int, Guarantee], losses: Mapping[int, float]
    ) -> dict[str, Any]:
        """Return a view as the page shows it: one row per node, and the whole in a sentence."""
        names, formula, shares = self.names, self._published(who), self._shares(who, each)
        rows: list[dict[str, Any]] = [
            {"name": name, "looks": True, "value": None, "label": "", "words": "looks", "determined": False}
            | dict.fromkeys(("share", "epsilon", "published"), "–")
            for name in names
        ]
        for u, stated in each.items():
            share = float(shares[u])
            rows[u] = {
                "name": names[u],
                "looks": False,
                "value": round(min(share, 1.0), 4),
                "share": fixed(share, "share"),
                "epsilon": fixed(losses[u], "epsilon"),
                "label": stated.label,
                "words": wording.learned(share, stated.best_guess),
                "determined": share > 1 - DETERMINED,
                "published": "–" if formula is None else fixed(float(formula[u])),
            }
        looking = " and ".join(names[v] for v in who)
        known = [names[u] for u in each if rows[u]["determined"]]
        computes = f"the noisy value of {', '.join(known)}" if known else "nobody's noisy value"
        order = sorted(each, key=lambda u: (losses[u], shares[u]))
        worst, typical = order[-1], order[(len(order) - 1) // 2]
        summary = (
            f"{looking} {'together learn' if len(who) > 1 else 'learns'} most of {names[worst]}: epsilon "
            f"{rows[worst]['epsilon']} at delta {number(self.setting.delta, 'delta')} "
            f"({rows[worst]['label']}); the best guess is right {wording.guess(each[worst].best_guess)}. Of "
            f"a typical participant, {names[typical]}: epsilon {rows[typical]['epsilon']}; the best guess is "
            f"right {wording.guess(each[typical].best_guess)}."
        )
        return {
            "observers": list(who),
            "rounds": self.protocol.rounds,
            "rows": rows,
            "looking": looking,
            "summary": summary,
            "computes": f"{looking} can compute {computes}.",
            "worst": worst,
            "typical": typical,
        }

    def matrix(self) -> dict[str, Any]:
        """Return who learns what of whom: shares as text and as numbers, ``[user][observer]``."""
        shares = np.array([self._shares((v,)) for v in range(self.network.n)]).T
        own = np.eye(self.network.n, dtype=bool)
        values = np.where(own, np.nan, np.minimum(shares, 1.0).round(4)).tolist()
        return {
            "values": [[None if math.isnan(x) else x for x in row] for row in values],
            "shown": [[fixed(x, "share") for x in row] for row in np.where(own, np.nan, shares).tolist()],
        }

    # ---- inside -------------------------------------------------------------------------------------------

    def _shares(self, who: tuple[int, ...], each: Mapping[int, Guarantee] | None = None) -> np.ndarray:
        """Return (n,) the share of (one step's) local privacy that is lost; 1 where nothing hides it.

        ``each`` are the guarantees against these observers: those of one Gaussian release hold the shares,
        which saves a second view.
        """
        shares = np.zeros(self.network.n)
        if each is not None and self.plan.query_kind == "value":
            if all(g.label == "exact" and g.curve.is_gaussian for g in each.values()):
                ratio = 2 * self.plan.radius / self.plan.noise_std
                shares[list(each)] = [(g.mu / ratio) ** 2 for g in each.values()]
                return shares
        if self.plan.observation.exact_pairs:
            if who not in self._leakage:
                self._leakage[who] = np.asarray(self.protocol.view(set(who)).leakage())
            return self._leakage[who]
        return np.where(np.isin(np.arange(self.network.n), who), 0.0, 1.0)

    def _published(self, who: Sequence[int]) -> np.ndarray | None:
        """Return equation (6) of the Muffliato paper, added over the coalition, where one was printed."""
        if self.protocol.name not in PUBLISHED_FOR or not self.plan.observation.single_averaging:
            return None
        if len({release.noise_std for u in range(self.plan.n) for release in self.plan.releases(u)}) > 1:
            return None  # the formula is for one noise for all
        table = _published_table(self.protocol, self.network)
        return np.asarray(table[:, list(who)].sum(axis=1))


def offline(model: ExplorerModel, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Return everything an offline page shows: all observers and rounds, up to 32 nodes all pairs too.

    Rows that are equal are held once; a view is a list of their numbers.
    """
    n = model.network.n
    groups: list[tuple[int, ...]] = [(v,) for v in range(n)]
    if 2 < n <= PAIRS:
        groups += list(combinations(range(n), 2))
    rounds = range(1, model.most_rounds + 1) if model.adjustable else [model.protocol.rounds]
    rows: dict[str, int] = {}
    distinct: list[dict[str, Any]] = []
    views: dict[str, Any] = {}
    matrices: dict[str, Any] = {}
    for done, t in enumerate(rounds, 1):
        then = model.at(t)
        for who, view in zip(groups, then.views(groups), strict=True):
            numbers = []
            for row in view["rows"]:
                content = {key: value for key, value in row.items() if key not in ("name", "looks")}
                key = repr(sorted(content.items(), key=lambda item: item[0]))
                if key not in rows:
                    rows[key] = len(distinct)
                    distinct.append(content)
                numbers.append(rows[key])
            short = {key: view[key] for key in ("observers", "rounds", "summary", "computes", "looking")}
            views[f"{t}|{','.join(map(str, who))}"] = short | {"rows": numbers}
        matrices[str(t)] = then.matrix() if n <= 64 else None
        if progress is not None:
            progress(done)
    return {
        "scene": model.scene(),
        "rows": distinct,
        "views": views,
        "matrices": matrices,
    }


@lru_cache(maxsize=4096)
def _epsilon(curve: Curve, delta: float) -> float:
    return float(curve.epsilon(delta))


def _epsilons(curves: Sequence[Curve], delta: float) -> list[float]:
    """Return every epsilon; those of Gaussian curves together, which is a hundred times quicker."""
    if all(curve.is_gaussian for curve in curves):
        epsilons: list[float] = gaussian_epsilons([curve.mu for curve in curves], delta).tolist()
        return epsilons
    return [_epsilon(curve, delta) for curve in curves]


@lru_cache(maxsize=64)
def _published_table(protocol: Protocol, network: Network) -> np.ndarray:
    # accelerated gossip has the messages of plain gossip, recombined: the formula is evaluated on those
    if protocol.name == "randomized":
        return np.asarray(published_loss(protocol))
    return np.asarray(published_loss(network, rounds=protocol.rounds))


def answered(model: ExplorerModel, what: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return one answer of a live page: scene, view or matrix."""
    if what == "scene":
        return model.scene()
    if what == "matrix":
        if model.network.n > 256:
            raise Refused(f"The matrix of {model.network.n:,} nodes is too large for a page; at most 256.")
        return model.matrix()
    observers = query.get("observers")
    if not isinstance(observers, list) or not observers or not all(type(v) is int for v in observers):
        raise InvalidInput(f"observers are node numbers, got {str(observers)[:80]}.")
    if what == "view":
        return model.view(observers)
    raise SottovoceError(f"There is nothing called {what[:40]!r} here.")
