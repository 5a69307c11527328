"""Output reaches log and console; neither can hold a child up or let memory grow."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from primebeaker.supervision.output import INDEX_RECORD, MOST_LINE_BYTES, Console, LineSplitter, LogFile, LogOptions

from ..waiting import until

Supervise = Callable[..., subprocess.Popen[str]]


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\nc"], [b"ab", b"c"]),
        ([b"\n\n"], [b"", b""]),
        ([b"x" * MOST_LINE_BYTES * 2 + b"y"], [b"x" * MOST_LINE_BYTES, b"x" * MOST_LINE_BYTES, b"y"]),
        ([b"x" * (MOST_LINE_BYTES + 1) + b"\nz\n"], [b"x" * MOST_LINE_BYTES, b"x", b"z"]),
        ([b"\xff\xfe\n"], [b"\xff\xfe"]),
    ],
)
def test_a_stream_is_cut_into_lines(pieces: list[bytes], lines: list[bytes]):
    splitter = LineSplitter()
    assert [line for piece in pieces for line in splitter.feed(piece)] + splitter.end() == lines


def test_lines_reach_the_log_and_the_console(supervise: Supervise, tmp_path: Path):
    """stdout and stderr, in order; torchrun's prefix is removed on the console only."""
    process = supervise(
        """
        async def main():
            console = Console()
            async with Supervisor(console=console) as supervisor:
                script = "echo '[trainer0]:one'; echo two >&2; printf 'no end'"
                child = supervisor.start(shell(
                    "trainer", script, console_prefix="[trainer] ", strip_torchrun_prefix=True,
                    log=LogOptions(here / "logs" / "trainer.log", header="=== now trainer ===")))
                await child.wait()
                await supervisor.shut_down(grace=0)
                print(child.last_lines(), file=sys.stderr)
            console.close()
        """
    )
    output, errors = process.communicate(timeout=30)
    assert output.splitlines() == ["[trainer] one", "[trainer] two", "[trainer] no end"]
    assert errors.strip() == "['[trainer0]:one', 'two', 'no end']"
    log = (tmp_path / "logs" / "trainer.log").read_text()
    assert log == "=== now trainer ===\n[trainer0]:one\ntwo\nno end\n"


def test_a_child_is_not_held_up_by_a_console_nobody_reads(supervise: Supervise, tmp_path: Path):
    """60,000 lines on a stuck console: the child ends, the log has every line, the console counts the missing ones."""
    process = supervise(
        f"""
        async def main():
            console = Console(most_queued=20_000)
            async with Supervisor(console=console) as supervisor:
                child = supervisor.start(spec(
                    "busy", {sys.executable!r}, "-S", "-c", "for i in range(60000): print('line', i)",
                    console_prefix="[busy] ", log=LogOptions(here / "busy.log")))
                await child.wait()
                await supervisor.shut_down(grace=0)
                ready("ended")
                await asyncio.to_thread(console.close, 30)
        """
    )
    until((tmp_path / "ended").exists, 60)
    assert (tmp_path / "busy.log").read_text() == "".join(f"line {i}\n" for i in range(60000))
    shown = process.communicate(timeout=60)[0].splitlines()
    # Whenever the console takes lines again it first says how many it left out.
    gaps = [line for line in shown if line.endswith("lines were not shown: the console is too slow]")]
    lines = [line for line in shown if line.startswith("[busy] line ")]
    assert gaps and len(gaps) + len(lines) == len(shown)
    assert len(lines) + sum(int(gap.removeprefix("[").split()[0]) for gap in gaps) == 60000


