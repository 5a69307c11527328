"""Helpers that scripts import: Qwen-style text, tool definitions, label-RL rows."""

import pytest

from primebeaker.environments import jtc_label_reward, tool_protocol

BLOCK = '<tool_call>{"name":"terminal","arguments":{"command":"ls"}}</tool_call>'
XML = "<tool_call><function=python><parameter=code>\n1\n</parameter></function></tool_call>"


def test_well_formed_calls_outside_thinking_in_order():
    text = f"<think>{BLOCK}</think>{BLOCK} and {XML}<tool_call>{{bad}}</tool_call>"
    assert tool_protocol.parse_qwen_tool_calls(text) == [
        {"name": "terminal", "arguments": {"command": "ls"}},
        {"name": "python", "arguments": {"code": "1"}},
    ]


@pytest.mark.parametrize(
    ("text", "thinking", "rest"),
    [
        (f"<think> a </think>b {BLOCK} c", "a", "b  c"),
        (f"a</think>{BLOCK}b", "a", "b"),
        ("<think>a</think><think>b</think>c", "a", "c"),
        ("plain<|im_end|>", "", "plain"),
    ],
)
def test_thinking_and_the_rest(text, thinking, rest):
    assert tool_protocol.parse_qwen_thinking(text) == thinking
    assert tool_protocol.strip_qwen_special_blocks(text) == rest


def test_tool_definitions_are_provider_neutral_and_of_their_own():
    for name in ("PYTHON", "TERMINAL", "BASH", "WEBTERMINAL", "SEARCH", "SUBMIT"):
        definition = getattr(tool_protocol, f"GPTOSS_{name}_TOOL")
        assert list(definition) == ["name", "description", "parameters"]
        assert definition == tool_protocol.TOOL_SPECS[name.lower()]
        assert definition is not tool_protocol.TOOL_SPECS[name.lower()]


def test_label_rows_from_a_judged_conversation():
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "<output> the text </output>"},
        {"role": "assistant", "content": "<feedback>x</feedback><label>Fail</label>"},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "<think><label>a</label></think><feedback>f</feedback><label> Pass </label>"},
        {"role": "assistant", "content": "no label"},
    ]
    assert jtc_label_reward.split_sft_row_for_label_rl({"messages": messages}) == {
        "prompt": messages[:2],
        "answer": "Pass",
        "output": "the text",
    }
    assert jtc_label_reward.split_sft_row_for_label_rl({"messages": messages[:2]}) is None
    assert jtc_label_reward.split_sft_row_for_label_rl({"prompt": "p"}) is None


def test_labels_and_feedback():
    text = "<feedback> f </feedback><label> PASS  it </label>"
    assert (jtc_label_reward.extract_label(text), jtc_label_reward.extract_feedback(text)) == ("PASS  it", "f")
    assert jtc_label_reward.normalize_label("PASS  it") == "pass it"
    assert jtc_label_reward.normalize_label("  ") is None
    assert jtc_label_reward.extract_label("<label>a</label><label>b</label>") is None
