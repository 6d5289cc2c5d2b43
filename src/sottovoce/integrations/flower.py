"""Federated private ADMM with Flower: one server; duals, noise and ledger stay with the clients.

`ClientSide` and `ServerSide` are the two halves without Flower; `client_app` and `server_app` carry their
rows as Flower messages. A client runs the plan's own algorithm: the server sends it the common part of the
state, the client keeps its own. The server sees every message, so the guarantee is the local one; clients
need not trust it.

A client commits the releases, the row and its new dual together before the row leaves (`RunLedger`), and
answers a repeated request with the stored row. The name of a run is the digest of its configuration, not
Flower's run number: a client or a server that was killed continues in the next ``flwr run`` of the same
configuration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from sottovoce._io import digest
from sottovoce.accounting.budget import Budget
from sottovoce.accounting.release import Spending
from sottovoce.algorithms.federated_admm import FederatedADMM, absorbed
from sottovoce.data import Shards
from sottovoce.errors import ConfigError, DataError, LostPeer, MissingDependency, ReleaseMismatch
from sottovoce.ledger.balance import Charge
from sottovoce.ledger.cost import lifetime_guarantees
from sottovoce.ledger.run_ledger import RunLedger
from sottovoce.ledger.store import Entry
from sottovoce.mechanisms.admm import sample_participants
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import NoiseSource, ProtectiveNoise, SimulatedNoise
from sottovoce.objectives import GLM
from sottovoce.peers.member_data import Records
from sottovoce.peers.member_directory import find_member_directory
from sottovoce.peers.wire_format import FrameCodec
from sottovoce.runners import State
from sottovoce.runners.checkpoint import Checkpoint

__all__ = ["ClientSide", "ServerSide", "client_app", "plan_of", "server_app"]

DELTA = 1e-5
Config = Mapping[str, Any]


class Context(Protocol):
    """The part of Flower's Context that is used here."""

    node_config: Config
    run_config: Config


class Message(Protocol):
    """The part of Flower's Message that is used here."""

    content: Mapping[str, Any]
    metadata: Any
    error: Any

    def has_error(self) -> bool: ...


class Grid(Protocol):
    """The part of Flower's Grid that is used here."""

    def get_node_ids(self) -> Iterable[int]: ...

    def send_and_receive(self, messages: Iterable[object], *, timeout: float) -> Iterable[Message]: ...


RecordsReader = Callable[[Context], tuple[np.ndarray, np.ndarray]]


def plan_of(config: Config) -> FederatedADMM:
    """Return the plan that a Flower run configuration describes.

    Examples
    --------
    >>> plan = plan_of({"users": 10, "rounds": 5, "sample-rate": 0.5, "gamma": 1.0, "clip_norm": 1.0,
    ...                 "noise-std": 4.0})
    >>> plan.steps, plan.privacy("local").label
    (5, 'ldp')
    """
    l2, l1 = float(config.get("l2", 0.0)), float(config.get("l1", 0.0))
    try:
        return FederatedADMM(
            GLM(config.get("loss", "logistic"), l2=l2, l1=l1),
            users=int(config["users"]),
            steps=int(config["rounds"]),
            sample_rate=float(config.get("sample-rate", 1.0)),
            gamma=float(config["gamma"]),
            clip_norm=float(config["clip_norm"]),
            noise_std=float(config["noise-std"]),
            relaxation=float(config.get("relaxation", 0.5)),
            secure_sum=False,
        )
    except KeyError as missing:
        raise ConfigError(
            f"The run configuration lacks {missing}; set it in [tool.flwr.app.config]."
        ) from None


def run_name(plan: FederatedADMM, dim: int, seed: int | None) -> bytes:
    """Return the 32 bytes that name a run: the same configuration is the same run."""
    return bytes.fromhex(digest({**plan.describe(), "dim": dim, "seed": seed}))


def noise_of(seed: int | None) -> NoiseSource:
    """Return protective noise, or for a seed simulated noise that protects nobody."""
    return ProtectiveNoise() if seed is None else SimulatedNoise(seed)


