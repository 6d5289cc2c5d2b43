"""The agreement: one TOML file that fixes everything a run does, and whose hash is the run's name.

This module has the file: its sections, checks, hash and signatures. Its plan is in `agreement_plan`, what one
member runs in `agreed_run`, the model that comes out in `agreed_model`.

Members, graph, protocol, algorithm and its constants, model, clipping, noise, deadlines, data and budget are
all in it. Every member signs the hash; a peer runs only what all have signed. Two agreements that differ
in anything but layout, comments, signatures and mask keys have different names, and their peers do not talk.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from sottovoce import graphs
from sottovoce._io import atomic_write, to_toml
from sottovoce.accounting.budget import delta_warning
from sottovoce.accounting.wording import LARGE_DELTA
from sottovoce.algorithms.plan import public_units
from sottovoce.data.tables import Classes, Columns, Missing, Scale
from sottovoce.errors import ConfigError, IdentityError, SottovoceError
from sottovoce.peers.agreement_plan import agreed_plan, contacts
from sottovoce.peers.identity import (
    DAMAGED,
    Identity,
    check_certificate,
    common_name,
    fingerprint,
    read_certificate,
    require_member_name,
    verify,
)
from sottovoce.peers.run_keys import make_mask_key, mask_statement
from sottovoce.planfile.schema import PlanSection, check_section, check_version
from sottovoce.secure_sum.keys import session_hash

OUTBOUND = "outbound"  # the address of a member that nobody can call: it calls the others
_ADDRESS = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]{2,60}\]):([0-9]{1,5})")
_MOST_STEPS = 10_000_000
Positive = Annotated[float, Field(gt=0)]
_Numbers = Annotated[tuple[float, float], Field(strict=False)]
_Dates = Annotated[tuple[str, str], Field(strict=False)]
# the tags keep an error about one kind from naming the other
_Bounds = Annotated[
    Annotated[Literal["none"], Tag("[word]")] | Annotated[dict[str, _Numbers | _Dates], Tag("[table]")],
    Discriminator(lambda bounds: "[word]" if isinstance(bounds, str) else "[table]"),
]
_Names = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]


def _as_float(value: object) -> object:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Number = Annotated[Any, BeforeValidator(_as_float)]  # 1 and 1.0 are one text; the plan checks the value
Digest = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]  # hexadecimal; empty where there is none


def _refuse_if(problem: object, message: str) -> None:
    if problem:
        raise ValueError(message)


class _Part(PlanSection):
    model_config = ConfigDict(strict=True)


class Member(_Part):
    """One organization: its name, where its peer listens (or "outbound"), and its certificate."""

    name: str
    address: str
    certificate: str
    fingerprint: str

    @model_validator(mode="after")
    def _consistent(self) -> Member:
        require_member_name(self.name)
        pem = self.certificate.encode()
        try:
            digest, owner = fingerprint(pem), common_name(pem)
        except DAMAGED:
            raise ValueError(f"the certificate of {self.name} cannot be read") from None
        wrong = digest != self.fingerprint
        _refuse_if(wrong, f"the fingerprint of {self.name} is not that of the certificate")
        _refuse_if(owner != self.name, f"the certificate of {self.name} was made for {owner!r}")
        if self.reachable:
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

    model_config = ConfigDict(extra="allow")

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
    def _bounded(self) -> AlgorithmPart:
        too_many = isinstance(self.steps, int) and self.steps > _MOST_STEPS
        _refuse_if(too_many, f"steps must be at most {_MOST_STEPS:,} in an agreement, got {self.steps}")
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
    parameters: Annotated[int, Field(ge=1, le=10_000_000)]
    dtype: Literal["float64", "float32"] | None = None
    net: str = ""
    module: str = ""
    module_sha256: Digest = ""
    weights_sha256: Digest = ""
    loss: str = ""
    options: dict[str, int] = Field(default_factory=dict)
    classes: Annotated[int, Field(ge=3, le=100_000)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> ModelPart:
        is_net = self.kind == "net"
        _refuse_if(
            bool(self.net) + bool(self.module) != is_net,
            'a model of kind \'net\' names its network in net = "..." or module = "mynet:build", others '
            "have none",
        )
        _refuse_if(
            {bool(self.module_sha256), bool(self.weights_sha256)} != {bool(self.module)},
            "a module of one's own is named with module_sha256 and weights_sha256, the digests of its file "
            "and of the weights it starts from",
        )
        unnamed = self.module and not re.fullmatch("[A-Za-z0-9_]{1,60}:[A-Za-z0-9_]{1,60}", self.module)
        _refuse_if(unnamed, 'a module is named "file:function", for example "mynet:build"')
        wrong = self.classes is not None and self.kind != "logistic"
        _refuse_if(wrong, "classes is for a logistic model of several classes; a network has its own")
        _refuse_if(self.loss and not is_net, "loss is for networks; a linear model has its own")
        computed = {"net": "float32", "mean": self.dtype}.get(self.kind, "float64")
        wrong = self.dtype not in (None, computed)
        _refuse_if(wrong, f"a model of kind {self.kind!r} computes in {computed}: dtype must be {computed!r}")
        return self

    @property
    def regression(self) -> bool:
        """Whether the label is an amount."""
        return self.kind == "squared" or self.loss in ("squared_error", "absolute_error")

    @property
    def number(self) -> Literal["float64", "float32"]:
        """The type of a number on the wire: single precision for networks."""
        return self.dtype or ("float32" if self.kind == "net" else "float64")


class DataPart(_Part):
    """Which columns (CSV) or arrays (NPZ) a member's file must have, and how they are read: public facts.

    With ``bounds`` every column of numbers or dates is clipped and scaled to [-1, 1], with ``"none"`` amounts
    are taken as they are; ``categories`` list the values of columns that hold names, or say to how many
    columns they are hashed; ``classes`` are the names of the labels; ``missing`` says what an empty entry
    becomes; ``intercept`` adds a last feature, one.
    """

    features: Annotated[tuple[str, ...], Field(strict=False)] = ()
    target: str = ""
    bounds: _Bounds = Field(default_factory=dict)
    categories: dict[str, _Names | int] = Field(default_factory=dict)
    classes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    missing: Missing = "refuse"
    intercept: bool = False

    @model_validator(mode="after")
    def _fits(self) -> DataPart:
        declared = {*self.pairs, *self.categories}
        unknown = sorted(declared - {*self.features, self.target})
        _refuse_if(unknown, f"{', '.join(map(repr, unknown))}: not among the features")
        lacking = sorted(set(self.features) - declared) if self.pairs else []
        _refuse_if(
            lacking, f"bounds lacks {', '.join(map(repr, lacking))}; every numeric feature needs a pair"
        )
        for name in self.pairs:
            self.scale(name)
        _ = self.columns
        filled = self.missing in ("middle", "indicator") and not self.pairs
        _refuse_if(filled, f"missing = {self.missing!r} needs bounds to have a middle of")
        if self.classes:
            Classes(self.classes)
        return self

    @property
    def pairs(self) -> Mapping[str, tuple[Any, Any]]:
        """The bounds by column."""
        return {} if self.bounds == "none" else self.bounds

    def scale(self, name: str) -> Scale | None:
        """Return how a column is scaled to [-1, 1]; None where its numbers are taken as they are."""
        pair = self.pairs.get(name)
        return None if pair is None else Scale.from_bounds(pair, repr(name))

    @property
    def label(self) -> str:
        """The column of the label."""
        return self.target or "y"

    @property
    def columns(self) -> Columns | None:
        """How rows become features; None where arrays are taken as they are."""
        if not self.features:
            return None
        return Columns.declared(self.features, self.pairs, self.categories, self.missing)


class BudgetPart(_Part):
    """The most each member may spend."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]


