"""Image data sets from their official files: MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100; digits embedded.

A file is looked for in SOTTOVOCE_DATA, then in the per-user cache. A file that is truncated or has another
shape is refused before any of it is used. CIFAR's official archives hold Python pickles; only the binary
versions are read.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.data.base import is_tensor
from sottovoce.data.files import read_array
from sottovoce.data.loaders import data_folder
from sottovoce.errors import DataError

SETS = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
_IDX_FILES = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


@dataclass(frozen=True, eq=False)
class Images:
    """Training and test images (n, channels, height, width) uint8, with classes (n,) int64 from 0."""

    name: str
    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    x_test: np.ndarray = field(repr=False)
    y_test: np.ndarray = field(repr=False)
    classes: int

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.x_test, self.y_test)):
            if x.ndim != 4 or len(x) != len(y):
                raise DataError(
                    f"{self.name}: expected one label per {part} image, got images of shape {x.shape} "
                    f"and {len(y)} labels."
                )
            if len(y) and not (y.min() >= 0 and y.max() < self.classes):
                raise DataError(f"{self.name}: the classes of {part} images must be 0 to {self.classes - 1}.")

    @staticmethod
    def floats(
        x: np.ndarray, mean: ArrayLike = 0.0, std: ArrayLike = 1.0, side: int | None = None
    ) -> np.ndarray:
        """Return images as float32 ``(x / 255 - mean) / std``, resized to ``side`` if given.

        ``mean`` and ``std`` are public constants: a number, or one per channel.
        """
        values = x if side is None or side == x.shape[-1] else _resized(x, side)
        center, scale = (np.asarray(constant, np.float32).reshape(1, -1, 1, 1) for constant in (mean, std))
        return ((values.astype(np.float32) / np.float32(255) - center) / scale).astype(np.float32)


@dataclass(frozen=True)
class ImageReading:
    """How images become inputs of a network, by public facts only; it is saved with the model.

    Pixels in [0, 1] are resized to ``side``, and ``mean`` and ``std`` are public constants. ``features`` is
    the name of fixed features of the scaled images (`named_features`), or None.
    """

    side: int | None = None
    mean: float = 0.0
    std: float = 1.0
    features: str | None = None

    def __call__(self, images: ArrayLike) -> np.ndarray:
        """Return images (n, [channels,] h, w), bytes or [0, 1], as the network sees them.

        They are (n, channels, side, side) float32, or rows of fixed features where these are named.
        """
        values = self._scaled(images)
        if self.features is None:
            return values
        grey = values.shape[1] == 1
        return named_features(self.features)(values[:, 0] if grey else values)

    def _scaled(self, images: ArrayLike) -> np.ndarray:
        array = np.asarray(images)
        if array.ndim == 3:
            array = array[:, None]
        if array.ndim != 4 or array.dtype.kind not in "uif":
            raise DataError(
                f"images must be numbers of shape (n, height, width) or (n, channels, height, width), got "
                f"{array.dtype} of shape {array.shape}."
            )
        whole = array.dtype.kind in "ui"
        if array.size and not (array.min() >= 0 and array.max() <= (255 if whole else 1)):
            raise DataError("pixels must be whole numbers 0 to 255 or fractions 0 to 1.")
        if whole:
            return Images.floats(array.astype(np.uint8), self.mean, self.std, self.side)
        if self.side not in (None, array.shape[-1]):
            raise DataError(f"images of fractions must have side {self.side} already, or give bytes.")
        return ((array.astype(np.float32) - np.float32(self.mean)) / np.float32(self.std)).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> ImageReading:
        """Read the output of `to_dict`."""
        return cls(stored["side"], float(stored["mean"]), float(stored["std"]), stored["features"])


def named_features(name: str) -> Callable[[ArrayLike], np.ndarray]:
    """Return fixed features of images by name: a function from images to rows, each from its own image.

    Installed packages provide them by the entry point group ``sottovoce.image_features``. Grey images are
    (count, side, side), color images (count, 3, side, side), with pixels in [0, 1].
    """
    points = {point.name: point for point in entry_points(group="sottovoce.image_features")}
    if name not in points:
        raise DataError(f"there are no features {name!r}; there are {', '.join(points)}.")
    features: Callable[[ArrayLike], np.ndarray] = points[name].load()()
    return features


def read_images(data: Any) -> Any:
    """Return an array of images from an array, or from the array ``X`` of an NPZ file."""
    if isinstance(data, (str, os.PathLike)):
        return read_array(Path(data))
    return data.detach().numpy() if is_tensor(data) else data


def load_images(name: str, folder: str | Path | None = None) -> Images:
    """Return a set of images by name; ``folder`` names the place of the files instead of SOTTOVOCE_DATA."""
    if name not in SETS:
        raise DataError(f"There is no image set {name!r}; there are {', '.join(SETS)}.")
    if name == "digits":
        from sklearn.datasets import load_digits

        bunch = load_digits()
        x, y = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None], bunch.target.astype(np.int64)
        cut = 1437  # the customary four fifths; the last writers are held out
        return Images("digits", x[:cut], y[:cut], x[cut:], y[cut:], 10)
    place = data_folder(name) if folder is None else Path(folder)
    if name.startswith("cifar"):
        return _cifar(name, place)
    x, y, x_test, y_test = (read_idx(_either(place, file)) for file in _IDX_FILES)
    return Images(name, x[:, None], y.astype(np.int64), x_test[:, None], y_test.astype(np.int64), 10)


def _either(place: Path, file: str) -> Path:
    """Return the gzipped file, or the same unpacked."""
    gzipped = place / f"{file}.gz"
    return place / file if (place / file).is_file() and not gzipped.is_file() else gzipped


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file of bytes, gzipped or not; refuse one that is truncated or of another kind."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except FileNotFoundError:
        raise DataError(f"{path} is missing; the folder must hold the four original idx files.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path.name} is truncated or damaged; fetch the original file again.") from None
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or not 1 <= raw[3] <= 4:
        raise DataError(f"{path.name} is not an idx file of bytes; expected a header 0x0000080n.")
    first = 4 + 4 * raw[3]
    shape = struct.unpack(f">{raw[3]}I", raw[4:first]) if len(raw) >= first else (math.inf,)
    if len(raw) != first + math.prod(shape):
        raise DataError(
            f"{path.name} is truncated or damaged: its header promises {math.prod(shape)} bytes, it holds "
            f"{max(0, len(raw) - first)}; fetch the original file again."
        )
    return np.frombuffer(raw, np.uint8, offset=first).reshape(shape).copy()


def read_cifar(raw: bytes, label_bytes: int, name: str = "the file") -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 3, 32, 32) and labels of a binary CIFAR file; the last label byte is the class."""
    record = label_bytes + 3072
    if len(raw) == 0 or len(raw) % record:
        raise DataError(
            f"{name} is truncated or of another format: {len(raw)} bytes are no whole number of "
            f"{record}-byte records; fetch the official binary version again."
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32).copy(), rows[:, label_bytes - 1].astype(np.int64)


