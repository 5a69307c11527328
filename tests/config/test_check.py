"""The check of training TOMLs against Prime-RL's fields."""

from __future__ import annotations

import pytest

from primebeaker.config import TomlDocument, check_toml, detect_generation
from primebeaker.config.catalogue import catalogue
from primebeaker.errors import UserError

RL = """\
output_dir = "/weka/out"
max_steps = 10

[wandb]
name = "run"

[deployment]
type = "single_node"
num_train_gpus = 1

[trainer.model]
name = "m"

[trainer.optim]
lr = 1e-6

[orchestrator]
batch_size = 8

[[orchestrator.train.source]]
name = "x"
[orchestrator.train.source.legacy]
id = "primebeaker.environments.jtc_label_env"
args = { anything = 1, dataset = "d" }
"""


def check(text: str, kind: str = "rl", **options):
    return check_toml(TomlDocument.from_text(text), kind, **options)


def only(findings):
    assert len(findings) == 1, [str(finding.error("f")) for finding in findings]
    return findings[0]


def test_a_right_file_has_no_findings():
    report = check(RL)
    assert report.ok
    assert report.warnings == ()
    assert report.generation == "0.7"


def test_a_typo_is_a_warning_with_line_and_full_name():
    report = check(RL.replace("batch_size = 8", "batch_size = 8\nmax_stpes = 3"))
    assert report.ok
    finding = only(report.warnings)
    assert str(finding.error("rl.toml")) == (
        "rl.toml:19: orchestrator.max_stpes = 3: unknown field; did you mean orchestrator.max_steps?"
    )
    strict = check(RL.replace("batch_size = 8", "max_stpes = 3"), strict=True)
    assert not strict.ok


@pytest.mark.parametrize(
    ("before", "after", "line", "message", "hint"),
    [
        ("max_steps = 10", 'max_steps = "10"', 2, "expected an integer", "write 10 without quotes"),
        ("max_steps = 10", "max_steps = true", 2, "found a boolean", None),
        ("lr = 1e-6", "lr = -1.0", 15, "expected at least 0", None),
        ("lr = 1e-6", "lr = nan", 15, "expected at least 0", None),
        ('name = "run"', "name = 7", 5, 'expected a string or the string "None"', "write it in quotes"),
        ('type = "single_node"', 'type = "singlenode"', 8, "expected 'multi_node' or 'single_node'", "'single_node'"),
        ("num_train_gpus = 1", "num_train_nodes = 1", 9, "legal only with deployment.type = 'multi_node'", None),
        ("lr = 1e-6", 'type = "sgd"\nbetas1 = 0.9', 16, "legal only with trainer.optim.type", None),
        ('type = "single_node"', 'type = "multi_node"', 7, "required key is missing", None),
    ],
)  # fmt: skip
def test_what_prime_rl_refuses_is_an_error(before, after, line, message, hint):
    text = RL.replace(before, after, 1)
    if 'type = "multi_node"' in text:
        text = text.replace("num_train_gpus = 1\n", "")
    finding = only(check(text).errors)
    assert finding.line == line
    assert message in finding.message
    assert hint is None or hint in (finding.hint or "")


def test_none_text_is_null_and_an_integer_is_a_float():
    assert check(RL.replace('name = "run"', 'name = "None"').replace("lr = 1e-6", "lr = 1")).ok


@pytest.mark.parametrize("table", ["trainer", "orchestrator"])
def test_a_missing_root_table_is_a_warning(table):
    lines = {"trainer": "[orchestrator]\n", "orchestrator": "[trainer]\n"}[table]
    report = check(lines)
    assert only(report.warnings).path == table
    assert report.ok
    assert not check(lines, strict=True).ok


def test_keys_of_the_other_generation_are_errors_with_their_new_name():
    report = check(RL, generation="0.8")
    found = {finding.path: finding.hint for finding in report.errors if finding.rule == "generation"}
    assert found["wandb"] == "in Prime-RL 0.8 it is monitors.wandb"
    assert "removed" in found["orchestrator.train.source[0].legacy"]
    assert not check(RL, generation="0.8", off=True).ok


def test_votes_for_both_generations_list_the_keys_of_each_side():
    text = RL + "\n[resume]\nstep = 3\n"
    with pytest.raises(UserError, match=r"wandb.*of 0\.7, resume of 0\.8"):
        detect_generation(TomlDocument.from_text(text).values)
    report = check(text)
    assert report.generation == "0.7"
    assert any(
        "in Prime-RL 0.7 it is ckpt" in (finding.hint or "") or "resume" in finding.path for finding in report.errors
    )
    assert not report.ok


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        ("", "0.7"),
        ("max_steps = 1", "0.7"),
        ("[monitors.wandb]\nname = 'x'\n[orchestrator]\n", "0.8"),
        ("[inference.vllm]\ntensor_parallel_size = 2\n[orchestrator]\n", "0.8"),
        ("[deployment]\nnum_gpus = 2\n", "0.7"),
        ("[deployment]\nnum_train_gpus = 2\n", "0.8"),
        ("clean = true\n", "0.8"),
        ("[ckpt]\nresume_step = -1\n", "0.7"),
    ],
)
def test_generation_by_the_keys_that_only_one_knows(text, generation):
    assert detect_generation(TomlDocument.from_text(text).values) == generation


def test_protected_environment_variables_are_errors_even_when_the_check_is_off():
    text = RL + '\n[trainer.env_vars]\nCUDA_VISIBLE_DEVICES = "0"\n'
    finding = only(check(text, off=True).errors)
    assert finding.path == "trainer.env_vars.CUDA_VISIBLE_DEVICES"
    assert finding.line == 27


