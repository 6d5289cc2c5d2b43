"""Small plans for tests of the accountant: observation models, releases and views."""

import itertools
from types import SimpleNamespace

import numpy as np

import sottovoce as sv
from sottovoce.privacy import Release, account

D = 1e-5
RING = sv.graphs.ring(8)
TREES = [sv.protocols.Tree(RING, kind="uniform", rng=np.random.default_rng([0, k])) for k in range(12)]
GOSSIP_RING = sv.protocols.Gossip(sv.graphs.ring(4), 1)
NOBODY, PAIR, TWO = {}, {"observer": 0, "user": 3}, {"colluders": [0, 3]}
SEES = {"local": NOBODY, "central": NOBODY, "network": NOBODY, "pairwise": PAIR, "colluders": TWO}


def plan_of(model, releases, n=8, steps=12, schedule=TREES, adjacency="user", assumptions=(), **more):
    def at(k):
        return schedule[k] if isinstance(schedule, list) else schedule

    return SimpleNamespace(
        n=n,
        steps=steps,
        observation=model,
        adjacency=adjacency,
        assumptions=assumptions,
        schedule=at,
        releases=releases,
        **{"width": 1, "is_stationary": False, "accounting": "pld", **more},
    )


def every(sensitivity, std, steps=12, **more):
    """The same run of releases for every agent; a list of noises gives each its own."""

    def releases(u):
        size, noise = (x[u] if isinstance(x, (list, tuple)) else x for x in (sensitivity, std))
        rate = {k: v[u] if isinstance(v, (list, tuple)) else v for k, v in more.items()}
        return [Release(u, 0, sensitivity=size, noise_std=noise, steps=steps, **rate)]

    return releases


def by_name(plan, c, **about):
    """The worst over every coalition of c, each by name."""
    left = [v for v in range(plan.n) if v != about.get("user")]
    return max(
        account(plan, "colluders", colluders=who, **about).epsilon(D)
        for who in itertools.combinations(left, c)
    )


def stationary_plan(model, protocol, releases, **facts):
    """A plan of so many facts; ``releases`` says what one agent lists."""
    defaults = {"n": protocol.n, "steps": 1, "width": 1, "is_stationary": True, "accounting": "pld"}
    defaults |= {"adjacency": "user", "assumptions": (), **facts}
    return SimpleNamespace(observation=model, schedule=lambda k: protocol, releases=releases, **defaults)


def one(agent, std=2.0, **more):
    return [Release(agent, 0, **{"sensitivity": 1.0, "noise_std": std, **more})]
