"""The examples with services: previews of every documented command, data, and consistency."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from primebeaker.config.yaml_loader import load_yaml

from ..services.conftest import primebeaker

__all__ = ["primebeaker"]

ROOT = Path(__file__).parents[2] / "examples"
PODMAN, SEARCH = ROOT / "podman-terminal", ROOT / "search-agent-webterminal"
SOLUTIONS = json.loads((Path(__file__).parent / "podman_solutions.json").read_text())


def _commands(readme: Path) -> list[str]:
    blocks = re.findall(r"```text\n(.*?)```", readme.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("primebeaker ") and " preview " in line]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout on a mount: the examples' ``/weka`` is this folder."""
    shutil.copytree(ROOT, tmp_path / "examples")
    for path in [*tmp_path.rglob("*.yaml"), *tmp_path.rglob("*.toml")]:
        path.write_text(path.read_text().replace("/weka", str(tmp_path)))
    run = tmp_path / "examples" / SEARCH.name / "run.yaml"
    run.write_text(run.read_text().replace("rl:\n", f"rl:\n  mount_path: {tmp_path}\n"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGISTRY", "redis://YOUR_REDIS_HOST:6379")
    return tmp_path


COMMANDS = [command for folder in (PODMAN, SEARCH) for command in _commands(folder / "README.md")]


def test_the_readmes_show_previews() -> None:
    assert len(COMMANDS) == 6


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_previews_run(command: str, checkout: Path, primebeaker) -> None:
    words = shlex.split(command.replace("$REGISTRY", "redis://YOUR_REDIS_HOST:6379").replace("/weka", str(checkout)))[
        1:
    ]
    if words[0] == "rl":
        words.append(f"--mount-path={checkout}")
    outcome = primebeaker(*words)
    assert outcome.code == 0, outcome.err
    assert outcome.data
    assert "placeholder" in outcome.err


@pytest.mark.parametrize("command", COMMANDS)
def test_what_holds_placeholders_is_not_launched(command: str, checkout: Path, primebeaker) -> None:
    words = shlex.split(command.replace("$REGISTRY", "redis://YOUR_REDIS_HOST:6379").replace("/weka", str(checkout)))[
        1:
    ]
    words[words.index("preview")] = "submit" if words[0] == "rl" else "launch"
    if words[0] == "rl":
        words.append(f"--mount-path={checkout}")
    before = sorted(checkout.rglob("*"))
    outcome = primebeaker(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "this is a placeholder of an example" in outcome.err
    assert sorted(checkout.rglob("*")) == before


def _records(name: str) -> list[dict]:
    return [json.loads(line) for line in (PODMAN / "data" / f"{name}.jsonl").read_text().splitlines()]


ALL = [*_records("train"), *_records("validation")]


def test_the_records_have_their_shape() -> None:
    assert (len(_records("train")), len(_records("validation"))) == (4, 2)
    assert len({record["record_id"] for record in ALL}) == 6
    for record in ALL:
        assert set(record) == {
            "prompt",
            "original_image",
            "record_id",
            "task_id",
            "environment_name",
            "test_final_state",
        }
        system, user = record["prompt"]
        assert (system["role"], user["role"]) == ("system", "user")
        assert system["content"].count("echo TERMINAL_COMPLETE") == 1
        assert "`bash`" in system["content"]
        assert "`submit`" in system["content"]
        assert record["record_id"] == record["task_id"]
        assert re.fullmatch(r"docker\.io/library/[a-z]+:(?!latest)\S+", record["original_image"])


@pytest.mark.parametrize("record", ALL, ids=lambda record: record["record_id"])
def test_a_hidden_test_fails_on_nothing_and_passes_on_the_solution(record: dict, tmp_path: Path) -> None:
    test = tmp_path / "hidden" / "test.py"
    test.parent.mkdir()
    test.write_text(record["test_final_state"])
    work = tmp_path / "work"
    work.mkdir()

    def passes() -> bool:
        return subprocess.run([sys.executable, "-I", "-S", str(test)], cwd=work, check=False).returncode == 0

    assert not passes()
    subprocess.run(["bash", "-ec", SOLUTIONS[record["record_id"]]], cwd=work, check=True)
    assert passes()


def test_both_forms_of_the_search_agent_have_the_same_services() -> None:
    services = load_yaml(SEARCH / "services.yaml").mapping(["services"])
    run = load_yaml(SEARCH / "run.yaml").values
    assert services == run["service"]
    assert set(run["lifecycle"]) == {"cleanup_service_on_training_exit", "beaker_token_secret"}
    assert run["rl"]["required_services"] == {"terminal": 32, "localsearch:example": 32, "judge": 1}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.yaml")), ids=lambda path: path.name)
def test_clusters_are_not_workspaces(path: Path) -> None:
    found: dict[str, set[str]] = {"cluster": set(), "workspace": set()}

    def collect(value: object, key: str = "") -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                collect(item, str(name))
        elif isinstance(value, list):
            for item in value:
                collect(item, key)
        elif isinstance(value, str):
            for kind in found:
                if kind in key:
                    found[kind].add(value)

    collect(load_yaml(path).values)
    assert not found["cluster"] & found["workspace"]


def test_examples_are_small_and_impersonal() -> None:
    files = [path for path in ROOT.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 200_000
    for path in files:
        text = path.read_text()
        paths = re.findall(r"/(?:weka|home|root|Users)/[^\s\"'`,)]+", text)
        assert all(found.startswith("/weka/YOUR_TEAM") or "/home/user" in found for found in paths), path
