"""The mount rule: real locations decide, the typed mount path is what the spec carries."""

from __future__ import annotations

from pathlib import Path

import pytest

from primebeaker.errors import UserError
from primebeaker.launch.paths import Mount


@pytest.mark.parametrize(
    "typed", ["weka", "/", "//", "", "/weka/..", "/a\nb", "/tmp/beaker-result", "/tmp/beaker-result/x", "~/weka"]
)
def test_bad_mount_paths(typed) -> None:
    with pytest.raises(UserError, match="--mount-path"):
        Mount.at(typed)


def test_a_mount_reached_by_a_link_keeps_its_typed_name(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "u").mkdir(parents=True)
    link = tmp_path / "weka"
    link.symlink_to(real)
    mount = Mount.at(f"{link}/")
    assert mount.task_path(real / "u" / "x.toml", "--toml") == f"{link}/u/x.toml"
    assert mount.task_path(link / "u", "--toml") == f"{link}/u"
    assert mount.task_path(link, "--home-dir") == str(link)


@pytest.mark.parametrize("path", ["/weka/../etc/x", "/wekax/y", "/etc", "/weka/a/../../x"])
def test_outside(path) -> None:
    with pytest.raises(
        UserError, match="is not under the mount /weka, the only shared place inside the task; use a path"
    ):
        Mount.at("/weka").task_path(path, f"--toml = {path}")


def test_a_link_out_of_the_mount_is_outside(mount: Path, tmp_path: Path) -> None:
    (mount / "out").symlink_to(tmp_path)
    with pytest.raises(UserError, match="is not under the mount"):
        Mount.at(str(mount)).task_path(mount / "out" / "x", "--toml")


@pytest.mark.parametrize("path", ["/weka/not/there", "/weka/a b/$HOME/'q'", "/weka/x;rm -rf"])
def test_nothing_needs_to_exist_and_shell_characters_are_legal(path) -> None:
    assert Mount.at("/weka").task_path(path, "--toml") == path


@pytest.mark.parametrize("path", ["/weka/a\nb", "/weka/a\0b"])
def test_newline_and_nul(path) -> None:
    with pytest.raises(UserError, match="without newline or NUL"):
        Mount.at("/weka").task_path(path, "--toml")


def test_toml_paths_are_relative_to_the_working_directory(plan, mount: Path, variables) -> None:
    made = plan("rl", {"output_dir": "out"}, working_dir=mount / "work dir")
    assert variables(made.spec)["OUTPUT_DIR"] == f"{mount}/work dir/out"
    assert variables(made.spec)["WORKING_DIR"] == f"{mount}/work dir"


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        (
            {"output_dir": "/elsewhere"},
            {},
            '/weka/run.toml:2: output_dir = "/elsewhere": /elsewhere is not under the mount',
        ),
        ({"output_dir": "../x"}, {}, 'output_dir = "../x": '),
        ({"ckpt.output_dir": "/ck"}, {}, 'ckpt.output_dir = "/ck": /ck is not under'),
        ({}, {"scratch_dir": Path("/s")}, "--scratch-dir = /s: /s is not under the mount /weka"),
        ({}, {"working_dir": Path("/s")}, "--working-dir = /s"),
        ({}, {"home_dir": Path("/s")}, "--home-dir = /s"),
        ({}, {"mount_path": "/not-here"}, "--toml = /weka/run.toml: /weka/run.toml is not under the mount /not-here"),
    ],
)
def test_what_must_lie_under_the_mount(lines, changes, settings, expected) -> None:
    assert any(expected in line for line in lines("rl", changes, **settings))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("/elsewhere/data", 'data.name = "/elsewhere/data": /elsewhere/data is not under the mount'),
        ("../data", 'data.name = "../data": '),
        ("a/b/c", 'data.name = "a/b/c": expected a path that exists under the working directory /weka, or the id of a hub dataset (owner/name); pass --working-dir'),
        ("a b", 'data.name = "a b": expected a path that exists under the working directory /weka'),
    ],
)  # fmt: skip
def test_sft_data_names(lines, name, line) -> None:
    assert any(line in found for found in lines("sft", {"data.name": name}))


@pytest.mark.parametrize("name", ["owner/name", "name", "./data", "~/data"])
def test_sft_data_names_that_are_fine(plan, name, mount) -> None:
    made = plan("sft", {"val.data.name": name})
    missing = [warning for warning in made.warnings if "this path does not exist here" in warning]
    assert len(missing) == (1 if name[0] in ".~" else 0)


def test_a_relative_data_folder_that_exists_is_a_path(plan, mount) -> None:
    (mount / "a" / "b" / "c").mkdir(parents=True)
    assert plan("sft", {"data.name": "a/b/c"}).warnings == ()


def test_fake_data_needs_no_name(plan) -> None:
    plan("sft", {"data": {"type": "fake"}})


def test_absolute_names_outside_the_mount_are_warned_about(plan) -> None:
    source = [{"legacy": {"id": "x", "args": {"dataset": "/opt/d.jsonl"}}}]
    made = plan("rl", {"trainer.model.name": "/opt/model", "orchestrator.train.source": source})
    assert [warning.split(": ")[1] for warning in made.warnings] == [
        'orchestrator.train.source[0].legacy.args.dataset = "/opt/d.jsonl"', 'trainer.model.name = "/opt/model"'
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("data/train.jsonl", True), ("./data", True), ("~/data", True), ("a/b/c", True), ("owner/name", False),
        ("name", False), ("here/train.jsonl", False), ("/opt/elsewhere.jsonl", False),
    ],
)  # fmt: skip
def test_rl_datasets_that_are_not_there_are_warned_about(plan, mount, name, warned) -> None:
    """A wrong data path of an environment is told before a GPU waits for it; a hub id is not looked up."""
    (mount / "here").mkdir()
    (mount / "here" / "train.jsonl").write_text("{}\n")
    made = plan("rl", {"orchestrator.train.source": [{"legacy": {"id": "x", "args": {"dataset": name}}}]})
    found = [warning for warning in made.warnings if "does not exist here" in warning]
    assert len(found) == warned
    assert all(f'orchestrator.train.source[0].legacy.args.dataset = "{name}": {mount}/' in line for line in found)
