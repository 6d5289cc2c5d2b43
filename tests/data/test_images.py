"""Image files: right ones read, damaged ones refused."""

import gzip
import os
import shutil
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from sottovoce.data.images import Images, load_images, read_cifar, read_idx
from sottovoce.errors import DataError

SHARED = Path(os.environ.get("SOTTOVOCE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def idx(array):
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def mnist_folder(folder, n=6):
    rng = np.random.default_rng(0)
    for part in ("train", "t10k"):
        images, labels = rng.integers(0, 256, (n, 28, 28)), rng.integers(0, 10, n)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    return folder


def test_idx_gzipped_and_plain(tmp_path):
    images = load_images("mnist", mnist_folder(tmp_path))
    assert images.x.shape == (6, 1, 28, 28)
    assert images.floats(images.x, 0.1307, 0.3081, side=32).shape == (6, 1, 32, 32)


@pytest.mark.parametrize("cut", [2, 10, 17, 500])
def test_truncated_idx_is_refused(tmp_path, cut):
    whole = idx(np.zeros((3, 28, 28)))
    for name, raw in (("plain", whole[:cut]), ("zipped", gzip.compress(whole)[: min(cut, 30)])):
        path = tmp_path / name
        path.write_bytes(raw)
        with pytest.raises(DataError, match=r"truncated|not an idx"):
            read_idx(path)


def test_trailing_bytes_and_missing_files_are_refused(tmp_path):
    (tmp_path / "long").write_bytes(idx(np.zeros(4)) + b"x")
    with pytest.raises(DataError, match="promises 4 bytes"):
        read_idx(tmp_path / "long")
    with pytest.raises(DataError, match="missing"):
        load_images("mnist", tmp_path)


def cifar_bytes(n, label_bytes, rng):
    rows = rng.integers(0, 256, (n, label_bytes + 3072), dtype=np.uint8)
    rows[:, :label_bytes] = rng.integers(0, 10, (n, label_bytes))
    return rows.tobytes()


@pytest.mark.parametrize("archive", [False, True])
def test_cifar_100_in_the_official_binary_format(archive, tmp_path):
    rng = np.random.default_rng(0)
    raw = {"train.bin": cifar_bytes(7, 2, rng), "test.bin": cifar_bytes(3, 2, rng)}
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for name, content in raw.items():
        (folder / name).write_bytes(content)
    if archive:
        with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as tar:
            tar.add(folder, folder.name)
        shutil.rmtree(folder)
    images = load_images("cifar100", tmp_path)
    assert images.x.shape == (7, 3, 32, 32)
    assert images.classes == 100
    assert images.y.tolist() == [raw["train.bin"][i * 3074 + 1] for i in range(7)]  # the fine label
    assert (images.x_test == read_cifar(raw["test.bin"], 2)[0]).all()
    with pytest.raises(DataError, match="truncated"):
        read_cifar(raw["train.bin"][:-1], 2)


def test_cifar_10_has_five_files(tmp_path):
    rng = np.random.default_rng(0)
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        with pytest.raises(DataError, match=f"{name} is missing"):
            load_images("cifar10", tmp_path)
        (tmp_path / name).write_bytes(cifar_bytes(2, 1, rng))
    assert load_images("cifar10", tmp_path).x.shape == (10, 3, 32, 32)


def test_labels_outside_the_classes_are_refused():
    x = np.zeros((2, 1, 4, 4), np.uint8)
    with pytest.raises(DataError, match="must be 0 to 2"):
        Images("toy", x, np.array([0, 7]), x, np.array([0, 1]), 3)


def test_resizing_keeps_constants_and_corners():
    images = load_images("digits")
    flat = np.full((1, 1, 28, 28), 200, np.uint8)
    assert (images.floats(flat, side=32) == np.float32(200) / np.float32(255)).all()


@pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="needs the folder mnist (SOTTOVOCE_DATA)")
def test_full_mnist():
    images = load_images("mnist", SHARED / "mnist")
    assert np.bincount(images.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert abs(images.x.mean() / 255 - 0.1307) < 1e-4
