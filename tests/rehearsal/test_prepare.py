"""What a rehearsal takes from a launch, and what it only remarks upon."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from primebeaker.cli import main
from primebeaker.errors import UserError
from primebeaker.launch.settings import LaunchSettings
from primebeaker.rehearsal import report
from primebeaker.rehearsal.options import RehearsalOptions
from primebeaker.rehearsal.prepare import prepare

from .conftest import ROOT


def test_data_beside_the_caller_is_rehearsed_though_a_submit_would_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative data path outside every mount is a remark: the rehearsal reads it from where it was started."""
    monkeypatch.chdir(ROOT)
    toml = ROOT / "examples/sft/config.toml"
    prepared = prepare("sft", LaunchSettings(toml=toml), RehearsalOptions(work_dir=tmp_path / "work"))
    assert f'name = "{ROOT / "examples/sft/data"}"' in (tmp_path / "work/config.toml").read_text()
    assert any("data.name" in problem.message for problem in prepared.problems)


def test_without_the_runtime_extra_one_line_says_so(tmp_path: Path, monkeypatch, capsys) -> None:
    """Else the stand-ins would fail one after the other, each with a traceback of its own."""
    found = PathFinder.find_spec

    def without_httpx(name, path=None, target=None):
        return None if name == "httpx" else found(name, path, target)

    monkeypatch.setattr(PathFinder, "find_spec", without_httpx)
    monkeypatch.delitem(sys.modules, "httpx", raising=False)
    work = tmp_path / "work"
    code = main(["rehearse", f"--toml={ROOT / 'examples/rl/config.toml'}", f"--work-dir={work}"])
    assert code == 2
    line = "primebeaker: error: this command needs primebeaker[runtime]: pip install 'primebeaker[runtime]'\n"
    assert capsys.readouterr() == ("", line)
    assert not work.exists()


def test_another_working_directory_is_where_relative_data_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From anywhere: --working-dir says what the paths of the TOML are relative to; without it the paths are named."""
    monkeypatch.chdir(tmp_path)
    toml = ROOT / "examples/sft/config.toml"
    options = RehearsalOptions(work_dir=tmp_path / "work")
    with pytest.raises(UserError, match=r"data\.name"):
        prepare("sft", LaunchSettings(toml=toml), options)
    assert not (tmp_path / "work").exists()
    prepared = prepare("sft", LaunchSettings(toml=toml, working_dir=ROOT), options)
    assert f'name = "{ROOT / "examples/sft/data"}"' in (tmp_path / "work/config.toml").read_text()
    prepared.remove()


def test_the_verdict_does_not_announce_lines_that_stand_elsewhere() -> None:
    followed: Any = SimpleNamespace(left=0, timed_out=False)
    failure = {"cause": "orchestrator on rank 0 ended with 1; last lines of /run/orchestrator.log:"}
    verdict = report._verdict(followed, followed, [], failure, [])
    assert verdict == "the run failed: orchestrator on rank 0 ended with 1"