class ClientSide:
    """One client: its records, its dual, its noise, its ledger.

    Parameters
    ----------
    plan : the same at all clients and the server.
    X, y : this client's records.
    user : its number.
    folder : where its ledger and dual are durable.
    seed : None draws protective noise; a number simulates.
    budget : optional; a release that would pass it is refused and nothing is sent.
    population : whose records they are, by the lifetime ledger of this machine; None for the first.

    Guarantees
    ----------
    On a machine with a member directory (`sottovoce peer init`) protective noise is charged in full to its
    lifetime ledger when the run is first opened, and refused beyond the lifetime budget.

    User level, against everybody who sees all messages, the server included: each round answered costs one
    Gaussian release of sensitivity 4 C. A round is charged once, however often it is requested, and the
    answer is then the same bytes. Nothing is returned before ledger, row and dual are on the disk.

    Examples
    --------
    >>> import tempfile
    >>> plan = plan_of({"users": 1, "rounds": 2, "gamma": 1.0, "clip_norm": 1.0, "noise-std": 4.0})
    >>> folder = tempfile.mkdtemp()
    >>> with ClientSide(plan, np.ones((2, 1)), np.ones(2), user=0, folder=folder) as client:
    ...     row = client.answer(0, np.zeros(1))
    >>> with ClientSide(plan, np.ones((2, 1)), np.ones(2), user=0, folder=folder) as client:  # restarted
    ...     bool((client.answer(0, np.zeros(1)) == row).all()), len(client.releases)
    (True, 1)
    """

    def __init__(
        self,
        plan: FederatedADMM,
        X: np.ndarray,
        y: np.ndarray,
        *,
        user: int,
        folder: str | Path,
        seed: int | None = None,
        budget: Budget | None = None,
        population: str | None = None,
    ) -> None:
        if not plan.noise_std > 0:
            raise ConfigError("A federation needs noise-std above 0; without noise nothing is protected.")
        # the server chooses the clients of a round, and every chosen client takes part
        self.plan, self.user = replace(plan, sample_rate=1.0), user
        records = plan.objective.prepared(Shards(np.asarray(X), np.asarray(y), np.array([0, len(y)])))
        dim = records.dim
        self.mechanism = self.plan.mechanism(
            records, [user], RunRandomness.from_rng(noise_of(seed))
        ).recording()
        self.algorithm = self.plan.algorithm(self.mechanism, np.zeros((1, dim)))
        session = run_name(plan, dim, seed)
        self.codec = FrameCodec(session, plan.n, plan.steps, dim, "float64")
        about = {"algorithm": plan.name, "user": user}
        directory = None if seed is not None else find_member_directory()
        if directory is None:
            self.ledger = RunLedger(folder, session=session, node=user, about=about)
        else:
            self.ledger = directory.open_run(
                _charge(self.plan, user, session, directory.lifetime_ledger.views(population), population),
                Records(records.X, records.y),
                node=user,
                session=session,
                about=about,
                state=folder,
            )
        saved = self.ledger.load()
        self.releases, self.outbox, self.sent = list(saved.releases), dict(saved.outbox), set(saved.sent)
        self.u = np.zeros(dim) if saved.state is None else np.frombuffer(saved.state).copy()
        self.spending = Spending(budget)
        for release in self.releases:
            self.spending.add(release)

    def __enter__(self) -> ClientSide:
        return self

    def __exit__(self, *problem: object) -> None:
        self.ledger.close()

    def answer(self, k: int, zh: np.ndarray) -> np.ndarray:
        """Return this client's noisy move of round ``k`` from ``zh``, the common part of the state."""
        if k not in self.outbox:
            self._commit(k, self._checked(zh))
        return self.codec.values(self.codec.decode(self.outbox[k])).copy()

    def _commit(self, k: int, zh: np.ndarray) -> None:
        if not 0 <= k < self.plan.steps or (self.sent and k <= max(self.sent)):
            raise ConfigError(
                f"Round {k} was requested, but client {self.user} is past it or the run is over."
            )
        planned = tuple(r.at(k, r.count) for r in self.plan.releases(self.user) if r.covers(k))
        self.spending.require(*planned)
        state: State = State((zh[None],), (self.u[None].copy(),))
        row = self.algorithm.message(state, k)
        drawn = self.mechanism.drain()
        if drawn != planned:
            raise ReleaseMismatch(f"Round {k} drew other noise than the plan announced; nothing was sent.")
        (u,) = self.algorithm.update(state, row, k).own
        frame = self.codec.row(row[0], sender=self.user, round=k)
        self.ledger.commit(Entry(k, drawn, frame, u.tobytes(), (), forget=tuple(self.outbox)))
        self.spending.add(*drawn)
        self.releases += drawn
        self.outbox, self.u = {k: frame}, u[0]
        self.sent.add(k)

    def _checked(self, zh: np.ndarray) -> np.ndarray:
        array = np.asarray(zh)
        if array.shape != self.u.shape or array.dtype != np.float64 or not np.isfinite(array).all():
            raise DataError(
                f"The server's model must hold {len(self.u)} finite numbers, got shape {array.shape}."
            )
        return array


