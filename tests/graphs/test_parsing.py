"""Graphs by name."""

import numpy as np
import pytest

from sottovoce import graphs
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


def test_the_seed_is_that_of_the_generator():
    seeded = graphs.parse("er:200:1.5:seed=3")
    drawn = graphs.erdos_renyi(200, 1.5, np.random.default_rng(3))
    assert (seeded.edges == drawn.edges).all()


def test_weights():
    W = graphs.parse("star:5:weights=lazy").W
    assert (W != graphs.star(5, weights="lazy").W).nnz == 0


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