class TimingPart(_Part):
    """Seconds: before a row is asked for again, before its exchange is dropped, before the run is given up.

    ``late = "drop"`` drops an exchange, at both ends and only if both agree, when a neighbor is later
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


class ChecksPart(_Part):
    """What stops a masked run: a mean whose L2 norm is beyond ``largest_mean``.

    By default, and at most, what members, clip and noise allow but for a chance of 1e-9 in the run.
    """

    largest_mean: Positive | None = None


class SignatureCheck(NamedTuple):
    """The names of members by their signature, in alphabetical order."""

    valid: list[str]
    invalid: list[str]
    missing: list[str]


class Agreement(_Part):
    """A checked agreement; `read_agreement` makes one from a file that `sottovoce peer agree` wrote."""

    version: Literal[1]
    title: str
    graph: str
    algorithm: AlgorithmPart
    model: ModelPart
    budget: BudgetPart
    members: Annotated[tuple[Member, ...], Field(strict=False, min_length=2)]
    data: DataPart = DataPart()
    timing: TimingPart = TimingPart()
    checks: ChecksPart = ChecksPart()
    relay: str = ""
    accept: Annotated[tuple[Literal["large delta"], ...], Field(strict=False)] = ()
    membership_version: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    continues: Digest = ""
    start: Digest = ""
    signatures: dict[str, Annotated[str, Field(pattern="^([0-9a-f]{2})+$")]] = Field(default_factory=dict)
    mask_keys: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Agreement:
        # others wrote these lines, and a member reads them before it signs: no control characters
        lines = (("title", self.title, 200), ("graph", self.graph, 1_000_000))
        for field, line, most in (*lines, ("protocol", self.algorithm.protocol or "-", 200)):
            wrong = not line or len(line) > most or not line.isprintable()
            _refuse_if(wrong, f"the {field} must be one line of at most {most:,} printable characters")
        self._check_members()
        self._check_model()
        self._check_connections()
        protocol = self.plan.schedule(0)
        wrong = self.timing.late == "drop" and not protocol.tolerates_dropout
        _refuse_if(wrong, f"late = 'drop' needs plain gossip; over {protocol.name} peers must wait")
        wrong = self.checks.largest_mean is not None and not protocol.masked
        _refuse_if(wrong, f"largest_mean in [checks] needs masked sums; over {protocol.name} leave it out")
        large = self.budget.delta * (public_units(self.plan) or 0) > 1 and LARGE_DELTA not in self.accept
        sentence = str(self.delta_warning).rstrip(".")
        _refuse_if(large, f'{sentence}, or write accept = ["{LARGE_DELTA}"] at the top of the file')
        wrong = bool(self.continues and not self.membership_version)
        _refuse_if(wrong, "an agreement that continues a run needs a membership_version of at least 1")
        _refuse_if(self.start and not self.continues, "start belongs to an agreement that continues a run")
        self._check_signers()
        return self

    @property
    def delta_warning(self) -> str | None:
        """What a member should know about the delta of the budget; None where it is small."""
        return delta_warning(self.budget.delta, public_units(self.plan), self.algorithm.adjacency)

    def _check_members(self) -> None:
        n, addresses = len(self.members), [member.address for member in self.members if member.reachable]
        for values in (self.names, [member.fingerprint for member in self.members], addresses):
            repeated = len({*values}) < len(values)
            _refuse_if(repeated, "every member needs a name, a certificate and an address of its own")
        if self.relay:
            check_address(self.relay, "the address of the relay")
        _refuse_if(self.network.n != n, f"the graph {self.graph} has {self.network.n} nodes for {n} members")

    def _check_model(self) -> None:
        model, data = self.model, self.data
        wrong = data.features and model.kind == "mean" and len(data.features) != model.parameters
        _refuse_if(wrong, "a mean has one parameter per feature")
        if data.columns is not None and model.kind in ("logistic", "squared"):
            wanted = (len(data.columns.names) + data.intercept) * (model.classes or 1)
            wrong = model.parameters != wanted
            _refuse_if(wrong, f"parameters must be {wanted} for these features, got {model.parameters}")
        unbounded = data.features and model.regression and data.label not in data.pairs
        _refuse_if(
            unbounded and data.bounds != "none",
            f"the label {data.label!r} has no public bounds: write bounds = {{ {json.dumps(data.label)} = "
            '[low, high] } in [data], or bounds = "none" to take numbers as they are',
        )
        wrong = data.classes and model.kind == "logistic" and len(data.classes) != (model.classes or 2)
        _refuse_if(wrong, f"there are {len(data.classes)} classes; say so in the model's classes")

    def _check_connections(self) -> None:
        """Refuse a protocol that connects members who are no neighbors, and neighbors who cannot meet.

        Trees and walks go along edges by construction; the last step of a walk, and exchanges, are checked.
        """
        names, edges = self.names, set(map(tuple, self.network.edges.tolist()))
        for k in {0, self.plan.steps - 1}:
            protocol = self.plan.schedule(k)
            rounds = min(protocol.rounds, 2 * len(names) + 2)  # later rounds repeat these
            for u, v in sorted(contacts(protocol, len(names), rounds) - edges):
                raise ValueError(
                    f"{protocol.name} connects {names[u]} with {names[v]}, who are no neighbors in "
                    f"{self.graph[:80]}; take a graph that has this edge, or a tree"
                )
        for u, v in sorted(edges):
            if not (self.relay or self.members[u].reachable or self.members[v].reachable):
                raise ValueError(
                    f"{names[u]} and {names[v]} are neighbors and both outbound, so neither can call the "
                    "other; give one an address, or add the line relay = 'host:port'"
                )

    def _check_signers(self) -> None:
        unknown = sorted(set(self.signatures) - set(self.names))
        _refuse_if(unknown, f"{', '.join(unknown)} signed but is not a member")
        unsigned = sorted(set(self.mask_keys) - set(self.signatures))
        _refuse_if(unsigned, f"the mask key of {', '.join(unsigned)} is not signed; signatures bring keys")
        wrong = self.mask_keys and not self.masked
        _refuse_if(wrong, "mask keys are for masked sums; this protocol has none")

    def neighbors(self, node: int) -> tuple[int, ...]:
        """Return the members that may talk to ``node``: its neighbors in the graph."""
        return tuple(self.network.neighbors(node).tolist())

    @cached_property
    def network(self) -> graphs.Network:
        """The graph, with its weights."""
        if self.graph.startswith("file:"):
            raise ValueError("the graph must be in the agreement itself; list its edges as 'edges:0-1,1-2'")
        return graphs.parse(self.graph)

    @cached_property
    def plan(self) -> Any:
        """The plan: what runs, what it costs; the same at every member."""
        return agreed_plan(self.network, self.algorithm.stated, self.model, self.seed)

    @property
    def seed(self) -> int:
        """Public randomness: the run's name as a number."""
        return int.from_bytes(self.run_id, "big")

    @property
    def canonical(self) -> bytes:
        """The content without signatures and mask keys, independent of layout: what is hashed and signed.

        What the file leaves unsaid is not in it, so an option that a later version adds changes no name.
        """
        content = self.model_dump(mode="json", exclude={"signatures", "mask_keys"}, exclude_unset=True)
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @cached_property
    def run_id(self) -> bytes:
        """The 32 bytes that name the run."""
        return hashlib.sha256(b"sottovoce agreement %d\n" % self.version + self.canonical).digest()

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
            return self.run_id
        keys = {member.name: bytes.fromhex(self.mask_keys[member.name]) for member in self.members}
        return session_hash(self.run_id, self.membership_version, keys)

    def signed_content(self, name: str) -> bytes:
        """Return the bytes that the member ``name`` signs: the run, with its mask key where there is one."""
        if not self.masked:
            return self.run_id
        return mask_statement(
            self.run_id, self.membership_version, bytes.fromhex(self.mask_keys.get(name, ""))
        )

    @property
    def witness(self) -> int:
        """After how many rows all members must hold a ledger's head; rarer among many, who all answer."""
        return self.timing.witness or 32 * max(1, len(self.members) // 8) ** 2

    @property
    def names(self) -> list[str]:
        """The members' names, in their order."""
        return [member.name for member in self.members]

    def index(self, name: str) -> int:
        """Return a member's number."""
        if name not in self.names:
            raise ConfigError(
                f"{name} is not a member of this agreement; its members are {', '.join(self.names)}."
            )
        return self.names.index(name)

    def node_of(self, identity: Identity) -> int:
        """Return the number of the member whose identity this is; another certificate is refused."""
        node = self.index(identity.name)
        agreed, own = self.members[node].fingerprint, identity.fingerprint
        if agreed != own:
            raise IdentityError(
                f"The agreement lists another certificate for {identity.name} ({agreed[:16]}) than this "
                f"identity's ({own[:16]}); use the identity that is listed, or ask for this one to be listed."
            )
        return node

    def check_signatures(self) -> SignatureCheck:
        """Return the members whose signature is valid, invalid or missing."""
        checked = SignatureCheck([], [], [])
        for name, certificate in sorted((each.name, each.certificate.encode()) for each in self.members):
            stated = self.signatures.get(name)
            if stated is None:
                checked.missing.append(name)
            elif verify(certificate, bytes.fromhex(stated), self.signed_content(name)):
                checked.valid.append(name)
            else:
                checked.invalid.append(name)
        return checked

    def require_signatures(self, *, where: str = "the agreement") -> None:
        """Raise unless every member has signed exactly this agreement, with a certificate valid today."""
        checked = self.check_signatures()
        for member in self.members:
            name = member.name
            if name in checked.missing:
                raise ConfigError(f"{where} is not signed by {name}; every member signs with `peer agree`.")
            if self.masked and name not in self.mask_keys:
                raise ConfigError(
                    f"{where} has no mask key of {name}; the member signs again with `peer agree`."
                )
            check_certificate(member.certificate.encode(), f"of {name} in {where}")
            if name in checked.invalid:
                raise IdentityError(
                    f"The signature of {name} is not for this text: {where} was changed after signing; sign "
                    "it again."
                )
        _ = self.session  # two members with one key are refused


def check_address(address: str, whose: str) -> str:
    """Return a host and port that can be called, or raise."""
    host_and_port = _ADDRESS.fullmatch(address)
    if host_and_port is None or not 0 < int(host_and_port[2]) < 65536:
        raise ConfigError(f"{whose} must be host:port, got {address[:80]!r}.")
    return address


def read_agreement(path: str | Path) -> Agreement:
    """Read and check an agreement file; every error names the file."""
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
    try:
        content = tomllib.loads(raw.decode())
        check_version(content, where)
        if "members" not in content:
            raise ConfigError(
                f"{where} has no [[members]], so it is a draft or a plan file; `peer agree` with --member "
                "and --out makes an agreement of a draft."
            )
        return check_section(Agreement, content, where)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} is not valid TOML: {error}.") from None
    except SottovoceError as error:
        # names in the file are others' words: no control characters reach the terminal
        message = "".join(c if c.isprintable() else "?" for c in str(error))
        raise ConfigError(message if message.startswith(where) else f"{where}: {message}") from None


