"""Atomic writes: the old file or the new one, never a part, nothing left behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from primebeaker.fileio import atomic_write, atomic_write_json, create_exclusively


def test_writes_text_and_json(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a", "größe\n")
    assert (tmp_path / "a").read_bytes() == "größe\n".encode()
    atomic_write_json(tmp_path / "b.json", {"z": "é", "a": 1})
    assert (tmp_path / "b.json").read_text() == '{\n  "z": "é",\n  "a": 1\n}\n'


def test_a_name_of_the_greatest_length(tmp_path: Path) -> None:
    atomic_write(tmp_path / ("é" * 127), "x")
    assert create_exclusively(tmp_path / ("n" * 255), "x")


def test_keeps_the_permissions_of_the_file_it_replaces(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    target.chmod(0o640)
    atomic_write(target, "new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_given_mode_holds_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        atomic_write(tmp_path / "a", "x", mode=0o644)
        atomic_write(tmp_path / "b", "x", mode=0o600)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "a"
    target.write_text("old")
    link = tmp_path / "link"
    link.symlink_to(target)
    atomic_write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        target = disk / "a"
        atomic_write(target, "old")
        with pytest.raises(OSError, match="No space left"):
            atomic_write(target, b"x" * 1_000_000)
        assert target.read_text() == "old"
        assert [path.name for path in disk.iterdir()] == ["a"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_killed_in_the_middle_leaves_old_or_new(tmp_path: Path) -> None:
    """A writer that is killed at random moments never leaves a torn file."""
    target = tmp_path / "a"
    atomic_write(target, "0" * 200_000)
    program = (
        "import sys; from pathlib import Path; from primebeaker.fileio import atomic_write\n"
        "print('go', flush=True)\n"
        "i = 0\n"
        "while True:\n    i = (i + 1) % 10; atomic_write(Path(sys.argv[1]), str(i) * 200_000)\n"
    )
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", program, str(target)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        threading.Event().wait(0.05)
        process.kill()
        process.wait()
        process.stdout.close()
        content = target.read_text()
        assert len(content) == 200_000
        assert len(set(content)) == 1


def test_only_one_of_many_creates_the_file(tmp_path: Path) -> None:
    created: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: create_exclusively(tmp_path / "a", str(n)) and created.append(n))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert (tmp_path / "a").read_text() == str(created[0])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_another_user_cannot_be_written_over(tmp_path: Path) -> None:
    """Refused access raises and leaves nothing, tried under a user that is not root."""
    tmp_path.chmod(0o755)
    program = (
        "import sys; from pathlib import Path; from primebeaker.fileio import atomic_write\n"
        "try:\n    atomic_write(Path(sys.argv[1]) / 'a', 'x')\n"
        "except PermissionError:\n    print('refused')\n"
    )
    result = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/env", "python3", "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": _copy_of_package(tmp_path.parent)},
    )
    assert result.stdout == "refused\n", result.stderr
    assert list(tmp_path.iterdir()) == []


def _copy_of_package(folder: Path) -> str:
    """A folder every user may read, holding the one module under test."""
    import primebeaker.fileio

    package = folder / "readable" / "primebeaker"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "fileio.py").write_text(Path(primebeaker.fileio.__file__).read_text())
    for path in (folder, folder / "readable", package):
        path.chmod(0o755)
    for parent in folder.parents:
        if parent.owner() == "root" and str(parent).startswith("/tmp/pytest"):
            parent.chmod(0o755)
    return str(package.parent)
