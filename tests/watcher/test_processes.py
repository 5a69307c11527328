"""Faults that take whole processes: scanners side by side, kills at any moment, damaged files, what a server logs."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from primebeaker.watcher.app import _progress, create_app
from primebeaker.watcher.database import open_reader, open_writer
from primebeaker.watcher.errors import DatabaseUnusableError
from primebeaker.watcher.locking import scan_lock
from primebeaker.watcher.rebuild import RebuildOptions, prune, rebuild
from primebeaker.watcher.update import ScanOptions, update

from .conftest import Tree
from .test_family import rows
from .test_http import asker


def quiet(_line: str) -> None:
    return None


def command(tree: Tree, *words: str) -> list[str]:
    return [sys.executable, "-m", "primebeaker.watcher", *words, f"--database={tree.database}"]


def scanning(tree: Tree, word: str, *more: str) -> list[str]:
    return command(tree, word, f"--repo_root={tree.repo}", f"--output_roots={tree.runs}", *more)


def test_two_scanners_take_turns_or_one_is_told(family: Tree) -> None:
    for index in range(400):
        family.evaluation(f"more{index}", f"m/{index}")
    patient = [
        subprocess.Popen(scanning(family, "update", "--wait=90"), stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [json.loads(process.communicate(timeout=120)[0])["operation"] for process in patient] == ["update"] * 2
    assert rows(family, "SELECT count(*) FROM evaluations") == [(403,)]
    with scan_lock(family.database, "watcher update"):
        told = subprocess.run(scanning(family, "update"), capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (3, "")
    assert f"process {os.getpid()}" in told.stderr
    assert {row[0] for row in rows(family, "SELECT status FROM scans")} == {"done"}


def test_a_rebuild_killed_at_any_moment_leaves_the_old_index(family: Tree) -> None:
    family.update()
    generator = random.Random(3)
    whole = rows(family, "SELECT key, id FROM runs ORDER BY key")
    for _ in range(4):
        process = subprocess.Popen(scanning(family, "rebuild"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not list(family.root.glob(".index.sqlite3.rebuild-*")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(generator.random() * 0.15)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        assert rows(family, "PRAGMA integrity_check") == [("ok",)]
        assert rows(family, "SELECT key, id FROM runs ORDER BY key") == whole
    left = list(family.root.glob(".index.sqlite3.rebuild-*"))
    for path in left:
        os.utime(path, (1, 1))
    rebuild(family.database, family.given(), ScanOptions(), RebuildOptions(), warn=quiet)
    assert list(family.root.glob(".index.sqlite3.rebuild-*")) == []


def test_a_swap_that_cannot_have_the_file_leaves_it_alone(family: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing a locked file by name would pair its readers' WAL with another content."""
    family.update()
    holder = sqlite3.connect(family.database)
    inode = family.database.stat().st_ino
    monkeypatch.setattr("primebeaker.watcher.rebuild._SWAP_SECONDS", 0.2)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnusableError, match="could not be replaced: another program keeps it locked"):
        rebuild(family.database, family.given(), ScanOptions(), RebuildOptions(backup=False), warn=quiet)
    holder.rollback()
    holder.close()
    assert family.database.stat().st_ino == inode
    assert rows(family, "SELECT count(*) FROM runs") == [(3,)]


def test_only_the_newest_backups_remain(family: Tree) -> None:
    family.update()
    for _ in range(4):
        answer = rebuild(family.database, family.given(), ScanOptions(), RebuildOptions(keep_backups=2), warn=quiet)
    backups = sorted(family.root.glob("index.sqlite3.backup-*"))
    assert len(backups) == 2
    assert str(backups[-1]) == answer["backup"]
    assert re.fullmatch(r"index\.sqlite3\.backup-\d{8}T\d{6}\.\d{6}Z", backups[-1].name)