def test_a_console_whose_reader_has_gone_harms_nobody(tmp_path: Path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    console = Console(write_end)
    console.line("nobody hears this")
    assert console.close(5)
    os.close(write_end)


def test_a_full_disk_is_reported_once_and_marked_in_the_log_afterwards(tmp_path: Path):
    """Writes fail as on a full disk until the log's link points elsewhere; what is missing is said in the log."""
    path, reports = tmp_path / "x.log", []
    path.symlink_to("/dev/full")
    log = LogFile(LogOptions(path), report=reports.append)
    for _ in range(3):
        log.write(b"lost\n")
        until(lambda: log._queued == 0)
    path.unlink()
    log.write(b"kept\n")
    assert log.close(5)
    assert reports == [f"{path}: cannot write the log: No space left on device"]
    assert path.read_text() == "[15 bytes of output are missing here: the log could not be written]\nkept\n"


def test_a_full_disk_does_not_stop_the_child(supervise: Supervise, tmp_path: Path):
    (tmp_path / "full.log").symlink_to("/dev/full")
    process = supervise(
        f"""
        async def main():
            async with Supervisor(report=lambda line: print(line, flush=True)) as supervisor:
                child = supervisor.start(spec(
                    "busy", {sys.executable!r}, "-S", "-c", "for i in range(200000): print('line', i)",
                    log=LogOptions(here / "full.log")))
                print((await child.wait()).code)
        """
    )
    output, _ = process.communicate(timeout=60)
    assert set(output.splitlines()) == {"0", f"{tmp_path}/full.log: cannot write the log: No space left on device"}


def test_a_log_that_hangs_costs_output_but_no_memory_and_no_child(supervise: Supervise, tmp_path: Path):
    """The log is a pipe nobody reads, as a hanging network file system: the child ends all the same."""
    os.mkfifo(tmp_path / "stuck.log")
    process = supervise(
        f"""
        async def main():
            async with Supervisor() as supervisor:
                child = supervisor.start(spec(
                    "busy", {sys.executable!r}, "-S", "-c", "for i in range(600000): print('line', i)",
                    log=LogOptions(here / "stuck.log")))
                print((await child.wait()).code)
        """
    )
    descriptor = os.open(tmp_path / "stuck.log", os.O_RDONLY)
    output, _ = process.communicate(timeout=60)
    os.close(descriptor)
    assert output == "0\n"


def test_a_raw_log_keeps_every_byte_with_its_time(tmp_path: Path):
    log = LogFile(LogOptions(tmp_path / "raw.log", raw=True, times=True), report=pytest.fail)
    for piece in (b"a\r\n", b"\x00\xff no end"):
        log.write(piece)
        time.sleep(0.06)
    assert log.close(5)
    assert (tmp_path / "raw.log").read_bytes() == b"a\r\n\x00\xff no end"
    records = list(INDEX_RECORD.iter_unpack((tmp_path / "raw.log.index").read_bytes()))
    assert [offset for offset, _ in records] == [0, 3]
    assert records[0][1] <= records[1][1]


def test_a_log_that_grows_too_large_is_cut_in_the_middle(tmp_path: Path):
    """The beginning and the end stay, a marker line stands between, the times still fit their lines."""
    path = tmp_path / "big.log"
    log = LogFile(LogOptions(path, raw=True, times=True, most_bytes=40_000), report=pytest.fail)
    for number in range(10_000):
        log.write(b"line %05d\n" % number)
        if number % 500 == 0:
            until(lambda: log._queued == 0)
    assert log.close(5)
    text = path.read_bytes()
    lines = text.splitlines()
    assert len(text) <= 41_000
    assert lines[0] == b"line 00000"
    assert lines[-1] == b"line 09999"
    markers = [line for line in lines if line.startswith(b"[...")]
    assert markers
    assert all(line.endswith(b"bytes were cut from the middle of this log ...]") for line in markers)
    assert all(line.startswith((b"line ", b"[...")) for line in lines)
    offsets = [offset for offset, _ in INDEX_RECORD.iter_unpack((tmp_path / "big.log.index").read_bytes())]
    assert offsets == sorted(offsets)
    assert all(text[offset : offset + 5] == b"line " for offset in offsets)
