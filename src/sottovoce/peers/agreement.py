"""The agreement: one TOML file that fixes everything a run does, and whose hash is the run's name.

Members, graph, protocol, algorithm and its constants, model, clipping, noise, deadlines, data and budget are
all in it. Every member signs the hash; a peer runs only what all have signed. Two agreements that differ
in anything but layout, comments and signatures have different names, and their peers do not talk.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from sottovoce import graphs
from sottovoce._io import atomic_write, to_toml
from sottovoce.accounting.budget import Budget
from sottovoce.data.tables import Columns, Scale
from sottovoce.errors import ConfigError, DataError, IdentityError, SottovoceError
from sottovoce.peers.agreement_plan import agreed_plan
from sottovoce.peers.identity import (
    MEMBER_NAME,
    Identity,
    check_certificate,
    common_name,
    fingerprint,
    make_identity,
    verify,
)
from sottovoce.peers.run_keys import make_mask_key, mask_statement
from sottovoce.secure_sum.keys import session_hash

# What others wrote is shown before it is signed: no control characters that could repaint the price.
OUTBOUND = "outbound"  # the address of a member that nobody can call: it calls the others
_ADDRESS = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]{2,60}\]):([0-9]{1,5})")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _as_float(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Number = Annotated[
    Any, BeforeValidator(_as_float)
]  # 1 and 1.0 have one name; the plan judges what else it is
Count = Annotated[int, Field(ge=1, le=10_000_000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Member(_Part):
    """One organization: its name, where its peer listens (or "outbound"), and its certificate."""

    name: str
    address: str
    certificate: str
    fingerprint: str

    @model_validator(mode="after")
    def _consistent(self) -> Member:
        if not MEMBER_NAME.fullmatch(self.name):
            raise ValueError(
                "a member's name has lower-case letters, digits and hyphens, at most 63, got "
                f"{self.name[:80]!r}"
            )
        pem = self.certificate.encode()
        try:
            if fingerprint(pem) != self.fingerprint:
                raise ValueError(f"the fingerprint of {self.name} is not that of the certificate given")
            if common_name(pem) != self.name:
                raise ValueError(f"the certificate of {self.name} was made for {common_name(pem)!r}")
        except ValueError as error:
            if "PEM" in str(error) or "asn1" in str(error).lower():
                raise ValueError(f"the certificate of {self.name} cannot be read") from None
            raise
        if self.address != OUTBOUND:
            check_address(self.address, f"the address of {self.name}")
        return self

    @property
    def reachable(self) -> bool:
        """Whether others can call this member; else it calls them."""
        return self.address != OUTBOUND


class AlgorithmPart(_Part):
    """What is computed: an algorithm of the registry, its protocol, and any plain options of its plan.

    The fields here are those every agreement states or most use; an option that only one algorithm has
    (``rho``, ``average_from``) is written beside them and checked by that algorithm's plan.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str
    adjacency: Any
    clip_norm: Number
    noise_multiplier: Number
    protocol: str | None = None
    steps: Any = None
    learning_rate: Any = None
    batch_size: Number = None
    sample_rate: Number = None

    @model_validator(mode="after")
    def _ends(self) -> AlgorithmPart:
        if isinstance(self.steps, int) and self.steps > 10_000_000:
            raise ValueError(f"steps must be at most 10,000,000 in an agreement, got {self.steps}")
        return self

    @property
    def stated(self) -> dict[str, Any]:
        """What the file says, by name; what it leaves out is the plan's default."""
        return self.model_dump(exclude_unset=True)