@pytest.mark.parametrize("content", [b"", b"no database at all", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_told_served_as_503_and_mended_by_a_rebuild(family: Tree, content: bytes) -> None:
    family.database.write_bytes(content)
    done = subprocess.run(command(family, "status"), capture_output=True, text=True, check=False)
    shown = json.loads(done.stdout)
    assert (done.returncode, shown["exists"], shown["rl_checkpoints"]) == (4, True, None)
    assert shown["integrity"] != "ok"
    assert "primebeaker watcher rebuild" in done.stderr
    assert done.stderr.count("\n") <= 2
    done = subprocess.run(scanning(family, "update"), capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert family.database.read_bytes() == content
    ask = asker(create_app(database=family.database))
    assert (ask("/health").status, ask("/api/runs").status, ask("/runs").status) == (503, 503, 503)
    rebuild(family.database, family.given(), ScanOptions(), RebuildOptions(backup=False), warn=quiet)
    assert ask("/health").json["ok"] is True
    assert ask("/api/runs").json["total"] == 3


def test_a_root_that_goes_away_in_the_middle_of_a_scan_loses_nothing(family: Tree) -> None:
    for index in range(30):
        (family.repo / f"examples/configs/eval/deep{index}").mkdir()
        path = family.evaluation(f"deep{index}/e", f"m/{index}")
        assert path.exists()
    family.update()
    met = 0

    def stop() -> None:
        nonlocal met
        met += 1
        if met == 20:
            family.repo.rename(family.root / "unmounted")

    update(family.database, family.given(), ScanOptions(full=True), warn=quiet, stop=stop)
    assert met >= 20
    assert rows(family, "SELECT count(*) FROM runs WHERE missing_since IS NULL") == [(3,)]
    assert rows(family, "SELECT count(*) FROM evaluations WHERE missing_since IS NULL") == [(33,)]
    (family.root / "unmounted").rename(family.repo)
    family.update()
    assert rows(family, "SELECT count(*) FROM evaluations WHERE missing_since IS NULL") == [(33,)]
    assert rows(family, "SELECT count(*) FROM issues WHERE severity = 'error'") == [(0,)]


def test_names_that_differ_in_case_alone_are_two_runs(tree: Tree) -> None:
    tree.sft("Run")
    tree.sft("run")
    tree.update()
    assert len({row[0] for row in rows(tree, "SELECT key FROM runs")}) == 2


def test_what_has_been_missing_for_long_is_pruned(family: Tree) -> None:
    family.update()
    shutil.rmtree(family.runs / "math-rl2")
    (family.repo / "examples/configs/train/math-rl2.toml").unlink()
    (family.repo / "examples/configs/eval/hub.yaml").unlink()
    family.update()
    assert prune(family.database, missing_days=1, dry_run=False, wait=0, warn=quiet)["runs"] == 0
    counted = prune(family.database, missing_days=0, dry_run=True, wait=0, warn=quiet)
    assert (counted["runs"], counted["evaluations"]) == (1, 1)
    prune(family.database, missing_days=0, dry_run=False, wait=0, warn=quiet)
    assert rows(family, "SELECT count(*) FROM runs") == [(2,)]
    assert rows(family, "SELECT count(*) FROM evaluations") == [(2,)]
    assert rows(family, "PRAGMA foreign_key_check") == []
    family.update()
    assert rows(family, "SELECT count(*) FROM runs") == [(2,)]


def test_a_running_scan_tells_how_far_it_is(family: Tree) -> None:
    family.update()
    reader = open_reader(family.database)
    assert _progress(reader, family.database)[1] == {"running": False}
    told: list[dict[str, object]] = []

    def stop() -> None:
        # Each file is met a second later than the one before.
        clock[0] += 1.1
        told.append(_progress(reader, family.database)[1])

    clock = [time.monotonic()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("primebeaker.watcher.writing.time.monotonic", lambda: clock[0])
        update(family.database, family.given(), ScanOptions(full=True), warn=quiet, stop=stop)
    reader.close()
    assert all(item["running"] for item in told)
    assert len({str(item.get("files_seen")) for item in told}) > 3
    writer = open_writer(family.database, warn=quiet)
    seen = writer.execute("SELECT files_seen FROM scans ORDER BY id DESC").fetchone()[0]
    writer.close()
    assert seen >= max(int(str(item.get("files_seen") or 0)) for item in told)


def test_the_access_log_holds_no_query_and_no_token_and_never_holds_a_request_up(family: Tree) -> None:
    family.update()
    token = "t0ken-of-the-test"
    server = subprocess.Popen(
        [*command(family, "serve"), "--port=0", "--auth=token"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PRIMEBEAKER_WATCHER_TOKEN": token},
    )
    try:
        assert server.stderr is not None
        port = int(re.search(r":(\d+)/", server.stderr.readline())[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        # More than a pipe holds, and nobody reads it.
        for index in range(1500):
            path = f"/runs?q=secret-question&token={token}" if index == 0 else "/a\x1b[31m" + "x" * 280
            connection.request("GET", path.replace("\x1b", "%1B"), headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == (303 if index == 0 else 404)
        lines: list[str] = []
        reading = threading.Thread(target=lambda: lines.extend(server.stderr or ()))
        reading.start()
        deadline = time.monotonic() + 60
        while len(lines) < 100 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        server.terminate()
        server.wait(timeout=30)
    reading.join(timeout=30)
    assert re.fullmatch(r"\S+ GET /runs 303 \d+ ms\n", lines[0])
    text = "".join(lines)
    assert "secret-question" not in text
    assert token not in text
    assert "\x1b" not in text


def test_a_given_root_of_a_name_with_a_comma_is_one_root(tree: Tree) -> None:
    place = tree.root / "a,b"
    place.mkdir()
    done = subprocess.run(
        command(tree, "config", f"--output_roots={place}", f"--output_roots={tree.runs},{tree.results}"),
        capture_output=True,
        text=True,
        check=True,
    )
    roots = [row["path"] for row in json.loads(done.stdout)["roots"] if row["option"] == "output_roots"]
    assert roots == [str(place), str(tree.runs), str(tree.results)]
