"""Check what the built archives contain: ``python tools/check_dist.py dist``.

Exits 1 with one line a fault: a file that must be in an archive and is not, or must not be and is.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

LARGEST = 1_000_000
PACKAGE_DATA_SUFFIXES = {".json", ".md", ".sh", ".html", ".js", ".css", ".svg", ".typed", ".j2", ".sql"}
EXAMPLE_SUFFIXES = {".md", ".toml", ".yaml", ".yml", ".jsonl"}
SDIST_ROOT_FILES = ("LICENSE", "CHANGELOG.md", "README.md", "pyproject.toml")


def tracked_package_files(root: Path) -> set[str]:
    """Every file of the package in the checkout or unpacked sdist, relative to ``src``."""
    source = root / "src"
    return {
        path.relative_to(source).as_posix()
        for path in (source / "primebeaker").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def wheel_faults(wheel: Path, expected: set[str]) -> list[str]:
    """What is wrong with the wheel, given the package files it must hold."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
    faults = [f"{wheel.name}: misses {name}" for name in sorted(expected - set(sizes))]
    for name, size in sorted(sizes.items()):
        top = name.split("/")[0]
        if top != "primebeaker" and not top.endswith(".dist-info"):
            faults.append(f"{wheel.name}: holds {name}, outside the package")
        if "__pycache__" in name or name.endswith(".pyc"):
            faults.append(f"{wheel.name}: holds the cache file {name}")
        if size > LARGEST:
            faults.append(f"{wheel.name}: {name} has {size} bytes, more than {LARGEST}")
    return faults


def sdist_faults(sdist: Path, root: Path) -> list[str]:
    """What is wrong with the sdist, given the checkout it was made from."""
    with tarfile.open(sdist) as archive:
        names = {member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()}
    expected = {f"src/{name}" for name in tracked_package_files(root)} | set(SDIST_ROOT_FILES)
    expected |= {
        path.relative_to(root).as_posix()
        for path in (root / "examples").rglob("*")
        if path.is_file() and path.suffix in EXAMPLE_SUFFIXES
    }
    faults = [f"{sdist.name}: misses {name}" for name in sorted(expected - names)]
    if not any(name.startswith("tests/") for name in names):
        faults.append(f"{sdist.name}: misses the tests")
    faults += [
        f"{sdist.name}: holds {name}"
        for name in sorted(names)
        if "__pycache__" in name or name.startswith((".git/", ".venv/", "dist/"))
    ]
    return faults


def main(arguments: list[str]) -> int:
    """Check every archive of a folder; 0 when all is well."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        sys.stderr.write("usage: check_dist.py FOLDER\n")
        return 2
    folder = Path(arguments[0])
    root = Path(__file__).resolve().parent.parent
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    faults = [] if wheels and sdists else [f"{folder}: expected a wheel and an sdist"]
    for wheel in wheels:
        faults += wheel_faults(wheel, tracked_package_files(root))
    for sdist in sdists:
        faults += sdist_faults(sdist, root)
    for fault in faults:
        sys.stderr.write(fault + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
