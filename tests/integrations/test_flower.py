"""The two halves of a federation, without Flower: the in-process iterates, the ledger, bad answers."""

from types import SimpleNamespace

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.budget import Budget
from sottovoce.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    LedgerError,
    MissingDependency,
    ReleaseMismatch,
)
from sottovoce.integrations import flower
from sottovoce.integrations.flower import ClientSide, ServerSide, plan_of
from sottovoce.ledger.run_ledger import read_ledger
from sottovoce.noise.run_randomness import RunRandomness
from sottovoce.noise.samplers import SimulatedNoise

CONFIG = {"users": 5, "rounds": 6, "sample-rate": 0.6, "gamma": 1.0, "clip_norm": 1.0, "noise-std": 2.0,
          "l2": 0.1, "l1": 0.01}  # fmt: skip
SEED = 11


def shards():
    rng = np.random.default_rng(0)
    sizes = [1, 2, 3, 4, 5]  # one record has its own proximal map
    X, y = rng.normal(size=(15, 3)), rng.choice([-1.0, 1.0], 15)
    return sv.data.Shards(X, y, np.concatenate([[0], np.cumsum(sizes)]))


def federation(folder, rounds=None, server=None, seed=SEED, **more):
    """Play the federation in one process; every message opens the client anew, as Flower does."""
    plan, data = plan_of(CONFIG), shards()
    server = server or ServerSide(plan, 3, seed=seed, folder=folder / "server")
    while server.k < (plan.steps if rounds is None else rounds):
        rows = {}
        for user in server.chosen():
            with ClientSide(
                plan, *data.user(user), user=int(user), folder=folder / f"{user}", seed=seed, **more
            ) as c:
                rows[int(user)] = c.answer(server.k, server.zh)
        server.absorb(rows)
    return server


def test_the_federation_gives_the_iterates_of_the_algorithm(tmp_path):
    plan, data = plan_of(CONFIG), shards()
    wanted = plan.run(data, SimulatedNoise(SEED))
    server = federation(tmp_path)
    assert (server.zh == wanted.outputs["mean"]).all()
    assert (server.z == wanted.outputs["coef"]).all()
    counts = [len(read_ledger(tmp_path / f"{u}")["saved"].releases) for u in range(5)]
    random = RunRandomness.from_rng(SimulatedNoise(SEED))
    asked = sum((random.draws(0, k).random(5) < 0.6).astype(int) for k in range(6))
    assert counts == asked.tolist()
    for user in range(5):
        for release in read_ledger(tmp_path / f"{user}")["saved"].releases:
            assert (release.sender, release.sensitivity, release.noise_std) == (user, 4.0, 2.0)


def test_server_and_clients_go_on_where_they_were(tmp_path):
    whole = federation(tmp_path / "whole")
    federation(tmp_path / "cut", rounds=3)
    again = federation(tmp_path / "cut")  # every object is made anew
    assert (again.zh == whole.zh).all()


def test_a_round_is_charged_once_and_answered_with_the_same_bytes(tmp_path):
    plan, (X, y) = plan_of(CONFIG), shards().user(3)

    def ask(k, z=None):
        with ClientSide(plan, X, y, user=3, folder=tmp_path) as client:  # protective noise
            return client.answer(k, np.zeros(3) if z is None else z), len(client.releases)

    first, count = ask(0)
    for _ in range(3):
        again, count = ask(0, np.ones(3))
        assert (again == first).all()
        assert count == 1
    second, count = ask(2)
    assert count == 2
    assert not (second == first).any()
    for late in (0, 1, 6, -1):
        with pytest.raises(ConfigError, match="past it or the run is over"):
            ask(late)
    assert len(read_ledger(tmp_path)["saved"].releases) == 2


def test_nothing_is_answered_when_the_ledger_fails(tmp_path, monkeypatch):
    plan, (X, y) = plan_of(CONFIG), shards().user(3)
    client = ClientSide(plan, X, y, user=3, folder=tmp_path)

    def broken(entry):
        raise LedgerError("The disk is full.")

    monkeypatch.setattr(client.ledger, "commit", broken)
    for _ in range(2):
        with pytest.raises(LedgerError):
            client.answer(0, np.zeros(3))
    assert not client.outbox
    assert not client.u.any()
    client.ledger.close()


def test_noise_that_was_not_announced_is_not_sent(tmp_path):
    plan, (X, y) = plan_of(CONFIG), shards().user(3)
    with ClientSide(plan, X, y, user=3, folder=tmp_path) as client:
        client.mechanism.noise_stds = np.ones_like(client.mechanism.noise_stds)
        with pytest.raises(ReleaseMismatch):
            client.answer(0, np.zeros(3))
        assert not client.releases


