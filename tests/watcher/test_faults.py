"""One bad file never ends a scan, and nothing tears the index."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from primebeaker.watcher.database import file_system_of, is_network_file_system, open_reader, reading
from primebeaker.watcher.errors import DatabaseUnusableError, RefusedError, ScanLockedError
from primebeaker.watcher.locking import is_scanning, scan_lock
from primebeaker.watcher.rebuild import RebuildOptions, rebuild
from primebeaker.watcher.update import ScanOptions

from .conftest import Tree, as_nobody, write
from .test_family import rows


def quiet(_line: str) -> None:
    return None


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("bad.toml", b"[a\n", "invalid_toml"),
        ("latin.toml", b'a = "\xe9"\n', "bad_encoding"),
        ("half.json", b'{"tasks": [', "invalid_json"),
        ("bad.yaml", b"a: [1\n", "invalid_yaml"),
        ("latin.yaml", b"a: \xe9\n", "bad_encoding"),
        (
            "bomb.yaml",
            b"a: &a [1,2,3,4,5,6,7,8,9]\n"
            + b"".join(b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % (n, n, *([n - 1] * 9)) for n in b"bcdefgh"),
            "invalid_yaml",
        ),
    ],
)
def test_a_bad_file_is_an_issue_that_vanishes_when_it_is_mended(
    family: Tree, name: str, content: bytes, code: str
) -> None:
    folder = {".toml": "examples/configs/train", ".json": "specs", ".yaml": "examples/configs/eval"}[Path(name).suffix]
    path = write(family.repo / folder / name, content)
    answer = family.update()
    assert answer["indexed_checkpoints"] == 4
    assert rows(family, "SELECT code, path FROM issues WHERE severity = 'error'") == [(code, str(path))]
    write(path, b"a = 1\n" if name.endswith("toml") else b"{}")
    family.update()
    assert rows(family, "SELECT code, path FROM issues WHERE severity = 'error'") == []


@pytest.mark.parametrize("content", [b"", b"- a\n- b\n", b"\xef\xbb\xbfa: 1\r\n", b"a: 2020-01-01\n"])
def test_a_yaml_of_another_shape_is_ignored(family: Tree, content: bytes) -> None:
    write(family.repo / "examples/configs/eval/odd.yaml", content)
    assert family.update()["issues"].get("error") is None
    assert rows(family, "SELECT count(*) FROM evaluations") == [(3,)]


def test_a_toml_with_every_type_is_stored(tree: Tree) -> None:
    tree.sft("types", more="when = 2020-01-02T03:04:05Z\nday = 2020-01-02\nat = 03:04:05\nbig = inf\nodd = nan")
    tree.update()
    values = json.loads(str(rows(tree, "SELECT values_json FROM configs")[0][0]))
    assert (values["day"], values["big"], values["odd"]) == ("2020-01-02", "inf", "nan")


def test_an_unreadable_config_keeps_what_was_known(family: Tree) -> None:
    family.update()
    path = family.repo / "examples/configs/train/math-rl2.toml"
    write(path, b"[broken\n")
    answer = family.update()
    assert answer["invalid_configs"] == 1
    assert rows(family, "SELECT stage, config_state FROM runs WHERE name = 'math-rl2'") == [("rl", "ok")]


def test_a_loop_of_links_ends(family: Tree) -> None:
    (family.repo / "examples/configs/train/loop").symlink_to(family.repo / "examples")
    assert family.update()["indexed_checkpoints"] == 4


def test_a_linked_run_is_one_run_with_two_spellings(family: Tree) -> None:
    (family.runs / "zz-link").symlink_to(family.runs / "math-rl")
    family.update()
    assert rows(family, "SELECT count(*) FROM runs") == [(3,)]
    assert rows(family, "SELECT aliases_json FROM runs WHERE name = 'math-rl'") == [
        (json.dumps([str(family.runs / "zz-link")]),)
    ]


def test_a_huge_failures_file_is_counted_and_cut(family: Tree) -> None:
    line = json.dumps({"dataset": "a", "run": 1, "status": "failed", "error": "x" * 100})
    write(family.results / "rl-full/failures.jsonl", (line + "\n") * 50_000)
    family.update()
    found = rows(
        family, "SELECT status, error, length(outcome_json) FROM evaluations WHERE config_path LIKE '%rl-full%'"
    )
    assert found[0][:2] == ("partial", "50000 failed runs")
    assert int(str(found[0][2])) < 300_000


def test_a_refused_directory_is_an_issue_and_keeps_the_scores(family: Tree) -> None:
    """Root ignores mode bits, so the scan runs as another user."""
    family.update()
    (family.results / "rl-full").chmod(0)
    as_nobody(family)
    assert rows(family, "SELECT status, overall FROM evaluations WHERE config_path LIKE '%rl-full%'") == [
        ("unreadable", 0.6)
    ]
    assert rows(family, "SELECT count(*) FROM issues WHERE code = 'permission_denied'") == [(1,)]


def test_garbage_is_left_alone_and_a_rebuild_replaces_it(family: Tree) -> None:
    family.database.write_bytes(b"no database at all")
    with pytest.raises(DatabaseUnusableError) as caught:
        family.update()
    assert caught.value.exit_code == 4
    assert family.database.read_bytes() == b"no database at all"
    answer = rebuild(family.database, family.given(), ScanOptions(), RebuildOptions(), warn=quiet)
    assert answer["integrity"] == "ok"
    assert Path(answer["backup"]).read_bytes() == b"no database at all"
    assert rows(family, "SELECT count(*) FROM runs") == [(3,)]


def test_a_newer_schema_is_refused(family: Tree) -> None:
    family.update()
    connection = sqlite3.connect(family.database)
    connection.execute("INSERT INTO schema_metadata VALUES (3, 'x')")
    connection.commit()
    connection.close()
    with pytest.raises(DatabaseUnusableError, match="written by a newer PrimeBeaker \\(schema 3, this one reads 2\\)"):
        open_reader(family.database)


def test_a_rebuild_keeps_ids_and_refuses_without_models(family: Tree) -> None:
    family.sft("aaa-first")
    family.update()
    before = rows(
        family,
        "SELECT key, id FROM runs UNION ALL SELECT key, id FROM checkpoints UNION ALL SELECT key, id FROM evaluations ORDER BY 1",
    )
    (family.repo / "examples/configs/train/aaa-first.toml").unlink()
    rebuild(family.database, family.given(), ScanOptions(), RebuildOptions(), warn=quiet)
    after = dict(
        rows(
            family,
            "SELECT key, id FROM runs UNION ALL SELECT key, id FROM checkpoints UNION ALL SELECT key, id FROM evaluations",
        )
    )
    assert after.items() <= dict(before).items()
    write(family.repo / "examples/configs/train/bad.toml", "[x")
    content = family.database.read_bytes()
    with pytest.raises(RefusedError, match="1 unreadable training TOMLs"):
        rebuild(family.database, family.given(), ScanOptions(), RebuildOptions(), warn=quiet)
    assert family.database.read_bytes() == content
    assert not list(family.root.glob(".index.sqlite3.rebuild-*"))


def test_readers_see_a_whole_index_while_rebuilds_and_updates_go_on(family: Tree) -> None:
    family.update()
    stop = threading.Event()
    seen: list[int] = []
    errors: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            try:
                with reading(family.database) as connection:
                    runs = connection.execute("SELECT count(*) FROM runs").fetchone()[0]
                    listed = connection.execute("SELECT count(*) FROM run_list").fetchone()[0]
                    seen.append(runs)
                    assert runs == listed == 3
            except BaseException as error:
                errors.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(5):
        rebuild(family.database, family.given(), ScanOptions(), RebuildOptions(backup=False), warn=quiet)
        family.update(full=True)
    stop.set()
    for reader in readers:
        reader.join()
    assert errors == []
    assert seen


def test_a_second_scanner_is_told_who_holds_the_lock(family: Tree) -> None:
    with scan_lock(family.database, "watcher update"):
        assert is_scanning(family.database)
        with pytest.raises(ScanLockedError, match=f"process {os.getpid()}") as caught:
            family.update()
    assert caught.value.exit_code == 3
    assert not is_scanning(family.database)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_scan_leaves_a_whole_index(family: Tree, number: signal.Signals) -> None:
    for index in range(3000):
        family.evaluation(f"many{index}", f"m/{index}")
    words = [
        sys.executable,
        "-m",
        "primebeaker.watcher",
        "update",
        f"--database={family.database}",
        f"--repo_root={family.repo}",
    ]
    scanner = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if family.database.exists() and rows(family, "SELECT count(*) FROM evaluations")[0][0]:
                break
        except sqlite3.Error:
            pass
        time.sleep(0.005)
    scanner.send_signal(number)
    assert scanner.wait(timeout=30) == (130 if number == signal.SIGTERM else -9)
    assert rows(family, "PRAGMA integrity_check") == [("ok",)]
    family.update()
    assert rows(family, "SELECT count(*) FROM evaluations") == [(3003,)]
    assert rows(family, "SELECT status FROM scans ORDER BY id") == [("interrupted",), ("done",)]


def test_a_full_disk_leaves_the_index_as_it_was(family: Tree, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(small)], check=False).returncode:
        pytest.fail("this test needs to mount a small tmpfs")
    try:
        words = [
            sys.executable,
            "-m",
            "primebeaker.watcher",
            "update",
            f"--database={small / 'i.sqlite3'}",
            f"--repo_root={family.repo}",
        ]
        assert subprocess.run(words, capture_output=True, check=False).returncode == 0
        for index in range(2000):
            family.evaluation(f"many{index}", f"m/{index}")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 4
        assert "disk" in done.stderr
        assert "Traceback" not in done.stderr
        connection = sqlite3.connect(small / "i.sqlite3")
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_network_file_systems_are_known_by_the_mount_table(tmp_path: Path) -> None:
    table = f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
    assert file_system_of(tmp_path / "i.sqlite3", mounts=table) == "nfs4"
    assert is_network_file_system("nfs4")
    assert is_network_file_system("fuse.sshfs")
    assert not is_network_file_system("ext4")


def test_a_dry_run_changes_nothing(family: Tree) -> None:
    assert family.update(dry_run=True)["indexed_checkpoints"] == 4
    assert not family.database.exists()


@pytest.mark.parametrize("pending", [False, True])
def test_an_index_on_a_read_only_file_system_is_read_as_it_stands(family: Tree, tmp_path: Path, pending: bool) -> None:
    family.update()
    writer = sqlite3.connect(family.database)
    if pending:
        # An open writer keeps its content in the WAL.
        writer.execute("PRAGMA wal_autocheckpoint=0")
        writer.execute("UPDATE runs SET name = 'renamed' WHERE name = 'math-rl'")
        writer.commit()
    place = tmp_path / "read-only"
    place.mkdir()
    subprocess.run(["mount", "--bind", str(family.root), str(place)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
        lines: list[str] = []
        with reading(place / "index.sqlite3", warn=lines.append) as connection:
            names = {row[0] for row in connection.execute("SELECT name FROM runs")}
        assert ("renamed" in names) == pending
        words = [sys.executable, "-m", "primebeaker.watcher", "update", f"--database={place / 'index.sqlite3'}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "cannot be written" in done.stderr
    finally:
        # SQLite keeps files of one inode open as long as any connection of the process has it.
        writer.close()
        subprocess.run(["umount", str(place)], check=True)