class ServerSide:
    """The server: the running mean of the duals, and the clients of each round.

    Parameters
    ----------
    plan, dim : the plan and the number of features.
    seed : as at the clients; decides which clients are chosen in simulations.
    folder : optional; where the mean is stored after every round, so that the next run continues.

    Examples
    --------
    >>> plan = plan_of({"users": 2, "rounds": 1, "gamma": 1.0, "clip_norm": 1.0, "noise-std": 4.0})
    >>> server = ServerSide(plan, dim=1, seed=0)
    >>> server.chosen().tolist()
    [0, 1]
    >>> server.absorb({0: np.ones(1), 1: np.zeros(1)})
    >>> server.k, server.z.tolist()
    (1, [0.25])
    """

    def __init__(
        self, plan: FederatedADMM, dim: int, *, seed: int | None = None, folder: str | Path | None = None
    ) -> None:
        self.plan, self.k, self.zh = plan, 0, np.zeros(dim)
        self.random = RunRandomness.from_rng(noise_of(seed))
        self.checkpoint = None if folder is None else Checkpoint(folder, run_name(plan, dim, seed).hex())
        stored = None if self.checkpoint is None else self.checkpoint.load(np.zeros(1, int), self.zh[None])
        if stored is not None:
            self.k, self.zh = stored[0], stored[1][0]

    @property
    def z(self) -> np.ndarray:
        """The model of this round."""
        return self.plan.objective.regularizer.prox(self.zh, self.plan.gamma)

    def chosen(self) -> np.ndarray:
        """Return the clients of this round: each with the sampling rate, independently."""
        plan = self.plan
        return np.flatnonzero(sample_participants(self.random, self.k, plan.users, plan.sample_rate))

    def absorb(self, rows: Mapping[int, np.ndarray]) -> None:
        """Take the answers of this round and move on."""
        noisy = np.zeros((self.plan.users, len(self.zh)))
        for user, row in rows.items():
            if np.shape(row) != self.zh.shape or not np.isfinite(row).all():
                raise DataError(
                    f"Client {user} must send {len(self.zh)} finite numbers, got {np.shape(row)}."
                )
            noisy[user] = row
        self.zh = absorbed(self.zh, self.plan.schedule(0).apply(noisy)[0], self.plan.relaxation)
        self.k += 1
        if self.checkpoint is not None:
            self.checkpoint.save(self.k, np.zeros(1, int), self.zh[None])


# ---- Flower ----------------------------------------------------------------------------------------------