def test_an_unknown_bundled_environment_is_a_warning():
    text = RL.replace("jtc_label_env", "jtc_lable_env")
    finding = only(check(text, off=True).warnings)
    assert "jtc_label_env" in finding.hint
    canonical = check(RL.replace("jtc_label_env", "tool-label")).warnings
    assert only(canonical).hint == "did you mean 'jtc_tool_label_env'?"


def test_subtrees_of_other_packages_are_accepted():
    text = RL + '\n[[orchestrator.eval.source]]\nname = "e"\n[orchestrator.eval.source.env]\nid = "z"\nwhatever = 1\n'
    assert check(text, strict=True).ok


def test_a_hyphenated_key_gets_its_underscore_form():
    finding = only(check(RL.replace("max_steps", "max-steps")).warnings)
    assert finding.hint == "did you mean max_steps?"


def test_a_misplaced_key_gets_its_place():
    finding = only(check(RL.replace("[trainer.model]", "[trainer]\nlr = 1.0\n[trainer.model]")).warnings)
    assert finding.hint.startswith("did you mean trainer.optim.lr")


def test_credentials_are_masked():
    finding = only(check(RL.replace("batch_size = 8", 'wandb_api_key = "abcdefghijkl"')).warnings)
    assert finding.value == "***"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        # A tagged table without its tag is the variant that Prime-RL takes by default.
        ("sft", '[data]\nname = "org/rows"\nsplits = ["train"]\n[val.data]\nname = "org/rows"\n'),
        ("sft", "[data]\ntype = 'fake'\nlength = 'variable'\n"),
        ("sft", "[optim]\nlr = 3e-4\nbetas1 = 0.9\nmax_norm = inf\n"),
        ("sft", "[deployment]\ntype = 'multi_node'\nnum_nodes = 2\nnodes_per_fsdp_group = 1\n"),
        ("rl", "[trainer.rollout_transport]\nport = 5555\n[orchestrator]\n"),
        ("rl", "[rollout_transport]\nport = 5555\n[trainer]\n[orchestrator]\n"),
        # Null is written as text, tables of settings take any key, aliases are known.
        ("rl", "[trainer.model]\ncompile = 'None'\n[orchestrator]\n[inference.vllm_extra]\nany = [1]\n"),
        ("rl", "[trainer.env_vars]\nMY_FLAG = '1'\n[orchestrator.train.sampling.extra_body]\nx = { y = 1 }\n"),
        # A key that the catalogued images add.
        ("rl", "[trainer.optim]\neps = 1e-8\n[orchestrator]\neval_max_inflight_episodes = 4\n"),
        # Either a name or a table.
        ("rl", "[trainer]\n[orchestrator.algo.sampling]\nsource = 'policy'\n"),
        ("rl", "[trainer]\n[orchestrator.algo.sampling.source]\nname = 'org/teacher'\n"),
        # Generation 0.8.
        ("sft", "[model.full_offload]\n[monitors.wandb]\nname = 'n'\n"),
        ("sft", "clean = true\n[model]\nfull_offload = true\n"),
        ("rl", "[trainer]\n[orchestrator.concurrency]\n[resume]\n[inference.vllm]\nmax-num-seqs = 1\n"),
    ],
)
def test_what_prime_rl_accepts_is_accepted(kind, text):
    report = check(text, kind, strict=True)
    assert [str(finding.error("f")) for finding in report.errors + report.warnings] == []


def test_an_array_element_is_checked_with_its_own_line():
    text = RL.replace('name = "run"', 'name = "run"\ntags = [\n  "a",\n  1,\n]')
    finding = only(check(text).errors)
    assert (finding.path, finding.line, finding.value) == ("wandb.tags[1]", 8, 1)


def test_entries_of_old_files_are_reported_with_their_new_form():
    finding = only(check(RL.replace("train.source", "train.env")).warnings)
    assert finding.path == "orchestrator.train.env"
    assert finding.hint == "write [[orchestrator.train.source]] with a legacy table instead"
    assert finding.line == 20


def test_required_keys_of_array_elements_and_optional_tables():
    text = RL + "\n[orchestrator.heartbeat]\n"
    finding = only(check(text).errors)
    assert (finding.path, finding.line, finding.rule) == ("orchestrator.heartbeat.url", 26, "required")
    hierarchical = check(RL + '\n[orchestrator.algo]\ntype = "hierarchical_grpo"\nepisode_agents = []\n')
    assert only(hierarchical.errors).message == "expected at least 1 element(s)"


@pytest.mark.parametrize("generation", ["0.7", "0.8"])
@pytest.mark.parametrize("root", ["rl", "sft", "inference"])
def test_the_catalogue_is_consistent(generation, root):
    known = catalogue(generation, root)
    for path, field in known.fields.items():
        assert field.types <= {"string", "integer", "float", "boolean", "table", "array", "null", "any"}, path
        parent = path.rpartition(".")[0]
        while parent:
            owner = known.fields.get(parent.removesuffix("[]"))
            assert owner is not None or parent.endswith(".*"), path
            parent = parent.rpartition(".")[0]
        for condition in field.facts.get("variants", ()):
            tag, _, value = condition.partition("=")
            tag_path = f"{path.rpartition('.')[0]}.{tag}".removeprefix(".")
            assert value in known.fields[tag_path].facts["enum"], path


def test_the_catalogue_names_the_commits_it_was_made_from():
    assert (catalogue("0.7", "rl").tag, catalogue("0.7", "rl").commit[:9]) == ("v0.7.1.dev83", "2ffe374e0")
    assert (catalogue("0.8", "sft").tag, catalogue("0.8", "sft").commit[:9]) == ("v0.8.1.dev67", "559b44772")
