"""Tool calls in every wire format: tables, round trips of random calls, hostile text."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primebeaker.environments._shared.code_block import code_of
from primebeaker.environments._shared.commands import stage_names, url_is_in_output
from primebeaker.environments._shared.options import option_of
from primebeaker.environments._shared.search_answers import extracted_answer
from primebeaker.environments._shared.thinking import without_thinking
from primebeaker.environments._shared.tool_calls import (
    BrokenCall,
    ToolCall,
    is_malformed,
    message_calls,
    said_text,
    text_calls,
    without_call_blocks,
)
from primebeaker.environments._shared.tool_specs import TOOL_SPECS, check_call, parameter_schemas
from primebeaker.environments._shared.verdicts import final_verdict, is_strict_verdict, xml_verdict
from primebeaker.runtime.json_spans import json_spans
from primebeaker.runtime.json_utils import extract_json_from_response

SCHEMAS = {
    **parameter_schemas(()),
    "typed": {
        "properties": {
            "n": {"type": "integer"},
            "x": {"type": "number"},
            "b": {"type": "boolean"},
            "o": {"type": "object"},
            "a": {"type": "array"},
            "s": {"type": ["string", "null"]},
        },
        "required": [],
    },
}
LS = ToolCall("terminal", {"command": "ls"})


def call_block(value):
    return f"<tool_call>{value if isinstance(value, str) else json.dumps(value)}</tool_call>"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>a</think> b", "b"),
        ("a</think>b<|im_end|>", "b"),
        ("<think>a</think>b</think>c", "c"),
        ("<redacted_thinking>z</redacted_thinking>q<|return|>", "q"),
        ('x <think>never closed {"label":"p"}', "x"),
        ("<THINK>a\nb</Think>c<|EndOfText|>", "c"),
        ("<redacted_thinking>open", ""),
        ("a<think>b</redacted_thinking>c</think>d", "ad"),
        ("<thi<think>x</think>nk>y", ""),
        ("", ""),
    ],
)
def test_thinking_is_removed(text, rest):
    assert without_thinking(text) == rest


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (call_block({"name": "terminal", "arguments": {"command": "ls"}}), [LS]),
        (call_block({"name": "terminal", "arguments": '{"command":"ls"}'}), [LS]),
        (call_block({"name": " terminal ", "parameters": {"command": "ls"}, "more": 1}), [LS]),
        (call_block({"name": "terminal"}), [ToolCall("terminal", {})]),
        (call_block({"name": "terminal", "arguments": None}), [ToolCall("terminal", {})]),
        (
            call_block({"name": "terminal", "arguments": {"command": "echo </tool_call> }{"}}),
            [ToolCall("terminal", {"command": "echo </tool_call> }{"})],
        ),
        ('{"name":"terminal","arguments":{"command":"ls"}}', []),
        (f"<think>{call_block({'name': 'x'})}</think>{call_block({'name': 'y'})}", [ToolCall("y", {})]),
        ("no call </tool_call>", []),
    ],
)
def test_json_blocks(text, calls):
    assert text_calls(text, SCHEMAS) == calls


@pytest.mark.parametrize(
    "text",
    [
        call_block({"name": "terminal", "arguments": "ls"}),
        call_block({"name": "terminal", "arguments": [1]}),
        call_block({"name": " ", "arguments": {}}),
        call_block({"arguments": {}}),
        call_block("{bad}") + call_block({"name": "terminal"}),
        call_block('{"name":"x","arguments":{"a":NaN}}'),
        call_block("[1]"),
        call_block(""),
        call_block('{"name":"x"} trailing'),
        '<tool_call>{"name":"x"}',
        "<tool_call>",
        call_block("<function=x>"),
        call_block("<function=a b><parameter=k>v</parameter></function>"),
        call_block("<function=x><parameter=k>v</function>"),
        call_block("<function=x>text<parameter=k>v</parameter></function>"),
        call_block("<function=x><parameter=k>v</parameter>text</function>"),
        call_block("<function=x><parameter=k>1</parameter><parameter=k>2</parameter></function>"),
        call_block("<function=typed><parameter=n>1.5</parameter></function>"),
        call_block("<function=typed><parameter=b>yes</parameter></function>"),
        "<|start|>assistant to=functions.unknown<|message|>plain<|call|>",
        "<|start|>assistant to=terminal<|message|>{bad<|call|>",
    ],
)
def test_malformed_messages(text):
    assert is_malformed(text_calls(text, SCHEMAS))


def test_a_good_call_beside_a_bad_one_is_found():
    calls = text_calls(call_block("{bad}") + call_block({"name": "terminal", "arguments": {"command": "ls"}}), SCHEMAS)
    assert isinstance(calls[0], BrokenCall) and calls[1] == LS


@pytest.mark.parametrize(
    ("name", "parameter", "value", "read"),
    [
        ("terminal", "command", "123", "123"),
        ("terminal", "command", "true", "true"),
        ("terminal", "command", '"a b"', '"a b"'),
        ("terminal", "command", '{"a":1}', '{"a":1}'),
        ("terminal", "command", "\n  a\n\n", "  a\n"),
        ("terminal", "command", "\r\na\r\n", "a"),
        ("terminal", "command", "x </parameter> y </function> z", "x </parameter> y </function> z"),
        ("typed", "n", "5", 5),
        ("typed", "x", "\n1.5\n", 1.5),
        ("typed", "x", "2", 2),
        ("typed", "b", "true", True),
        ("typed", "o", '{"a":1}', {"a": 1}),
        ("typed", "a", "[1]", [1]),
        ("typed", "s", "null", "null"),
        ("typed", "unknown", "5", 5),
        ("typed", "unknown", "five", "five"),
        ("never_heard_of", "k", "[1]", [1]),
    ],
)
def test_xml_blocks_are_typed_by_the_schema(name, parameter, value, read):
    text = call_block(f"\n<function={name}>\n<parameter={parameter}>{value}</parameter>\n</function>\n")
    assert text_calls(text, SCHEMAS) == [ToolCall(name, {parameter: read})]


@pytest.mark.parametrize(
    ("text", "calls", "said"),
    [
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.terminal "
            '<|constrain|>json<|message|>{"command":"ls"}<|call|>',
            [LS],
            "",
        ),
        ("<|start|>assistant to=terminal<|channel|>commentary<|message|>ls<|call|>", [LS], ""),
        ("<|channel|>final<|message|>done<|return|>", [], "done"),
        ('<|channel|>analysis<|message|>{"label":"x"} to=terminal', [], ""),
        ("<|channel|>analysis<|message|>" + call_block({"name": "x"}), [], ""),
        ("<|message|>plain", [], "plain"),
        ("only <|channel|> here", [], "only <|channel|> here"),
    ],
)
def test_harmony(text, calls, said):
    assert text_calls(text, SCHEMAS) == calls
    assert said_text(text) == said


@pytest.mark.parametrize(
    ("entry", "call"),
    [
        ({"id": "1", "name": "terminal", "arguments": '{"command":"ls"}'}, LS._replace(id="1")),
        ({"id": "1", "function": {"name": "terminal", "arguments": {"command": "ls"}}}, LS._replace(id="1")),
        ({"function": {"name": "terminal", "arguments": ""}}, ToolCall("terminal", {})),
        ({"name": "terminal"}, ToolCall("terminal", {})),
        ({"name": "", "arguments": "{}"}, None),
        ({"name": "terminal", "arguments": '{"command":"ls"} x'}, None),
        ("no object", None),
    ],
)
def test_structured_calls_come_first(entry, call):
    message = {"content": call_block({"name": "other"}), "tool_calls": [entry]}
    found = message_calls(message, SCHEMAS)
    assert len(found) == 1
    assert found == [call] if call else isinstance(found[0], BrokenCall)


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(min_size=1), values, max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(names, arguments), min_size=1, max_size=4), st.sampled_from(["\n", " ", ""]))
def test_json_calls_round_trip(calls, space):
    """Whatever a call holds comes out of the text and the structured form as it went in."""
    blocks = [call_block(f"{space}{json.dumps({'name': name, 'arguments': args})}{space}") for name, args in calls]
    wanted = [ToolCall(name, args) for name, args in calls]
    assert text_calls(space.join(blocks), SCHEMAS) in (wanted, _if_thinking(blocks, wanted))
    structured = [{"id": "i", "function": {"name": name, "arguments": json.dumps(args)}} for name, args in calls]
    assert message_calls({"tool_calls": structured}, SCHEMAS) == [call._replace(id="i") for call in wanted]


def _if_thinking(blocks, wanted):
    text = "".join(blocks).lower()
    tags = ("<think>", "</think>", "redacted_thinking>", "<|channel|>", "<|message|>")
    return text_calls("".join(blocks), SCHEMAS) if any(tag in text for tag in tags) else wanted


plain_text = st.text(alphabet=st.characters(exclude_characters="<\r"))


@settings(max_examples=150, deadline=None)
@given(plain_text)
def test_xml_and_harmony_values_round_trip(command):
    xml = call_block(f"<function=terminal><parameter=command>\n{command}\n</parameter></function>")
    assert text_calls(xml, SCHEMAS) == [ToolCall("terminal", {"command": command})]
    body = json.dumps({"command": command})
    harmony = f"<|start|>assistant to=functions.terminal<|channel|>commentary<|message|>{body}<|call|>"
    assert text_calls(harmony, SCHEMAS) == [ToolCall("terminal", {"command": command})]


pieces = st.sampled_from(
    ["<tool_call>", "</tool_call>", "{", "}", "[", "]", '"', "\\", ":", ",", "<think>", "</think>", "<function=x>",
     "</function>", "<parameter=k>", "</parameter>", "<|channel|>final", "<|message|>", "<|end|>", "<|start|>", "a", "1",
     "\n", "<label>", "</label>", "<feedback>", "</feedback>", "<code>", "```python\n", "\n```", "</code>", " to=terminal",
     '{"feedback":"f","label":"p"}']
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(pieces, max_size=25).map("".join))
def test_no_text_raises(text):
    text_calls(text, SCHEMAS)
    said = said_text(text)
    final_verdict(without_call_blocks(said, {}))
    xml_verdict(said)
    code_of(said)
    option_of(said)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(["{", "}", "[", "]", '"', ",", ":", "1", " ", "a", '{"feedback":"f","label":"p"}', '"k"']),
        max_size=14,
    )
)
def test_verdict_scan_agrees_with_the_rule_written_plainly(parts):
    """At a bracket take the value that starts there when it parses, and go on behind it; else one character later."""
    text = "".join(parts)
    decoder, found, position = json.JSONDecoder(), [], 0
    while position < len(text):
        if text[position] in "{[":
            try:
                value, position = decoder.raw_decode(text, position)
            except ValueError:
                position += 1
                continue
            if isinstance(value, dict) and value == {"feedback": "f", "label": "p"}:
                found.append(value)
        else:
            position += 1
    assert (final_verdict(text) is not None) == bool(found)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["{", "}", "[", "]", '"', '\\"', ",", ":", "1", " ", "[]", "{}", "[[],", "[1,", '{"a":', '"k":', "],", "},"]
        ),
        max_size=30,
    ).map("".join)
)
def test_values_after_many_broken_ones_are_those_that_parse(text):
    """The parser that takes over in hostile text finds what the plain rule finds."""
    text = "{[1,}" * 6 + text
    decoder, found, position = json.JSONDecoder(), [], 0
    while position < len(text):
        if text[position] in "{[":
            try:
                _, end = decoder.raw_decode(text, position)
            except ValueError:
                position += 1
                continue
            found.append((position, end))
            position = end
        else:
            position += 1
    assert [tuple(span) for span in json_spans(text)] == found


VERDICT = '{"feedback":"f","label":"p"}'
HOSTILE = [
    "<tool_call>{", "<parameter=", "{", "[", "<", "<think>", "</think>", "<tool_call>", "<tool_call><function=a>", '{"a":',
    "<tool_call><function=a><parameter=b>", '["', "[1,", '{"a":"', "</function> ", "<|channel|>", "<|message|>", "<label>",
    "<|start|>a to=b<|message|>", "<feedback>", "<code>```python\n", "```", "\\", '"', "I ", " ",
    "<tool_call>{</tool_call>", "<tool_call>{}</tool_call>", "<tool_call><function=a></tool_call>", "[0,", "[[],",
    '{"a":{},"b":', "```json{", "```json\n{\n", "{}", '{"feedback":"f","label":"p"}', '["a",[',
    "<|channel|>final<|message|>{", "<output>", "```jsonx", "browse ",
]  # fmt: skip
#: Texts whose repeated part is slow within something else only: before, repeated, after.
ENCLOSED = [
    *(("", unit, "</tool_call>") for unit in HOSTILE),
    ("<tool_call><function=a>", "<parameter=", "</function></tool_call>"),
    ("<tool_call><function=a>", "</function> ", "</tool_call>"),
    (VERDICT, "[[],", "]"),
    (VERDICT, "[0,", "]"),
    ("{", '"', "```"),
    ('rg "', "\\\\", ""),
    ("see http://x", ")", ""),
    ("```json", "a", ""),
]


@pytest.mark.parametrize(("before", "unit", "after"), ENCLOSED)
def test_a_megabyte_of_hostile_text_is_read_in_one_pass(before, unit, after):
    """Ten times the text takes about ten times as long; a quadratic reader would take a hundred times."""

    def seconds(size):
        text = before + (unit * (size // len(unit) + 1))[:size] + after
        started = time.process_time()
        text_calls(text, SCHEMAS)
        said = said_text(text)
        final_verdict(without_call_blocks(said, {}))
        xml_verdict(said)
        code_of(said)
        option_of(said)
        extracted_answer(said)
        stage_names(text)
        url_is_in_output("http://y", text)
        extract_json_from_response(text)
        return time.process_time() - started

    seconds(1000)
    assert seconds(1_000_000) < max(40 * seconds(100_000), 2.0)


@pytest.mark.parametrize(
    ("text", "final", "strict"),
    [
        (VERDICT, True, True),
        ('{"label":" P ","feedback":"f"}', True, True),
        (f"<think>x</think>{VERDICT}", True, True),
        (f"```json\n{VERDICT}\n```", True, False),
        (f"so: {VERDICT}", True, False),
        (f'Reasoning {{"draft":1}} then {VERDICT}', True, False),
        (f'{{"feedback":"a","label":"x"}} {VERDICT}', False, False),
        (f"{VERDICT} {VERDICT}", True, False),
        (f'{VERDICT} {{"feedback":"g","label":"P"}}', True, False),
        ('{"feedback":"f","label":"p","more":1}', False, False),
        ('{"feedback":"f","label":1}', False, False),
        ('{"feedback":" ","label":"p"}', False, False),
        ('{"feedback":"f","label":"p","label":"p"}', False, False),
        (f"[{VERDICT}]", False, False),
        (f'{{"a":{VERDICT}}}', False, False),
        (f'{{"a":{VERDICT}', True, False),
        (f"<think>{VERDICT}", False, False),
        (f'{{"x": "{{", bad}} {VERDICT}', True, False),
        (call_block({"name": "x", "arguments": json.loads(VERDICT)}), False, False),
    ],
)
def test_json_verdicts(text, final, strict):
    said = without_call_blocks(said_text(text), {})
    assert (final_verdict(said) is not None, is_strict_verdict(said.strip())) == (final, strict)


@pytest.mark.parametrize(
    ("name", "given_arguments", "kind", "argument"),
    [
        ("terminal", {}, "malformed", "command"),
        ("terminal", {"command": None}, "malformed", "command"),
        ("terminal", {"command": " \n"}, "malformed", "command"),
        ("terminal", {"command": 3}, "malformed", "command"),
        ("submit", {"rubric_id": True, "feedback": "f", "label": "l"}, "malformed", "rubric_id"),
        ("terminal", {"command": "ls", "contents": "x"}, "refused", "contents"),
        ("terminal", {"command": "ls", "truncation": 10**9}, "refused", "truncation"),
        ("search", {"query": "q", "parameters": {}}, "refused", "parameters"),
        ("search", {"query": "q", "num_results": "5"}, "refused", "num_results"),
        ("search", {"query": "q", "num_results": 99}, None, None),
        ("submit", {"rubric_id": 3, "feedback": "f", "label": "l"}, None, None),
    ],
)
def test_arguments_of_a_call_are_checked(name, given_arguments, kind, argument):
    used, finding = check_call(name, given_arguments, TOOL_SPECS[name]["parameters"])
    assert (finding and finding.kind, finding and finding.argument) == (kind, argument)
    if name == "search" and finding is None:
        assert used["num_results"] == 10
