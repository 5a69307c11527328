"""``primebeaker toml`` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from primebeaker.cli import main

RL = """\
output_dir = "/weka/out"
max_steps = 10
when = 2026-01-02T03:04:05Z

[wandb] # here
name = "n"

[trainer.optim]
lr = 1e-6

[orchestrator]
max_stpes = 3
[orchestrator.train]
[[orchestrator.train.source]]
legacy.id = "jtc_label_env"
[orchestrator.eval]
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    file = tmp_path / "rl.toml"
    file.write_text(RL)
    return file


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def call(*words: object, code: int = 0):
        assert main(["toml", *map(str, words)]) == code
        captured = capsys.readouterr()
        if code == 2 and captured.err:
            assert captured.out == ""
            assert all(line.startswith("primebeaker: error: ") for line in captured.err.splitlines())
            return captured.err
        return captured.out

    return call


@pytest.mark.parametrize(
    ("key", "printed"),
    [
        ("max_steps", "10\n"),
        ("when", '"2026-01-02T03:04:05Z"\n'),
        ("wandb", '{\n  "name": "n"\n}\n'),
        ("orchestrator.train.source[0].legacy.id", '"jtc_label_env"\n'),
        ("orchestrator.train.source[*].legacy.id", '[\n  "jtc_label_env"\n]\n'),
    ],
)
def test_get_prints_json(run, toml, key, printed):
    assert run("get", f"--toml={toml}", f"--key={key}") == printed


def test_get_names_the_nearest_key(run, toml):
    error = run("get", f"--toml={toml}", "--key=a..b", code=2)
    assert error == "primebeaker: error: --key: 'a..b' is no TOML path; write it like a.b[0].c\n"
    error = run("get", f"--toml={toml}", "--key=wandb.nam", code=2)
    assert error == f"primebeaker: error: {toml}: no such key wandb.nam; did you mean 'wandb.name'?\n"


def test_edit_applies_all_edits_in_one_write(run, toml, tmp_path):
    target = tmp_path / "new" / "out.toml"
    printed = run(
        "edit", f"--toml={toml}", "--output-dir=/weka/o", "--wandb-tag=a", "--wandb_tag", "b", "--wandb-name=123",
        "--lr=3e-5", "--environment-namespace", "--set=trainer.model.name=\"m\"", "--set", "max_steps=1_1",
        "--unset=orchestrator.max_stpes", "--create", f"--output={target}",
    )  # fmt: skip
    assert json.loads(printed) == {
        "toml": str(target),
        "changed": [
            "output_dir", "max_steps", "wandb.name", "trainer.optim.lr", "orchestrator.train.source[0].legacy.id",
            "wandb.tags", "trainer.model", "orchestrator.max_stpes",
        ],
    }  # fmt: skip
    expected = (
        RL.replace("/weka/out", "/weka/o")
        .replace("max_steps = 10", "max_steps = 11")
        .replace('name = "n"\n', 'name = "123"\ntags = ["a", "b"]\n')
        .replace("lr = 1e-6\n", 'lr = 3e-05\n\n[trainer.model]\nname = "m"\n')
        .replace("max_stpes = 3\n", "")
        .replace('"jtc_label_env"', '"primebeaker.environments.jtc_label_env"')
    )
    assert target.read_text() == expected
    assert toml.read_text() == RL


def test_edit_prints_the_toml_by_default_byte_for_byte(tmp_path):
    file = tmp_path / "crlf.toml"
    file.write_bytes("# Größe\r\nx = 1\r\n".encode())
    command = [sys.executable, "-m", "primebeaker", "toml", "edit", "--toml", str(file), "--set", "x=2"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert result.stdout == "# Größe\r\nx = 2\r\n".encode()


def test_edit_in_place_keeps_links_and_permissions(run, toml, tmp_path):
    link = tmp_path / "link.toml"
    link.symlink_to(toml)
    toml.chmod(0o640)
    run("edit", f"--toml={link}", "--set=max_steps=11", "--in-place")
    assert link.is_symlink()
    assert toml.read_text() == RL.replace("= 10", "= 11")
    assert toml.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.toml", "rl.toml"]


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["--output-dri=x"], ["unknown flag --output-dri; did you mean '--output-dir'"]),
        (["--lr=0", "--kl-tau=-1"], ["--lr = 0: expected a number above 0", "--kl-tau = -1: expected a number of at"]),
        (["--kind=sft", "--lr=1", "--kl-tau=1"], ["--lr is for RL", "--kl-tau is for RL"]),
        (
            ["--checkpoint=x", "--unset=nope"],
            ["[trainer.model]", "[orchestrator.model]", "[inference.model]", "no such key nope"],
        ),
        (["--set=max_steps"], ["--set=max_steps: expected PATH=TOMLVALUE"]),
        (["--set=wandb.name=x"], ["""text is written in quotes: --set='wandb.name="x"'"""]),
        (["--set=max_steps=1\nb = 2"], ["more than one value"]),
        (["--set=a..b=1"], ["--set: 'a..b' is no TOML path"]),
        (["--unset=a..b"], ["--unset: 'a..b' is no TOML path; write it like a.b[0].c"]),
        (["--set=new.key=1"], ["no such table new; create missing tables with --create"]),
        (["--replace-tags"], ["--replace-tags needs at least one --wandb-tag"]),
        (["--in-place", "--stdout"], ["--in-place and --stdout exclude each other"]),
        (["--output=x.txt"], ["expected a file name that ends in .toml"]),
    ],
)  # fmt: skip
def test_edit_reports_every_mistake_and_writes_nothing(run, toml, words, messages):
    error = run("edit", f"--toml={toml}", *words, code=2)
    assert len(error.splitlines()) == len(messages)
    for message in messages:
        assert message in error
    assert toml.read_text() == RL


def test_edit_does_not_write_onto_its_source_unasked(run, toml, tmp_path):
    link = tmp_path / "other.toml"
    link.symlink_to(toml)
    for target in (toml, link):
        assert "is the file that was read" in run("edit", f"--toml={toml}", "--set=x=1", f"--output={target}", code=2)


def test_commands_need_their_file(run, tmp_path):
    assert run("edit", code=2) == "primebeaker: error: --toml is required\n"
    missing = tmp_path / "nope.toml"
    assert run("check", f"--toml={missing}", code=2) == f"primebeaker: error: {missing}: no such file\n"


def test_bind_takes_a_manifest_or_flags(run, toml, tmp_path):
    manifest = tmp_path / "data.json"
    manifest.write_text(
        json.dumps({"train_path": "/t", "validation_path": "/v", "environment_args": {"k": True}, "rows": 3})
    )
    by_manifest = run("bind", f"--toml={toml}", "--kind=rl", f"--data={manifest}")
    by_flags = run(
        "bind", f"--toml={toml}", "--kind=rl", "--train-path=/t", "--validation-path=/v", "--environment-arg=k=true"
    )
    assert by_manifest == by_flags
    assert 'legacy.id = "jtc_label_env"\nlegacy.args = { k = true, dataset = "/t" }\n' in by_flags


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("{", "data.json:1:2: not valid JSON"),
        ("[]", "data.json: expected a JSON object"),
        ('{"kind": "sft"}', "data.json: kind: 'sft', but --kind is 'rl'"),
        ('{"train_path": "/t"}', "data.json: validation_path: expected a path that is not empty, found nothing"),
    ],
)
def test_bind_refuses_a_bad_manifest(run, toml, tmp_path, manifest, message):
    (tmp_path / "data.json").write_text(manifest)
    assert message in run("bind", f"--toml={toml}", "--kind=rl", f"--data={tmp_path / 'data.json'}", code=2)


def test_bind_names_the_flags_that_are_missing(run, toml):
    error = run("bind", f"--toml={toml}", "--kind=sft", "--train-path=/t", "--environment-arg=dataset=1", code=2)
    assert error.splitlines() == [
        "primebeaker: error: --validation-path: expected a path that is not empty, found nothing",
        "primebeaker: error: --hf-dataset-path: expected a path that is not empty, found nothing",
        "primebeaker: error: --environment-arg=dataset: not allowed here; train_path and validation_path set it",
    ]


def test_check_prints_findings_with_lines(run, toml):
    found = json.loads(run("check", f"--toml={toml}"))
    assert list(found) == ["toml", "kind", "generation", "ok", "errors", "warnings"]
    assert (found["kind"], found["generation"], found["ok"], found["errors"]) == ("rl", "0.7", True, [])
    assert found["warnings"] == [
        {"path": "when", "line": 3, "value": "2026-01-02 03:04:05+00:00", "message": "unknown field", "hint": None},
        {
            "path": "orchestrator.max_stpes",
            "line": 12,
            "value": 3,
            "message": "unknown field",
            "hint": "did you mean orchestrator.max_steps?",
        },
    ]
    strict = json.loads(run("check", f"--toml={toml}", "--strict", code=2))
    assert strict["ok"] is False
    assert len(strict["errors"]) == 2
    text = run("check", f"--toml={toml}", "--format=text")
    assert f"warning  {toml}:12: orchestrator.max_stpes = 3: unknown field" in text
    assert text.endswith("rl TOML of Prime-RL 0.7: 0 errors, 2 warnings\n")


def test_check_of_the_other_generation_fails(run, toml):
    found = json.loads(run("check", f"--toml={toml}", "--prime-rl=0.8", code=2))
    assert found["generation"] == "0.8"
    assert {"wandb", "orchestrator.train.source[0].legacy"} == {error["path"] for error in found["errors"]}


def test_diff_compares_values(run, toml, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(RL.replace("# here", "").replace("= 10", "= 11").replace('name = "n"', "tags = []"))
    assert json.loads(run("diff", toml, other)) == {
        "changed": [{"path": "max_steps", "from": 10, "to": 11}],
        "added": [{"path": "wandb.tags", "value": []}],
        "removed": [{"path": "wandb.name", "value": "n"}],
    }
    assert run("diff", toml, other, "--format=text") == (
        '~ max_steps: 10 -> 11\n+ wandb.tags = []\n- wandb.name = "n"\n'
    )
    assert run("diff", toml, toml, "--format=text") == "no difference\n"


def test_nothing_heavy_is_imported_to_check_a_toml(toml):
    code = (
        "import sys; from primebeaker.cli import main; main(['toml', 'check', '--toml', sys.argv[1]]);"
        "heavy = {'pydantic', 'yaml', 'tomlkit', 'rich', 'httpx', 'datasets', 'asyncio'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, str(toml)], check=True, stdout=subprocess.DEVNULL)
