"""Fixed features: what they must not change, and that they look at one image at a time."""

from importlib.metadata import entry_points

import numpy as np
import pytest

from sottovoce.data.images import named_features
from sottovoce.errors import InvalidInput
from sottovoce_papers.image_features import (
    PICTURES,
    OrientedFeatures,
    Scattering,
    Whitened,
    dead_leaves,
    deskew,
    joined,
    mirrored,
    opponent,
    pen_strokes,
    pooled_pixels,
)

MAPS = {
    "oriented": OrientedFeatures(),
    "scattering": Scattering(directions=4),
    "whitened": Whitened(OrientedFeatures(4), "strokes", drawings=200),
    "deskewed": lambda x: OrientedFeatures(4)(deskew(x)),
    "joined": joined(OrientedFeatures(4), pooled_pixels(4)),
}


def images(count=6, seed=0):
    return pen_strokes(count, np.random.default_rng(seed))


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


def slanted(x, by):
    """Shear images to the right by ``by`` columns a row, by hand, bilinearly."""
    out = np.zeros_like(x)
    for row in range(x.shape[1]):
        shift = by * (row - 13.5)
        low, share = int(np.floor(shift)), shift - np.floor(shift)
        for hop, weight in ((low, 1 - share), (low + 1, share)):
            out[:, row] += weight * np.roll(x[:, row], hop, axis=-1)
    return out


def test_deskewing_undoes_a_slant_and_a_shift():
    x = images(8)
    upright = deskew(x)
    at = np.arange(28) - 13.5
    mass = upright.sum((1, 2))
    across, down = (upright.sum(1) @ at) / mass, (upright.sum(2) @ at) / mass
    mixed = np.einsum("nij,i,j->n", upright, at, at) / mass - across * down
    spread = (upright.sum(2) @ at**2) / mass
    assert np.abs(across).max() < 0.15
    assert np.abs(down).max() < 0.15
    assert np.abs(mixed / spread).max() < 0.02
    moved = np.roll(slanted(x, 0.2), (1, -2), axis=(1, 2))
    assert np.abs(deskew(moved) - upright).mean() < 0.3 * np.abs(moved - x).mean()


def test_deskewing_leaves_an_empty_image_and_marks_a_bad_one():
    x = images(3)
    x[0], x[1, 4, 4] = 0.0, np.nan
    upright = deskew(x)
    assert not upright[0].any()
    assert np.isnan(upright[1]).all()
    np.testing.assert_allclose(upright[2], deskew(x[2:])[0], atol=1e-6)


def test_opponent_channels_tell_color_from_light():
    grey = np.repeat(dead_leaves(2, np.random.default_rng(0)).mean(1, keepdims=True), 3, axis=1)
    rows = opponent(pooled_pixels(4))(grey).reshape(2, 3, 64)
    np.testing.assert_allclose(rows[:, 0], pooled_pixels(4)(grey[:, 0]), rtol=1e-5)
    assert np.abs(rows[:, 1:]).max() < 1e-6
    red = grey.copy()
    red[:, 0] += 0.3
    changed = opponent(pooled_pixels(4))(red).reshape(2, 3, 64) - rows
    np.testing.assert_allclose(changed.mean((0, 2)), [0.1, 0.15, 0.075], rtol=1e-4)
    with pytest.raises(InvalidInput, match="count, 3, side, side"):
        opponent(pooled_pixels(4))(grey[:, 0])


@pytest.mark.parametrize("pictures", ["strokes", "shapes", "leaves"])
def test_random_pictures_are_reproducible_and_use_the_range(pictures):
    one, two = (PICTURES[pictures](30, np.random.default_rng(5), 28) for _ in range(2))
    assert one.shape[-2:] == (28, 28)
    assert one.tobytes() == two.tobytes()
    assert 0 <= one.min() < 0.05
    assert 0.9 < one.max() <= 1
    assert np.abs(one[0] - one[1]).mean() > 0.02


