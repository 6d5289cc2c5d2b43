"""One server that hands the mean back."""

import numpy as np
import pytest

from sottovoce.protocols.server import Server


def test_the_mean_comes_back_to_every_client():
    server = Server(4)
    rows = np.arange(8.0).reshape(4, 2)
    assert server.apply(rows).tolist() == [[3.0, 4.0]] * 4
    assert server.messages == 8
    assert server.view(0).leakage()[1:].min() == pytest.approx(1)  # as if every row went to every client