class ModelPart(_Part):
    """What the numbers are: a plain mean, a linear model, or a network.

    A network is one of the package's zoo (``net``), or the members' own: ``module = "mynet:build"`` with the
    SHA-256 of its file and of the weights it starts from. The files themselves are supplied by each member
    locally and never travel.
    """

    kind: Literal["mean", "logistic", "squared", "net"]
    parameters: Count
    dtype: Literal["float64", "float32"] | None = None
    net: str = ""
    module: str = ""
    module_sha256: str = ""
    weights_sha256: str = ""
    loss: str = ""
    options: dict[str, int] = {}
    classes: Annotated[int, Field(ge=3, le=100_000)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> ModelPart:
        if (self.kind == "net") != bool(self.net or self.module) or (self.net and self.module):
            raise ValueError(
                'a model of kind \'net\' names its network in net = "..." or module = "mynet:build", others '
                "have none"
            )
        if bool(self.module) != bool(self.module_sha256) or bool(self.module) != bool(self.weights_sha256):
            raise ValueError(
                "a module of one's own is named with module_sha256 and weights_sha256, the digests of its "
                "file and of the weights it starts from"
            )
        for digest in (self.module_sha256, self.weights_sha256):
            if digest and not re.fullmatch("[0-9a-f]{64}", digest):
                raise ValueError("a SHA-256 is 64 hexadecimal digits, lower case")
        if self.module and not re.fullmatch("[A-Za-z0-9_]{1,60}:[A-Za-z0-9_]{1,60}", self.module):
            raise ValueError('a module is named "file:function", for example "mynet:build"')
        if self.classes is not None and self.kind != "logistic":
            raise ValueError("classes is for a logistic model of several classes; a network has its own")
        if self.loss and self.kind != "net":
            raise ValueError("loss is for networks; a linear model has its own")
        if self.kind == "net" and self.dtype == "float64":
            raise ValueError("networks compute in float32: dtype must be 'float32'")
        if self.kind in ("logistic", "squared") and self.dtype == "float32":
            raise ValueError("linear models compute in float64: dtype must be 'float64'")
        return self

    @property
    def number(self) -> Literal["float64", "float32"]:
        """The type of a number on the wire: single precision for networks."""
        return self.dtype or ("float32" if self.kind == "net" else "float64")


class DataPart(_Part):
    """Which columns (CSV) or arrays (NPZ) a member's file must have, and how they are read: public facts.

    With ``bounds`` every numeric column is clipped and scaled to [-1, 1]; ``categories`` list the values of
    columns that hold names, ``classes`` the names of the labels; ``intercept`` adds a last feature, one.
    """

    features: Annotated[tuple[str, ...], Field(strict=False)] = ()
    target: str = ""
    bounds: dict[str, Annotated[tuple[Finite, Finite], Field(strict=False)]] = {}
    categories: dict[str, Annotated[tuple[str, ...], Field(strict=False, min_length=1)]] = {}
    classes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    intercept: bool = False

    @model_validator(mode="after")
    def _fits(self) -> DataPart:
        known = (*self.features, self.target)
        for name in (*self.bounds, *self.categories):
            if name not in known:
                raise ValueError(f"{name!r} is not among the features")
        if self.bounds and set(self.features) - set(self.bounds) - set(self.categories):
            lacking = sorted(set(self.features) - set(self.bounds) - set(self.categories))[0]
            raise ValueError(f"bounds lacks {lacking!r}; it needs a pair for every numeric feature")
        if any(not low < high for low, high in self.bounds.values()):
            raise ValueError("bounds are pairs [low, high] with low < high")
        if len(self.classes) == 1 or len(set(self.classes)) < len(self.classes):
            raise ValueError("classes are two or more different names")
        return self

    @property
    def columns(self) -> Columns | None:
        """How rows become features; None where arrays are taken as they are."""
        if not self.features:
            return None
        numeric = [name for name in self.features if name not in self.categories]
        scales = {n: Scale.from_bounds(*self.bounds[n], n) for n in numeric if n in self.bounds}
        return Columns(self.features, scales, self.categories)


class BudgetPart(_Part):
    """The most each member may spend."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]


class TimingPart(_Part):
    """Seconds: before a row is asked for again, before its exchange is left out, before the run is given up.

    ``late = "drop"`` leaves an exchange out, at both ends and only if both agree, when a neighbor is later
    than ``deadline``; each then keeps its own row for it. ``"wait"`` waits. After every ``witness`` rows all
    members must hold the signed head of a member's ledger before it goes much further; with 1 before it draws
    anything more.

    With ``pace`` a peer takes what has come at the beginning of every span of that many seconds, and answers
    in its middle or in that of a later one: the time of an answer does not tell how long it took.
    """

    ask_again: Positive = 1.0
    late: Literal["wait", "drop"] = "wait"
    deadline: Positive = 60.0
    give_up: Positive = 600.0
    pace: Annotated[float, Field(ge=0.01, le=3600.0)] | None = None
    witness: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class Agreement(_Part):
    """A checked agreement.

    Examples
    --------
    `read_agreement` makes one from a file; `sottovoce peer agree` writes such a file.

    >>> sorted(name for name, part in Agreement.model_fields.items() if part.is_required())
    ['algorithm', 'budget', 'graph', 'members', 'model', 'title', 'version']
    """

    version: Literal[1]
    title: str
    graph: str
    algorithm: AlgorithmPart
    model: ModelPart
    budget: BudgetPart
    members: Annotated[tuple[Member, ...], Field(strict=False, min_length=2)]
    data: DataPart = DataPart()
    timing: TimingPart = TimingPart()
    relay: str = ""
    membership_version: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    continues: str = ""
    start: str = ""
    signatures: dict[str, str] = {}
    mask_keys: dict[str, str] = {}

    @model_validator(mode="after")
    def _fits(self) -> Agreement:
        shown = (("title", self.title, 200), ("graph", self.graph, 1_000_000))
        for field, text, most in (*shown, ("protocol", self.algorithm.protocol or "-", 200)):
            if not text or len(text) > most or not text.isprintable():
                raise ValueError(f"the {field} must be one line of at most {most:,} printable characters")
        names = [m.name for m in self.members]
        prints = [m.fingerprint for m in self.members]
        if len(set(names)) < len(names) or len(set(prints)) < len(prints):
            raise ValueError("every member needs a name and a certificate of its own")
        called = [m.address for m in self.members if m.reachable]
        if len(set(called)) < len(called):
            raise ValueError("every member needs an address of its own")
        if self.relay:
            check_address(self.relay, "the address of the relay")
        if self.network.n != len(names):
            raise ValueError(f"the graph {self.graph} has {self.network.n} nodes for {len(names)} members")
        if (
            self.data.features
            and self.model.kind == "mean"
            and len(self.data.features) != self.model.parameters
        ):
            raise ValueError("a mean has one parameter per feature")
        self._obeys_graph()
        width = None if self.data.columns is None else len(self.data.columns.names) + self.data.intercept
        if width is not None and self.model.kind in ("logistic", "squared"):
            wanted = width * (self.model.classes or 1)
            if self.model.parameters != wanted:
                raise ValueError(
                    f"parameters must be {wanted} for these features, got {self.model.parameters}"
                )
        if self.data.classes and self.model.kind == "logistic":
            if len(self.data.classes) != (self.model.classes or 2):
                raise ValueError(f"there are {len(self.data.classes)} classes; say so in the model's classes")
        protocol = self.plan.schedule(0)
        if self.timing.late == "drop" and not protocol.tolerates_dropout:
            raise ValueError(f"late = 'drop' needs plain gossip; over {protocol.name} peers must wait")
        for field, text in (("continues", self.continues), ("start", self.start)):
            if text and not re.fullmatch("[0-9a-f]{64}", text):
                raise ValueError(f"{field} must be 64 hexadecimal digits")
        if self.continues and not self.membership_version:
            raise ValueError(
                "what continues a run is a membership version of its own: membership version must be at "
                "least 1"
            )
        if self.start and not self.continues:
            raise ValueError("a start belongs to a membership version that continues a run")
        unknown = set(self.signatures) - set(names)
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]} signed but is not a member")
        unsigned = sorted(set(self.mask_keys) - set(self.signatures))
        if unsigned:
            raise ValueError(f"the mask key of {unsigned[0]} is not signed; keys come with signatures")
        if self.mask_keys and not self.masked:
            raise ValueError("mask keys are for masked sums; this protocol has none")
        for name, key in self.mask_keys.items():
            if not re.fullmatch("[0-9a-f]{64}", key):
                raise ValueError(f"the mask key of {name} must be 64 hexadecimal digits")
        return self

    def _obeys_graph(self) -> None:
        """Refuse a protocol that connects members who are no neighbors, and neighbors who cannot meet.

        Trees and walks go along edges by construction; the last step of a walk, and exchanges, are looked at.
        """
        edges = {(int(u), int(v)) for u, v in self.network.edges}
        plan = self.plan
        for k in {0, plan.steps - 1}:
            protocol = plan.schedule(k)
            for u in range(len(self.members)):
                local = protocol.local(u)
                looked = range(min(protocol.rounds, 2 * len(self.members) + 2))  # later ones repeat these
                for v in sorted({v for t in looked for v in local.sends(t)}):
                    if (min(u, v), max(u, v)) not in edges:
                        raise ValueError(
                            f"{protocol.name} connects {self.members[u].name} with {self.members[v].name}, "
                            f"who are no neighbors in {self.graph[:80]}; take a graph that has this edge, "
                            "or a tree"
                        )
        apart = [(u, v) for u, v in sorted(edges) if not self._meet(u, v)]
        if apart:
            u, v = apart[0]
            raise ValueError(
                f"{self.members[u].name} and {self.members[v].name} are neighbors and both outbound, so "
                "neither can call the other; give one an address, or add the line relay = 'host:port'"
            )

    def _meet(self, u: int, v: int) -> bool:
        return bool(self.relay) or self.members[u].reachable or self.members[v].reachable

    def neighbors(self, node: int) -> tuple[int, ...]:
        """Return the members that may talk to ``node``: its neighbors in the graph."""
        neighbors_after = {int(v) for u, v in self.network.edges if u == node}
        return tuple(sorted(neighbors_after | {int(u) for u, v in self.network.edges if v == node}))

    @cached_property
    def network(self) -> graphs.Network:
        """The graph, with its weights."""
        if self.graph.startswith("file:"):
            raise ValueError("the graph must be in the agreement itself; list its edges as 'edges:0-1,1-2'")
        if self.graph.startswith("edges:"):
            return _edge_list(self.graph, len(self.members))
        return graphs.parse(self.graph)

    @cached_property
    def plan(self) -> Any:
        """The plan: what runs, what it costs; the same at every member."""
        return agreed_plan(self.network, self.algorithm.stated, self.model.model_dump(), self.seed)

    @property
    def seed(self) -> int:
        """Public chance: the run's name as a number."""
        return int.from_bytes(self.run, "big")

    @property
    def canonical(self) -> bytes:
        """The content without signatures and mask keys, independent of layout: what is hashed and signed.

        What the file leaves unsaid is not in it, so an option that a later version adds changes no name.
        """
        content = self.model_dump(mode="json", exclude={"signatures", "mask_keys"}, exclude_unset=True)
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @cached_property
    def run(self) -> bytes:
        """The 32 bytes that name the run."""
        return hashlib.sha256(b"sottovoce agreement 2\n" + self.canonical).digest()

    @property
    def masked(self) -> bool:
        """Whether sums are masked, so that every signature brings a key."""
        return self.plan.grid is not None

    @property
    def publics(self) -> list[bytes | None]:
        """Every member's mask key, in the members' order; None for those who have not signed."""
        keys = (self.mask_keys.get(member.name) for member in self.members)
        return [None if key is None else bytes.fromhex(key) for key in keys]

    @cached_property
    def session(self) -> bytes:
        """What names the wires and the ledger: the run, and with masks all members' keys as well.

        Two members who hold different keys of a third do not talk: their masks would not cancel.
        """
        if not self.masked or None in self.publics:
            return self.run
        keys = {member.name: bytes.fromhex(self.mask_keys[member.name]) for member in self.members}
        return session_hash(self.run, self.membership_version, keys)

    def signed_content(self, name: str) -> bytes:
        """Return the bytes that the member ``name`` signs: the run, with its mask key where there is one."""
        if not self.masked:
            return self.run
        return mask_statement(self.run, self.membership_version, bytes.fromhex(self.mask_keys.get(name, "")))

    @property
    def member_budget(self) -> Budget:
        """The budget of every member: local view, with masks against as many members as are tolerated."""
        return Budget(self.budget.epsilon, self.budget.delta, adjacency=self.algorithm.adjacency)

    @property
    def witness(self) -> int:
        """After how many rows all members must hold a ledger's head; rarer among many, who all answer."""
        return self.timing.witness or 32 * max(1, len(self.members) // 8) ** 2

    def index(self, name: str) -> int:
        """Return a member's number."""
        for number, member in enumerate(self.members):
            if member.name == name:
                return number
        raise ConfigError(f"{name} is not a member of this agreement; its members are {self._names()}.")

    def require_signatures(self, *, where: str = "the agreement") -> None:
        """Raise unless every member has signed exactly this agreement, with a certificate valid today."""
        for member in self.members:
            signature = self.signatures.get(member.name)
            if signature is None:
                raise ConfigError(
                    f"{where} is not signed by {member.name}; every member signs with `peer agree`."
                )
            if self.masked and member.name not in self.mask_keys:
                raise ConfigError(
                    f"{where} has no mask key of {member.name}; its sums are masked, so {member.name} signs "
                    "again with `peer agree`."
                )
            check_certificate(member.certificate.encode(), f"of {member.name} in {where}")
            try:
                raw = bytes.fromhex(signature)
            except ValueError:
                raw = b""
            if not verify(member.certificate.encode(), raw, self.signed_content(member.name)):
                raise IdentityError(
                    f"The signature of {member.name} is not for this text: {where} was changed after "
                    "signing; sign it again."
                )
        _ = self.session  # two members with one key are refused

    def _names(self) -> str:
        return ", ".join(m.name for m in self.members)


def check_address(address: str, whose: str) -> str:
    """Return a host and port that can be called, or raise ``ValueError``."""
    host_and_port = _ADDRESS.fullmatch(address)
    if host_and_port is None or not 0 < int(host_and_port[2]) < 65536:
        raise ValueError(f"{whose} must be host:port, got {address[:80]!r}")
    return address


def read_agreement(path: str | Path) -> Agreement:
    """Read and check an agreement file; every error names the file.

    Examples
    --------
    >>> read_agreement("none.toml")
    Traceback (most recent call last):
    sottovoce.errors.ConfigError: The agreement none.toml cannot be read (No such file or directory).
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"The agreement {path} cannot be read ({error.strerror}).") from None
    if len(raw) > 4_000_000:
        raise ConfigError(f"The agreement {path} is larger than 4 MB; that is not an agreement.")
    return parse_agreement(raw, str(path))


def parse_agreement(raw: bytes, where: str) -> Agreement:
    """Return the agreement in ``raw``, TOML."""
    other = _kind(raw)
    if other:
        raise ConfigError(f"{where} is {other}, not an agreement; `sottovoce peer agree` writes agreements.")
    try:
        content = tomllib.loads(raw.decode())
        if content.get("version") != 1:
            raise ConfigError(_version_error(content.get("version")))
        if "members" not in content:
            raise ConfigError(
                "it has no [[members]], so it is a draft or a plan file; `peer agree` with --member "
                "and --out makes an agreement of a draft."
            )
        return Agreement.model_validate(content)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} is not valid TOML: {error}.") from None
    except ValidationError as error:
        raise ConfigError(f"{where}: {_sentence(error)}.") from None
    except SottovoceError as error:
        raise ConfigError(f"{where}: {error}") from None


def sign_agreement(path: str | Path, identity: Identity, secrets: str | Path | None = None) -> Agreement:
    """Add the signature of ``identity`` to the file; the text above it stays as it is.

    With masked sums the signature brings a fresh mask key; its private half is kept in the folder ``secrets``
    (the identity's own, on the command line), for the owner only, until the run begins.

    Examples
    --------
    >>> file, (ada, bo) = example_agreement()
    >>> sorted(sign_agreement(file, ada).signatures)
    ['ada']
    """
    path = Path(path)
    agreement = read_agreement(path)
    member = agreement.members[agreement.index(identity.name)]
    if member.fingerprint != identity.fingerprint:
        raise IdentityError(
            f"{path} lists another certificate for {identity.name} ({member.fingerprint[:16]}) than this "
            f"identity's ({identity.fingerprint[:16]}); ask for the right one to be listed."
        )
    if not agreement.masked:
        return _with_signatures(path, agreement, {identity.name: identity.sign(agreement.run).hex()}, {})
    if secrets is None:
        raise ConfigError(
            f"The sums of {path} are masked, so signing makes a key; say in which folder to keep it."
        )
    public = make_mask_key(secrets, agreement.run, agreement.membership_version).public
    signature = identity.sign(mask_statement(agreement.run, agreement.membership_version, public))
    return _with_signatures(path, agreement, {identity.name: signature.hex()}, {identity.name: public.hex()})


def merge_signatures(path: str | Path, other: str | Path) -> Agreement:
    """Take over the signatures in another member's copy of the same agreement."""
    agreement, theirs = read_agreement(path), read_agreement(other)
    if theirs.run != agreement.run:
        raise ConfigError(f"{other} is another agreement than {path}; compare the two files.")
    return _with_signatures(Path(path), agreement, theirs.signatures, theirs.mask_keys)


def _with_signatures(
    path: Path, agreement: Agreement, more: dict[str, str], more_keys: dict[str, str]
) -> Agreement:
    signed, keys = {**agreement.signatures, **more}, {**agreement.mask_keys, **more_keys}
    body = path.read_text(encoding="utf-8").split("\n[signatures]")[0].rstrip("\n")
    tables = {"signatures": dict(sorted(signed.items())), "mask_keys": dict(sorted(keys.items()))}
    written = to_toml({name: table for name, table in tables.items() if table})
    text = f"{body}\n\n{written}".encode()
    again = parse_agreement(text, str(path))
    if again.run != agreement.run or again.signatures != signed or again.mask_keys != keys:
        raise ConfigError(f"{path} could not be signed: its layout is unusual; put [signatures] last.")
    atomic_write(path, text)
    return again


def write_agreement(path: str | Path, draft: dict[str, Any], members: list[dict[str, str]]) -> Agreement:
    """Write ``draft`` (title, graph, algorithm, model, ...) and the members as an agreement file."""
    text = to_toml({**draft, "members": list(members)})
    agreement = parse_agreement(text.encode(), str(path))
    try:
        atomic_write(path, text)
    except DataError as error:
        raise ConfigError(f"The agreement cannot be written: {error}") from None
    return agreement


def example_agreement(folder: str | Path | None = None) -> tuple[Path, list[Identity]]:
    """Write a small agreement of two new members, signed by nobody; return its file and the members.

    For examples and first trials: ``ada`` and ``bo`` average one number. Without a folder a new one is made.

    >>> file, members = example_agreement()
    >>> read_agreement(file).title, [member.name for member in members]
    ('a mean', ['ada', 'bo'])
    """
    folder = Path(folder if folder is not None else tempfile.mkdtemp(prefix="sottovoce-"))
    members = [make_identity(folder / name, name) for name in ("ada", "bo")]
    algorithm = {"name": "averaging", "protocol": "gossip:1", "adjacency": "user", "clip_norm": 1.0}
    draft = {
        "version": 1,
        "title": "a mean",
        "graph": "path:2",
        "algorithm": {**algorithm, "noise_multiplier": 4.0},
        "model": {"kind": "mean", "parameters": 1},
        "budget": {"epsilon": 5.0, "delta": 1e-5},
    }
    entries = [member_entry(one.certificate, f"{one.name}.example:4433") for one in members]
    write_agreement(folder / "agreement.toml", draft, entries)
    return folder / "agreement.toml", members


def member_entry(certificate: bytes, address: str) -> dict[str, str]:
    """Return the entry of one member, from its certificate and address."""
    return {
        "name": common_name(certificate),
        "address": address,
        "fingerprint": fingerprint(certificate),
        "certificate": certificate.decode(),
    }


def _edge_list(text: str, n: int) -> graphs.Network:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    try:
        pairs = [
            tuple(int(end) for end in part.split("-")) for part in text.removeprefix("edges:").split(",")
        ]
        graph.add_edges_from((u, v) for u, v in pairs)
    except ValueError:
        raise ValueError(f"edges must read like 'edges:0-1,1-2', got {text!r}") from None
    return graphs.from_networkx(graph)


def _kind(raw: bytes) -> str:
    """Return what a file is that is certainly no agreement, by its first bytes; else nothing."""
    begins = raw.lstrip()[:16]
    kinds = (
        (b"-----BEGIN CERTI", "a certificate"),
        (b"-----BEGIN", "a key"),
        (b"SQLite format 3", "a ledger"),
        (b"PK", "an archive (NPZ or a spreadsheet)"),
        (b"%PDF", "a PDF"),
        (b"{", "JSON (a statement or a record)"),
    )
    return next((name for mark, name in kinds if begins.startswith(mark)), "")


def _version_error(version: Any) -> str:
    if version is None:
        return "an agreement begins with the line version = 1, and this file has none; add it."
    if isinstance(version, int) and version > 1:
        return f"it is of version {version}, and this program reads version 1; upgrade sottovoce."
    return f"version must be 1, got {version!r}; this program reads agreements of version 1 only."


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    sentence = f"{place}: {message}" if place else message
    return "".join(c if c.isprintable() else "?" for c in sentence)  # names in the file are others' words