def test_whitening_in_color_whitens_fresh_leaves():
    whiten = Whitened(opponent(pooled_pixels(8)), "leaves", ridge=0.01, drawings=600)
    fresh = dead_leaves(600, np.random.default_rng(9))
    assert np.allclose(np.linalg.norm(whiten(fresh), axis=1), 1, atol=1e-5)
    mean, root = whiten._statistics
    before = np.linalg.eigvalsh(np.cov(whiten.features(fresh), rowvar=False))
    after = np.linalg.eigvalsh(np.cov((whiten.features(fresh) - mean) @ root, rowvar=False))
    assert after.max() / np.median(after) < 6 < before.max() / np.median(before)
    with pytest.raises(InvalidInput, match="32 pixels a side, got 16"):
        whiten(fresh[:, :, :16, :16])
    with pytest.raises(InvalidInput, match="strokes, shapes, leaves"):
        Whitened(pooled_pixels(), "photos")


def test_named_features_have_the_widths_they_are_documented_with():
    widths = {}
    for point in entry_points(group="sottovoce.image_features"):
        name = point.name
        blank = np.zeros((1, 3, 32, 32) if name.startswith("photographs") else (1, 28, 28), np.float32)
        fixed = named_features(name)
        widths[name] = fixed.keep or fixed.features(blank).shape[1]
    assert widths == {
        "handwriting": 392, "handwriting-fine": 800, "objects": 1676, "objects-mirrored": 640,
        "photographs": 5859, "photographs-mirrored": 2000,
    }  # fmt: skip


def test_a_mirrored_image_has_the_same_row():
    for features, x in (
        (joined(OrientedFeatures(4), pooled_pixels(4)), images()),
        (opponent(pooled_pixels(4)), dead_leaves(3, np.random.default_rng(1))),
    ):
        rows, seen = mirrored(features)(x), mirrored(features)(x[..., ::-1])
        np.testing.assert_allclose(seen, rows, atol=1e-6)
        assert np.abs(features(x) - rows).max() > 1e-3


@pytest.mark.parametrize("drawings", [200, 900])  # fewer and more than the row is wide
def test_the_directions_kept_are_whitened_and_the_widest(drawings):
    features = OrientedFeatures(4)  # 196 numbers
    whiten = Whitened(joined(features, features), "strokes", ridge=1e-6, drawings=drawings, keep=30)
    mean, root = whiten._statistics
    drawn = whiten.features(pen_strokes(drawings, np.random.default_rng(0)))
    rows = (drawn - mean) @ root
    np.testing.assert_allclose(np.cov(rows, rowvar=False), np.eye(30), atol=2e-2)
    widest = np.linalg.eigvalsh(np.cov(drawn, rowvar=False))[-30:].sum()
    along = np.linalg.qr(root)[0]
    assert np.trace(along.T @ np.cov(drawn, rowvar=False) @ along) == pytest.approx(widest, rel=1e-4)
    assert whiten(images()).shape == (6, 30)
    assert Whitened(features, "strokes", drawings=20, keep=30)(images()).shape == (6, 19)


def test_scattering_averages_with_a_periodic_gaussian_window():
    x = images(4)
    rows = Scattering()(x).reshape(4, 17, 8, 8)
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2)))
    turns = np.fft.fftfreq(32)[None] + np.arange(-1, 2)[:, None]
    low = np.exp(-((1.6 * 2 * np.pi * turns) ** 2) / 2).sum(0)
    smooth = np.fft.ifft2(np.fft.fft2(padded) * np.outer(low, low) / low[0] ** 2).real
    np.testing.assert_allclose(np.square(rows[:, 0]), smooth[:, 2::4, 2::4].clip(0), atol=1e-5)
    # a wave along an axis answers in its own direction and scale, everywhere alike
    wave = np.tile(np.cos(0.75 * np.pi * np.arange(32))[None, None], (1, 32, 1)).astype(np.float32)
    answers = Scattering()(wave[:, 2:-2, 2:-2]).reshape(17, 8, 8)[1:, 3:5, 3:5].mean((1, 2))
    assert answers.argmax() == 0
