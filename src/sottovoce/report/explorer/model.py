"""What the explorer shows: settings in, numbers and sentences out, all of them from the one accountant.

`ExplorerSettings` is what a person chooses on the page: graph, protocol, rounds, noise. `ExplorerModel` is
the plan that the settings describe, and computes what the page shows: what a coalition learns of everybody,
the matrix of who learns what of whom, the course over rounds, error, cost and the plan file. Numbers become
text here, so that the page has nothing to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sottovoce import graphs
from sottovoce._format import fixed, number, rounded
from sottovoce._io import to_toml
from sottovoce.accounting import wording
from sottovoce.accounting.accountant import account_each
from sottovoce.accounting.curve import Curve
from sottovoce.accounting.gaussian import gaussian_epsilons
from sottovoce.accounting.guarantee import Guarantee
from sottovoce.accounting.observation.coalitions import shares_to
from sottovoce.accounting.published.exact_comparison import PUBLISHED_FOR, missing_links
from sottovoce.accounting.published.formulas import published_loss
from sottovoce.advice.usefulness import usefulness
from sottovoce.algorithms import PrivateAveraging
from sottovoce.algorithms.build import plan_options
from sottovoce.errors import ConfigError, InvalidInput, Refused, SottovoceError
from sottovoce.graphs import Network
from sottovoce.leakage.view import DETERMINED
from sottovoce.protocols import Masked, NamedProtocol, Protocol, parse
from sottovoce.report.figures import layout

PAIRS = 32  # nodes up to which an offline page holds every pair of colluders
COMBINED = 32  # nodes up to which the combinations that are known are listed
NODES = 600  # nodes that a page draws
ROUNDS = 400
# options of a protocol that the page can set, and the settings that hold them
_OPTIONS = {"kind": "tree", "fresh": "fresh", "tolerate": "tolerate", "partners": "partners"}


class ExplorerSettings(BaseModel):
    """What is chosen on the page.

    ``edges`` (with ``names``) is a graph that was drawn; ``graph`` a graph by name; neither of them the
    graph of the file that was opened.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    graph: str | None = Field(None, max_length=200)
    edges: tuple[tuple[int, int], ...] | None = None
    names: tuple[str, ...] | None = None
    positions: tuple[tuple[float, float], ...] | None = None
    protocol: str = Field("gossip", max_length=40)
    rounds: int | None = Field(None, ge=1, le=ROUNDS)
    tree: str = Field("bfs", max_length=20)
    fresh: float = Field(0.1, gt=0, le=100)
    partners: int | None = Field(None, ge=1)
    tolerate: int = Field(1, ge=1)
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
            message = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
            raise ConfigError(f"{place}: input {message}, got {first['input']!r}.") from None

    @property
    def named(self) -> str:
        """The protocol as `sottovoce.protocols.parse` reads it."""
        parts = [self.protocol]
        if self.rounds is not None and parse(self.protocol).takes_rounds:
            parts.append(str(self.rounds))
        if self.protocol in ("tree", "masked") and self.tree != "bfs":
            parts.append(f"kind={self.tree}")
        if self.protocol == "fresh-noise":
            parts.append(f"fresh={self.fresh:g}")
        if self.protocol == "masked":
            parts.append(f"tolerate={self.tolerate}")
            parts += [] if self.partners is None else [f"partners={self.partners}"]
        return ":".join(parts)


@dataclass(frozen=True)
class Opened:
    """A plan that was opened from a file, with the tables of the file where it is a plan file."""

    plan: Any
    network: Network
    title: str = ""
    delta: float = 1e-5
    tables: Mapping[str, Any] | None = None
    protocol: str | None = None

    @cached_property
    def named(self) -> NamedProtocol:
        """The protocol by name."""
        return parse(self.protocol or self.plan.schedule(0).name)

    @cached_property
    def setting(self) -> ExplorerSettings:
        """The setting of the page as the file has it."""
        plan, protocol = self.plan, self.plan.schedule(0)
        if protocol.adds_noise:
            raise ConfigError(
                f"The explorer shows protocols in which a row enters once, not a {protocol.name}; sottovoce "
                "plan computes the privacy cost of such an average."
            )
        seed = plan.seed if "seed" in plan_options(plan.name) else 0
        options: dict[str, Any] = {"protocol": self.named.name, "delta": self.delta, "seed": int(seed or 0)}
        if isinstance(plan.noise_multiplier, (int, float)) and plan.noise_multiplier > 0:
            options["noise"] = float(plan.noise_multiplier)
        if self.named.takes_rounds:
            options["rounds"] = min(protocol.rounds, ROUNDS)
        options |= {_OPTIONS[key]: value for key, value in self.named.options if key in _OPTIONS}
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
        opened = Opened(plan, network, tables={"network": {"graph": target}}, protocol="gossip")
    else:
        return ExplorerModel(ExplorerSettings.read({"graph": target, **chosen}))
    settings = opened.setting
    if chosen:
        settings = ExplorerSettings.read({**settings.model_dump(), **chosen})
    return ExplorerModel(settings, opened)


