"""What a rehearsal takes from a launch, and what it only remarks upon."""

from __future__ import annotations

from pathlib import Path

import pytest

from primebeaker.launch.settings import LaunchSettings
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
