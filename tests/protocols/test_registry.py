"""Protocols by name."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import ConfigError
from sottovoce.protocols import names_with, parse
from sottovoce.protocols.registry import names


def test_a_drawn_protocol_is_a_function_of_seed_and_step():
    """A name gives the same protocol again for one seed and step, and another for the next."""
    complete, ring = sv.graphs.complete(8), sv.graphs.ring(8)
    on_ring = ("accelerated-randomized:30:intensities=uniform", "dropout:6:edges=0.3", "dropout:6:nodes=0.2")
    for name, network in (*((name, ring) for name in on_ring), ("time-varying:5", complete)):
        named = parse(name)
        assert named.drawn
        assert str(parse(str(named))) == str(named)
        first, same, other = (named.at(network, seed=1, step=k) for k in (0, 0, 1))
        rows = np.random.default_rng(0).normal(size=(8, 2))
        assert first.apply(rows).tobytes() == same.apply(rows).tobytes()
        assert first.apply(rows).tobytes() != other.apply(rows).tobytes()
        np.testing.assert_allclose(first.apply(rows).mean(axis=0), rows.mean(axis=0), atol=1e-12)
        plan = sv.PrivateAveraging(name, network=network, noise_std=1.0, radius=0.5, seed=1)
        assert plan.privacy("network").epsilon(1e-5) <= plan.privacy("local").epsilon(1e-5) + 1e-9
    with pytest.raises(ConfigError, match="all pairs"):
        parse("time-varying:5").at(ring)


@pytest.mark.parametrize("name", ["chebyshev:3", "randomized:20", "accelerated-randomized:20",
                                  "dropout:2:nodes=0.2", "time-varying:2", "tree", "exchange"])  # fmt: skip
@pytest.mark.parametrize("method", ["dp-dsgd", "dp-dsgt"])
def test_network_algorithms_run_over_every_linear_protocol(method, name):
    """The privacy cost is that of the releases, whatever mixes the rows."""
    from sottovoce.algorithms.registry import algorithm

    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 40, 3)) / 2
    data = [(x, np.where(x @ [1.0, -1.0, 0.5] > 0, 1.0, -1.0)) for x in X]
    options = {"steps": 12, "sizes": [40] * 8, "batch_size": 10, "clip_norm": 1.0, "noise_multiplier": 2.0}
    kind = algorithm(method)
    plan = kind(sv.objectives.GLM(dim=3), name, network=sv.graphs.complete(8), **options)
    plain = kind(sv.objectives.GLM(dim=3), sv.graphs.complete(8), **options)
    assert plan.privacy("local").epsilon(1e-5) == plain.privacy("local").epsilon(1e-5)
    rows = plan.run(data, np.random.default_rng(1)).outputs["rows"]
    assert rows.shape == (8, 3)
    assert np.isfinite(rows).all()


INVALID = [
    ("tre", "one of gossip, chebyshev"),
    ("gossip:fresh=1", "no option 'fresh'; it knows none"),
    ("tree:depth=2", "it knows kind, root"),
    ("gossip:five", "neither a number of rounds nor key=value"),
    ("tree:3", "follow from the network"),
    ("tree:kind=bfs:tolerate=2", "no option 'tolerate'"),
    ("fresh-noise:fresh=some", "must be a number"),
    ("masked:partners=some", "must be a whole number"),
]


@pytest.mark.parametrize(("name", "words"), INVALID)
def test_invalid_names_are_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        parse(name).at(sv.graphs.complete(8))


def test_names_by_capability():
    assert names_with("reaches_consensus") == ("tree", "exchange", "masked")
    assert names_with("linear", "mixes", without=("masked", "fresh_noise"))[:2] == ("gossip", "chebyshev")
    assert [name for name in names() if parse(name).reaches_consensus] == ["tree", "exchange", "masked"]
    assert parse("tree:kind=uniform").drawn
    assert not parse("tree:kind=few-leaves").drawn