def open_plan(path: Path) -> Opened:
    """Return the plan of a plan file, or of an agreement."""
    from sottovoce.planfile.read import load_file, read_toml

    tables = read_toml(path)
    if "members" in tables:
        from sottovoce.peers.agreement import read_agreement

        agreement = read_agreement(path)
        if agreement.timing.late != "wait":
            raise ConfigError(
                f"Peers of {path.name} may leave out exchanges, which can tell a neighbor more than the "
                "schedule does, so only the local guarantee holds; sottovoce peer check prints it."
            )
        network = replace(agreement.network, node_names=tuple(member.name for member in agreement.members))
        protocol, delta = agreement.algorithm.protocol, agreement.budget.delta
        return Opened(agreement.plan, network, agreement.title, delta, protocol=protocol)
    loaded = load_file(path)
    settings = loaded.settings
    if loaded.network is None:
        raise ConfigError(
            f"{path.name} runs over no network, so there is nobody to look; try one with [network]."
        )
    protocol = None
    if settings.protocol.name is not None:
        protocol = str(settings.protocol.named("gossip"))
    elif settings.train is None:
        protocol = "chebyshev"
    return Opened(loaded.plan, loaded.network, settings.title, loaded.delta, tables, protocol)


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
        chosen = self.setting
        if chosen.edges is not None:
            network = graphs.parse(_edge_list(chosen.edges))
        elif chosen.graph is not None:
            network = graphs.parse(chosen.graph)
        elif self.opened is not None:
            network = self.opened.network
        else:
            raise ConfigError('A setting needs a graph by name, such as "ring:8", or edges.')
        if network.n > NODES:
            raise Refused(f"A page draws at most {NODES} nodes, got {network.n:,}; use `sottovoce account`.")
        if chosen.names is None:
            return network
        if len(chosen.names) != network.n:
            count = f"{network.n} nodes and {len(chosen.names)} names"
            raise ConfigError(f"There are {count}; give one each.")
        return replace(network, node_names=chosen.names)

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
        if opened is None:
            base: dict[str, Any] = {"radius": 0.5, "center": 0.5}
        elif chosen == opened.setting:
            return opened.plan
        elif opened.plan.query_kind == "value":
            base = {key: getattr(opened.plan, key) for key in ("radius", "center", "dim", "adjacency")}
        else:
            changed |= {"protocol": chosen.named}
            only_noise = chosen.model_copy(update={"noise": opened.setting.noise}) == opened.setting
            try:
                return replace(opened.plan, **({} if only_noise else changed)).with_noise(chosen.noise)
            except TypeError:
                raise ConfigError(f"{opened.plan.name} has no protocol that could be changed.") from None
        return PrivateAveraging(chosen.named, noise_std=chosen.noise * base["radius"], **base, **changed)

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

    @cached_property
    def adjustable(self) -> bool:
        """Whether the number of rounds is a choice of the page, which must know all other options."""
        named = parse(self.setting.protocol)
        if self.opened is not None and self.opened.named.name == named.name:
            named = self.opened.named
        return named.takes_rounds and {key for key, _ in named.options} <= _OPTIONS.keys()

    @cached_property
    def most_rounds(self) -> int:
        """The end of the slider: where the theory stops, or the rounds of the setting."""
        if not self.adjustable:
            return self.protocol.rounds
        named = replace(parse(self.setting.named), rounds=None)
        theory = named.at(self.network, seed=self.setting.seed).rounds
        return min(ROUNDS, max(theory, self.protocol.rounds))

    # ---- what is shown ------------------------------------------------------------------------------------

    def scene(self) -> dict[str, Any]:
        """Return the graph and what is true for every observer: error, cost, the local privacy cost."""
        plan, protocol, network = self.plan, self.protocol, self.network
        delta, opened = self.setting.delta, self.opened
        local, use, cost = plan.privacy("local"), usefulness(plan), plan.cost()
        partners = protocol.partner_edges if isinstance(protocol, Masked) else None
        positions = self.setting.positions
        if positions is None or len(positions) != network.n:
            positions = layout(network.edges.tolist(), network.n).round(5).tolist()
        size = f", {number(cost['bytes'])} bytes" if "bytes" in cost else ""
        return {
            "setting": self.setting.model_dump(mode="json", exclude={"positions"}),
            "title": opened.title if opened is not None else "",
            "graph": network.name,
            "n": network.n,
            "names": self.names,
            "edges": network.edges.tolist(),
            "partners": None if partners is None or len(partners) > 2000 else partners.tolist(),
            "positions": [list(point) for point in positions],
            "protocol": protocol.name,
            "algorithm": plan.name,
            "steps": plan.steps,
            "rounds": protocol.rounds,
            "most_rounds": self.most_rounds,
            "adjustable": self.adjustable,
            "can_draw": plan.query_kind == "value" and (opened is None or opened.tables is not None),
            "delta": number(delta, "delta"),
            "adjacency": wording.adjacency(plan.adjacency, noun="participant"),
            "local": {
                "epsilon": fixed(local.epsilon(delta), "epsilon"),
                "words": wording.guess(local.best_guess),
            },
            "useful": {"verdict": use.verdict, "words": use.sentence},
            "noise": number(float(self.setting.noise), "noise"),
            "error": None if use.off is None else number(use.off),
            "cost": f"{number(cost['rounds'])} rounds, {number(cost['messages'])} messages{size}",
            "notes": missing_links(network, protocol),
            "by_hand": self.savable,
        }

    @property
    def savable(self) -> bool:
        """Whether a plan file can say this plan: an agreement of training has no plan file."""
        return self.opened is None or self.plan.query_kind == "value" or self.opened.tables is not None

    def view(self, observers: Iterable[int]) -> dict[str, Any]:
        """Return what a coalition learns of everybody: one row per node, and the whole in a sentence."""
        who = tuple(sorted(set(observers)))
        if len(who) >= self.network.n:
            raise InvalidInput("Everybody colludes, so nobody is left to protect; let fewer collude.")
        return self.views([who])[0]

    def views(self, groups: Sequence[tuple[int, ...]]) -> list[dict[str, Any]]:
        """Return `view` of several coalitions; their epsilons are computed together."""
        delta, ratio = self.setting.delta, self._ratio
        looks, curves, mus = [], [], [np.zeros(0)]
        for who in groups:
            each, formula = account_each(self.plan, who), self._published(who)
            if ratio is not None and all(g.label == "exact" and g.curve.is_gaussian for g in each.values()):
                shares = np.zeros(self.network.n)  # the accountant's own, without a second view
                shares[list(each)] = [(g.mu / ratio) ** 2 for g in each.values()]
            else:
                shares = self._shares(who)
            looks.append((who, each, shares, formula))
            curves += [stated.curve for stated in each.values()]
            if formula is not None and ratio is not None:
                mus.append(ratio * np.sqrt(np.maximum(formula[list(each)], 0.0)))
        exact = iter(_epsilons(curves, delta))
        printed = iter(gaussian_epsilons(np.concatenate(mus), delta).tolist())
        views = []
        for who, each, shares, formula in looks:
            losses = {u: next(exact) for u in each}
            published = {} if formula is None else {u: next(printed) for u in each}
            views.append(self._shown(who, each, shares, losses, formula, published))
        return views

    def _shown(
        self,
        who: tuple[int, ...],
        each: Mapping[int, Guarantee],
        shares: np.ndarray,
        losses: Mapping[int, float],
        formula: np.ndarray | None,
        published: Mapping[int, float],
    ) -> dict[str, Any]:
        """Return a view as the page shows it; ``losses`` and ``published`` are epsilons."""
        names = self.names
        rows: list[dict[str, Any]] = [{"name": name, "looks": True, **_NOTHING} for name in names]
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
                "published_epsilon": "–" if formula is None else fixed(published[u]),
            }
        looking = " and ".join(names[v] for v in who)
        learns = f"{looking} together learn" if len(who) > 1 else f"{looking} learns"
        computes = "can compute nobody's noisy value"
        if known := [row["name"] for row in rows if row["determined"]]:
            *first, last = known
            computes = f"can compute the noisy value of {' and '.join([', '.join(first), last][not first :])}"
        mixed = self._combined(who)
        order = sorted(each, key=lambda u: (losses[u], shares[u]))
        worst, typical = order[-1], order[(len(order) - 1) // 2]
        summary = (
            f"{learns} most of {names[worst]}: epsilon {rows[worst]['epsilon']} at delta "
            f"{number(self.setting.delta, 'delta')} ({rows[worst]['label']}); the best guess is right "
            f"{wording.guess(each[worst].best_guess)}. Of a typical participant, {names[typical]}: epsilon "
            f"{rows[typical]['epsilon']}; the best guess is right {wording.guess(each[typical].best_guess)}."
        )
        return {
            "observers": list(who),
            "rounds": self.protocol.rounds,
            "rows": rows,
            "looking": looking,
            "summary": summary,
            "computes": f"{looking} {computes}" + (f", and {mixed}." if mixed else "."),
            "worst": worst,
            "typical": typical,
        }

    def matrix(self) -> dict[str, Any]:
        """Return who learns what of whom: shares as text and as numbers, ``[user][observer]``."""
        shares = np.array([self._shares((v,)) for v in range(self.network.n)]).T.tolist()
        rows = [[None if u == v else share for v, share in enumerate(row)] for u, row in enumerate(shares)]
        values = [[None if share is None else round(min(share, 1.0), 4) for share in row] for row in rows]
        return {"values": values, "shown": [[fixed(share, "share") for share in row] for row in rows]}

    def course(self, observers: Iterable[int]) -> dict[str, Any]:
        """Return the worst and the mean share against rounds, beside the formula's mean."""
        who = tuple(sorted(set(observers)))
        if not self.adjustable:
            return {"rounds": [], "worst": [], "mean": [], "published": None, "words": ""}
        rounds = sorted(set(np.linspace(1, self.most_rounds, min(self.most_rounds, 40)).astype(int).tolist()))
        others = [u for u in range(self.network.n) if u not in who]
        course: dict[str, Any] = {"rounds": rounds, "worst": [], "mean": [], "published": []}
        for t in rounds:
            then = self.at(t)
            h, formula = then._shares(who)[others], then._published(who)
            course["worst"].append(float(rounded(h.max(initial=0.0), "share", places=5)))
            course["mean"].append(float(rounded(h.mean(), "share", places=5)))
            if formula is None:
                course["published"] = None
            else:
                course["published"].append(round(float(np.minimum(formula[others], 1.0).mean()), 5))
        worst, mean = (fixed(course[key][-1], "share") for key in ("worst", "mean"))
        words = f"After {rounds[-1]} rounds the worst share is {worst}, the mean {mean}"
        if course["published"] is not None:
            last = fixed(course["published"][-1])
            words += f", and the published formula (shown at most as 1) says {last}"
        return course | {"words": words + "."}

    def plan_text(self) -> str:
        """Return the plan file with the same privacy cost; ``sottovoce plan`` reads it."""
        if not self.savable:
            raise ConfigError("An agreement of training has no plan file: its records stay with the members.")
        chosen, opened, plan = self.setting, self.opened, self.plan
        tables: dict[str, Any] = {"version": 1, "title": "From the explorer"}
        tables |= (opened.tables or {}) if opened is not None else {}
        unchanged = opened is not None and chosen == opened.setting
        if chosen.edges is not None or chosen.graph is not None:
            tables["network"] = {"graph": chosen.graph if chosen.edges is None else _edge_list(chosen.edges)}
        elif "network" not in tables:  # an agreement of averages
            tables["network"] = {"graph": _edge_list(self.network.edges.tolist()), "names": self.names}
        if chosen.names is not None:
            tables["network"] = tables["network"] | {"names": list(chosen.names)}
        if not unchanged or "protocol" not in tables:
            protocol = {"name": chosen.named, "seed": chosen.seed}
            if parse(chosen.protocol).takes_rounds:
                protocol |= {"name": chosen.protocol, "rounds": self.protocol.rounds}
                protocol |= {"fresh": chosen.fresh} if chosen.protocol == "fresh-noise" else {}
            tables["protocol"] = protocol
        seed = (tables.get("noise") or {}).get("seed")
        tables["noise"] = {"noise_multiplier": chosen.noise} | ({} if seed is None else {"seed": seed})
        if plan.query_kind == "value" and "average" not in tables:
            tables["average"] = {"radius": plan.radius, "center": plan.center, "adjacency": "user"}
            if plan.dim != 1:
                tables["average"]["dim"] = plan.dim
        return to_toml(tables)

    # ---- inside -------------------------------------------------------------------------------------------

    def _shares(self, who: tuple[int, ...]) -> np.ndarray:
        """Return (n,) the share of (one step's) local privacy that is lost; 1 where nothing hides it."""
        if who not in self._leakage:
            shares = shares_to(self.plan, who, self.protocol)
            if shares is None:
                shares = np.ones(self.network.n)
                shares[list(who)] = 0.0
            self._leakage[who] = shares
        return self._leakage[who]

    def _published(self, who: Sequence[int]) -> np.ndarray | None:
        """Return equation (6) of the Muffliato paper, added over the coalition, where one was printed."""
        if (
            self.protocol.name not in PUBLISHED_FOR
            or not self.plan.observation.single_averaging
            or self._ratio is None
        ):
            return None
        table = _published_table(self.protocol, self.network)
        return np.asarray(table[:, list(who)].sum(axis=1))

    @cached_property
    def _ratio(self) -> float | None:
        """Sensitivity over noise of a release, where everybody has one and all are alike."""
        if self.plan.query_kind != "value":
            return None
        releases = [release for u in range(self.plan.n) for release in self.plan.releases(u)]
        first = releases[0]
        alike = {(r.sensitivity, r.noise_std) for r in releases} == {(first.sensitivity, first.noise_std)}
        return first.sensitivity / first.noise_std if alike and first.noise_std else None

    def _combined(self, who: tuple[int, ...]) -> str:
        """Return the combinations of several values that one observer knows, the shortest first, in words."""
        if len(who) > 1 or self.network.n > COMBINED or not self.plan.observation.single_averaging:
            return ""
        protocol = self.protocol
        if not protocol.linear or protocol.masked or protocol.fresh_std or parse(protocol.name).drawn:
            return ""
        from sottovoce.attacks.gossip import gossip_attack

        known = sorted(gossip_attack(protocol, who).combinations, key=lambda c: len(c.coefficients))
        if not known:
            return ""
        texts = [one.named(self.names) for one in known[:3]]
        more = f" and {len(known) - 3} more" if len(known) > 3 else ""
        kinds = "combination" if len(known) == 1 else "combinations"
        return f"{len(known)} {kinds} of the others ({'; '.join(texts)}{more})"


# the row of a node that looks
_NOTHING = {"value": None, "label": "", "words": "looks", "determined": False} | dict.fromkeys(
    ("share", "epsilon", "published", "published_epsilon"), "–"
)


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
        then = model.at(t) if model.adjustable else model
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
        "courses": {str(v): model.course([v]) for v in range(n)} if model.adjustable else {},
        "plan": model.plan_text() if model.savable else None,
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


def _edge_list(edges: Iterable[Sequence[int]]) -> str:
    return "edges:" + ",".join(f"{u}-{v}" for u, v in edges)


def answered(model: ExplorerModel, what: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return one answer of a live page: scene, view, course, matrix or plan."""
    if what == "scene":
        return model.scene()
    if what == "plan":
        return {"text": model.plan_text()}
    if what == "matrix":
        if model.network.n > 256:
            raise Refused(f"The matrix of {model.network.n:,} nodes is too large for a page; at most 256.")
        return model.matrix()
    observers = query.get("observers")
    if not isinstance(observers, list) or not observers or not all(type(v) is int for v in observers):
        raise InvalidInput(f"observers are node numbers, got {str(observers)[:80]}.")
    if what == "view":
        return model.view(observers)
    if what == "course":
        return model.course(observers)
    raise SottovoceError(f"There is nothing called {what[:40]!r} here.")
