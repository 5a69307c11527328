"""The safetensors file format, as far as a table of 32-bit floats needs it.

Eight bytes little-endian header length, a JSON header, then the data.  Written by hand because the library brings
numpy, which no stand-in otherwise loads.
"""

from __future__ import annotations

import json
import struct
from typing import NamedTuple

__all__ = ["Table", "decode", "encode"]


class Table(NamedTuple):
    """A two-dimensional tensor and the file's text metadata."""

    rows: list[list[float]]
    metadata: dict[str, str]


def encode(name: str, table: Table) -> bytes:
    """One tensor ``name`` of shape ``[rows, columns]`` as a safetensors file."""
    columns = len(table.rows[0]) if table.rows else 0
    data = b"".join(struct.pack(f"<{columns}f", *row) for row in table.rows)
    header = json.dumps(
        {
            "__metadata__": table.metadata,
            name: {"dtype": "F32", "shape": [len(table.rows), columns], "data_offsets": [0, len(data)]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def decode(name: str, content: bytes) -> Table:
    """Read back what :func:`encode` wrote.

    Raises:
        ValueError: The file is damaged or holds no such tensor.
    """
    try:
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])
        rows, columns = header[name]["shape"]
        start, end = (8 + length + offset for offset in header[name]["data_offsets"])
        values = struct.unpack(f"<{rows * columns}f", content[start:end])
    except (struct.error, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a safetensors file with {name}: {error}") from error
    return Table(
        [list(values[row * columns : (row + 1) * columns]) for row in range(rows)], header.get("__metadata__", {})
    )
