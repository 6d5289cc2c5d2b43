"""Scalars in the file format TensorBoard reads, written without TensorBoard.

A record is: length (8 bytes), masked CRC-32C of it, payload, masked CRC-32C of that. The payload is a
protocol buffer ``Event`` with wall time, step and one ``Summary.Value`` (tag, simple_value) per scalar.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["EventLog", "read_events"]


class EventLog:
    """An event file in a folder; ``tensorboard --logdir FOLDER`` shows it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = EventLog(folder)
    ...     log.scalars(10, {"accuracy": 93.5, "note": "not a number"})
    ...     log.close()
    ...     [(step, value) for step, value in read_events(log.path)]
    [(0, {}), (10, {'accuracy': 93.5})]
    """

    def __init__(self, folder: str | Path) -> None:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        self.path = place / f"events.out.tfevents.{time.time_ns()}.sottovoce"
        self._file = self.path.open("wb")
        self._write(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the numbers among ``values`` for one step."""
        summary = b""
        for tag, value in values.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and tag != "step":
                one = _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", float(value))
                summary += _bytes(1, one)
        self._write(_double(1, time.time()) + b"\x10" + _varint(step) + _bytes(5, summary))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, payload: bytes) -> None:
        length = struct.pack("<Q", len(payload))
        self._file.write(length + _masked(length) + payload + _masked(payload))
        self._file.flush()


def read_events(path: str | Path) -> list[tuple[int, dict[str, float]]]:
    """Return (step, scalars) of every event in a file written by `EventLog`, checking every sum."""
    raw = Path(path).read_bytes()
    events, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        payload = raw[at + 12 : at + 12 + length]
        if (
            raw[at + 8 : at + 12] != _masked(raw[at : at + 8])
            or _masked(payload) != raw[at + 12 + length : at + 16 + length]
        ):
            raise ValueError(f"{path} is damaged at byte {at}.")
        events.append(_event(payload))
        at += 16 + length
    return events


def _event(payload: bytes) -> tuple[int, dict[str, float]]:
    step, scalars = 0, {}
    for key, value in _fields(payload):
        if key == 2:
            step = int(value)
        elif key == 5:
            for _, one in _fields(value):
                parts = dict(_fields(one))
                scalars[parts[1].decode()] = struct.unpack("<f", parts[2])[0]
    return step, scalars


def _fields(raw: bytes) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        kind = tag & 7
        if kind == 0:
            value, at = _read_varint(raw, at)
            found.append((tag >> 3, value))
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = _read_varint(raw, at)
            found.append((tag >> 3, raw[at : at + size]))
            at += size
    return found


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _bytes(key: int, value: bytes) -> bytes:
    return _varint(key << 3 | 2) + _varint(len(value)) + value


def _double(key: int, value: float) -> bytes:
    return _varint(key << 3 | 1) + struct.pack("<d", value)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC = _table()


def _masked(data: bytes) -> bytes:
    """CRC-32C (Castagnoli), rotated and offset as the format asks."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF)
