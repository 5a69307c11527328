"""The reader of ``.wandb`` files, against files written byte by byte and by the real client."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from primebeaker.watcher.wandb_log import has_exited, read_head, read_log

HEADER = b":W&B\xe1\xbe\x00"
BLOCK = 32_768


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def history(step: int | None, /, **values: float) -> bytes:
    items = b"".join(
        field(1, field(2, name.encode()) + field(16, json.dumps(value).encode())) for name, value in values.items()
    )
    return field(2, items + (b"" if step is None else field(2, field(1, step) if step else b"")))


def log_file(messages: list[bytes]) -> bytes:
    out = bytearray(HEADER)

    def record(kind: int, data: bytes) -> None:
        out.extend(struct.pack("<IHB", zlib.crc32(bytes([kind]) + data), len(data), kind) + data)

    for message in messages:
        first = True
        while True:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out.extend(b"\0" * room)
                room = BLOCK
            piece, message = message[: room - 7], message[room - 7 :]
            if first:
                record(1 if not message else 2, piece)
            else:
                record(4 if not message else 3, piece)
            first = False
            if not message:
                break
    return bytes(out)


RUN = field(17, field(1, b"id1") + field(2, b"ent") + field(3, b"proj") + field(8, b"name"))


def test_rows_head_and_exit() -> None:
    data = log_file([RUN, history(0, a=1.5), history(3, a=float("nan"), b=2), field(18, b"")])
    log = read_log(io.BytesIO(data))
    assert [(row.step, row.values) for row in log.rows] == [(0, {"a": 1.5}), (3, {"b": 2.0})]
    assert log.rows[1].non_finite == ("a",)
    assert (log.exit_code, log.truncated, log.offset) == (0, False, len(data))
    assert read_head(io.BytesIO(data)) == ("id1", "ent", "proj", "name")
    assert has_exited(io.BytesIO(data), len(data)) == 0
    assert has_exited(io.BytesIO(log_file([RUN])), 50) is None


def test_the_own_step_wins_over_the_row_number() -> None:
    log = read_log(io.BytesIO(log_file([history(9, step=4, a=1.0), history(10, _step=5, a=2.0)])))
    assert [row.step for row in log.rows] == [4, 5]


@given(st.integers(0, 2**32), st.lists(st.integers(0, 40_000), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_cut_anywhere_keeps_what_came_before_and_goes_on(seed: int, sizes: list[int]) -> None:
    data = log_file([history(index, **{"x" * (size + 1): float(index)}) for index, size in enumerate(sizes)])
    cut = seed % (len(data) + 1)
    first = read_log(io.BytesIO(data[:cut]))
    assert [row.step for row in first.rows] == list(range(len(first.rows)))
    if cut < len(HEADER):
        return
    second = read_log(io.BytesIO(data), offset=first.offset)
    assert [row.step for row in (*first.rows, *second.rows)] == list(range(len(sizes)))


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_without_a_fault(data: bytes) -> None:
    read_log(io.BytesIO(data))
    read_log(io.BytesIO(HEADER + data))
    read_log(io.BytesIO(log_file([field(2, data), data])))


def test_a_damaged_block_does_not_hide_the_next_one() -> None:
    data = bytearray(log_file([history(index, a=float(index)) for index in range(3000)]))
    data[100] ^= 255
    log = read_log(io.BytesIO(bytes(data)))
    assert log.truncated
    assert log.rows[-1].step == 2999


def test_a_file_of_the_real_client(tmp_path: Path) -> None:
    script = (
        "import wandb\n"
        "run = wandb.init(project='p', name='n', mode='offline')\n"
        "for step in range(50):\n    wandb.log({'val/loss': 1 / (step + 1), 'nested': {'deep': step}})\n"
        "run.finish()\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "WANDB_MODE": "offline", "HOME": str(tmp_path), "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True, capture_output=True)
    found = next(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    with found.open("rb") as stream:
        log = read_log(stream)
        assert has_exited(stream, found.stat().st_size) == 0
    assert [row.step for row in log.rows] == list(range(50))
    assert log.rows[4].values["val/loss"] == 0.2
    assert log.rows[4].values["nested.deep"] == 4
    assert (log.head.project, log.head.name, log.truncated) == ("p", "n", False)
