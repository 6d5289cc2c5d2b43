"""Figures: contrast against the page, networks of all sizes."""

from xml.etree import ElementTree

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.report import figures


def luminance(color):
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("band", ["#f5f7f9", "#1b2129"])
def test_lines_of_charts_stand_out_from_the_page(band):
    for color in figures.CYCLE:
        light, dark = sorted((luminance(color), luminance(band)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, color


def test_graph_pictures_of_all_sizes():
    for network in (
        sv.graphs.hypercube(4),
        sv.graphs.ring(3),
        sv.graphs.regular(150, 4, np.random.default_rng(0)),
    ):
        picture = figures.graph_picture(network.edges.tolist(), [0.5] * network.n, observers=[0])
        assert picture.startswith("<svg")
        ElementTree.fromstring(picture)
