"""Image data sets from their official files: MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100; digits embedded.

A file is looked for in SOTTOVOCE_DATA, then in the per-user cache; `download` fetches it from its public
address and keeps it only if its checksum is right. A file that is truncated or has another shape is refused
before any of it is used. CIFAR's official archives hold Python pickles; only the binary versions are read.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sottovoce._io import atomic_write
from sottovoce.data.files import read_array
from sottovoce.data.loaders import data_folder
from sottovoce.errors import DataError

_IDX_FILES = (
    "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz",
)  # fmt: skip
_SOURCES: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            _IDX_FILES[0]: ("sha256", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            _IDX_FILES[1]: ("sha256", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            _IDX_FILES[2]: ("sha256", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            _IDX_FILES[3]: ("sha256", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        },
    ),
    "fashion_mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            _IDX_FILES[0]: ("md5", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            _IDX_FILES[1]: ("md5", "25c81989df183df01b3e8a0aad5dffbe"),
            _IDX_FILES[2]: ("md5", "bef4ecab320f06d8554ea6380940ec79"),
            _IDX_FILES[3]: ("md5", "bb300cfdad3c16e7a12a480ee83cd310"),
        },
    ),
    "cifar10": (
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": ("md5", "c32a1d4ab5d03f1284b67883e8d87530")},
    ),
    "cifar100": (
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-binary.tar.gz": ("md5", "03b5dce01913d631647c71ecec9e9cb8")},
    ),
}


@dataclass(frozen=True, eq=False)
class Images:
    """Training and test images with class labels.

    Parameters
    ----------
    x, x_test : (n, channels, height, width) uint8.
    y, y_test : (n,) int64 in 0 .. classes - 1.
    """

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
            if len(y) and (y.min() < 0 or y.max() >= self.classes):
                wrong = int(y[(y < 0) | (y >= self.classes)][0])
                raise DataError(
                    f"{self.name}: a {part} label is {wrong}, but the classes are 0 to {self.classes - 1}."
                )

    def floats(self, x: np.ndarray, mean: Any = 0.0, std: Any = 1.0, side: int | None = None) -> np.ndarray:
        """Return images as float32 ``(x / 255 - mean) / std``, resized to ``side`` if given.

        ``mean`` and ``std`` are public constants: a number, or one per channel.
        """
        values = x if side is None or side == x.shape[-1] else _resized(x, side)
        shape = (1, -1, 1, 1)
        center = np.asarray(mean, np.float32).reshape(shape)
        scale = np.asarray(std, np.float32).reshape(shape)
        return ((values.astype(np.float32) / np.float32(255) - center) / scale).astype(np.float32)


@dataclass(frozen=True)
class ImageReading:
    """How images become inputs of a network, by public facts only; it is saved with the model.

    Parameters
    ----------
    side : resize to this side.
    mean, std : public constants, for pixels in [0, 1].
    features : name of fixed features of the scaled images (`sottovoce.data.image_features`), or None.
    """

    side: int | None = None
    mean: float = 0.0
    std: float = 1.0
    features: str | None = None

    def __call__(self, images: Any) -> np.ndarray:
        """Return (n, channels, side, side) float32 of images (n, [channels,] h, w): bytes, or [0, 1]."""
        array = np.asarray(images)
        if array.ndim == 3:
            array = array[:, None]
        if array.ndim != 4 or array.dtype.kind not in "uif":
            raise DataError(
                f"images must be numbers of shape (n, height, width) or (n, channels, height, width), got "
                f"{array.dtype} of shape {array.shape}."
            )
        if array.dtype != np.uint8:
            if array.size and not (
                array.min() >= 0 and array.max() <= (255 if array.dtype.kind in "ui" else 1)
            ):
                raise DataError("pixels must be whole numbers 0 to 255 or fractions 0 to 1.")
            array = array.astype(np.uint8) if array.dtype.kind in "ui" else array
        if array.dtype == np.uint8:
            held = Images("these", array, np.zeros(len(array), np.int64), array[:0], np.zeros(0, np.int64), 1)
            return held.floats(array, self.mean, self.std, self.side)
        if self.side not in (None, array.shape[-1]):
            raise DataError(f"images of fractions must have side {self.side} already, or give bytes.")
        return ((array.astype(np.float32) - np.float32(self.mean)) / np.float32(self.std)).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return {"side": self.side, "mean": self.mean, "std": self.std, "features": self.features}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> ImageReading:
        """Read the output of `to_dict`."""
        return cls(stored["side"], float(stored["mean"]), float(stored["std"]), stored["features"])


def read_images(data: Any) -> Any:
    """Return an array of images from an array, or from the array ``X`` of an NPZ file."""
    if not isinstance(data, (str, os.PathLike)):
        return data.detach().numpy() if hasattr(data, "detach") else data
    return read_array(Path(data))


def load_images(name: str, folder: str | Path | None = None) -> Images:
    """Return a set of images by name; ``folder`` names the place of the files instead of SOTTOVOCE_DATA.

    Examples
    --------
    >>> load_images("digits").y_test.shape
    (360,)
    >>> load_images("imagenet")
    Traceback (most recent call last):
    ...
    sottovoce.errors.DataError: There is no image set 'imagenet'; there are digits, mnist, ...
    """
    if name == "digits":
        return _digits()
    if name not in _SOURCES:
        raise DataError(f"There is no image set {name!r}; there are digits, {', '.join(_SOURCES)}.")
    place = data_folder(name) if folder is None else Path(folder)
    if name in ("mnist", "fashion_mnist"):
        x, y, x_test, y_test = (read_idx(_either(place, file)) for file in _IDX_FILES)
        return Images(name, x[:, None], y.astype(np.int64), x_test[:, None], y_test.astype(np.int64), 10)
    return _cifar(name, place)


def download(name: str, folder: str | Path | None = None) -> Path:
    """Fetch the official files of a set into ``folder`` (the per-user cache by default) and return it.

    Files already there are checked, not fetched again. A file whose checksum is wrong is removed.
    """
    if name not in _SOURCES:
        raise DataError(f"There is no image set {name!r} to download; there are {', '.join(_SOURCES)}.")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sottovoce" / name
    place = cache if folder is None else Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    address, files = _SOURCES[name]
    for file, (kind, wanted) in files.items():
        path = place / file
        if not path.is_file():
            _fetch(address + file, path)
        check_sum(path, kind, wanted)
    return place


def check_sum(path: Path, kind: str, wanted: str) -> None:
    """Raise, and remove the file, unless its digest is the one expected."""
    digest = hashlib.new(kind, path.read_bytes(), usedforsecurity=False).hexdigest()
    if digest != wanted:
        path.unlink()
        raise DataError(
            f"{path.name}: expected {kind} {wanted[:12]}..., got {digest[:12]}...; the file was removed, "
            "download it again."
        )


def _fetch(address: str, path: Path) -> None:
    from urllib.error import URLError
    from urllib.request import urlopen

    def receive(target: BinaryIO) -> None:
        try:
            with urlopen(address, timeout=60) as source:
                while block := source.read(1 << 20):
                    target.write(block)
        except (URLError, OSError) as problem:
            raise DataError(
                f"{address} cannot be fetched ({problem}); put {path.name} into {path.parent} by hand."
            ) from None

    atomic_write(path, receive)


def read_idx(path: str | Path) -> np.ndarray:
    """Read an idx file of bytes, gzipped or not; refuse one that is truncated or of another kind."""
    path = Path(path)
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except FileNotFoundError:
        raise DataError(f"{path} is missing; the folder must hold the four original idx files.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path.name} is truncated or damaged; fetch the original file again.") from None
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or not 1 <= raw[3] <= 4:
        raise DataError(f"{path.name} is not an idx file of bytes; expected a header 0x0000080n.")
    axes = raw[3]
    if len(raw) < 4 + 4 * axes:
        raise DataError(f"{path.name} is truncated: its header is incomplete; fetch the original file again.")
    shape = struct.unpack(f">{axes}I", raw[4 : 4 + 4 * axes])
    size = 1
    for length in shape:
        size *= length
    if len(raw) != 4 + 4 * axes + size:
        raise DataError(
            f"{path.name} is truncated or damaged: its header promises {size} bytes, it holds "
            f"{len(raw) - 4 - 4 * axes}; fetch the original file again."
        )
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()


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
    for file in ("cifar10.npz", "cifar10_small.npz"):  # a copy in one file, whole or the first few thousand
        if name == "cifar10" and (place / file).is_file():
            return _cifar_npz(place / file)
    label_bytes, classes = (1, 10) if name == "cifar10" else (2, 100)
    train = [f"data_batch_{i}.bin" for i in range(1, 6)] if name == "cifar10" else ["train.bin"]
    test = ["test_batch.bin"] if name == "cifar10" else ["test.bin"]
    read = _reader(place, name)
    parts = [[read_cifar(read(file), label_bytes, file) for file in files] for files in (train, test)]
    (x, y), (x_test, y_test) = (
        (np.concatenate([a for a, _ in part]), np.concatenate([b for _, b in part])) for part in parts
    )
    return Images(name, x, y, x_test, y_test, classes)


def _reader(place: Path, name: str) -> Callable[[str], bytes]:
    """Return a function that reads a .bin file from the folder or from the official archive."""
    archive = next(iter(_SOURCES[name][1]))

    def read(file: str) -> bytes:
        unpacked = next(iter(sorted(place.rglob(file))), None)
        if unpacked is not None:
            return unpacked.read_bytes()
        if (place / archive).is_file():
            with tarfile.open(place / archive) as tar:
                for member in tar:
                    if member.isfile() and Path(member.name).name == file:
                        stream = tar.extractfile(member)
                        return b"" if stream is None else stream.read()
        raise DataError(f"{file} is missing in {place}; put {archive} (or its .bin files) there.")

    return read


def _cifar_npz(path: Path) -> Images:
    with np.load(path, allow_pickle=False) as z:
        train = ("x_train", "y_train") if "x_train" in z else ("x", "y")
        x, y, x_test, y_test = (z[key] for key in (*train, "x_test", "y_test"))
    channels_first = [np.ascontiguousarray(np.moveaxis(part, -1, 1)) for part in (x, x_test)]
    labels = [part.ravel().astype(np.int64) for part in (y, y_test)]
    return Images("cifar10", channels_first[0], labels[0], channels_first[1], labels[1], 10)


def _digits() -> Images:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    y = bunch.target.astype(np.int64)
    cut = 1437  # the customary four fifths; the last writers are held out
    return Images("digits", x[:cut], y[:cut], x[cut:], y[cut:], 10)


def _either(place: Path, file: str) -> Path:
    """The gzipped file, or the same unpacked."""
    plain = place / file.removesuffix(".gz")
    return plain if plain.is_file() and not (place / file).is_file() else place / file


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