def _charge(
    plan: FederatedADMM, user: int, session: bytes, views: Iterable[str], population: str | None
) -> Charge:
    """Return what a run costs one client: it may be asked in every round, and the server sees its rows."""
    return Charge(
        population or "",
        f"federation of {plan.name}",
        tuple(plan.releases(user)),
        lifetime_guarantees(plan, views, user=user, label="ldp"),
        node=user,
        run_id=digest({"session": session.hex(), "user": user}),
    )


def client_app(records: RecordsReader) -> object:
    """Return a Flower ClientApp; ``records(context) -> (X, y)`` reads this client's own data.

    ``node-config`` names the client (``partition-id``), its folder (``state``) and, where this machine keeps
    several in its lifetime ledger, the ``population`` whose records they are; in simulations the
    folders are made below ``state-dir`` of the run configuration.

    Guarantees
    ----------
    The person who starts a run writes its configuration, and the noise protects against that person too. So
    a client with a configuration of its own draws seeded noise only if that sets ``simulate=true``, stores
    its ledger in its own folder, and is bound by the smaller of its own ``budget-epsilon`` and the run's.
    """
    flwr = _flower()
    app = flwr.clientapp.ClientApp()

    def who(message: Message, context: Context) -> object:
        X, _ = records(context)
        facts = {"user": int(context.node_config["partition-id"]), "dim": int(X.shape[1])}
        return flwr.app.Message(flwr.app.RecordDict({"who": flwr.app.ConfigRecord(facts)}), reply_to=message)

    def step(message: Message, context: Context) -> object:
        user = int(context.node_config["partition-id"])
        X, y = records(context)
        k, zh = int(message.content["round"]["k"]), message.content["common"]["mean"].numpy()
        plan, folder = plan_of(context.run_config), _folder(context, user)
        seed, budget = _agreed_seed(context), _own_budget(context)
        people: Any = context.node_config.get("population")
        with ClientSide(
            plan, X, y, user=user, folder=folder, seed=seed, budget=budget, population=people
        ) as client:
            row = client.answer(k, zh)
        answer = flwr.app.ArrayRecord({"row": flwr.app.Array(row)})
        return flwr.app.Message(flwr.app.RecordDict({"answer": answer}), reply_to=message)

    app.query()(who)
    app.train()(step)
    return app


def server_app(finished: Callable[[np.ndarray, Config], None] | None = None) -> object:
    """Return a Flower ServerApp that runs the plan of the run configuration.

    ``finished(model, configuration)`` gets the model at the end.
    """
    flwr = _flower()
    app = flwr.serverapp.ServerApp()

    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        plan, patience = plan_of(config), float(config.get("patience", 120.0))
        nodes, dim = _find_clients(flwr, grid, plan.users, patience)
        server = ServerSide(plan, dim, seed=_seed(config), folder=config.get("server-state") or None)
        while server.k < plan.steps:
            server.absorb(_rows(flwr, grid, nodes, server, patience))
        print(plan.privacy("local").statement(DELTA))
        if finished is not None:
            finished(server.z, config)

    app.main()(main)
    return app


def _find_clients(flwr: ModuleType, grid: Grid, users: int, patience: float) -> tuple[dict[int, int], int]:
    """Wait for all clients and return {user: Flower node}, and the number of features."""
    deadline = time.monotonic() + patience
    known: dict[int, int] = {}
    dims: set[int] = set()
    while len(known) < users:
        question = flwr.app.RecordDict({"ask": flwr.app.ConfigRecord({"what": "who"})})
        new = [node for node in grid.get_node_ids() if node not in known.values()]
        sent = [flwr.app.Message(question, dst_node_id=node, message_type="query") for node in new]
        for reply in _replies(grid, sent, deadline):
            if not reply.has_error():
                facts = reply.content["who"]
                known[int(facts["user"])] = reply.metadata.src_node_id
                dims.add(int(facts["dim"]))
        absent = sorted(set(range(users)) - set(known))
        if absent and time.monotonic() > deadline:
            raise LostPeer(
                f"Client {absent[0]} of {users} did not come within {patience:g} s; start it and run again."
            )
        if absent:
            time.sleep(0.2)
    if len(dims) > 1 or set(known) != set(range(users)):
        raise DataError(f"The clients hold {sorted(dims)} features; all must hold the same columns.")
    return known, dims.pop()


