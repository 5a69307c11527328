"""The terminal example in real containers: every task is paid when it is solved, and only then; also in a rehearsal."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ..environments.podman.conftest import DONE, bash, containers, solve_async
from .test_service_examples import ALL, PODMAN, SOLUTIONS

__all__ = ["containers"]

ROOT = PODMAN.parents[1]
TOMLS = ("rl.toml", "multinode-rl.toml")


def arguments_of(name: str, split: str) -> dict[str, object]:
    """The environment's arguments in a TOML of the example."""
    values = tomllib.loads((PODMAN / name).read_text())
    return dict(values["orchestrator"][split]["source"][0]["legacy"]["args"])


def test_both_tomls_use_the_same_environment() -> None:
    for split in ("train", "eval"):
        first, second = (arguments_of(name, split) for name in TOMLS)
        assert first == second
        assert first["max_turns"] == first["max_tool_calls"] + 1


def test_env_check_accepts_it() -> None:
    """The one for one node; the other has the same environment."""
    words = [sys.executable, "-m", "primebeaker", "env", "check", "--toml", str(PODMAN / "rl.toml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert [(entry["name"], entry["rows"]) for entry in json.loads(done.stdout)] == [
        ("podman-terminal", 4),
        ("podman-terminal", 2),
    ]


def test_every_task_is_paid_when_it_is_solved_and_only_then(containers, monkeypatch) -> None:
    import verifiers as vf

    monkeypatch.chdir(ROOT)
    envs = [
        vf.load_environment(
            "primebeaker.environments.podman_terminal_env",
            **{**arguments_of("rl.toml", split), "podman_gateway_url": containers.url},
        )
        for split in ("train", "eval")
    ]
    rows = [(env, dict(row)) for env in envs for row in env.get_dataset()]
    assert [row["record_id"] for _, row in rows] == [record["record_id"] for record in ALL]

    async def run() -> list[tuple[float, float]]:
        found = []
        for env, row in rows:
            solved = await solve_async(env, bash(SOLUTIONS[row["record_id"]]), bash(DONE), row=row)
            untouched = await solve_async(env, bash(DONE), row=row)
            found.append((solved["reward"], untouched["reward"]))
        return found

    assert asyncio.run(run()) == [(pytest.approx(1.1), pytest.approx(0.1))] * 6


@pytest.mark.soak
@pytest.mark.parametrize("name", TOMLS)
def test_it_rehearses_with_a_model_that_solves_the_tasks(name: str, containers, tmp_path: Path) -> None:
    def call(command: str) -> list[dict[str, object]]:
        return [{"name": "bash", "arguments": {"command": command}}]

    rules = [{"match": "```stdout", "tool_calls": call(DONE)}]
    rules += [
        {"match": record["prompt"][-1]["content"], "tool_calls": call(SOLUTIONS[record["record_id"]])} for record in ALL
    ]
    script = tmp_path / "script.json"
    script.write_text(json.dumps(rules))
    shutil.copytree(PODMAN, tmp_path / "examples" / PODMAN.name)
    toml = tmp_path / "examples" / PODMAN.name / name
    toml.write_text(toml.read_text().replace("http://127.0.0.1:1212", containers.url))
    words = [sys.executable, "-m", "primebeaker", "rehearse", "--toml", str(toml), "--mount-path", str(tmp_path)]
    words += ["--steps", "2"]
    done = subprocess.run(
        [*words, "--model", f"scripted:{script}"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert [step["reward_mean"] for step in report["steps"]] == [pytest.approx(1.1)] * 2, report["steps"]
