"""Prompt templates: resolution, rendering, and every shipped one."""

import json
from importlib import resources

import pytest

from primebeaker.errors import UserError
from primebeaker.runtime.json_utils import extract_json_from_response
from primebeaker.runtime.templates import (
    load_prompt_template,
    render_chat_template,
    resolve_resource_path,
    template_variables,
)

SHIPPED = sorted(
    entry.name
    for entry in resources.files("primebeaker.resources").joinpath("templates").iterdir()
    if entry.name.endswith(".json")
)


def template(content, *variables):
    return {"name": "t", "input_variables": list(variables), "chat_template": [{"role": "user", "content": content}]}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_template_renders_with_its_declared_values(name):
    loaded = load_prompt_template(f"templates/{name}")
    values = {variable: f"<{variable} {{x}}>" for variable in loaded["input_variables"]}
    rendered = render_chat_template(loaded, **values)
    assert set(template_variables(loaded)) <= set(values)
    text = "".join(message["content"] for message in rendered)
    for variable in template_variables(loaded):
        assert values[variable] in text


def test_a_key_given_twice_is_no_template(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"input_variables": [], "chat_template": [{"role": "user", "content": "a", "content": "b"}]}')
    with pytest.raises(UserError, match="the key 'content' is given twice in one object"):
        load_prompt_template(path)


def test_no_two_templates_have_the_same_content():
    contents = [json.dumps(load_prompt_template(f"templates/{name}")["chat_template"]) for name in SHIPPED]
    assert len(set(contents)) == len(contents)


def test_values_are_inserted_verbatim_and_never_rendered_again():
    rendered = render_chat_template(template("{a}{{b}} {{{a}}}", "a", "unused"), a="{b} {0.__class__}", extra=1)
    assert rendered == [{"role": "user", "content": "{b} {0.__class__}{b} {{b} {0.__class__}}"}]


def test_missing_values_are_listed_sorted():
    with pytest.raises(UserError, match="missing values: a, c"):
        render_chat_template(template("{c}{b}{a}", "a", "b", "c"), b=1)


@pytest.mark.parametrize("content", ["{a.b}", "{a[0]}", "{a!r}", "{a:>3}", "{}", "{", "}", "{1a}", "{ a }"])
def test_anything_else_with_a_brace_is_an_error_by_file_message_and_position(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(template(f"ok {content}", "a")))
    with pytest.raises(UserError, match=r"t\.json: message 1, character"):
        load_prompt_template(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": 1}, "name: expected text"),
        ({"input_variables": "a"}, "input_variables: expected a list"),
        ({"chat_template": []}, "not empty"),
        ({"chat_template": [{"role": "bot", "content": "x"}]}, "message 1"),
        ({"chat_template": [{"role": "user", "content": "{b}"}]}, "placeholder {b} is not declared"),
        ({"tools": [{}]}, "tool 1"),
    ],
)
def test_a_wrong_shape_is_an_error_at_load(tmp_path, change, says):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**template("{a}", "a"), **change}))
    with pytest.raises(UserError) as caught:
        load_prompt_template(path)
    assert says in str(caught.value) and str(path) in str(caught.value)


def test_resolution(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "templates/multistep-tool-message.json"
    assert "primebeaker" in str(resolve_resource_path(name))
    (tmp_path / "templates").mkdir()
    (tmp_path / name).write_text(json.dumps(template("mine")))
    assert resolve_resource_path(name) == tmp_path / name
    assert resolve_resource_path(tmp_path / name) == tmp_path / name
    with pytest.raises(UserError, match=r"did you mean 'templates/multistep-tool-message\.json'"):
        resolve_resource_path("templates/multistep-tool-mesage.json")
    with pytest.raises(UserError, match="not found"):
        resolve_resource_path("templates/../../errors.py")
    with pytest.raises(UserError, match="not found"):
        resolve_resource_path("/nowhere/x.json")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"a": 1}, {"a": 1}),
        ([1], [1]),
        ('x ```json\n{"a": 1}\n``` {"b": 2}', {"a": 1}),
        ("x ```\n[1]\n```", [1]),
        ('```python\nx = {}\n```\n```json\n{"a": 1}\n```', {"a": 1}),
        ('```json\nbroken\n``` then {"b": 2}', {"b": 2}),
        (' {"a": {"b": [1]}} ', {"a": {"b": [1]}}),
        ('so {bad} [1, 2] {"a": 1}', [1, 2]),
        ("nothing", None),
        (None, None),
    ],
)
def test_json_in_a_reply(value, found):
    assert extract_json_from_response(value) == found