def _cifar(name: str, place: Path) -> Images:
    if name == "cifar10":
        for file in ("cifar10.npz", "cifar10_small.npz"):  # in one file, whole or the first few thousand
            if (place / file).is_file():
                return _cifar_npz(place / file)
        label_bytes, classes = 1, 10
        train, test = [f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"]
    else:
        label_bytes, classes, train, test = 2, 100, ["train.bin"], ["test.bin"]

    archive = place / f"cifar-{classes}-binary.tar.gz"

    def read(files: list[str]) -> list[np.ndarray]:
        arrays = [read_cifar(_cifar_bytes(place, archive, file), label_bytes, file) for file in files]
        return [np.concatenate(column) for column in zip(*arrays, strict=True)]

    (x, y), (x_test, y_test) = read(train), read(test)
    return Images(name, x, y, x_test, y_test, classes)


def _cifar_bytes(place: Path, archive: Path, file: str) -> bytes:
    """Return a .bin file from the folder or from the official archive."""
    for unpacked in sorted(place.rglob(file)):
        return unpacked.read_bytes()
    if archive.is_file():
        with tarfile.open(archive) as tar:
            for member in tar:
                if Path(member.name).name == file and (stream := tar.extractfile(member)) is not None:
                    return stream.read()
    raise DataError(f"{file} is missing in {place}; put {archive.name} or its .bin files there.")


def _cifar_npz(path: Path) -> Images:
    with np.load(path, allow_pickle=False) as z:
        train = ("x_train", "y_train") if "x_train" in z else ("x", "y")
        x, y, x_test, y_test = (z[key] for key in (*train, "x_test", "y_test"))
    channels_first = [np.ascontiguousarray(np.moveaxis(part, -1, 1)) for part in (x, x_test)]
    labels = [part.ravel().astype(np.int64) for part in (y, y_test)]
    return Images("cifar10", channels_first[0], labels[0], channels_first[1], labels[1], 10)


def _resized(x: np.ndarray, side: int) -> np.ndarray:
    """Bilinear, pixel centers aligned, rounded to bytes as image libraries do."""
    old = x.shape[-1]
    at = np.clip((np.arange(side) + 0.5) * old / side - 0.5, 0, old - 1)
    low = np.minimum(np.floor(at).astype(int), max(old - 2, 0))
    share = (at - low).astype(np.float32)
    high = np.minimum(low + 1, old - 1)
    out = np.empty((*x.shape[:2], side, side), np.uint8)
    for start in range(0, len(x), 4096):
        block = x[start : start + 4096].astype(np.float32)
        rows = block[:, :, low] * (1 - share)[:, None] + block[:, :, high] * share[:, None]
        full = rows[..., low] * (1 - share) + rows[..., high] * share
        out[start : start + 4096] = np.clip(np.rint(full), 0, 255)
    return out
