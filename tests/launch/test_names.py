"""Names made legal for Beaker, and no path from a name that is not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primebeaker.errors import UserError
from primebeaker.launch.names import beaker_name, check_beaker_name, check_launch_id


@pytest.mark.parametrize(
    ("run_name", "expected"),
    [
        ("my run/../x", "my-run-..-x"),
        ("Größe 1", "Gr-e-1"),
        ("../../etc", "etc"),
        ("---", ""),
        ("a", "a"),
        (".x.", "x"),
    ],
)
def test_examples(run_name, expected) -> None:
    assert beaker_name(run_name) == expected


def test_long_names_keep_a_digest() -> None:
    name = beaker_name("x" * 101)
    assert len(name) == 100
    assert name.startswith("x" * 91 + "-")
    assert beaker_name("x" * 100) == "x" * 100


@given(st.text())
def test_every_name_is_legal_or_empty(run_name) -> None:
    name = beaker_name(run_name)
    assert re.fullmatch(r"[A-Za-z0-9._-]{0,100}", name)
    assert not name.startswith(("-", "."))
    assert "/" not in name


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ä", "x" * 129])
def test_given_names_must_be_legal(name) -> None:
    with pytest.raises(UserError, match="--name"):
        check_beaker_name(name)


@pytest.mark.parametrize("launch_id", ["", "-a", "A", "a" * 65, "../x", "a.b"])
def test_launch_ids(launch_id) -> None:
    with pytest.raises(UserError, match="--launch-id"):
        check_launch_id(launch_id)


def test_an_altered_name_is_said(plan, mount) -> None:
    made = plan("rl", {"wandb.name": "../../x"})
    assert made.experiment_name == "x"
    assert made.run_name == "../../x"
    assert made.paths.spec == f"{mount}/primebeaker/beaker_experiments/x-l1.json"
    assert any("the experiment is named 'x'" in warning for warning in made.warnings)


def test_a_name_with_nothing_legal_is_refused(lines) -> None:
    (line,) = lines("rl", {"wandb.name": "---"})
    assert line.startswith("/weka/run.toml:")
    assert 'wandb.name = "---"' in line


def test_the_flag_names_a_run_without_a_name(plan) -> None:
    assert plan("rl", {"wandb.name": None}, name="given").experiment_name == "given"


def test_a_missing_name_is_refused(lines) -> None:
    assert lines("rl", {"wandb.name": None}) == [
        "/weka/run.toml: wandb.name: the run has no name; set it, or pass --name"
    ]
