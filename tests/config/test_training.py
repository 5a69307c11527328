"""The typed edits of training TOMLs, and data binding."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import primebeaker
import primebeaker.config as config
from primebeaker.config import RLTrainingToml, SFTTrainingToml, TomlDocument, TrainingData, TrainingToml
from primebeaker.errors import UserError

RL = """\
# the run
output_dir = "/weka/out" # here

[wandb]
project = "p" # project
tags = ["a"]

[trainer.model]
name = "m"
[trainer.optim]
lr = 1e-6
[trainer.loss]
kl_tau = 1_0.0

[orchestrator]
oversampling_factor = 1
[orchestrator.model]
name = "m"
[inference.model]
name = "m"

[orchestrator.train]
[[orchestrator.train.source]]
legacy = { id = "jtc_label_env", args = { dataset = "old", keep = 1 } }

[[orchestrator.train.source]]
[orchestrator.train.source.legacy]
id = "primebeaker.environments.jtc_tool_label_env:load_environment" # ours

[orchestrator.eval]
[[orchestrator.eval.source]]
legacy.id = "someone.else"
[[orchestrator.eval.source]]
num_examples = 4
legacy.id = "other.place.jtc_label_env"
"""
SFT = """\
output_dir = "/weka/sft"
[wandb]
[data]
type = "sft"
name = "d"
splits = ["x"]
[val.data]
type = "fake"
"""
NEW = """\
output_dir = "/weka/out"
[monitors.wandb]
[trainer.model]
[orchestrator.model]
[inference.vllm]
tensor_parallel_size = 1
"""


def rl(text: str = RL) -> RLTrainingToml:
    return RLTrainingToml(TomlDocument.from_text(text))


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (lambda toml: toml.with_output_dir("/weka/new"), '"/weka/out" # here', '"/weka/new" # here'),
        (lambda toml: toml.with_output_dir(Path("/weka/new")), '"/weka/out" # here', '"/weka/new" # here'),
        (lambda toml: toml.with_wandb_tags("b", "a", "b"), '["a"]', '["a", "b"]'),
        (lambda toml: toml.with_wandb_tags("b", "b", replace=True), '["a"]', '["b"]'),
        (lambda toml: toml.with_wandb_name('n "1"'), 'tags = ["a"]\n', 'tags = ["a"]\nname = "n \\"1\\""\n'),
        (lambda toml: toml.with_learning_rate(3e-5), "1e-6", "3e-05"),
        (lambda toml: toml.with_learning_rate(1), "1e-6", "1.0"),
        (lambda toml: toml.with_kl_tau(0), "1_0.0", "0.0"),
        (lambda toml: toml.with_kl_tau(10), "1_0.0", "1_0.0"),
        (lambda toml: toml.with_oversampling_factor(2), "factor = 1", "factor = 2"),
        (lambda toml: toml.with_model_checkpoint("/weka/ckpt"), 'name = "m"', 'name = "/weka/ckpt"'),
        (lambda toml: toml.with_value("wandb.project", "q"), '"p" # project', '"q" # project'),
        (lambda toml: toml.without_value("wandb.project"), 'project = "p" # project\n', ""),
    ],
)
def test_an_edit_changes_its_value_and_nothing_else(edit, before, after):
    toml = rl()
    edited = edit(toml)
    assert edited.text == RL.replace(before, after)
    assert toml.text == RL
    assert type(edited) is RLTrainingToml


def test_eval_examples_reach_every_source():
    edited = rl().with_eval_num_examples(9)
    assert [source["num_examples"] for source in edited.values["orchestrator"]["eval"]["source"]] == [9, 9]


def test_the_environment_namespace_moves_bundled_ids_only():
    edited = rl().with_environment_namespace()
    assert edited.text == (
        RL.replace('"jtc_label_env"', '"primebeaker.environments.jtc_label_env"')
        .replace(":load_environment", "")
        .replace("other.place.jtc_label_env", "primebeaker.environments.jtc_label_env")
    )
    assert edited.with_environment_namespace().text == edited.text
    moved = edited.with_environment_namespace("mine.envs")
    assert moved.text == edited.text.replace("primebeaker.environments", "mine.envs")


def test_the_environment_namespace_covers_old_env_entries():
    text = RL.replace("source", "env")
    assert rl(text).with_environment_namespace().text.count("primebeaker.environments.") == 3


@pytest.mark.parametrize("namespace", ["", "1a", "a..b", "a-b", "class.x", " a"])
def test_a_namespace_is_a_dotted_python_name(namespace):
    with pytest.raises(UserError, match="no dotted Python name"):
        rl().with_environment_namespace(namespace)


def test_another_function_of_a_bundled_module_is_refused():
    with pytest.raises(UserError, match=r"jtc_tool_label_env:make.*another function"):
        rl(RL.replace(":load_environment", ":make")).with_environment_namespace()


@pytest.mark.parametrize(
    ("edit", "text", "message"),
    [
        (lambda toml: toml.with_output_dir(""), RL, "output_dir: expected a text that is not empty"),
        (lambda toml: toml.with_output_dir("x"), RL.replace("output_dir", "other"), "output_dir: no such key"),
        (lambda toml: toml.with_wandb_tags(), RL, "expected at least one tag"),
        (lambda toml: toml.with_wandb_tags(" "), RL, "expected a text that is not empty"),
        (lambda toml: toml.with_wandb_tags("x"), RL.replace('["a"]', '["a", 1]'), "TOML:6: wandb.tags: expected"),
        (lambda toml: toml.with_wandb_tags("x"), RL.replace('["a"]', '"a"'), "an array of strings, found a string"),
        (lambda toml: toml.with_wandb_tags("x"), RL.replace("[wandb]", "[wand]"), "the table [wandb] is missing"),
        (lambda toml: toml.with_wandb_name(""), RL, "wandb.name: expected a text that is not empty"),
        (lambda toml: toml.with_wandb_name(3), RL, "found 3"),
        (lambda toml: toml.with_learning_rate(0), RL, "expected a finite number above 0, found 0"),
        (lambda toml: toml.with_learning_rate(True), RL, "found True"),
        (lambda toml: toml.with_learning_rate(float("nan")), RL, "found nan"),
        (lambda toml: toml.with_learning_rate("1"), RL, "found '1'"),
        (lambda toml: toml.with_learning_rate(1), RL.replace("[trainer.optim]", "[x]"), "[trainer.optim] is missing"),
        (lambda toml: toml.with_kl_tau(-1), RL, "expected a finite number of at least 0"),
        (lambda toml: toml.with_kl_tau(float("inf")), RL, "found inf"),
        (lambda toml: toml.with_oversampling_factor(0), RL, "at least 1, found 0"),
        (lambda toml: toml.with_oversampling_factor(1.0), RL, "at least 1, found 1.0"),
        (lambda toml: toml.with_oversampling_factor(2), NEW, "[orchestrator.concurrency]"),
        (lambda toml: toml.with_eval_num_examples(True), RL, "found True"),
        (lambda toml: toml.with_eval_num_examples(1), NEW, "there is no [[orchestrator.eval.source]]"),
        (lambda toml: toml.with_value("a.b", 1), RL, "create missing tables with --create"),
    ],
)  # fmt: skip
def test_an_edit_that_makes_no_sense_is_refused(edit, text, message):
    toml = rl(text)
    with pytest.raises(UserError) as caught:
        edit(toml)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert toml.text == text


def test_every_missing_model_table_is_named_and_nothing_changed():
    text = RL.replace("[trainer.model]", "[a]").replace("[inference.model]", "[b]")
    with pytest.raises(UserError) as caught:
        rl(text).with_model_checkpoint("x")
    assert "[trainer.model]" in str(caught.value)
    assert "[inference.model]" in str(caught.value)
    assert "[orchestrator.model]" not in str(caught.value)


def test_edits_use_the_places_of_generation_0_8():
    edited = rl(NEW).with_wandb_name("n").with_wandb_tags("t").with_model_checkpoint("c")
    assert edited.generation == "0.8"
    assert edited.values["monitors"]["wandb"] == {"name": "n", "tags": ["t"]}
    assert edited.values["inference"]["vllm"]["model"] == "c"
    assert edited.values["trainer"]["model"] == edited.values["orchestrator"]["model"] == {"name": "c"}


def test_values_are_a_copy():
    toml = rl()
    toml.values["wandb"]["tags"].append("x")
    assert toml.values["wandb"]["tags"] == ["a"]


def test_binding_sft_sets_both_tables():
    toml = SFTTrainingToml(TomlDocument.from_text(SFT))
    bound = toml.bind_data(TrainingData(kind="sft", train_path="/t", validation_path="/v", hf_dataset_path="/hf"))
    expected = SFT.replace('"d"', '"/hf"').replace('["x"]', '["train"]').replace('"fake"', '"sft"')
    assert bound.text == expected + 'name = "/hf"\nsplits = ["validation"]\n'


def test_binding_rl_reaches_every_entry_in_its_own_form():
    bound = rl().bind_data(
        {"kind": "rl", "train_path": "/t", "validation_path": "/v", "environment_args": {"k": [1]}, "rows": 7}
    )
    values = tomllib.loads(bound.text)["orchestrator"]
    assert [source["legacy"]["args"] for source in values["train"]["source"]] == [
        {"dataset": "/t", "keep": 1, "k": [1]},
        {"k": [1], "dataset": "/t"},
    ]
    assert [source["legacy"]["args"] for source in values["eval"]["source"]] == [{"k": [1], "dataset": "/v"}] * 2
    assert 'legacy = { id = "jtc_label_env", args = { dataset = "/t", keep = 1, k = [1] } }\n' in bound.text
    assert "[orchestrator.train.source.legacy.args]\nk = [1]\n" in bound.text
    assert 'legacy.id = "someone.else"\nlegacy.args' in bound.text


def test_binding_rl_fills_args_of_old_env_entries():
    text = "[orchestrator.train]\n[[orchestrator.train.env]]\nid = 'x'\n[orchestrator.eval]\n"
    bound = rl(text).bind_data(TrainingData(kind="rl", train_path="/t", validation_path="/v"))
    assert bound.values["orchestrator"]["train"]["env"] == [{"id": "x", "args": {"dataset": "/t"}}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[orchestrator.train]\n", "the table [orchestrator.eval] is missing"),
        ("[orchestrator.train]\n[orchestrator.eval]\n", "there is no [[orchestrator.train.source]]"),
        (
            "[orchestrator.eval]\n[[orchestrator.train.source]]\nenv.id = 'x'\n",
            "TOML:2: orchestrator.train.source[0]: has an env table and no legacy table",
        ),
    ],
)
def test_binding_rl_needs_places(text, message):
    with pytest.raises(UserError) as caught:
        rl(text).bind_data(TrainingData(kind="rl", train_path="/t", validation_path="/v"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "x"}, "kind: expected 'sft' or 'rl', found 'x'"),
        ({"kind": "rl", "train_path": " "}, "train_path: expected a path that is not empty"),
        ({"kind": "rl", "validation_path": None}, "validation_path: expected a path that is not empty, found nothing"),
        ({"kind": "sft"}, "hf_dataset_path: expected a path"),
        ({"environment_args": {"dataset": "x"}}, "environment_args.dataset: not allowed here"),
        ({"environment_args": {"x": None}}, "environment_args.x: cannot write null"),
        ({"environment_args": [1]}, "environment_args: expected a table"),
    ],
)
def test_training_data_is_checked(fields, message):
    with pytest.raises(UserError) as caught:
        TrainingData(**{"kind": "rl", "train_path": "/t", "validation_path": "/v", **fields})
    assert message in str(caught.value)


def test_data_of_the_other_kind_is_refused():
    with pytest.raises(UserError, match="the data is for sft, the TOML for rl"):
        rl().bind_data(TrainingData(kind="sft", train_path="/t", validation_path="/v", hf_dataset_path="/h"))


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("sft", "[data]\ntype = 'sft'\n", "the table [val.data] is missing"),
        ("sft", "[val.data]\n", "the table [data] is missing"),
        ("sft", "[data]\ntype = 'fake'\n[val.data]\n", "rl.toml:2: data.type: expected 'sft', found 'fake'"),
        ("sft", "[data]\n[val.data]\n", "rl.toml:1: data.type: expected 'sft', found nothing"),
        ("rl", "[trainer]\n", "the table [orchestrator] is missing"),
        ("dpo", "", "kind = 'dpo': expected 'sft' or 'rl'"),
    ],
)
def test_a_kind_needs_its_tables(tmp_path, kind, text, message):
    file = tmp_path / "rl.toml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        config.load_training_toml(file, kind=kind)
    assert message in str(caught.value)


def test_rendering_a_template_writes_a_new_file(tmp_path):
    template = tmp_path / "t.toml"
    template.write_text(SFT)
    data = {"kind": "sft", "train_path": "/t", "validation_path": "/v", "hf_dataset_path": "/hf"}
    target = config.render_training_toml(
        "sft", template_toml_path=template, data=data, output_toml_path=tmp_path / "new" / "o.TOML"
    )
    assert target == tmp_path / "new" / "o.TOML"
    assert config.load_toml(target).values["val"]["data"]["name"] == "/hf"
    assert template.read_text() == SFT
    with pytest.raises(UserError, match="the data is for sft, the TOML for rl"):
        template.write_text(RL)
        config.render_training_toml("rl", template_toml_path=template, data=data, output_toml_path=target)


def test_the_public_names_are_importable_from_the_package():
    for name in (
        "load_toml", "TrainingToml", "SFTTrainingToml", "RLTrainingToml", "TrainingData", "DataArtifacts",
        "load_training_toml", "render_training_toml", "dump_toml_document",
    ):  # fmt: skip
        assert getattr(primebeaker, name) is getattr(config, name)


def test_a_toml_knows_its_template(tmp_path):
    file = tmp_path / "a.toml"
    file.write_bytes(b"x = 1\r\n")
    toml = TrainingToml.from_path(file)
    assert toml.template_path == file
    assert toml.with_value("x", 2).template_path == file
    with pytest.raises(UserError, match="is the file that was read"):
        toml.with_value("x", 2).write(file)
    assert toml.with_value("x", 2).write(file, in_place=True).read_bytes() == b"x = 2\r\n"
