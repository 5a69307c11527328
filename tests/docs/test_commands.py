"""Every command of the README and the docs runs and ends as the text says.

A command is a line ``$ …`` in a fenced ``console`` block.  It must exit 0, or with the code in a trailing ``# exit N``.
Commands of one page run in order in one copy of the repository's examples, with an empty home.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# `make test` runs this very suite; `make setup` has run before it, so of `make demo` the demo itself is left.
LEFT_TO_MAKE = {"make test", "make setup"}
WITHOUT_SETUP = {"make demo": "sh tools/demo.sh"}


class Command(NamedTuple):
    """One documented command line."""

    text: str
    exit_code: int


def commands(page: Path) -> list[Command]:
    """The command lines of a page, continuation lines joined."""
    found: list[Command] = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for line in re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE):
            text, _, code = line.partition("# exit ")
            if text.strip() not in LEFT_TO_MAKE:
                found.append(Command(text.strip(), int(code or 0)))
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_documented_commands_run(page: Path, tmp_path: Path) -> None:
    for name in ("examples", "tools", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    home = tmp_path / "home"
    home.mkdir()
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PRIMEBEAKER_", "BEAKER_"))}
    scripts = Path(sys.executable).parent
    environment = keep | {
        "HOME": str(home),
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(scripts.parent),
        "XDG_STATE_HOME": str(home / "state"),
    }
    for command in commands(page):
        result = subprocess.run(
            ["bash", "-c", WITHOUT_SETUP.get(command.text, command.text)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == command.exit_code, f"$ {command.text}\n{result.stdout}\n{result.stderr}"


def test_pages_link_to_files_that_exist() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in [*PAGES, ROOT / "CONTRIBUTING.md", *(ROOT / "examples").rglob("README.md")]
        for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []
