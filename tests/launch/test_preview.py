"""The preview command: literal values, repeated flags, masked credentials, the same facts every time."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from primebeaker.cli import main

REPEATED = (
    "--env", "A=1", "--env", "B=2", "--cluster", "ai2/x", "--cluster", "ai2/y",
    "--required-service", "terminal=2", "--required-service", "python=1", "--registry=redis://h:1",
)  # fmt: skip


def test_document_of_a_single_node(preview_cli, toml, mount) -> None:
    document = preview_cli("rl", toml("rl"), "--launch-id=l1", "--wandb-run-id=w1", "--wandb-entity=my team")
    assert list(document) == [
        "experiment_name", "launch_id", "kind", "topology", "spec_path", "spec", "submit_command", "wandb_run", "toml", "warnings",
    ]  # fmt: skip
    assert document["topology"] == {"type": "single_node", "gpus": 2}
    assert document["wandb_run"] == {
        "run_id": "w1", "project": "p", "entity": "my team", "name": "tiny-rl", "offline": False,
        "url": "https://wandb.ai/my%20team/p/runs/w1",
    }  # fmt: skip
    assert document["submit_command"] == [
        "beaker", "experiment", "create", "--name", "tiny-rl", "--workspace", "ai2/oe-agents", document["spec_path"],
    ]  # fmt: skip
    assert document["toml"]["generation"] == "0.7"
    assert not (mount / "primebeaker").exists()


def test_no_link_without_an_entity_or_offline(preview_cli, toml) -> None:
    assert preview_cli("rl", toml("rl"))["wandb_run"]["url"] is None
    offline = preview_cli("sft", toml("sft", {"wandb.offline": True, "wandb.entity": "e"}))
    assert offline["wandb_run"]["url"] is None
    slash = preview_cli("rl", toml("rl", {"wandb.project": "a/b", "wandb.entity": "e"}), "--wandb-run-id=w")
    assert slash["wandb_run"]["url"] == "https://wandb.ai/e/a%2Fb/runs/w"


def test_every_repeated_value_is_kept_in_order(preview_cli, toml, variables) -> None:
    document = preview_cli("rl", toml("rl"), *REPEATED)
    found = variables(document["spec"])
    assert (found["A"], found["B"]) == ("1", "2")
    assert document["spec"]["tasks"][0]["constraints"]["cluster"] == ["ai2/x", "ai2/y"]
    assert found["REQUIRED_LITEREGISTRY_SERVICES"] == '{"python":1,"terminal":2}'


@pytest.mark.parametrize("value", ['{"terminal": 2, "python": 1}', '["terminal=2", "python=1"]', "terminal=2,python=1"])
def test_required_services_as_one_value(preview_cli, toml, variables, value) -> None:
    document = preview_cli("rl", toml("rl"), f"--required-service={value}", "--registry=redis://h:1")
    assert variables(document["spec"])["REQUIRED_LITEREGISTRY_SERVICES"] == '{"python":1,"terminal":2}'


@pytest.mark.parametrize("value", ["None", "1e3", "[1,2]", "=x"])
def test_values_are_literal(preview_cli, toml, variables, value) -> None:
    document = preview_cli("rl", toml("rl"), f"--env=A={value}", "--wandb-run-id=123")
    assert variables(document["spec"])["A"] == value
    assert document["wandb_run"]["run_id"] == "123"


def test_two_previews_are_equal(preview_cli, toml) -> None:
    words = ("--launch-id=l1", "--wandb-run-id=w1")
    assert preview_cli("rl", toml("rl"), *words) == preview_cli("rl", toml("rl"), *words)
    first, second = (preview_cli("rl", toml("rl")) for _ in range(2))
    assert first["launch_id"] != second["launch_id"]
    assert len(first["launch_id"]) == len(first["wandb_run"]["run_id"]) == 32


def test_templates_are_escaped_in_the_output_too(run_cli, toml, mount) -> None:
    code, out, _ = run_cli(
        "rl", "preview", f"--toml={toml('rl')}", f"--mount-path={mount}", "--description={{.Env.HOME}}"
    )
    assert code == 0
    assert "{{" not in out
    assert json.loads(out)["spec"]["description"] == "{{.Env.HOME}}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--image=a", "--image=b"), ["--image is given twice, as 'a' and 'b'; give it once"]),
        (("--imagee=x",), ["unknown flag --imagee; did you mean '--image'?"]),
        (("--engine=local",), ["--engine has no meaning here: it belongs to submit; leave it out"]),
        (("--env=A",), ["--env (number 1): expected NAME=VALUE"]),
        (("--required-service=x",), ["--required-service = 'x': expected NAME=N with a count of at least 1"]),
        (("--required-service=x=0",), ["--required-service = 'x=0': expected NAME=N with a count of at least 1"]),
        (("--required-service=x=1", "--required-service=x=2", "--registry=redis://h:1"), ["--required-service x is given twice, as 1 and 2"]),
        (("--cluster=",), ["--cluster: expected at least one cluster name, none of them empty"]),
        (("--workspace=x",), ["--workspace = 'x': expected owner/name"]),
        (("--workspace=ai2/other",), ["--workspace = ai2/other: no image is catalogued for it (catalogued: ai2/oe-agents, ai2/oe-agents-holmes); pass --image"]),
        (("--image=",), ["--image = '': expected beaker://ID, docker://REFERENCE or a Docker reference"]),
        (("--image=beaker://",), ["--image = 'beaker://': expected beaker://ID, docker://REFERENCE or a Docker reference"]),
        (("--image=a b",), ["--image = 'a b': expected beaker://ID, docker://REFERENCE or a Docker reference"]),
        (("--wandb-run-id=a b",), ["--wandb-run-id = 'a b': expected 1 to 64 letters, digits, '_' or '-'"]),
        (("--shared-memory=lots",), ["--shared-memory = 'lots': expected a size such as '64GiB'"]),
        (("--name=a b",), ["--name = 'a b': expected at most 128 letters, digits, '.', '_' or '-', the first not '-'; for example 'a-b'"]),
        (("--gateway-port=70000",), ["--gateway-port = 70000: expected a whole number from 1 to 65535"]),
        (("--rendezvous-timeout-seconds=0",), ["--rendezvous-timeout-seconds = 0: expected a whole number of at least 1"]),
    ],
)  # fmt: skip
def test_mistakes_on_the_command_line(run_cli, toml, mount, words, expected) -> None:
    code, out, err = run_cli("rl", "preview", f"--toml={toml('rl')}", f"--mount-path={mount}", *words)
    assert code == 2
    assert out == ""
    assert err.splitlines() == [f"primebeaker: error: {line}" for line in expected]


def test_flags_of_rl_on_sft(run_cli, toml, mount) -> None:
    code, _, err = run_cli("sft", "preview", f"--toml={toml('sft')}", f"--mount-path={mount}", "--registry=redis://h:1")
    assert code == 2
    assert "--registry has no meaning here: it belongs to RL launches; leave it out" in err


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no such file"),
        (b"a = 1\nb = = 2\n", ":2:5: "),
        (b"\xef\xbb\xbfa = 1\n", ":1:1: begins with a UTF-8 byte order mark"),
        (b'a = 1\nb = "\xff"\n', ":2:6: not UTF-8"),
    ],
)
def test_tomls_that_cannot_be_read(run_cli, mount, content, expected) -> None:
    path = mount / "bad[red].toml"
    if content is not None:
        path.write_bytes(content)
    code, out, err = run_cli("sft", "preview", f"--toml={path}", f"--mount-path={mount}")
    assert (code, out) == (2, "")
    assert f"primebeaker: error: {path}" in err
    assert expected in err
    assert len(err.splitlines()) == 1


def test_a_missing_toml_flag_and_a_folder(run_cli, mount) -> None:
    assert (
        run_cli("sft", "preview")[2]
        == "primebeaker: error: --toml is missing; pass the training TOML with --toml=FILE\n"
    )
    assert "not a regular file" in run_cli("sft", "preview", f"--toml={mount}", f"--mount-path={mount}")[2]


def test_a_relative_toml_is_named_by_its_full_path(run_cli, mount, monkeypatch) -> None:
    monkeypatch.chdir(mount)
    code, _, err = run_cli("sft", "preview", "--toml", "nope.toml", f"--mount-path={mount}")
    assert code == 2
    assert f"{mount}/nope.toml: no such file" in err


def test_readable_text_on_a_terminal(toml, mount) -> None:
    """stdout is a terminal of its own: the same facts as text."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "primebeaker", "rl", "preview", f"--toml={toml('rl-nodes')}", f"--mount-path={mount}",
               "--registry=redis://u:password@h:1"]  # fmt: skip
    process = subprocess.Popen(command, stdout=child, stderr=subprocess.PIPE)
    os.close(child)
    out = b""
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:
            break
        if not chunk:
            break
        out += chunk
    process.communicate()
    os.close(parent)
    text = out.decode()
    assert process.returncode == 0
    for part in (
        "tiny-rl",
        "2 nodes x 8 GPUs = 16 GPUs",
        "4 GPUs on replica 0, 4 inference GPUs beside it",
        "REGISTRY = redis://u:***@h:1",
    ):
        assert part in text


def test_nothing_heavy_is_imported(toml, mount) -> None:
    heavy = (
        "pydantic",
        "verifiers",
        "literegistry",
        "datasets",
        "wandb",
        "jtc",
        "asyncio",
        "rich",
        "tomlkit",
        "yaml",
        "torch",
        "subprocess",
    )
    program = (
        "import sys; from primebeaker.cli import main; code = main(sys.argv[1:]);"
        f"print(sorted(m for m in {heavy!r} if m in sys.modules), file=sys.stderr); sys.exit(code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "rl", "preview", f"--toml={toml('rl')}", f"--mount-path={mount}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stderr.strip() == "[]"


def test_python_gives_what_the_command_line_prints(preview_cli, toml, mount, beaker, monkeypatch) -> None:
    from primebeaker import RLLauncher

    path = toml("rl")
    words = (
        "--launch-id=l1",
        "--wandb-run-id=w1",
        "--env=A=1",
        "--cluster=ai2/x",
        "--registry=redis://h:1",
        "--required-service=a=1",
    )
    settings = {
        "launch_id": "l1", "wandb_run_id": "w1", "environment": {"A": "1"}, "clusters": ["ai2/x"], "mount_path": str(mount),
        "registry": "redis://h:1", "required_services": {"a": 1},
    }  # fmt: skip
    shown = RLLauncher().preview_from_toml(path, **settings)
    assert shown.model_dump(mode="json") == preview_cli("rl", path, *words)
    assert shown.experiment_name == "tiny-rl"
    receipt = RLLauncher().submit_from_toml(str(path), **settings)
    assert receipt.experiment_id == "01EXPERIMENT"
    with pytest.raises(ValueError, match="unknown setting 'imagee'"):
        RLLauncher().preview_from_toml(path, imagee="x")
    with pytest.raises(ValueError, match="--min-runtime-hours = '4'"):
        RLLauncher().preview_from_toml(path, min_runtime_hours="4", mount_path=str(mount))


def test_module_and_console_script_are_the_same(toml, mount) -> None:
    words = ["sft", "preview", f"--toml={toml('sft')}", f"--mount-path={mount}", "--launch-id=l1", "--wandb-run-id=w1"]
    script = subprocess.run([sys.executable, "-m", "primebeaker", *words], capture_output=True, text=True, check=True)
    assert json.loads(script.stdout)["kind"] == "sft"
    assert main(["sft", "preview", "--help"]) == 0


def test_one_round_tells_mistakes_of_words_values_and_plan(run_cli, toml, mount) -> None:
    """A mistyped flag, a bad number, a malformed pair, and what only the plan can find."""
    words = ["--gateway-port=abc", "--env=FOO", "--wandb-entty=x", "--shared-memory=10QiX"]
    code, out, err = run_cli(
        "rl", "preview", f"--toml={toml('rl', {'dry_run': True})}", f"--mount-path={mount}", *words
    )
    assert (code, out) == (2, "")
    lines = [line.removeprefix("primebeaker: error: ") for line in err.splitlines()]
    assert [line.partition(";")[0] for line in lines[:4]] == [
        "unknown flag --wandb-entty",
        "--gateway-port = 'abc': expected a whole number from 1 to 65535",
        "--env (number 1): expected NAME=VALUE",
        "--shared-memory = '10QiX': expected a size such as '64GiB'",
    ]
    assert len(lines) == 5
    assert "dry_run = true" in lines[4]