def add_members(draft: Path, members: Sequence[str], out: Path) -> Agreement:
    """Write the agreement of a draft and its members, each given as CERTIFICATE@HOST:PORT."""
    entries = []
    for text in members:
        certificate, at, address = text.rpartition("@")
        if not at or not certificate:
            raise ConfigError(f"A member is CERTIFICATE@HOST:PORT, got {text!r}.")
        entries.append(member_entry(read_certificate(certificate), address))
    if len(entries) < 2:
        raise ConfigError(
            f"An agreement has two members or more, got {len(entries)}; give --member for each."
        )
    if out.exists():
        raise ConfigError(f"{out} exists already; name another file with --out.")
    try:
        content = tomllib.loads(draft.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"The draft {draft} cannot be read: {error}.") from None
    for table in ("members", "signatures"):
        if table in content:
            raise ConfigError(f"The draft {draft} must not hold [{table}]; members are given with --member.")
    return write_agreement(out, content, entries)


def sign_agreement(path: str | Path, identity: Identity, secrets: str | Path | None = None) -> Agreement:
    """Add the signature of ``identity`` to the file; the text above it stays as it is.

    With masked sums the signature brings a fresh mask key; its private half is kept in the folder ``secrets``
    (the identity's own, on the command line), for the owner only, until the run begins.
    """
    path, name = Path(path), identity.name
    agreement = read_agreement(path)
    agreement.node_of(identity)
    signed, mask_keys = agreement.run_id, {}
    if agreement.masked:
        if secrets is None:
            raise ConfigError(
                f"The sums of {path} are masked, so signing makes a key; say in which folder to keep it."
            )
        public = make_mask_key(secrets, agreement.run_id, agreement.membership_version).public
        signed = mask_statement(agreement.run_id, agreement.membership_version, public)
        mask_keys = {name: public.hex()}
    return _with_signatures(path, agreement, {name: identity.sign(signed).hex()}, mask_keys)


