"""Graphs by name, and a name or a networkx graph in place of a network."""

import networkx as nx
import numpy as np
import pytest

import sottovoce as sv
from sottovoce import graphs
from sottovoce.accounting.observation.correlated import decor_variances
from sottovoce.accounting.observation.random_walk import first_passage
from sottovoce.accounting.published.formulas import published_mean_loss
from sottovoce.errors import GraphError, InvalidInput
from sottovoce.graphs.parsing import EXAMPLES


@pytest.mark.parametrize("text", [text for text in EXAMPLES if not text.startswith("file")])
def test_every_example_builds_the_graph_it_names(text):
    one, two = graphs.parse(text), graphs.parse(text)
    assert one.name == text
    assert (one.W != two.W).nnz == 0


def test_every_family_has_a_name():
    families = set(graphs.__all__) - {
        "Network", "Translations", "as_network", "from_edges", "from_matrix", "from_networkx", "metropolis",
        "network_of", "parse", "takes_network",
    }  # fmt: skip
    assert len(families) == len(EXAMPLES) - 2  # edges and file hold a graph, they are no family
    for family in families - {"erdos_renyi", "random_connected"}:
        assert any(text.startswith(family) for text in EXAMPLES)


@pytest.mark.parametrize(
    ("text", "n", "edges"),
    [
        ("hypercube:10", 1024, 5120),
        (" Ring:64 ", 64, 64),
        ("cycle:5", 5, 5),
        ("grid:4:6", 24, 38),
        ("erdos-renyi:20:30:seed=1", 20, 190),
        ("regular:20:4:seed=2", 20, 40),
        ("florentine", 15, 20),
        ("edges:0-1,1-2,2-0,2-3", 4, 4),
        ("edges:0-1,1-2:weights=lazy", 3, 2),
    ],
)
def test_sizes(text, n, edges):
    network = graphs.parse(text)
    assert (network.n, len(network.edges)) == (n, edges)


def test_options_are_those_of_the_functions():
    drawn = graphs.erdos_renyi(200, 1.5, np.random.default_rng(3))
    assert (graphs.parse("er:200:1.5:seed=3").edges == drawn.edges).all()
    assert (graphs.parse("star:5:weights=lazy").W != graphs.star(5, weights="lazy").W).nnz == 0


def test_files(tmp_path):
    path = tmp_path / "odd:name=1.txt"
    path.write_text("0 1\n1 2\n5 6\n")
    with pytest.raises(GraphError, match="2 parts"):
        graphs.parse(f"file:{path}")
    network = graphs.parse(f"file:{path}:largest_component=yes:weights=max_degree")
    assert (network.n, network.name) == (3, "odd:name=1.txt")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rng:64", "Unknown graph 'rng:64' (did you mean 'ring'?)"),
        ("erdos:10:2", "did you mean 'erdos"),
        ("zzzzz", "Unknown graph 'zzzzz'. Known: path, ring"),
        ("", "Unknown graph ''. Known:"),
        ("ring", "Expected numbers as in ring:64, got 'ring'."),
        ("grid:4", "Expected numbers as in grid:4:6, got 'grid:4'."),
        ("karate:3", "Expected numbers as in karate, got 'karate:3'."),
        ("ring:4.5", "Expected numbers as in ring:64"),
        ("er:10:x:seed=1", "Expected numbers as in er:200:1.5:seed=3, got 'er:10:x:seed=1'."),
        ("er:200:1.5", "needs a seed that is a whole number, got 'er:200:1.5'; for example er:200"),
        ("er:200:1.5:seed=x", "needs a seed that is a whole number"),
        ("ring:5:seed=1", "Unknown option 'seed' in 'ring:5:seed=1'; ring takes weights"),
        ("ring:5:weights=fair", "Unknown weights 'fair'; the rules are metropolis"),
        ("star:5:weights=uniform", "Uniform weights average only on regular graphs"),
        ("ring:2", "at least 3, got 2"),
        ("file:", "Expected a path in 'file:'"),
        ("file:none.txt", "Cannot read the edge file none.txt (two node names a line): No such file"),
        ("file:none.txt:largest_component=maybe", "Expected largest_component=yes or no"),
        ("er:10:nan:seed=1", "positive finite number"),
        *((text, "edges:") for text in ("edges:", "edges:0-1,1", "edges:a-b", "edges:0-1:seed=2")),
    ],
)
def test_invalid_names_are_refused_in_one_sentence(text, sentence):
    with pytest.raises(InvalidInput) as caught:
        graphs.parse(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- in place of a network ----

CALLS = {
    "gossip": lambda g: sv.protocols.Gossip(g, 3).view(0).leakage(),
    "chebyshev": lambda g: sv.protocols.Chebyshev(g, 3).view(0).leakage(),
    "fresh-noise": lambda g: sv.protocols.FreshNoiseGossip(g, 2, fresh_noise_std=0.1).n,
    "tree": lambda g: sv.protocols.Tree(g).parents,
    "masked": lambda g: sv.protocols.Masked(g, tolerate=1).n,
    "randomized": lambda g: sv.protocols.Randomized(g, 5, np.random.default_rng(0)).n,
    "walk": lambda g: sv.protocols.Walk(g, 4, np.random.default_rng(0)).n,
    "dropout": lambda g: sv.protocols.Dropout(g, 2).n,
    "spanning": lambda g: sv.protocols.spanning_tree(g),
    "few leaves": lambda g: sv.protocols.few_leaf_tree(g, np.random.default_rng(0)),
    "rounds": lambda g: sv.protocols.rounds_for(g),
    "exact": lambda g: sv.privacy.exact_loss(g, rounds=2, observer=0),
    "published": lambda g: sv.privacy.published_loss(g, rounds=2),
    "published mean": lambda g: published_mean_loss(g, 2),
    "first passage": lambda g: first_passage(g, 5, 0, 1),
    "decor": lambda g: decor_variances(g, 1.0, 2.0),
    "reconstruct": lambda g: sorted(sv.attacks.reconstruct_gossip(g, 0, 2)),
    "averaging": lambda g: sv.PrivateAveraging(g, noise_std=1.0, radius=0.5).epsilon(1e-5),
    "advice": lambda g: sv.advise(g, epsilon=8.0, delta=1e-5, records=20).rows[0].loss,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_name_and_a_networkx_graph_stand_for_a_network(name):
    call = CALLS[name]
    wanted = call(sv.graphs.ring(5))
    for spelled in ("ring:5", nx.cycle_graph(5)):
        result = call(spelled)
        if isinstance(wanted, (np.ndarray, float, int, list)):
            np.testing.assert_array_equal(np.asarray(result), np.asarray(wanted))
        else:
            assert repr(result) == repr(wanted)


def test_other_values_are_refused():
    with pytest.raises(InvalidInput, match="a Network, a name or a networkx graph, got int"):
        sv.graphs.as_network(5)
    with pytest.raises(InvalidInput, match="rng:5"):
        sv.protocols.Gossip("rng:5", 2)