ROLES = {
    "jtc-io-prompt": ("jtc_io_judge", "system user"),
    "jtc-io-tool_response": ("jtc_io_judge", "system user assistant tool"),
    "jtc-io-complete": ("jtc_io_judge", "system user assistant tool assistant"),
    "jtc-io-python-prompt-gptoss-harmony": ("jtc_io_python_judge_gptoss_harmony", "system user"),
    "jtc-io-repl-prompt-gptoss-harmony": ("jtc_io_repl_judge_gptoss_harmony", "system user"),
    "jtc-io-repl-prompt-v4": ("jtc_io_repl_judge_prompt_v4", "system user"),
    "jtc-io-terminal-release-browse": ("jtc_io_terminal_judge_release_browse", "system user"),
    "articulated_harness_gptoss": ("articulated_harness_gptoss", "system user"),
    "code-check-generation": ("code_check_generation", "system user"),
    "code-check-label-generation-gptoss": ("code_check_label_generation_gptoss", "system user assistant user user"),
    "podman-terminal-submit-gptoss": ("podman_terminal_solve_gptoss", "system user"),
    "tmax-podman-trace-submit-gptoss": ("tmax_podman_trace_submit_gptoss", "system user"),
    "tmax-podman-trace-submit-binary-gptoss.v2": ("tmax_podman_trace_submit_binary_gptoss_v2", "system user"),
    "search-agent": ("search_agent", "system user"),
    "search-agent-webterminal-10k": ("search_agent_webterminal_10k", "system user"),
    "search-agent-visit": ("search_agent_visit", "system user"),
    "search-agent-visit-judge": ("search_agent_visit_judge", "system user"),
    "multistep-tool-message": ("multistep_tool_message", "tool"),
    "multistep-final-warning": ("multistep_final_warning", "user"),
    "multistep-final-warning-harmony": ("multistep_final_warning_harmony", "user"),
}


@pytest.mark.parametrize("name", ROLES)
def test_names_and_roles(name):
    loaded = load_prompt_template(f"templates/{name}.json")
    assert (loaded["name"], " ".join(message["role"] for message in loaded["chat_template"])) == ROLES[name]


TOOLS = {
    "jtc-io-terminal-release-browse": "terminal",
    "podman-terminal-submit-gptoss": "bash submit",
    "tmax-podman-trace-submit-gptoss": "trace_inspection terminal submit",
    "tmax-podman-trace-submit-binary-gptoss.v2": "trace_inspection terminal submit",
}


def test_all_20_are_there_and_offer_the_tools_they_speak_of():
    assert sorted(f"{name}.json" for name in ROLES) == SHIPPED and len(SHIPPED) == 20
    for name in ROLES:
        tools = load_prompt_template(f"templates/{name}.json").get("tools", [])
        assert " ".join(tool["name"] for tool in tools) == TOOLS.get(name, "")
    binary = load_prompt_template("templates/tmax-podman-trace-submit-binary-gptoss.v2.json")["tools"][-1]
    assert binary["parameters"]["properties"]["label"]["enum"] == ["pass", "fail"]


def rendered(name):
    loaded = load_prompt_template(f"templates/{name}.json")
    values = {variable: f"[{variable}]" for variable in loaded["input_variables"]}
    return [message["content"] for message in render_chat_template(loaded, **values)]


def test_code_turns_and_results_have_the_forms_the_environments_know():
    from primebeaker.environments._shared.code_block import code_of
    from primebeaker.environments._shared.results import fenced_content
    from primebeaker.environments._shared.verdicts import xml_verdict

    code, result, verdict = rendered("jtc-io-complete")[2:]
    assert code_of(code) == "[code]"
    assert result == fenced_content({"stdout": "[stdout]", "stderr": "[stderr]"})
    assert xml_verdict(verdict) == ("[feedback]", "[label]")
    assert rendered("multistep-tool-message") == ["[tool_content]"]


def test_numbers_equal_the_defaults_of_the_environments():
    from primebeaker.environments.registry import environment_spec

    defaults = {argument.name: argument.default for argument in environment_spec("tool-label").arguments}
    for name in ("jtc-io-terminal-release-browse", "articulated_harness_gptoss"):
        assert f"{defaults['terminal_truncation']:,} characters" in rendered(name)[0]


def test_literal_braces_come_out_single():
    for name in ("jtc-io-python-prompt-gptoss-harmony", "jtc-io-terminal-release-browse"):
        assert '{"feedback": "your reasons' in rendered(name)[0]
    assert '{"command":"echo TERMINAL_COMPLETE"}' in rendered("podman-terminal-submit-gptoss")[0]
