"""Reading ``run-<id>.wandb`` files without the W&B client.

Observed with client 0.31: a 7-byte header, then LevelDB-log records in blocks of 32,768 bytes, each holding protobuf
``Record`` messages.  A cut tail or a wrong checksum ends the block quietly; what came before is kept.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

__all__ = ["WandbHead", "WandbLog", "WandbRow", "has_exited", "read_head", "read_log"]

_BLOCK = 32_768
_FILE_HEADER = b":W&B\xe1\xbe\x00"
_RECORD_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _RUN, _EXIT = 2, 17, 18
_TAIL_BLOCKS = 2


class WandbRow(NamedTuple):
    """One history row: step and its finite numbers; ``non_finite`` names the others that were no numbers to plot."""

    step: float
    values: dict[str, float]
    non_finite: tuple[str, ...]


class WandbHead(NamedTuple):
    """Who the run is."""

    run_id: str | None = None
    entity: str | None = None
    project: str | None = None
    name: str | None = None


@dataclass
class WandbLog:
    """What one file holds.

    Attributes:
        rows: History rows in the order of the file.
        head: Who the run is.
        exit_code: Set when the run ended by itself.
        truncated: The tail is cut or a record is damaged.
        offset: Where reading can go on: the start of the first record that was not complete.
    """

    rows: list[WandbRow] = field(default_factory=list)
    head: WandbHead = field(default_factory=WandbHead)
    exit_code: int | None = None
    truncated: bool = False
    offset: int = 0


def read_log(stream: BinaryIO, *, offset: int = 0) -> WandbLog:
    """Read a ``.wandb`` file from ``offset`` (0, or what an earlier call left in :attr:`WandbLog.offset`)."""
    log = WandbLog(offset=offset)
    stream.seek(0)
    if stream.read(len(_FILE_HEADER)) != _FILE_HEADER:
        log.truncated = True
        return log
    log.offset = max(offset, len(_FILE_HEADER))
    for kind, payload in _messages(stream, log):
        _apply(log, kind, payload)
    return log


def read_head(stream: BinaryIO) -> WandbHead:
    """Who the run is, from the first block."""
    data = stream.read(_BLOCK)
    if not data.startswith(_FILE_HEADER):
        return WandbHead()
    log = WandbLog(offset=len(_FILE_HEADER))
    for kind, payload in _block_messages(data):
        if kind == _RUN:
            _apply(log, kind, payload)
            break
    return log.head


def has_exited(stream: BinaryIO, size: int) -> int | None:
    """The exit code when the last records of the file say that the run ended, else None."""
    stream.seek(max(0, (size - 1) // _BLOCK - _TAIL_BLOCKS + 1) * _BLOCK)
    data = stream.read()
    log = WandbLog()
    for start in range(0, len(data), _BLOCK):
        block = data[start : start + _BLOCK]
        for kind, payload in _block_messages(block):
            if kind == _EXIT:
                _apply(log, kind, payload)
    return log.exit_code


def _block_messages(block: bytes) -> Iterator[tuple[int, bytes]]:
    at = len(_FILE_HEADER) if block.startswith(_FILE_HEADER) else 0
    while at + _RECORD_HEADER.size <= len(block):
        checksum, length, kind = _RECORD_HEADER.unpack_from(block, at)
        start, end = at + _RECORD_HEADER.size, at + _RECORD_HEADER.size + length
        if end > len(block) or zlib.crc32(block[at + 6 : end]) != checksum:
            return
        if kind == _FULL:
            yield from _fields_of(block[start:end])
        at = end


def _messages(stream: BinaryIO, log: WandbLog) -> Iterator[tuple[int, bytes]]:
    """Whole messages from ``log.offset`` on; advances it past each complete record."""
    parts: list[bytes] = []
    position = log.offset
    block_start = position - position % _BLOCK
    while True:
        stream.seek(block_start)
        block = stream.read(_BLOCK)
        at = position - block_start
        damaged = False
        while at + _RECORD_HEADER.size <= len(block):
            checksum, length, kind = _RECORD_HEADER.unpack_from(block, at)
            end = at + _RECORD_HEADER.size + length
            if end > len(block) or zlib.crc32(block[at + 6 : end]) != checksum:
                damaged = True
                break
            data = block[at + _RECORD_HEADER.size : end]
            at = end
            if kind == _FULL:
                parts = []
                yield from _fields_of(data)
                log.offset = block_start + at
            elif kind == _FIRST:
                parts = [data]
            elif kind in (_MIDDLE, _LAST) and parts:
                parts.append(data)
                if kind == _LAST:
                    yield from _fields_of(b"".join(parts))
                    parts = []
                    log.offset = block_start + at
        if damaged:
            log.truncated = True
            parts = []
        if len(block) < _BLOCK:
            log.truncated = log.truncated or at < len(block) or bool(parts)
            return
        block_start += _BLOCK
        position = block_start


def _fields_of(message: bytes) -> Iterator[tuple[int, bytes]]:
    try:
        for number, value in _protobuf(message):
            if number in (_HISTORY, _RUN, _EXIT) and isinstance(value, bytes):
                yield number, value
    except (IndexError, struct.error, ValueError):
        # The checksum held, so this is a message of a client we do not know.
        return


def _protobuf(data: bytes) -> Iterator[tuple[int, int | bytes | float]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
        elif kind == 1:
            yield number, struct.unpack_from("<d", data, at)[0]
            at += 8
        elif kind == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("a field longer than its message")
            yield number, data[at : at + length]
            at += length
        elif kind == 5:
            yield number, struct.unpack_from("<f", data, at)[0]
            at += 4
        else:
            raise ValueError(f"wire type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _apply(log: WandbLog, kind: int, payload: bytes) -> None:
    try:
        if kind == _HISTORY:
            row = _history(payload)
            if row is not None:
                log.rows.append(row)
        elif kind == _RUN:
            texts = {
                number: value.decode("utf-8", "replace")
                for number, value in _protobuf(payload)
                if number in (1, 2, 3, 8) and isinstance(value, bytes)
            }
            log.head = WandbHead(*(texts.get(number) or None for number in (1, 2, 3, 8)))
        else:
            codes = [value for number, value in _protobuf(payload) if number == 1 and isinstance(value, int)]
            log.exit_code = codes[-1] if codes else 0
    except (IndexError, struct.error, ValueError):
        log.truncated = True


def _history(payload: bytes) -> WandbRow | None:
    values: dict[str, float] = {}
    odd: list[str] = []
    number_of_row: float | None = None
    for number, value in _protobuf(payload):
        if number == 1 and isinstance(value, bytes):
            name, item = _item(value)
            if name is None or isinstance(item, bool) or not isinstance(item, int | float):
                continue
            try:
                converted = float(item)
            except OverflowError:
                continue
            if math.isfinite(converted):
                values[name] = converted
            else:
                odd.append(name)
        elif number == 2 and isinstance(value, bytes):
            steps = [part for field_number, part in _protobuf(value) if field_number == 1 and isinstance(part, int)]
            number_of_row = float(steps[-1] if steps else 0)
    step = values.get("step", values.get("_step", number_of_row))
    return None if step is None else WandbRow(step, values, tuple(odd))


def _item(data: bytes) -> tuple[str | None, Any]:
    key: str | None = None
    nested: list[str] = []
    value: Any = None
    for number, part in _protobuf(data):
        if number == 1 and isinstance(part, bytes):
            key = part.decode("utf-8", "replace")
        elif number == 2 and isinstance(part, bytes):
            nested.append(part.decode("utf-8", "replace"))
        elif number in (8, 16) and isinstance(part, bytes):
            value = json.loads(part)
        elif number == 4:
            value = bool(part)
        elif number == 5 and isinstance(part, int):
            # sint64 is zigzag-encoded.
            value = (part >> 1) ^ -(part & 1)
        elif number == 6:
            value = part
    return (".".join(nested) if nested else key), value
