"""The disk that stand-ins write to gets full for all of them at once, and leaves what a full disk leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from primebeaker.rehearsal.settings import RehearsalSettings

WRITE = """
import sys, json
from pathlib import Path
from primebeaker.rehearsal.standins import disk
told = []
for word in sys.argv[2:]:
    how, name, size = word.split(",")
    content = "x" * int(size)
    try:
        getattr(disk, how)(Path(sys.argv[1], name), content.encode() if how == "save" else content)
    except OSError as error:
        told.append([error.errno, str(error)])
print(json.dumps(told))
"""


@pytest.fixture
def write(tmp_path: Path):
    """Run stand-in writes in a process of a rehearsal whose disk has room for 100 bytes."""
    settings = RehearsalSettings(faults=("full-disk:bytes=100", "slow-disk:ms=1"))
    settings.write(tmp_path / "rehearsal")

    def run(*words: str, engine: str = "1") -> list:
        environment = {**os.environ, **settings.environment(tmp_path / "rehearsal"), "PRIMEBEAKER_LOCAL_ENGINE": engine}
        done = subprocess.run(
            [sys.executable, "-c", WRITE, str(tmp_path), *words],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    return run


def test_the_disk_is_one_for_all_processes(write, tmp_path: Path) -> None:
    assert write("save,a,60", "append,b,30") == []
    ((number, text),) = write("save,c,40", "append,b,0")
    assert number == 28 and "No space left on device" in text and str(tmp_path / "c") in text
    assert [(tmp_path / name).stat().st_size for name in "abc"] == [60, 30, 10]
    assert (tmp_path / "rehearsal/disk-full").read_text() == str(tmp_path / "c")


def test_what_is_replaced_as_a_whole_is_never_half_written(write, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    assert len(write("replace,old,200", "append,log,200", "replace,new,200")) == 3
    assert (tmp_path / "old").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["old"]


def test_outside_a_rehearsal_on_the_embedded_engine_the_disk_is_the_real_one(write, tmp_path: Path) -> None:
    assert write("save,a,500", "replace,b,500", engine="0") == []
    assert (tmp_path / "a").stat().st_size == 500
