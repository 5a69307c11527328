"""The examples: shapes, sizes and disjointness of their records, commands that run, nothing that is anybody's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from primebeaker.cli import main
from primebeaker.config import TomlDocument, check_toml

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def rows(path: str) -> list[dict]:
    text = (EXAMPLES / path).read_bytes().decode("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def documented_commands(readme: Path) -> list[str]:
    blocks = re.findall(r"^```(?:console|bash)\n(.*?)^```", readme.read_text(), re.DOTALL | re.MULTILINE)
    return [
        command
        for block in blocks
        for command in re.findall(r"^(?:\$ )?(primebeaker (?:.*\\\n)*.*)$", block, re.MULTILINE)
    ]


OURS = documented_commands(EXAMPLES / "README.md")


@pytest.mark.parametrize("command", [command for command in OURS if " preview" in command])
def test_documented_previews_run(command) -> None:
    scripts = Path(sys.executable).parent
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={"PATH": f"{scripts}:/usr/bin:/bin", "HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert [w for w in document["warnings"] if "placeholder" not in w] == []


def test_there_are_previews_of_every_example() -> None:
    assert len(OURS) == 3


def test_the_multi_node_form_is_two_mixed_replicas(capsys) -> None:
    words = [
        "rl",
        "preview",
        f"--toml={EXAMPLES}/rl/multinode.toml",
        f"--mount-path={ROOT}",
        "--registry=redis://YOUR_REDIS_HOST:6379",
    ]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["topology"] == {
        "type": "multi_node", "nodes": 2, "gpus_per_node": 8, "total_gpus": 16, "trainer_gpus": 4, "mixed_infer_gpus": 4,
        "inference_ranks": 6,
    }  # fmt: skip
    assert main(["rl", "submit", *words[2:], "--engine=local"]) == 2
    assert "--registry = redis://YOUR_REDIS_HOST:6379: this is a placeholder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "kind"), [("sft/config.toml", "sft"), ("rl/config.toml", "rl"), ("rl/multinode.toml", "rl")]
)
def test_prime_rls_fields_accept_them(path, kind) -> None:
    report = check_toml(TomlDocument.from_path(EXAMPLES / path), kind, strict=True)
    assert (report.errors, report.warnings, report.generation) == ((), (), "0.7")


def test_sft_records() -> None:
    train, validation = rows("sft/data/train.jsonl"), rows("sft/data/validation.jsonl")
    assert (len(train), len(validation)) == (4, 2)
    assert not {json.dumps(row) for row in train} & {json.dumps(row) for row in validation}
    for row in [*train, *validation]:
        assert set(row) == {"messages", "tools"}
        tools = json.loads(row["tools"])
        assert tools[0]["function"]["name"] == "terminal"
        assert tools[0]["function"]["parameters"]["required"] == ["command"]
        messages = row["messages"]
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        asked = [call for message in messages for call in message.get("tool_calls", ())]
        answered = [message for message in messages if message["role"] == "tool"]
        assert [call["id"] for call in asked] == [message["tool_call_id"] for message in answered]
        for message in messages:
            if message.get("tool_calls"):
                assert message["content"] is None and message["reasoning_content"]
        for call in asked:
            assert set(json.loads(call["function"]["arguments"])) == {"command"}
        for message in answered:
            assert set(json.loads(message["content"])) == {
                "stdout", "stderr", "exit_code", "execution_time", "success", "truncated", "truncated_characters",
            }  # fmt: skip
        verdict = json.loads(messages[-1]["content"])
        assert set(verdict) == {"feedback", "label"}
        assert all(isinstance(value, str) and value for value in verdict.values())
        assert len(json.dumps(row)) <= 3000
    rounds = [[len(message["tool_calls"]) for message in row["messages"] if message.get("tool_calls")] for row in train]
    assert any(2 in counts for counts in rounds), "two calls in one turn"
    assert any(len(counts) == 2 for counts in rounds), "two rounds"


def test_what_the_sft_tools_say_is_true() -> None:
    """The recorded outputs are those of the recorded commands."""
    for row in [*rows("sft/data/train.jsonl"), *rows("sft/data/validation.jsonl")]:
        calls = {call["id"]: call for message in row["messages"] for call in message.get("tool_calls", ())}
        for message in row["messages"]:
            if message["role"] == "tool":
                command = json.loads(calls[message["tool_call_id"]]["function"]["arguments"])["command"]
                done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
                assert done.stdout.split() == json.loads(message["content"])["stdout"].split()


def test_sft_records_load_offline(tmp_path) -> None:
    program = (
        "import datasets, sys\n"
        "for split in ('train', 'validation'):\n"
        "    print(len(datasets.load_dataset('examples/sft/data', split=split)))"
    )
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["4", "2"]


def test_rl_records() -> None:
    train, validation = rows("rl/data/train.jsonl"), rows("rl/data/validation.jsonl")
    assert (len(train), len(validation)) == (4, 2)
    everything = [*train, *validation]
    assert len({row["record_id"] for row in everything}) == 6
    assert {row["answer"] for row in train} == {"pass", "fail"}
    for row in everything:
        assert set(row) == {"prompt", "answer", "output", "feedback", "record_id", "rubric_index", "source", "tools"}
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        text = " ".join(message["content"] for message in row["prompt"])
        assert "<feedback>…</feedback>" in text and "<label>…</label>" in text and "JSON" not in text
        assert row["output"] in text
        assert isinstance(row["rubric_index"], int)
        assert all(tool["type"] == "function" for tool in row["tools"])


def test_scripted_replies_are_scored_as_the_prompts_promise() -> None:
    import asyncio
    from importlib import import_module

    environment = import_module("primebeaker.environments.jtc_label_env").load_environment(
        dataset=str(EXAMPLES / "rl/data/train.jsonl"), split="train"
    )
    for record in rows("rl/data/train.jsonl"):
        right, wrong = record["answer"], {"pass": "fail", "fail": "pass"}[record["answer"]]
        for reply, total in (
            (f"<feedback>Because.</feedback><label>{right}</label>", 2.0),
            (f"<feedback>Because.</feedback><label>{wrong}</label>", 1.0),
            (json.dumps({"feedback": "Because.", "label": right}), 0.0),
        ):
            state = {
                "prompt": record["prompt"], "completion": [{"role": "assistant", "content": reply}], "answer": record["answer"],
                "info": {}, "task": "x", "trajectory": [], "timing": {"generation_ms": 0, "scoring_ms": 0, "total_ms": 0},
            }  # fmt: skip
            asyncio.run(environment.rubric.score_rollout(state))
            assert state["reward"] == total, (record["record_id"], reply)


def test_nothing_is_anybodys_own() -> None:
    files = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 200_000
    for path in files:
        text = path.read_text()
        assert re.search(r"/(?:root|home|Users|work)/|hf_[A-Za-z0-9]{10}|sk-[A-Za-z0-9]{10}|AKIA", text) is None, path
        for host in re.findall(r"redis://(?:[^@\s]*@)?([A-Za-z0-9_.-]+)", text):
            assert host == "YOUR_REDIS_HOST", path