def merge_signatures(path: str | Path, other: str | Path) -> Agreement:
    """Take over the signatures in another member's copy of the same agreement."""
    agreement, theirs = read_agreement(path), read_agreement(other)
    if theirs.run_id != agreement.run_id:
        raise ConfigError(f"{other} is another agreement than {path}; compare the two files.")
    if invalid := theirs.check_signatures().invalid:  # it would replace a valid one
        raise IdentityError(
            f"The signature of {invalid[0]} in {other} is not for this agreement, so nothing was merged; ask "
            f"{invalid[0]} for a copy."
        )
    return _with_signatures(Path(path), agreement, theirs.signatures, theirs.mask_keys)


def _with_signatures(
    path: Path, agreement: Agreement, signatures: dict[str, str], mask_keys: dict[str, str]
) -> Agreement:
    """Write an agreement with more signatures; nothing else of the file changes."""
    signed, keys = {**agreement.signatures, **signatures}, {**agreement.mask_keys, **mask_keys}
    body = path.read_text(encoding="utf-8").split("\n[signatures]")[0].rstrip("\n")
    tables = {"signatures": dict(sorted(signed.items())), "mask_keys": dict(sorted(keys.items()))}
    written = to_toml({name: table for name, table in tables.items() if table})
    text = f"{body}\n\n{written}".encode()
    again = parse_agreement(text, str(path))
    if again.run_id != agreement.run_id or again.signatures != signed or again.mask_keys != keys:
        raise ConfigError(f"{path} could not be signed: its layout is unusual; put [signatures] last.")
    atomic_write(path, text)
    return again


def write_agreement(
    path: str | Path, draft: Mapping[str, object], members: Sequence[Mapping[str, str]]
) -> Agreement:
    """Write ``draft`` (title, graph, algorithm, model, ...) and the members as an agreement file."""
    text = to_toml({**draft, "members": list(members)})
    agreement = parse_agreement(text.encode(), str(path))
    atomic_write(path, text)
    return agreement


def member_entry(certificate: bytes, address: str) -> dict[str, str]:
    """Return the entry of one member, from its certificate and address."""
    return {
        "name": common_name(certificate),
        "address": address,
        "fingerprint": fingerprint(certificate),
        "certificate": certificate.decode(),
    }