def _rows(
    flwr: ModuleType, grid: Grid, nodes: dict[int, int], server: ServerSide, patience: float
) -> dict[int, np.ndarray]:
    """Return the rows of the chosen clients; a repeated request costs nothing."""
    missing = [int(user) for user in server.chosen()]
    rows: dict[int, np.ndarray] = {}
    deadline = time.monotonic() + patience
    why = "it did not answer"
    content = {
        "common": flwr.app.ArrayRecord({"mean": flwr.app.Array(server.zh)}),
        "round": flwr.app.ConfigRecord({"k": server.k}),
    }
    while missing:
        users = {nodes[user]: user for user in missing}
        sent = [
            flwr.app.Message(flwr.app.RecordDict(content), dst_node_id=node, message_type="train")
            for node in users
        ]
        for reply in _replies(grid, sent, deadline):
            if reply.has_error():
                why = f"it failed: {reply.error.reason}"
            else:
                rows[users[reply.metadata.src_node_id]] = reply.content["answer"]["row"].numpy()
        missing = [user for user in missing if user not in rows]
        if missing:
            if time.monotonic() > deadline:
                raise LostPeer(
                    f"Client {missing[0]} was lost in round {server.k} ({' '.join(why.split())}); start it "
                    "again, then the same flwr run goes on from this round."
                )
            left = max(1.0, deadline - time.monotonic())
            nodes.update(_find_clients(flwr, grid, server.plan.users, left)[0])
            time.sleep(0.2)
    return rows


def _replies(grid: Grid, sent: list[object], deadline: float) -> Iterable[Message]:
    return grid.send_and_receive(sent, timeout=max(1.0, deadline - time.monotonic())) if sent else ()


def _folder(context: Context, user: int) -> Path:
    own = context.node_config.get("state")
    common = context.run_config.get("state-dir") if _simulated(context) else None
    if not own and not common:
        raise ConfigError(
            "The client needs a folder for its ledger: state in node-config, or state-dir in the app's."
        )
    return Path(str(own)) if own else Path(str(common)) / f"client-{user:05d}"


def _simulated(context: Context) -> bool:
    """Whether Flower's simulation engine started this client: it has no settings of its own."""
    return set(context.node_config) <= {"partition-id", "num-partitions"}


def _agreed_seed(context: Context) -> int | None:
    """Return the run's seed if this client takes part in a simulation, and refuse it otherwise."""
    seed = _seed(context.run_config)
    if seed is not None and not (_simulated(context) or context.node_config.get("simulate") is True):
        raise ConfigError(
            "The run asks for noise from a seed, which protects nobody, and this client did not agree to a "
            "simulation; leave simulation-seed out, or set simulate=true in its node-config."
        )
    return seed


def _own_budget(context: Context) -> Budget | None:
    """Return the smaller of the client's own budget and the run's."""
    own, agreed = _budget(context.node_config), _budget(context.run_config)
    if own is None or agreed is None:
        return own or agreed
    return Budget(min(own.epsilon, agreed.epsilon), min(own.delta, agreed.delta), adjacency="user")


def _seed(config: Config) -> int | None:
    seed = int(config.get("simulation-seed", -1))
    return None if seed < 0 else seed


def _budget(config: Config) -> Budget | None:
    epsilon, delta = float(config.get("budget-epsilon", 0.0)), float(config.get("budget-delta", DELTA))
    return Budget(epsilon, delta, adjacency="user") if epsilon > 0 else None


def _flower() -> ModuleType:
    try:
        import flwr.app
        import flwr.clientapp
        import flwr.serverapp
    except ImportError:
        raise MissingDependency(
            "The federation needs Flower; `make flower` installs it in an environment of its own."
        ) from None
    return flwr
