"""Edge files: SNAP, plain, gzip, and what is wrong with the others."""

import gzip
import os
from pathlib import Path

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce import graphs
from sottovoce.errors import GraphError

DATA = Path(os.environ.get("SOTTOVOCE_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))


@pytest.fixture
def write(tmp_path):
    def write(content, name="edges.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_snap_style(write):
    path = write("# Directed graph\n# FromNodeId\tToNodeId\n30\t10\n10\t30\n\n10 20\n20\t20\n")
    network = graphs.from_edges(path)
    assert network.node_names == (10, 20, 30)
    assert network.edges.tolist() == [[0, 1], [0, 2]]
    assert network.name == "edges.txt"


def test_names_commas_and_order_of_appearance(write):
    network = graphs.from_edges(str(write("rome,milan\r\nmilan , 7\r\n% a remark\r\n")))
    assert network.node_names == ("rome", "milan", "7")
    assert network.edges.tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(("content", "names"), [("2 1\n0 1\n", None), ("007 7\n", ("007", "7"))])
def test_numbers_from_zero_need_no_labels_and_leading_zeros_are_names(write, content, names):
    assert graphs.from_edges(write(content)).node_names == names


def test_gzip_is_known_by_its_content(write):
    path = write(gzip.compress(b"0 1\n1 2\n", mtime=0), name="edges")
    assert graphs.from_edges(path).edges.tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("0 1\n# ok\n1 2 3\n", "Line 3 of {path} is '1 2 3', expected two node names."),
        ("0 1\n" + "x " * 90, "Line 2 of {path} is 'x x x"),
        ("", "Expected at least one edge in {path}, found none."),
        (b"\xff\xfe\x00", "Cannot read the edge file"),
        (gzip.compress(b"0 1\n" * 99, mtime=0)[:-9], "Cannot read the edge file"),
        (b"\x1f\x8bnonsense", "Cannot read the edge file"),
        ("0 1\n5 5\n", "falls into 2 parts"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(write, content, sentence):
    path = write(content)
    with pytest.raises(GraphError) as caught:
        graphs.from_edges(path)
    assert sentence.format(path=path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_sources(tmp_path):
    assert graphs.from_edges(np.array([[3, 1], [1, 2]])).node_names == (1, 2, 3)
    for source, words in (
        (tmp_path / "none.txt", "Cannot read the edge file"),
        (tmp_path, "Cannot read the edge file"),
        ([(0, 1), 5], "pairs of nodes, got 5"),
        ([], "at least one edge in the list"),
    ):
        with pytest.raises(GraphError, match=words):
            graphs.from_edges(source)


def test_the_largest_part_keeps_its_names(write):
    path = write("1 2\n9 8\n8 7\n7 9\n")
    network = graphs.from_edges(path, largest_component=True)
    assert network.node_names == (7, 8, 9)
    assert len(network.edges) == 3


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=30), st.randoms())
@settings(max_examples=100)
def test_any_order_and_direction_gives_the_same_network(pairs, random):
    G = networkx.Graph(pairs)
    G.remove_edges_from(networkx.selfloop_edges(G))
    parts = sorted(networkx.connected_components(G), key=len)
    turned = [pair[:: random.choice([1, -1])] for pair in pairs] + pairs[:3]
    random.shuffle(turned)
    if len(parts) > 1:
        with pytest.raises(GraphError, match="parts"):
            graphs.from_edges(turned)
        return
    one, two = graphs.from_edges(pairs), graphs.from_edges(turned)
    assert one.n == len(G)
    assert [one.node_name(v) for v in range(one.n)] == [two.node_name(v) for v in range(two.n)] == sorted(G)
    assert (one.edges == two.edges).all()
    assert (one.W != two.W).nnz == 0
    assert len(one.edges) == G.number_of_edges()


EGO = {  # nodes and edges of the largest component
    "0": (324, 2514), "107": (1034, 26749), "348": (224, 3192), "414": (148, 1692), "686": (168, 1656),
    "698": (40, 220), "1684": (775, 14006), "1912": (744, 30023), "3437": (532, 4812), "3980": (44, 138),
}  # fmt: skip


@pytest.mark.parametrize("ego", EGO)
def test_ego_networks(ego):
    path = DATA / "facebook_ego" / f"{ego}.edges.gz"
    if not path.exists():
        pytest.skip("the ego networks are not here; set SOTTOVOCE_DATA")
    network = graphs.from_edges(path, largest_component=True)
    assert (network.n, len(network.edges)) == EGO[ego]
    assert list(network.node_names) == sorted(network.node_names)
