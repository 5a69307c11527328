"""Logs are read whole, by their end, by time, and followed while they grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from primebeaker.errors import UserError
from primebeaker.local import LocalEngine
from primebeaker.local.logs import LogReader, Source, read_logs
from primebeaker.supervision.output import INDEX_RECORD, LogFile, LogOptions

from ..waiting import until

Launch = Callable[..., str]


def test_lines_are_followed_while_they_come(engine: LocalEngine, launch: Launch, tmp_path: Path):
    """A follower has a line before the replica ends, and ends when the experiment has."""
    script = f"echo first; while ! test -e {tmp_path}/go; do sleep 0.02; done; printf 'last without end'"
    experiment_id = launch(script)
    lines = engine.logs(experiment_id, follow=True)
    assert next(lines).text == "first"
    assert engine.get(experiment_id).state == "running"
    (tmp_path / "go").touch()
    assert [line.text for line in lines] == ["last without end"]
    assert engine.get(experiment_id).ended


def test_a_follower_sees_a_line_soon(engine: LocalEngine, launch: Launch):
    """The bound is 0.3 s; the limit here allows for a busy machine."""
    experiment_id = launch("sleep 0.3; date +%s.%N; sleep 600")
    line = next(engine.logs(experiment_id, follow=True))
    assert time.time() - float(line.text) < 2


def test_the_end_of_each_log_is_enough(engine: LocalEngine, launch: Launch):
    experiment_id = launch("seq 1 1000", replicas=2)
    engine.wait(experiment_id, timeout=30)
    assert [(line.replica_rank, line.text) for line in engine.logs(experiment_id, tail=2)] == [
        (0, "999"),
        (0, "1000"),
        (1, "999"),
        (1, "1000"),
    ]
    assert [line.text for line in engine.logs(experiment_id, tail=1, follow=True, rank=1)] == ["1000"]


def test_lines_since_a_time(engine: LocalEngine, launch: Launch, tmp_path: Path):
    experiment_id = launch(f"echo early; while ! test -e {tmp_path}/go; do sleep 0.02; done; echo late")
    until(lambda: list(engine.logs(experiment_id)))
    time.sleep(0.05)
    now = datetime.now(UTC)
    (tmp_path / "go").touch()
    engine.wait(experiment_id, timeout=30)
    assert [line.text for line in engine.logs(experiment_id, since=now)] == ["late"]
    times = [line.timestamp for line in engine.logs(experiment_id)]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0] < now <= times[1]


def test_one_job_is_read_by_its_id(engine: LocalEngine, launch: Launch):
    experiment_id = launch("echo $BEAKER_REPLICA_RANK", replicas=2)
    engine.wait(experiment_id, timeout=30)
    job = engine.store.jobs(experiment_id)[1]
    assert [line.text for line in engine.logs(job.id, follow=True)] == ["1"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [({"rank": 5}, "rank 5: expected 0 to 1"), ({"task": "mian"}, "task 'mian': expected one of main")],
)
def test_a_replica_that_is_not_there(engine: LocalEngine, launch: Launch, wanted: dict, message: str):
    experiment_id = launch("true", replicas=2)
    with pytest.raises(UserError, match=message):
        list(engine.logs(experiment_id, **wanted))


def test_every_byte_is_kept(engine: LocalEngine, launch: Launch):
    experiment_id = launch(r"printf 'a\r\n\377\000b\n'")
    engine.wait(experiment_id, timeout=30)
    (job,) = engine.store.jobs(experiment_id)
    assert Path(job.log_path).read_bytes() == b"a\r\n\xff\x00b\n"


def test_a_log_that_grows_too_large_is_cut_while_it_is_followed(
    engine: LocalEngine, launch: Launch, monkeypatch: pytest.MonkeyPatch
):
    """A follower gets every line all the same; a later reader finds beginning, marker and end."""
    monkeypatch.setenv("PRIMEBEAKER_LOCAL_LOG_MAX_MB", "0.1")
    script = "for i in $(seq 1 60); do seq -f 'line %05.0f' $((i * 500 - 499)) $((i * 500)); sleep 0.02; done"
    experiment_id = launch(script)
    followed = [line.text for line in engine.logs(experiment_id, follow=True)]
    kept = [line.text for line in engine.logs(experiment_id)]
    assert kept[0] == "line 00001"
    assert kept[-1] == "line 30000"
    assert sum(text.endswith("bytes were cut from the middle of this log ...]") for text in kept) == 1
    assert len(kept) < 11_000
    assert [text for text in followed if not text.startswith("[...")] == [f"line {n:05}" for n in range(1, 30_001)]


def test_a_reader_goes_on_in_the_rewritten_log(tmp_path: Path):
    """Whatever was written between two looks, over a cut: no line twice, none lost."""
    path = tmp_path / "x.log"
    log = LogFile(LogOptions(path, raw=True, times=True, most_bytes=10_000), report=pytest.fail)
    reader = LogReader(path)
    seen: list[bytes] = []
    for number in range(2000):
        log.write(b"line %05d\n" % number)
        if number % 50 == 0:
            until(lambda: log._queued == 0)
            seen += [line.data for line in reader.lines()]
    assert log.close(5)
    seen += [line.data for line in reader.lines(final=True)]
    reader.close()
    assert seen == [b"line %05d" % number for number in range(2000)]


@pytest.mark.parametrize("ended", [b"", b"\n"])
@pytest.mark.parametrize("tail", [1, 2, 3, 4999, 5000, 6000])
def test_the_end_of_a_long_log_is_found_from_behind(tmp_path: Path, tail: int, ended: bytes):
    """With and without an end of the last line; long lines and empty ones."""
    lines = [b"x" * (number * 7919 % 200) for number in range(4998)] + [b"", b"last"]
    (tmp_path / "x.log").write_bytes(b"\n".join(lines) + ended)
    assert [line.data for _, line in read_logs([Source("x", tmp_path / "x.log")], tail=tail)] == lines[-tail:]


def test_a_time_is_found_without_reading_what_is_before(tmp_path: Path):
    """Times and offsets in the index; the log's beginning may be anything."""
    path = tmp_path / "x.log"
    path.write_bytes(b"".join(b"line %06d\n" % number for number in range(10_000)))
    records = [INDEX_RECORD.pack(number * 12, 1000.0 + number) for number in range(10_000)]
    path.with_name("x.log.index").write_bytes(b"".join(records))
    since = datetime.fromtimestamp(1000 + 9_990, UTC)
    found = [line for _, line in read_logs([Source("x", path)], since=since)]
    assert [line.data for line in found] == [b"line %06d" % number for number in range(9_990, 10_000)]
    assert found[0].at == since


def test_a_follower_gets_the_lines_of_a_restarted_job(engine: LocalEngine, launch: Launch, tmp_path: Path):
    """A preempted and restarted replica is a new job; who follows the experiment sees both."""
    script = f"echo try $(cat {tmp_path}/n 2>/dev/null); test -e {tmp_path}/n && exit 0; exec sleep 600"
    experiment_id = launch(script, context={"autoResume": True})
    lines: list[str] = []
    follower = threading.Thread(
        target=lambda: lines.extend(line.text for line in engine.logs(experiment_id, follow=True))
    )
    follower.start()
    until(lambda: list(engine.logs(experiment_id)))
    (tmp_path / "n").write_text("2")
    engine.preempt(experiment_id)
    follower.join(30)
    assert lines == ["try", "try 2"]
