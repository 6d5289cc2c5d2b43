"""Fixed features: what they must not change, and that they look at one image at a time."""

import numpy as np
import pytest

from sottovoce.data.image_features import OrientedFeatures, Scattering, StrokeWhitening, pen_strokes

MAPS = {
    "oriented": OrientedFeatures(),
    "scattering": Scattering(directions=4),
    "whitened": StrokeWhitening(OrientedFeatures(4), drawings=200),
}


def images(count=6, seed=0):
    return pen_strokes(count, np.random.default_rng(seed))


@pytest.mark.parametrize("name", MAPS)
def test_a_row_depends_on_its_own_image_only(name):
    x = images()
    rows = MAPS[name](x)
    other = x.copy()
    other[1:] = 1 - other[1:]
    np.testing.assert_allclose(MAPS[name](other)[0], rows[0], rtol=1e-4, atol=1e-6)
    assert np.abs(MAPS[name](other)[1] - rows[1]).max() > 1e-3


@pytest.mark.parametrize("name", MAPS)
def test_a_bad_image_spoils_its_own_row_only(name):
    x = images()
    rows = MAPS[name](x)
    x[2, 5, 5] = np.nan
    with np.errstate(invalid="ignore"):
        after = MAPS[name](x)
    keep = np.arange(6) != 2
    np.testing.assert_allclose(after[keep], rows[keep], rtol=1e-4, atol=1e-6)
    assert not np.isfinite(after[2]).all()


def test_turning_the_image_permutes_the_directions():
    features = OrientedFeatures(directions=4, stride=4)
    x = images(3)
    rows = features(x).reshape(3, 4, 7, 7)
    turned = features(np.ascontiguousarray(np.rot90(x, axes=(1, 2)))).reshape(3, 4, 7, 7)
    # windows sit symmetrically up to half a stride, so compare totals per direction
    np.testing.assert_allclose(
        np.sort((turned**2).sum((2, 3)), axis=1), np.sort((rows**2).sum((2, 3)), axis=1), rtol=0.1
    )


def test_whitening_whitens_fresh_strokes():
    whiten = StrokeWhitening(OrientedFeatures(4), ridge=0.01, drawings=1200)
    mean, root = whiten._statistics
    rows = (whiten.features(images(1200, seed=9)) - mean) @ root
    values = np.linalg.eigvalsh(np.cov(rows, rowvar=False))
    before = np.linalg.eigvalsh(np.cov(whiten.features(images(1200, seed=9)), rowvar=False))
    assert np.abs(rows.mean(0)).max() < 0.3
    spread_before, spread_after = (v.max() / v.mean() for v in (before, values))
    assert spread_after < 6
    assert spread_after < spread_before / 4


def test_the_pen_is_reproducible_and_centred():
    one, two = images(20), images(20)
    assert one.tobytes() == two.tobytes()
    at = np.arange(28)
    middle = (one.sum(1) @ at) / one.sum((1, 2))
    assert np.abs(middle - 13.5).max() < 1.0