def test_the_statement_is_what_the_ledger_holds(tmp_path):
    federation(tmp_path)
    releases = read_ledger(tmp_path / "2")["saved"].releases
    plan = plan_of(CONFIG)
    stated = plan.privacy("local", participations=len(releases))
    with ClientSide(plan, *shards().user(2), user=2, folder=tmp_path / "2", seed=SEED) as client:
        assert client.spending.epsilon(1e-5) == pytest.approx(stated.epsilon(1e-5), rel=1e-9)


def test_a_budget_refuses_before_anything_is_sent(tmp_path):
    one = plan_of(CONFIG).privacy("local", participations=1).epsilon(1e-5)
    with ClientSide(
        plan_of(CONFIG),
        *shards().user(3),
        user=3,
        folder=tmp_path,
        budget=Budget(1.01 * one, 1e-5, adjacency="user"),
    ) as client:
        client.answer(0, np.zeros(3))
        with pytest.raises(BudgetExceeded):
            client.answer(1, np.zeros(3))
        assert len(client.releases) == 1


def test_another_configuration_is_another_run(tmp_path):
    X, y = shards().user(3)
    with ClientSide(plan_of(CONFIG), X, y, user=3, folder=tmp_path) as client:
        client.answer(0, np.zeros(3))
    for changed in ({**CONFIG, "noise-std": 3.0}, {**CONFIG, "users": 9}):
        with pytest.raises(LedgerError, match="another run"):
            ClientSide(plan_of(changed), X, y, user=3, folder=tmp_path)


def test_bad_messages_change_nothing(tmp_path):
    plan = plan_of(CONFIG)
    server = ServerSide(plan, 3, seed=SEED)
    for row in (np.zeros(2), np.array([0.0, np.nan, 0.0]), np.zeros((1, 3))):
        with pytest.raises(DataError, match="Client 1 must send 3 finite numbers"):
            server.absorb({1: row})
        assert server.k == 0
    with ClientSide(plan, *shards().user(3), user=3, folder=tmp_path) as client:
        for z in (np.zeros(2), np.full(3, np.inf), np.zeros(3, np.float32)):
            with pytest.raises(DataError, match="finite numbers"):
                client.answer(0, z)
        assert not client.releases


def test_configuration_errors_are_sentences(tmp_path):
    with pytest.raises(ConfigError, match="lacks 'gamma'"):
        plan_of({key: value for key, value in CONFIG.items() if key != "gamma"})
    with pytest.raises(ConfigError, match="noise-std above 0"):
        ClientSide(plan_of({**CONFIG, "noise-std": 0.0}), *shards().user(0), user=0, folder=tmp_path)


def test_without_flower_the_apps_say_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "flwr", None)
    for make in (flower.server_app, lambda: flower.client_app(lambda context: None)):
        with pytest.raises(MissingDependency, match="make flower"):
            make()


def test_who_starts_a_run_cannot_choose_the_noise_or_the_ledger_of_a_client():
    """The run's configuration is the server's word; a seed in it would let the server subtract the noise."""

    def context(node, run):
        return SimpleNamespace(node_config={"partition-id": 0, **node}, run_config=run)

    seeded = {"simulation-seed": 3, "state-dir": "elsewhere"}
    with pytest.raises(ConfigError, match="protects nobody"):
        flower._agreed_seed(context({"state": "mine"}, seeded))
    with pytest.raises(ConfigError, match="protects nobody"):
        flower._agreed_seed(context({"records": "mine.npz"}, seeded))
    with pytest.raises(ConfigError, match="folder for its ledger"):
        flower._folder(context({"records": "mine.npz"}, seeded), 0)
    assert flower._agreed_seed(context({"state": "mine"}, {"simulation-seed": -1})) is None
    assert flower._agreed_seed(context({"state": "mine", "simulate": True}, seeded)) == 3
    assert flower._agreed_seed(context({"num-partitions": 2}, seeded)) == 3
    assert flower._folder(context({"num-partitions": 2}, seeded), 0).parts[0] == "elsewhere"
    own = {"budget-epsilon": 1.0, "budget-delta": 1e-6}
    assert flower._own_budget(context(own, {"budget-epsilon": 100.0})) == Budget(1.0, 1e-6, adjacency="user")
    assert flower._own_budget(context(own, {})) == Budget(1.0, 1e-6, adjacency="user")
    assert flower._own_budget(context({}, {"budget-epsilon": 2.0})) == Budget(2.0, 1e-5, adjacency="user")
